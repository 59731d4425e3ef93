"""The table of training operators: kept honest against their own shape rules and real graphs."""

from pathlib import Path

import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.ops.contrib import ALL, CONTRIB_PORTS
from campo_onnx.ops.ports import NO_FP32, ports_of
from campo_onnx.ops.precision import Precision

DATA = Path(__file__).parent.parent / "data"
GRAPHS = sorted(DATA.glob("*training*.onnx"))


def test_positions_are_ordered_and_named_once():
    for op, ports in CONTRIB_PORTS.items():
        for positions in (ports.inputs, ports.outputs):
            if positions is not ALL:
                assert list(positions) == sorted(set(positions)), op


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_listed_positions_hold_fp32_in_real_graphs(path, dims_of):
    view = import_model(path, dims_of(path)).view
    seen = [node for node in view.nodes if node.op in CONTRIB_PORTS]
    assert seen
    for node in seen:
        ports = ports_of(node, view, Precision.FP16)
        if ports == NO_FP32:
            continue  # such as a concatenation of shapes
        listed = CONTRIB_PORTS[node.op]
        present = {i for i, t in enumerate(node.inputs) if t and i in listed.inputs}
        assert ports.low_inputs == present, node.name
        assert ports.low_outputs, node.name
