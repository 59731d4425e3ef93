"""Name the oldest release of dependencies that pyproject.toml admits on this machine, for pip.

python scripts/oldest_versions.py onnx onnxruntime
"""

import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def oldest(names: Sequence[str]) -> Iterator[str]:
    """Yield ``name==version`` of each named dependency that this machine needs.

    Examples
    --------
    >>> list(oldest(["msgspec"]))
    ['msgspec==0.20']
    """
    for line in tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]:
        needed = Requirement(line)
        if needed.name in names and (needed.marker is None or needed.marker.evaluate()):
            (least,) = (one.version for one in needed.specifier if one.operator == ">=")
            yield f"{needed.name}=={least}"


if __name__ == "__main__":
    print(*oldest(sys.argv[1:]))
