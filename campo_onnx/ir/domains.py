"""One spelling of the standard domain, so that nothing behind the importer need know the other."""

from collections.abc import Iterable

from onnx import FunctionProto, ModelProto, NodeProto

from campo_onnx.ir.sort import with_bodies
from campo_onnx.ops.key import short_domain


def shorten_domains(model: ModelProto) -> None:
    """Write the standard domain as ``""`` wherever a model writes ``ai.onnx``, in place."""
    _shorten_imports(model)
    _shorten(model.graph.node)
    for function in model.functions:
        function.domain = short_domain(function.domain)
        _shorten_imports(function)
        _shorten(function.node)


def _shorten_imports(owner: ModelProto | FunctionProto) -> None:
    if all(opset.domain == short_domain(opset.domain) for opset in owner.opset_import):
        return
    versions = {(short_domain(opset.domain), opset.version): None for opset in owner.opset_import}
    del owner.opset_import[:]
    for domain, version in versions:
        owner.opset_import.add(domain=domain, version=version)


def _shorten(nodes: Iterable[NodeProto]) -> None:
    for node in with_bodies(nodes):
        domain = short_domain(node.domain)
        if domain != node.domain:
            node.domain = domain
