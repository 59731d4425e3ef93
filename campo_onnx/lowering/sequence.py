"""The sequences of passes, and what they make of a graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import onnx

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.portable import is_portable, mark_lowered
from campo_onnx.ir.size_ranges import ranges_of
from campo_onnx.ir.sizes.formulas import Sizes
from campo_onnx.ir.sizes.in_file import at, with_names
from campo_onnx.ir.sizes.learned import learned
from campo_onnx.ir.view import GraphView
from campo_onnx.lowering.convolutions.passes import convolutions
from campo_onnx.lowering.data_gradients import data_gradients
from campo_onnx.lowering.dropout import dropout
from campo_onnx.lowering.max_pool import max_pool
from campo_onnx.lowering.own_operators import own_operators
from campo_onnx.lowering.place import CONVOLUTIONS_IN_BF16, Choices, Place
from campo_onnx.lowering.raise_opset import raise_opset
from campo_onnx.lowering.rows_on_gpu import rows_on_gpu
from campo_onnx.lowering.sign_masks import sign_masks
from campo_onnx.lowering.unpooling import unpooling
from campo_onnx.lowering.zero_padding import zero_padding
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.schema import schema_of

Pass: TypeAlias = Callable[[Imported, Place], onnx.ModelProto]
"""Gives the model to go on with; the very model of the graph where there is nothing to change."""

FORMS: tuple[Pass, ...] = (convolutions, unpooling, own_operators, rows_on_gpu)
"""Choose among forms of one computation, in a portable step. Before :data:`AS_IT_RUNS`, which writes other
nodes for some pools."""

AS_IT_RUNS: tuple[Pass, ...] = (dropout, max_pool)
"""Avoid what the runtime refuses, or runs by a reference implementation, in any precision."""

CONVOLUTIONS_LOW: tuple[Pass, ...] = (
    sign_masks,
    dropout,
    max_pool,
    zero_padding,
    data_gradients,
    raise_opset,
)
"""Let convolutions run in BF16. Masks first: they look for Relu through max pools."""


def as_it_runs(
    imported: Imported, place: Place, dims: Mapping[str, int] | None = None, *, chooses: bool = False
) -> Imported:
    """Bring a graph into the form that a runtime runs, in FP32 as in any precision.

    Everything that is planned, timed or trained for the runtime starts from this form, the FP32 step that
    others are compared with included. It is its own form. `chooses` lets forms be chosen in any graph;
    without, only in a step that says that it is portable. Gives the object itself where it is in that form
    already; else `passes` names what changed it.
    """
    here = replace(place, opset=imported.view.opset.get("", place.opset))
    is_open = imported.stamp is None and is_portable(imported.model)
    forms = FORMS if chooses or is_open else ()
    result = lowered(imported, here, (*forms, *AS_IT_RUNS), dims)
    if result is not imported:
        mark_lowered(result.model)
    return result if result is imported else replace(result, given=imported.given)


def _at_any_size(
    imported: Imported, place: Place, passes: Sequence[Pass], dims: Mapping[str, int] | None
) -> Imported:
    """Run passes on a graph whose sizes change: at several sizes, so that the result holds at all of them.

    Forms are chosen at the example. A batch of one, where axes may be left out, is written as others are. The
    graph stays as it is where a form is not one at all sizes.
    """
    ranges = ranges_of(imported.model)
    several = {name: r._replace(least=max(r.least, min(2, r.example))) for name, r in ranges.items()}
    applied: list[str] = []
    choices = Choices()
    everywhere = replace(place, sizes_change=True, choices=choices)

    def at_sizes(sizes: Sizes) -> onnx.ModelProto:
        bound = import_model(at(imported.model, dict(zip(ranges, sizes, strict=True))), any_type=True)
        choices.again()
        result = lowered(bound, everywhere, passes)
        applied[:] = result.passes
        return result.model

    try:
        model = with_names(learned(at_sizes, several), ranges)
    except UnsupportedModelError:
        return imported
    result = import_model(model, dims, any_type=True, folder=imported.folder)
    return _lowered_from(imported, result, applied) if applied else imported


def lowered(
    imported: Imported, place: Place, passes: Sequence[Pass], dims: Mapping[str, int] | None = None
) -> Imported:
    """Run passes one after another."""
    if ranges_of(imported.model):
        return _at_any_size(imported, place, passes, dims)
    result, names = imported, []
    for rule in passes:
        model = rule(result, place)
        if model is not result.model:
            result = import_model(model, dims, any_type=True, folder=imported.folder)
            names.append(rule.__name__)
    return imported if result is imported else _lowered_from(imported, result, names)


def _lowered_from(imported: Imported, result: Imported, names: Sequence[str]) -> Imported:
    return replace(
        result,
        data_files=imported.data_files,
        converted_from=imported.converted_from,
        given=imported.given or imported,
        passes=(*imported.passes, *names),
        as_given=imported.as_given,
        low_as_given=imported.low_as_given & result.view.node.keys(),
    )


def gains_convolutions(view: GraphView, place: Place, low: Precision) -> bool:
    """Whether a newer opset admits a low precision for operators that the target runs in it.

    A graph of convolutions at opset 20 gains BF16 on CUDA, where opset 22 has it; FP16 it has already.
    """
    if view.opset.get("", CONVOLUTIONS_IN_BF16) >= CONVOLUTIONS_IN_BF16:
        return False
    op_types = {node.op.op_type for node in view.nodes if not node.op.domain}
    return any(
        place.computes(op_type, low)
        and _admits(op_type, CONVOLUTIONS_IN_BF16, low)
        and not _admits(op_type, view.opset[""], low)
        for op_type in op_types
    )


def _admits(op_type: str, opset: int, low: Precision) -> bool:
    schema = schema_of(OpKey("", op_type), opset)
    return schema is not None and any(low.tensor_type in c.allowed_type_strs for c in schema.type_constraints)
