"""One spelling of the standard domain, so that nothing behind the importer need know the other."""

from collections.abc import Iterable

from onnx import ModelProto, NodeProto, OperatorSetIdProto

from campo_onnx.ir.sort import bodies
from campo_onnx.ops.key import short_domain


def shorten_domains(model: ModelProto) -> None:
    """Write the standard domain as ``""`` wherever a model writes ``ai.onnx``, in place."""
    if not any(opset.domain != short_domain(opset.domain) for opset in _imports(model)):
        return  # nodes of a domain that is not imported are refused as such
    versions = {short_domain(opset.domain): opset.version for opset in model.opset_import}
    del model.opset_import[:]
    for domain, version in versions.items():
        model.opset_import.add(domain=domain, version=version)
    _shorten(model.graph.node)
    for function in model.functions:
        function.domain = short_domain(function.domain)
        for opset in function.opset_import:
            opset.domain = short_domain(opset.domain)
        _shorten(function.node)


def _imports(model: ModelProto) -> Iterable[OperatorSetIdProto]:
    yield from model.opset_import
    for function in model.functions:
        yield from function.opset_import


def _shorten(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        node.domain = short_domain(node.domain)
        for body in bodies(node):
            _shorten(body.node)
