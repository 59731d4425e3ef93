"""Pools of workers: this process, processes of this machine, or a Ray cluster."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from campo_onnx.errors import UsageError
from campo_onnx.scale.local import LocalPool
from campo_onnx.scale.work import Pool


def pool_for(
    workers: int = 1, cluster: str = "", *, needs: Sequence[str] = ("campo_onnx",)
) -> AbstractContextManager[Pool]:
    """Choose the workers.

    `cluster`: address of a Ray cluster, in place of them: see :class:`campo_onnx.scale.cluster.RayPool`.
    `needs`: packages that every worker must be able to import.
    """
    if workers < 1:
        raise UsageError(f"{workers} workers were asked for", remedy="Give 1 or more.")
    if not cluster:
        return LocalPool(workers)
    from campo_onnx.scale.cluster import LOCAL, RayPool

    if workers > 1 and cluster != LOCAL:
        raise UsageError(
            "both --workers and --cluster ADDRESS are given",
            remedy="Leave one out: a cluster has its own workers.",
        )

    return RayPool(cluster, workers=workers, needs=needs)
