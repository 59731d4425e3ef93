"""Unpack what `scripts/gpu/bundle.py` packed, on the host; needs the standard library only.

    python3 scripts/gpu/install.py SITE FOLDER...

A folder whose checksums differ, or that was packed for another Python, is refused with what to do. One that
is there already is not unpacked again.
"""

import hashlib
import sys
import tarfile
from pathlib import Path


def install(folder: Path, site: Path) -> None:
    """Unpack one folder's archives below `site`."""
    python = (folder / "PYTHON").read_text(encoding="utf-8").strip()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != here:
        sys.exit(
            f"{folder} was packed for Python {python}, and this is {here}: pack it again with --python {here}"
        )
    for line in (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split()
        done = site / f".{name}.{digest}"
        if done.exists():
            continue
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            sys.exit(f"{folder / name} was damaged on its way: bring the folder again")
        with tarfile.open(folder / name, "r:xz") as archive:
            archive.extractall(site, filter="data")
        done.touch()
        print("unpacked", name)


def link_cuda(site: Path) -> None:
    """Link CUDA's libraries, as PyTorch brought them, to where ONNX Runtime looks: beside itself."""
    try:
        import nvidia
    except ImportError:
        print("CUDA's libraries are not among Python's packages; the system's are taken")
        return
    folder = next((path for path in map(Path, nvidia.__path__) if path.is_dir()), None)
    if folder and not (site / "nvidia").exists():
        (site / "nvidia").symlink_to(folder)
        print("linked", site / "nvidia", "to", folder)


def main() -> None:
    """Install every folder."""
    site, folders = Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]]
    site.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        install(folder, site)
    link_cuda(site)


if __name__ == "__main__":
    main()
