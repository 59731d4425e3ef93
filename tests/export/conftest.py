"""Lets the tests of this folder import the zoo of models, which is part of the benchmarks."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "zoo"))  # the benchmarks are no package
