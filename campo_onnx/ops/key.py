"""Names of operators: domain and type."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onnx import NodeProto

MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""

ATEN = "org.pytorch.aten"
"""Domain of PyTorch's operators that ONNX Runtime hands back to PyTorch."""

_STANDARD = "ai.onnx"


def short_domain(domain: str) -> str:
    """Return a domain as it is written everywhere here: ``""`` for the standard one.

    Files may spell the standard domain ``ai.onnx``; the importer and :meth:`OpKey.parse` pass what
    they read through this function, so that nothing behind them need know the other spelling.

    >>> short_domain("ai.onnx"), short_domain("com.microsoft")
    ('', 'com.microsoft')
    """
    return "" if domain == _STANDARD else domain


class OpKey(NamedTuple):
    """The name of an operator: ``("", "Conv")`` or ``("com.microsoft", "ConvGrad")``.

    >>> OpKey("com.microsoft", "ConvGrad").label
    'com.microsoft:ConvGrad'
    >>> OpKey.parse("Conv")
    OpKey(domain='', op_type='Conv')
    """

    domain: str
    op_type: str

    @classmethod
    def of(cls, node: "NodeProto") -> "OpKey":
        """The operator of a node in a file."""
        return cls(short_domain(node.domain), node.op_type)

    @property
    def label(self) -> str:
        """The name as users write it: the domain is left out for standard ops."""
        return f"{self.domain}:{self.op_type}" if self.domain else self.op_type

    @classmethod
    def parse(cls, label: str) -> "OpKey":
        """Read :attr:`label` back."""
        domain, _, op_type = label.rpartition(":")
        return cls(short_domain(domain), op_type)


def op_keys(labels: str) -> frozenset[OpKey]:
    """Read several labels in one text.

    >>> sorted(op_keys("Add com.microsoft:BiasAdd"))
    [OpKey(domain='', op_type='Add'), OpKey(domain='com.microsoft', op_type='BiasAdd')]
    """
    return frozenset(map(OpKey.parse, labels.split()))


CAST, CONSTANT = OpKey("", "Cast"), OpKey("", "Constant")
