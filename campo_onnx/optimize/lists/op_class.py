"""The classes of operators."""

from enum import Enum


class OpClass(Enum):
    """The class of an operator under the lists, in TensorFlow's sense."""

    ALLOW = "allow"
    """Numerically safe in low precision and much faster there: goes low wherever that pays."""
    INFER = "infer"
    """Safe unless an unsafe value reaches it: goes low between low operators."""
    CLEAR = "clear"
    """Has no numerical effect of its own: takes the precision around it."""
    DENY = "deny"
    """Unsafe in low precision: stays FP32 and makes what it computes unsafe."""
    UNLISTED = "unlisted"
    """Known, and on none of the four lists: stays FP32; unsafety neither starts here nor passes on."""
    UNKNOWN = "unknown"
    """Never heard of: stays FP32, and a report names it."""


MAY_BE_LOW = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR)
"""Classes of nodes that a strategy may choose to lower."""
