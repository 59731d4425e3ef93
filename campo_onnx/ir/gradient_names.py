"""Names of the nodes and tensors that ONNX Runtime's gradient builder adds."""

_NODE_MARK = "_Grad/"
_SUM_PREFIX = "AccumulateGrad_"
_TENSOR_SUFFIX = "_grad"


def gradient_of(tensor: str) -> str:
    """Name the gradient of a tensor; it has the tensor's shape.

    >>> gradient_of("x"), differentiated_tensor(gradient_of("x"))
    ('x_grad', 'x')
    """
    return f"{tensor}{_TENSOR_SUFFIX}"


def differentiated_tensor(name: str) -> str | None:
    """Name the tensor whose gradient a tensor is; None if its name does not say so."""
    return name.removesuffix(_TENSOR_SUFFIX) if name.endswith(_TENSOR_SUFFIX) else None


def differentiated_node(node: str) -> str | None:
    """Name the node that a backward node differentiates; None if its name does not say so.

    >>> differentiated_node("encoder/MatMul_Grad/FusedMatMul_0")
    'encoder/MatMul'
    """
    differentiated, mark, _ = node.partition(_NODE_MARK)
    return differentiated if mark else None


def summed_tensor(node: str) -> str | None:
    """Name the tensor whose gradients a node sums; None if its name does not say so.

    >>> summed_tensor("AccumulateGrad_hidden_grad")
    'hidden'
    """
    return differentiated_tensor(node.removeprefix(_SUM_PREFIX)) if node.startswith(_SUM_PREFIX) else None
