"""Options of the pass, checked before torch is loaded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from campo_onnx.errors import UsageError, did_you_mean
from campo_onnx.integrations.trial.script import check_torch
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.lists.list_file import resolve
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, strategy_called

if TYPE_CHECKING:
    from campo_onnx.integrations.inductor.graph_pass import PrecisionPass
    from campo_onnx.integrations.inductor.times import Clock


def inductor_pass(
    precision: str | Precision = Precision.BF16,
    *,
    lists: str | OpLists | None = None,
    keep_fp32: Sequence[str] = (),
    clock: "Clock | None" = None,
) -> "PrecisionPass":
    """Make a pass that plans precision within ``torch.compile``, by measured times of torch's own kernels.

    >>> options = {"joint_custom_pre_pass": inductor_pass("bf16")}  # doctest: +SKIP
    >>> model = torch.compile(model, options=options)  # doctest: +SKIP

    Parameters
    ----------
    precision
        The low precision, ``"bf16"`` or ``"fp16"``. FP16 needs a ``GradScaler``.
    lists
        Op lists, or the name of a preset or path of a list file; by default those of the default strategy.
    keep_fp32
        Regular expressions for modules, operations (``aten.bmm.default``) or names of nodes that stay FP32.
    clock
        Gives times of kernels; by default they are measured here, once.

    Raises
    ------
    UsageError
        If there is no such precision, list or expression, or PyTorch is not installed.
    """
    check_torch("a plan in torch's compiler")
    from campo_onnx.integrations.inductor.graph_pass import PrecisionPass
    from campo_onnx.integrations.inductor.times import MeasuredClock

    names = [low.value for low in low_precisions()]
    named = precision.value if isinstance(precision, Precision) else precision
    if named not in names:
        raise UsageError(f"unknown precision {named!r}", remedy=did_you_mean(str(named), names))
    if isinstance(keep_fp32, str):
        raise UsageError("keep_fp32 is a single string", remedy="Give a list of regular expressions.")
    if not isinstance(lists, OpLists):
        lists = resolve(lists or strategy_called(DEFAULT_STRATEGY).default_lists)
    return PrecisionPass(Precision(named), lists, keep_fp32, clock or MeasuredClock())
