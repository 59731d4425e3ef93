"""Modules and source lines that an exporter wrote into the file."""

import onnx
import pytest
from onnx import helper

from campo_onnx.ir.origin import UNKNOWN, Origin, origin_of

TRACE = """File "/home/me/train.py", line 11, in forward
    for layer in self.layers: h = layer(h)
  File "/home/me/model.py", line 5, in forward
    return self.fc2(x)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)"""


def node(**metadata):
    matmul = helper.make_node("MatMul", ["a", "b"], ["c"], name="node_MatMul_11")
    for key, value in metadata.items():
        matmul.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return matmul


def test_what_torch_writes():
    matmul = node(
        name_scopes="['', 'layers.2', 'layers.2.fc2', 'linear_5']",
        class_hierarchy="['__main__.Net', '__main__.Block', 'torch.nn.modules.linear.Linear', 'aten.linear']",
        stack_trace=TRACE,
    )
    assert origin_of(matmul) == Origin(
        module="layers.2.fc2", kind="Linear", source="model.py:5: return self.fc2(x)"
    )


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, UNKNOWN),
        ({"fx_node": "x"}, UNKNOWN),
        ({"name_scopes": "['', 'add']"}, UNKNOWN),
        ({"name_scopes": "[]"}, UNKNOWN),
        ({"name_scopes": "['', 'a', 'add']", "class_hierarchy": "['Net']"}, Origin(module="a")),
        ({"name_scopes": "['', '" + "x" * 5000 + "', 'add']"}, Origin(module="x" * 200)),
        ({"name_scopes": "[" * 100_000}, UNKNOWN),
        ({"stack_trace": "nothing"}, UNKNOWN),
        ({"stack_trace": 'File "a.py", line 3, in f'}, Origin(source="a.py:3")),
        ({"stack_trace": TRACE.splitlines()[4]}, Origin(source="linear.py:134")),
        ({"stack_trace": 'File "' * 100_000}, UNKNOWN),
        ({"stack_trace": r'File "C:\me\a.py", line 3, in f' + "\n    x = 1"}, Origin(source="a.py:3: x = 1")),
    ],
)
def test_what_others_write(metadata, expected):
    assert origin_of(node(**metadata)) == expected


def test_it_is_no_part_of_a_digest(model_text):
    from campo_onnx.ir.importer import import_model

    model = model_text("agraph (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }")
    told = onnx.ModelProto()
    told.CopyFrom(model)
    told.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'a', 'b']")
    plain, named = import_model(model), import_model(told)
    assert named.view.nodes[0].modules == ("a",)
    assert plain.digest == named.digest
