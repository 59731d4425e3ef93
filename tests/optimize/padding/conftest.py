"""A graph lowered and padded as far as it goes."""

import pytest

from campo_onnx.ir.constants import is_external
from campo_onnx.optimize.padding.alignment import open_axes
from campo_onnx.optimize.padding.choose import PadLimits, pad
from campo_onnx.optimize.plan.rewrite import rewrite
from tests.optimize.padding.padded import GENEROUS, Pair


@pytest.fixture(scope="session")
def pad_all(lower):
    """Lower the named nodes, or all, and pad whatever can be padded."""

    def pad_all(source, low=None, dims=None):
        lowered = lower(source, low, dims=dims)
        limits = PadLimits(
            stored=frozenset(n for n, t in lowered.imported.constants.items() if not is_external(t)),
            open_axes=open_axes(lowered.imported, dims or {}),
        )
        plan = pad(lowered.problem, lowered.plan, GENEROUS, limits)
        return Pair(plan=plan, model=rewrite(lowered.imported, plan), unpadded=lowered.model)

    return pad_all
