"""What operators are called."""

from typing import NamedTuple


class OpKey(NamedTuple):
    """What an operator is called: ``("", "Conv")`` or ``("com.microsoft", "ConvGrad")``.

    Examples
    --------
    >>> OpKey("com.microsoft", "ConvGrad").label
    'com.microsoft:ConvGrad'
    >>> OpKey.parse("Conv")
    OpKey(domain='', op_type='Conv')
    """

    domain: str
    op_type: str

    @property
    def label(self) -> str:
        """The name as users write it: the domain is left out for standard ops."""
        return f"{self.domain}:{self.op_type}" if self.domain else self.op_type

    @classmethod
    def parse(cls, label: str) -> "OpKey":
        """Read :attr:`label` back."""
        domain, _, op_type = label.rpartition(":")
        return cls("" if domain == "ai.onnx" else domain, op_type)
