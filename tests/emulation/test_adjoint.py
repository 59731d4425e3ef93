"""Every rule of differentiation against differences of the operator itself."""

import numpy as np
import onnx
import pytest

from campo_onnx.emulation.adjoint.reverse import RULES, Reverse
from campo_onnx.emulation.adjoint.rule import NoRuleError
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.shapes import infer
from campo_onnx.ops.key import OpKey
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine

F = {"x": (2, 3)}
CHANNELS = {"x": (3, 2, 2, 2), "s": (2,), "b": (2,), "m": (2,), "r": (2,)}
CASES = {
    "unary": (F, [f"y{i} = {op}(x)" for i, op in enumerate(
        ["Exp", "Erf", "Tanh", "Sigmoid", "Abs", "Relu", "Softplus", "Sin", "Cos", "Neg", "Identity", "Gelu",
         "LeakyRelu <alpha = 0.2>", "Gelu <approximate = \"tanh\">"])]),
    "of positive": (F, ["a = Abs(x)", "y0 = Log(a)", "y1 = Sqrt(a)", "y2 = Reciprocal(a)",
                        "e = Constant <value = float {1.7}> ()", "y3 = Pow(a, e)", "y4 = Pow(a, a)"]),
    "binary": ({"x": (2, 3), "z": (3,), "s": (1, 1)}, [
        f"y{i} = {op}({pair})" for i, (op, pair) in enumerate(
            (op, pair) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
            for pair in ("x, z", "s, x"))]),
    "clip and where": (F, ["l = Constant <value = float {-0.5}> ()", "y0 = Clip(x, l)", "c = Less(x, l)",
                           "t = Exp(x)", "y1 = Where(c, t, l)", "y2 = Sign(x)"]),
    "cast": (F, ["a = Cast <to = 7> (x)", "y0 = Cast <to = 1> (x)"]),
    "shape": ({"x": (2, 3, 4)}, [
        "r = Constant <value_ints = [4, 6]> ()", "y0 = Reshape(x, r)", "a = Constant <value_ints = [1]> ()",
        "y1 = Unsqueeze(x, a)", "y2 = Squeeze(y1, a)", "y3 = Flatten(x)", "y4 = Transpose(x)",
        "y5 = Transpose <perm = [1, 2, 0]> (x)", "e = Constant <value_ints = [5, 2, 3, 4]> ()",
        "y6 = Expand(x, e)", "y7 = Trilu <upper = 0> (x)", "q = Constant <value_ints = [1, 2, 1]> ()",
        "y8 = Tile(x, q)"]),
    "parts": ({"x": (2, 5), "z": (2, 3)}, [
        "y0 = Concat <axis = 1> (x, z)", "y1, y2 = Split <axis = 1, num_outputs = 2> (x)",
        "b = Constant <value_ints = [4]> ()", "n = Constant <value_ints = [-6]> ()",
        "a = Constant <value_ints = [1]> ()", "m = Constant <value_ints = [-2]> ()",
        "y3 = Slice(x, b, n, a, m)",
        "p = Constant <value_ints = [1, 0, 0, 2]> ()", "y4 = Pad(x, p)",
        "w = Constant <value_ints = [0, 2, 0, 1]> ()", "y5 = Pad <mode = \"reflect\"> (x, w)"]),
    "gather": ({"x": (4, 3), "z": (2, 3)}, [
        "i = Constant <value = int64[2] {3, 3}> ()", "y0 = Gather(x, i)",
        "j = Constant <value = int64[2] {2, 0}> ()",
        "y1 = Gather <axis = 1> (x, j)", "k = Constant <value = int64[2, 3] {0, 3, 1, 1, 2, 0}> ()",
        "y2 = GatherElements(x, k)", "y3 = ScatterElements <axis = 0> (x, k, z)",
        "y4 = ScatterElements <axis = 0, reduction = \"add\"> (x, k, z)",
        "l = Constant <value = int64[2, 1] {2, 0}> ()", "y5 = ScatterND(x, l, z)", "y6 = GatherND(x, l)",
        "y7 = ScatterND <reduction = \"add\"> (x, l, z)"]),
    "reduce": ({"x": (2, 3, 4)}, ["a = Constant <value_ints = [0, -1]> ()"] + [
        f"y{2 * i} = {op}(x, a)\n y{2 * i + 1} = {op} <keepdims = 0> (x)" for i, op in enumerate(
            ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2"])]),
    "products": ({"x": (2, 3, 4), "z": (4, 5), "b": (5,), "a": (3, 4)}, [
        "y0 = MatMul(x, z)", "y1 = Gemm <alpha = 0.5, beta = 2.0> (a, z, b)", "t = Transpose(a)",
        "u = Transpose(z)", "y2 = Gemm <transA = 1> (t, z)", "y3 = Gemm <transB = 1> (a, u)",
        "y4 = Gemm <transA = 1, transB = 1, alpha = 3.0> (t, u, b)"]),
    "own operators": ({"x": (2, 3, 4), "z": (2, 4, 5), "a": (3, 4), "g": (2, 3, 1), "d": (3, 1),
                       "h": (3, 1, 4), "s": (3, 1, 1)}, [
        "y0 = com.microsoft.FusedMatMul <alpha = 0.5> (x, z)", "t = Transpose <perm = [0, 2, 1]> (x)",
        "u = Transpose <perm = [0, 2, 1]> (z)",
        "y1 = com.microsoft.FusedMatMul <transA = 1, transB = 1, alpha = 3.0> (t, u)",
        "y2 = com.microsoft.FusedMatMul <transB = 1> (x, a)", "y3 = com.microsoft.GatedAdd(x, x, g)",
        "b = Sin(a)",
        "y4 = com.microsoft.HyperConnectionPostMix <num_branches = 1> (a, b, d, s)",
        "y5 = com.microsoft.HyperConnectionPostMix <num_branches = 1> (b, a, h, s)"]),
    "convolution": ({"x": (2, 4, 6, 5), "w": (6, 2, 3, 2), "b": (6,), "v": (4, 3, 2, 2), "c": (3,)}, [
        "y0 = Conv <group = 2, strides = [2, 1], pads = [1, 0, 0, 1], dilations = [1, 2]> (x, w, b)",
        "y1 = ConvTranspose <strides = [2, 2], pads = [1, 0, 0, 1], output_padding = [1, 0]> (x, v, c)"]),
    "pooling": ({"x": (2, 3, 6, 6)}, [
        "y0 = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)",
        "y1 = AveragePool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 0, 1]> (x)",
        "y2 = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1> (x)",
        "y3 = GlobalAveragePool(x)", "p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)",
        "y4 = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (p, i)",
        "y5 = DepthToSpace <blocksize = 1> (x)", "y6 = SpaceToDepth <blocksize = 2> (x)"]),
    "random": (F, [
        "t = Constant <value = bool {1}> ()", "u = Constant <value = bool {0}> ()",
        "q = Constant <value = float {0.3}> ()", "y0, m = Dropout <seed = 3> (x, q, t)",
        "y1 = Dropout <seed = 5> (x, , t)", "y2, o = Dropout <seed = 5> (x, q, u)", "y3 = Dropout(x)",
        "y4 = RandomUniformLike <seed = 3.0> (x)", "a = RandomNormalLike <seed = 3.0> (x)",
        "y5 = Mul(a, x)"]),
    "softmax": (F, ["y0 = Softmax(x)", "y1 = LogSoftmax <axis = 0> (x)"]),
    "layer normalization": ({"x": (2, 3, 4), "s": (4,), "b": (4,)}, [
        "y0, y1, y2 = LayerNormalization(x, s, b)", "y3 = LayerNormalization <axis = 1> (x, x0s)"]),
    "stored normalization": (CHANNELS, ["v = Abs(r)", "y0 = BatchNormalization(x, s, b, m, v)"]),
    "batch normalization": (CHANNELS, [
        "v = Abs(r)", "y1, y2, y3 = BatchNormalization <training_mode = 1, momentum = 0.7> (x, s, b, m, v)"]),
}  # fmt: skip


def graph_of(shapes, lines):
    if any("x0s" in line for line in lines):
        shapes = {**shapes, "x0s": (3, 4)}
    inputs = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in shapes.items())
    names = [n.strip() for line in lines for part in line.split("\n") for n in part.split("=")[0].split(",")]
    outputs = [name for name in names if name.startswith("y")]
    head = f"({inputs}) => ({', '.join('float ' + y for y in outputs)})"
    body = "\n".join(lines)
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]> g {head} {{{body}}}'
    )
    for value in model.graph.output:  # of any rank
        value.type.tensor_type.ClearField("shape")
    for i, node in enumerate(model.graph.node):
        node.name = f"n{i}"
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    types = infer(model, {})  # of ONNX Runtime's operators too
    for value in model.graph.output:
        value.type.CopyFrom(
            onnx.helper.make_tensor_type_proto(types.dtypes[value.name], types.shapes[value.name])
        )
    return model, shapes, outputs


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_differences(case):
    model, shapes, outputs = graph_of(*CASES[case])
    rng = np.random.default_rng(7)
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    if case == "of positive":  # steep near zero
        feeds["x"] = np.sign(feeds["x"]) * (0.5 + np.abs(feeds["x"]))
    imported = import_model(model)
    here = machine("cpu", 1)
    values = run(imported.model, feeds, here)
    directions = {f"v/{y}": rng.normal(size=values[y].shape).astype(np.float32) for y in outputs}
    reverse = Reverse(imported.model, imported.view, {y: f"v/{y}" for y in outputs})
    gradients = {name: reverse.gradient(name) for name in shapes}
    assert all(gradients.values())
    named = {f"gradient of {name}": value for name, value in gradients.items()}
    actual = run(reverse.model(named), feeds | directions, here)
    step = 3e-3

    def along(moved):
        results = run(imported.model, moved, here)
        return sum(np.vdot(v, results[name.removeprefix("v/")]) for name, v in directions.items())

    for name, shape in shapes.items():
        move = rng.normal(size=shape).astype(np.float32)
        ends = (along({**feeds, name: feeds[name] + np.float32(sign * step) * move}) for sign in (1.0, -1.0))
        expected = (next(ends) - next(ends)) / (2 * step)
        gradient = actual[f"gradient of {name}"]
        assert gradient.shape == shape
        assert np.vdot(gradient, move) == pytest.approx(expected, rel=2e-3, abs=2e-3), name


def test_every_rule_has_a_case():
    used = {
        OpKey(node.domain, node.op_type).label
        for case in CASES.values()
        for node in graph_of(*case)[0].graph.node
    }
    assert set(RULES) - used == {"Floor", "Ceil", "Round"}  # flat, as Sign is


def test_what_has_no_rule_is_told():
    model, _, outputs = graph_of({"x": (2, 3)}, ["y0 = Hardmax(x)"])
    imported = import_model(model)
    with pytest.raises(NoRuleError, match="Hardmax"):
        Reverse(imported.model, imported.view, {y: f"v/{y}" for y in outputs})
