"""A population of random networks, planned by every strategy."""

from typing import Any

DEVICES = ("v100", "rtx2080ti", "h200")
ALL_FP16 = "all-fp16"
UNPADDED = "optimal-unpadded"
OPTIMAL = "optimal"
BY_LISTS = (ALL_FP16, "tf-amp", "torch-amp", "nvidia-amp")
PLANNED = (*BY_LISTS, "fine-grained", "campo", UNPADDED, OPTIMAL)
"""All FP16, and strategies, each with its own default lists."""

FAMILIES = ("alexnet", "alexnet", "alexnet", "resnet", "transformer")
"""Family of a network by its number: the paper's own make three fifths."""

Row = dict[str, Any]
