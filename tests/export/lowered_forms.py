"""The forms that a portable step is lowered to."""

import onnx

from campo_onnx.ir.importer import import_model
from campo_onnx.ir.portable import is_portable
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import FORMS, lowered
from campo_onnx.targets.target import target

DRAWING = {"Dropout", "RandomUniform", "RandomNormal", "Bernoulli", "Multinomial"}
TARGETS = (target("cpu"), target("v100"), target("cpu", "openvino"))


def lowered_forms(model: onnx.ModelProto) -> list[onnx.ModelProto]:
    """Choose forms for each target that differ, in a portable step that draws no random numbers."""
    if not is_portable(model) or any(n.op_type in DRAWING for n in model.graph.node):
        return []
    imported = import_model(model, any_type=True)
    forms = (lowered(imported, Place(target=each), FORMS) for each in TARGETS)
    return [form.model for form in forms if form is not imported]
