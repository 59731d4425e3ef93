"""Notes that the user did not ask for but wants to know: overrides without effect, graphs that surprise."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from campo_onnx.errors import UsageError
from campo_onnx.wording import duration

from .render.console import print_note, print_warning
from .render.plan import recorded

if TYPE_CHECKING:
    from campo_onnx.ir.importer import Imported
    from campo_onnx.ir.view import GraphView
    from campo_onnx.optimize.lists.oplists import OpLists
    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized


NO_OPERATORS: Mapping[str, Sequence[str] | None] = MappingProxyType({})


def report_unmatched(
    view: "GraphView",
    *,
    operators: Mapping[str, Sequence[str] | None] = NO_OPERATORS,
    keep_fp32: Sequence[str] | None = None,
    lists: "OpLists | None" = None,
    strict: bool = False,
) -> None:
    """Warn of overrides that match nothing.

    If `strict`, the first is a UsageError.
    """
    from campo_onnx.optimize.lists.overrides import unmatched

    options = {option: texts or [] for option, texts in operators.items()}
    for sentence in unmatched(view, operators=options, keep_fp32=keep_fp32 or (), lists=lists):
        if strict:
            raise UsageError(sentence, remedy="Correct it, or leave --strict out.")
        print_warning(sentence)


def _in_bf16(optimized: "Optimized", options: "Options") -> str:
    """Offer BF16, which needs no loss scale, with its predicted step; ``""`` where the device has none."""
    from dataclasses import replace

    from campo_onnx.costs.evidence import CostSource
    from campo_onnx.ops.precision import Precision
    from campo_onnx.planning.pipeline import planned

    if not options.target.computes_in(Precision.BF16):
        return ""
    offer = ", or use --precision bf16"
    if optimized.plan.source != CostSource.DATASHEET.value:
        return offer
    instead = replace(options, low=Precision.BF16, costs=CostSource.DATASHEET)
    plan = planned(optimized.imported, instead)
    low = options.low.value
    return f"{offer} ({plan.speedup:.2f}x predicted, where {low} has {optimized.plan.speedup:.2f}x)"


def sentence_of_form(imported: "Imported", runtime: str, title: str) -> str:
    """Say which passes brought a graph into the form that a runtime runs; ``""`` where none did."""
    if not imported.passes:
        return ""
    return (
        f"{title} was brought into the form that {runtime} runs best before anything else, in FP32 too "
        f"(passes {', '.join(imported.passes)})."
    )


def sentence_of_arithmetic(options: "Options") -> str:
    """Say that a device does not compute in the low precision; ``""`` where it does."""
    if options.target.computes_in(options.low):
        return ""
    return f"{options.target.name} has no {options.low.value} arithmetic, so it cannot pay there."


def note_what_surprises(
    model: Path, optimized: "Optimized", options: "Options", tried: Sequence[str] = ()
) -> tuple[str, ...]:
    """Note what of a graph, or of its device, may surprise, and what was tried on data; return the former."""
    notes = tuple(surprises(model, optimized, options))
    for is_warning, sentence in notes:
        (print_warning if is_warning else print_note)(sentence)
    for sentence in tried:
        print_note(sentence)
    return tuple(sentence for _, sentence in notes)


def _of_raised(model: Path, optimized: "Optimized") -> str:
    """Say which nodes of a file in low precision became FP32, and which FP32 nodes became low."""
    was, now = optimized.problem.low_as_given, optimized.plan.low_nodes
    low = optimized.plan.low.value
    if was == now:
        return f"{model} stays as it is: the {len(was)} nodes that are {low} in it pay."
    return (
        f"{model} has {len(was)} nodes in {low}: {len(was - now)} of them become FP32, and {len(now - was)} "
        f"others {low}. As it is, it is predicted at {duration(optimized.as_given_us or 0.0)}."
    )


def surprises(model: Path, optimized: "Optimized", options: "Options") -> Iterator[tuple[bool, str]]:
    """Yield what of a graph, or of its device, may surprise: whether it is a warning, and a sentence."""
    if sentence := sentence_of_arithmetic(options):
        yield False, sentence
    if sentence := _of_refusals(optimized, options):
        yield True, sentence
    if optimized.imported.converted_from is not None:
        yield (
            False,
            f"{model} uses opset {optimized.imported.converted_from}: it was converted to opset "
            f"{optimized.imported.view.opset['']} by onnx's version converter, and is written at that.",
        )
    if form := sentence_of_form(
        optimized.imported.given or optimized.imported, options.target.runtime.name, model.name
    ):
        yield False, form
    if optimized.imported.given is not None:
        from campo_onnx.planning.pipeline import fp32_us

        before = optimized.imported.given.view.opset[""]
        raised = optimized.imported.passes[len(optimized.imported.given.passes) :]
        yield (
            False,
            f"{options.low.name} convolutions need opset 22: the graph was raised from opset {before} before "
            f"it was planned (passes {', '.join(raised)}). As given, its FP32 step is "
            f"predicted at {duration(fp32_us(optimized.imported.given.view, options))}.",
        )
    if optimized.as_given_us is not None:
        yield False, _of_raised(model, optimized)
    if optimized.imported.stamp is not None:
        stamp = optimized.imported.stamp
        yield (
            False,
            f"{model} is already optimized (strategy {stamp.strategy}, {stamp.device}, {stamp.low}"
            f"{recorded(stamp)}) and stays as it is. To plan again, start from the FP32 file.",
        )
    elif low := optimized.unscaled_gradients:
        yield (
            True,
            f"{len(low)} nodes of the backward pass run in {options.low.value}, and the graph does not scale "
            "its loss: small gradients become zero. Export the step with loss_scale=True, as "
            "campo_onnx.export does unless told otherwise"
            f"{_in_bf16(optimized, options)}.",
        )


def _of_refusals(optimized: "Optimized", options: "Options") -> str:
    """Name a node for which the runtime does not load the graph; an empty text where it does."""
    from campo_onnx.runtime.machine import DEFAULT

    refused, runtime = optimized.refused_by(options.target), options.target.runtime.name
    if not refused:
        return ""
    op = optimized.imported.view.node[refused[0]].op.label
    if runtime == DEFAULT and op == "BatchNormalization":
        return (
            "ONNX Runtime's CUDA provider does not load this graph, in FP32 or mixed: it refuses "
            f"BatchNormalization with training_mode=1 ({len(refused)} nodes, the first is {refused[0]!r}). "
            "Export with campo_onnx.export.torch, which decomposes batch normalization."
        )
    return (
        f"{runtime} does not load this graph, in FP32 or mixed: it refuses {len(refused)} "
        f"nodes, the first is {refused[0]!r} ({op})."
    )
