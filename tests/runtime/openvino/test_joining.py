"""Residual attention of one head, at which OpenVINO's pass that joins nodes ends the process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from campo_onnx.runtime.openvino.joining import crashes_joining

LENGTH, WIDTH = 8, 64
COMBINED = {
    "residual": (3, "y{k} = Add({h}, o{k})"),
    "cast": (3, "c{k} = Cast<to=1>(a{k})\nz{k} = MatMul(c{k}, v{k})\ny{k} = Add({h}, z{k})"),
    "gated": (2, "g{k} = Sigmoid({h})\ny{k} = Mul(g{k}, o{k})"),
    "projected": (3, "p{k} = MatMul(o{k}, wq)\ny{k} = Add({h}, p{k})"),
}
CRASHING = ("cast", "gated", "residual")


def network(kind: str) -> onnx.ModelProto:
    count, combined = COMBINED[kind]
    lines, h = [], "x"
    for k in range(count):
        lines += [f"{n}{k} = MatMul({h}, w{n})" for n in "qkv"]
        lines += [f"t{k} = Transpose<perm=[0, 2, 1]>(k{k})", f"s{k} = MatMul(q{k}, t{k})"]
        lines += [f"a{k} = Softmax<axis=-1>(s{k})", f"o{k} = MatMul(a{k}, v{k})", combined.format(k=k, h=h)]
        h = f"y{k}"
    shape, body = f"float[4, {LENGTH}, {WIDTH}]", "\n".join(lines)
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 20]> g ({shape} x) => ({shape} {h}) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    for n in "qkv":
        weight = rng.uniform(-0.1, 0.1, (WIDTH, WIDTH)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{n}"))
    return model


RUN = """
import sys
import numpy as np
import onnx
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.registry import load, machine
from test_joining import LENGTH, WIDTH, network
model = network(sys.argv[1])
x = np.random.default_rng(1).uniform(-1, 1, (4, LENGTH, WIDTH)).astype(np.float32)
settings = LoadSettings(must_stay=False, holds_memory=False)
machines = [machine("cpu", 1, name) for name in ("openvino", "onnxruntime")]
both = [load(model, here, settings=settings).run({"x": x}) for here in machines]
(name,) = both[0]
np.testing.assert_allclose(both[0][name], both[1][name], rtol=1e-4, atol=1e-5)
"""


@pytest.mark.parametrize("kind", COMBINED)
def test_residual_attention_runs(kind: str) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed (make test-frameworks installs it)")
    assert crashes_joining(network(kind).graph) == (kind in CRASHING)
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r})\n{RUN}", kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-1000:]
