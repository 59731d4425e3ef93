"""Lets the tests of this folder import what they share."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # importmode=importlib adds no folder
