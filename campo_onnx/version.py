"""The version of this package, and a fingerprint of its source: everybody reads them here."""

from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).parent


VERSION: str


def __getattr__(name: str) -> str:
    """``VERSION``, read when somebody wants it: most starts of the program do not."""
    if name != "VERSION":
        raise AttributeError(name)
    return _installed()


@cache
def _installed() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("campo-onnx")
    except PackageNotFoundError:  # run from a source tree that is not installed, as on an offline GPU host
        return "0+source"


@cache
def source_digest() -> str:
    """Fingerprint of every file of the package: rules, presets, kernel tables and figures of devices.

    Two versions of a source tree often share :data:`VERSION`; whatever is kept between runs and follows
    from the rules is filed under both.
    """
    import hashlib

    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(_SOURCE.rglob("*")):
        if path.is_file() and path.parent.name != "__pycache__":
            content = path.read_bytes()
            digest.update(f"{path.relative_to(_SOURCE).as_posix()}:{len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
