"""Build the wheel and the sdist, and try them as a newcomer would: fresh environments, the example, no GPU.

    python scripts/check_package.py [--full]

Under every Python of the tested range that is on this machine the wheel is installed slim, as docs/install.md
shows it (without ONNX Runtime), and runs its demo. With --full, the whole of it is installed once, too.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
IN_SDIST = (
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "mkdocs.yml",
    "docs/index.md",
    "tests/conftest.py",
)
IN_WHEEL = ("campo_onnx/py.typed", "campo_onnx_cli/data/bert_layer.onnx", "campo_onnx/ops/presets.csv")


def run(*words: str | Path, folder: Path | None = None) -> str:
    """Run a command; what it printed is shown where it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=env, text=True, capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def interpreters() -> Iterator[tuple[str, str]]:
    """Every Python of the tested range that runs here."""
    for version in VERSIONS:
        folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"), reverse=True)
        places = [*(str(folder / "python") for folder in folders), shutil.which(f"python{version}")]
        for place in filter(None, places):
            told = subprocess.run([place, "--version"], text=True, capture_output=True, check=False).stdout
            if told.startswith(f"Python {version}."):
                yield version, place
                break
        else:
            print(f"Python {version}: not on this machine, not tried")


def environment(python: str, folder: Path, *packages: str | Path) -> Path:
    """Make an environment with some packages; returns its folder of programs."""
    run(python, "-m", "venv", folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    if packages:
        run(programs / "python", "-m", "pip", "install", "--quiet", *packages)
    return programs


def built(scratch: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel out of it; look into both."""
    tools = environment(sys.executable, scratch / "tools", "build", "twine")
    dist = scratch / "dist"
    run(tools / "python", "-m", "build", "--outdir", dist, ROOT)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    run(tools / "python", "-m", "twine", "check", "--strict", sdist, wheel)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SDIST if name not in names]
    with zipfile.ZipFile(wheel) as archive:
        missing += [name for name in IN_WHEEL if name not in archive.namelist()]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}")
    (ROOT / "dist").mkdir(exist_ok=True)
    for path in (sdist, wheel):
        shutil.copy(path, ROOT / "dist")
    return sdist, wheel


def tried_slim(version: str, python: str, wheel: Path, scratch: Path) -> str:
    """Install the wheel without ONNX Runtime, and run the demo."""
    programs = environment(
        python, scratch / f"slim-{version}", "--requirement", ROOT / "requirements-slim.txt"
    )
    run(programs / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    folder = scratch / f"demo-{version}"
    folder.mkdir()
    told = run(programs / "campo-onnx", "demo", folder=folder)
    if not re.search(r"\(\d+\.\d+x\)", told):
        sys.exit(f"the demo says: {told}")
    run(programs / "campo-onnx", "explain", "campo_demo/plan.json", "intermediate/Gemm", folder=folder)
    run(programs / "campo-onnx", "compare", "campo_demo/bert_layer.onnx", "--device", "h200", folder=folder)
    size = sum(path.stat().st_size for path in (scratch / f"slim-{version}").rglob("*") if path.is_file())
    return f"Python {version}: slim install of {size / 1e6:.0f} MB, demo runs without ONNX Runtime"


def tried_full(wheel: Path, scratch: Path) -> str:
    """Install the wheel with all it needs, run the demo and check its result."""
    programs = environment(sys.executable, scratch / "full", wheel)
    folder = scratch / "demo-full"
    folder.mkdir()
    run(programs / "campo-onnx", "demo", folder=folder)
    mixed, model = "campo_demo/bert_layer.mixed.onnx", "campo_demo/bert_layer.onnx"
    run(programs / "campo-onnx", "check", mixed, "--against", model, folder=folder)
    return "full install: demo runs, and check passes on its result"


def main() -> None:
    """Build, look, install, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="also install everything, and check the example")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        sdist, wheel = built(scratch)
        for path in (sdist, wheel):
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
        with ThreadPoolExecutor(max_workers=2) as pool:
            for line in pool.map(lambda one: tried_slim(*one, wheel, scratch), [*interpreters()]):
                print(line)
        if asked.full:
            print(tried_full(wheel, scratch))


if __name__ == "__main__":
    main()
