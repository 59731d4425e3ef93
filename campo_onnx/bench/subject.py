"""Former home of :func:`~campo_onnx.bench.graphs.read_graphs`, under the name that was documented."""

from campo_onnx.bench.graphs import read_graphs as read_subjects

__all__ = ["read_subjects"]
