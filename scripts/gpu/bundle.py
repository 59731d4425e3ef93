"""Pack what an offline GPU host lacks into folders that travel one at a time, together with the checkout.

    python -m scripts.gpu.bundle [--python 3.12] [--architecture 90] [GRAPH.onnx ...]

The host is x86-64 Linux with CUDA, cuDNN, PyTorch, NumPy, SciPy and onnx, but without a network. `.gpu/1`
holds all that plans, benches and calibrations need; `.gpu/2` what profiles need besides. onnxruntime-gpu is
too large to carry whole: of its CUDA library only code for the host's GPU is left, and of that only kernels
that training steps run (`fatbin.py`).
On the host, `bash scripts/gpu/lease.sh` installs what it finds.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from scripts.gpu.fatbin import keep_only

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
LIMIT_BYTES = 62 * MIB
"""Limit for one folder and the project's tracked files together."""

NEEDED = ("onnxruntime-gpu==1.31.1", "onnx-graphsurgeon", "msgspec", "platformdirs", "safetensors")
FOR_PROFILES = ("polars", "polars-runtime-32")
UNUSED = (
    "libonnxruntime.so",
    "libonnxruntime_providers_tensorrt.so",
    "onnxruntime/quantization/",
    "onnxruntime/datasets/",
    "onnxruntime/tools/",
    "onnxruntime/transformers/",
)
"""Parts of ONNX Runtime's wheel that a session in Python does not load."""

_GLIBC = (39, 35, 34, 31, 28, 27, 24, 17)
_CUDA_LIBRARY = "libonnxruntime_providers_cuda.so"


def download(requirement: str, folder: Path, python: str) -> Path:
    """Fetch one wheel for the host's Python, without its dependencies."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", python, "--dest", str(folder), requirement]
    before = set(folder.glob("*.whl"))
    subprocess.run(command + [w for p in platforms for w in ("--platform", p)], check=True)
    return next(iter(set(folder.glob("*.whl")) - before))


def unpacked(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel without the parts that are not used; as a shared cache may hold it, the wheel stays."""
    tree = folder / wheel.stem
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tree, [n for n in content.namelist() if not any(part in n for part in UNUSED)])
    return tree


def archive_of(tree: Path) -> Path:
    """Compress a folder's content, with all cores."""
    plain = tree.with_suffix(".tar")
    with tarfile.open(plain, "w") as tar:
        for item in sorted(tree.iterdir()):
            tar.add(item, arcname=item.name)
    subprocess.run(["xz", "--force", "-7", "--threads=0", str(plain)], check=True)
    return plain.with_name(plain.name + ".xz")


def slim(library: Path, architecture: int) -> None:
    """Leave the code in a CUDA library that steps on one architecture run, and print what that is."""
    import zstandard

    unpacker = zstandard.ZstdDecompressor()
    kept = keep_only(
        library, architecture, lambda code, size: unpacker.decompress(code, max_output_size=size)
    )
    for fate, count in kept.entries.most_common():
        print(f"  {fate}: {count} entries, {kept.code_bytes[fate] / MIB:.1f} MiB")
    if not kept.entries["kept"] and not kept.entries["ptx"]:
        sys.exit(f"{library.name} holds no code for sm_{architecture}; choose another --architecture")


def tracked_bytes() -> int:
    """Size of the files of the checkout that travel with every folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


def pack(
    requirements: Sequence[str], target: Path, python: str, architecture: int, graphs: Sequence[Path] = ()
) -> int:
    """Fill one folder with archives and their checksums; return its size in bytes."""
    work = target / "work"
    work.mkdir(parents=True)
    for requirement in requirements:
        tree = unpacked(download(requirement, work, python), work)
        for library in tree.rglob(_CUDA_LIBRARY):
            slim(library, architecture)
        archive = archive_of(tree)
        shutil.move(archive, target / archive.name)
        shutil.rmtree(tree)
    if graphs:
        folder = work / "graphs"
        (folder / "graphs").mkdir(parents=True)
        for graph in graphs:
            shutil.copy(graph, folder / "graphs" / graph.name)
        shutil.move(archive_of(folder), target / "graphs.tar.xz")
    shutil.rmtree(work)
    archives = sorted(target.glob("*.tar.xz"))
    sums = [f"{hashlib.sha256(a.read_bytes()).hexdigest()}  {a.name}\n" for a in archives]
    (target / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    (target / "PYTHON").write_text(python, encoding="utf-8")
    for archive in archives:
        print(f"{target.name}: {archive.name} {archive.stat().st_size / MIB:.1f} MiB")
    return sum(file.stat().st_size for file in target.iterdir())


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("graphs", nargs="*", type=Path, help="training steps, from python -m benchmarks.zoo.export")
    add("--python", default="3.12", help="the host's Python")
    add("--architecture", type=int, default=90, help="compute capability of its GPU times ten")
    add("--extra", action="append", default=[], help="another wheel for the first folder, NAME==VERSION")
    add("--out", type=Path, default=ROOT / ".gpu")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    tree_bytes = tracked_bytes()
    folders = {"1": (*NEEDED, *options.extra), "2": FOR_PROFILES}
    for name, requirements in folders.items():
        graphs = options.graphs if name == "1" else ()
        size = pack(requirements, options.out / name, options.python, options.architecture, graphs)
        print(
            f"{options.out / name}: {size / MIB:.1f} MiB, with the checkout {(size + tree_bytes) / MIB:.1f}"
        )
        if size + tree_bytes > LIMIT_BYTES:
            sys.exit(f"over {LIMIT_BYTES / MIB:.0f} MiB: leave graphs out, or carry them from a clone")


if __name__ == "__main__":
    main()
