"""Forms of nodes that other exporters write compute what they compute in ONNX Runtime, or are refused."""

import random
from collections import Counter

import numpy as np
import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from onnx import TensorProto, helper, numpy_helper

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.openvino.runtime import RUNTIME
from tests.conftest import parse_model
from tests.runtime.openvino.forms import FAMILIES, OPSET, numbers

COUNT = 6  # some hundreds of each were tried
FLOAT, BF16 = TensorProto.FLOAT, TensorProto.BFLOAT16
LIMITS = {False: 2e-3, True: 0.06}  # of the largest value, by whether it is typed BF16


def model_of(form, ranks, *, low, picks):
    """Write a form; with `picks`, numbers of another input pick its data along that axis.

    `ranks`: of the results; None where they are not known.
    """
    inputs = [helper.make_tensor_value_info("x", FLOAT, form.data)]
    constants, nodes, source = [], [], "x"
    if picks is not None:
        inputs.append(helper.make_tensor_value_info("score", FLOAT, [form.data[picks]]))
        constants.append(numpy_helper.from_array(np.float32(0.5), "half"))
        nodes.append(helper.make_node("Greater", ["score", "half"], ["is_picked"]))
        nodes.append(helper.make_node("Compress", ["x", "is_picked"], ["picked"], axis=picks))
        source = "picked"
    names = {"": "", "x": source}
    for name, value in form.others.items():
        names[name] = name
        if name in form.data_inputs:
            inputs.append(helper.make_tensor_value_info(name, FLOAT, value.shape))
        else:
            constants.append(numpy_helper.from_array(value, name))
    if low:
        for name in ("x", *form.data_inputs):
            nodes.append(helper.make_node("Cast", [names[name]], [f"low_{name}"], to=BF16))
            names[name] = f"low_{name}"
    results = [f"y_{k}" for k in range(form.outputs)]
    kinds = [TensorProto.INT64 if form.op == "MaxPool" and k else FLOAT for k in range(form.outputs)]
    computed = [f"made_{k}" for k in range(form.outputs)] if low else results
    order = [names[name] for name in form.positions or ("x", *form.others)]
    nodes.append(helper.make_node(form.op, order, computed, "form", **form.attributes))
    if low:
        casts = zip(computed, results, kinds, strict=True)
        nodes += [helper.make_node("Cast", [name], [result], to=kind) for name, result, kind in casts]
    outputs = [
        helper.make_tensor_value_info(result, kind, None if rank is None else [None] * rank)
        for result, kind, rank in zip(results, kinds, ranks, strict=True)
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    is_raised = low and form.op not in ("GroupNormalization", "Resize")
    imports = [helper.make_opsetid("", max(form.opset, OPSET) if is_raised else form.opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds_of(form, rng, picks):
    """Draw data; at least one of the rows is picked."""
    feeds = {"x": numbers(rng, *form.data)} | {name: form.others[name] for name in form.data_inputs}
    if picks is not None:
        scores = [1.0 if k == 0 or rng.random() < 0.7 else 0.0 for k in range(form.data[picks])]
        feeds["score"] = np.array(scores, np.float32)
    return feeds


def expected(model, feeds):
    """Results of ONNX Runtime, node by node as they are written; None where it does not run the form."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds)
    except Exception:  # of its own kinds, which it does not export
        return None


def distance(value, exact):
    if value.shape != exact.shape:
        return np.inf
    value, exact = np.asarray(value, np.float64), np.asarray(exact, np.float64)
    finite = np.isfinite(exact)
    if (np.isfinite(value) != finite)[~np.isnan(exact)].any():
        return np.inf
    return np.abs(np.where(finite, value - exact, 0)).max() / (np.abs(exact[finite]).max(initial=0) + 1e-3)


@pytest.mark.parametrize("picks", [None, 0, 2], ids=["fixed", "rows", "columns"])
@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_forms_are_right_or_refused(family, low, picks, bf16_units):
    outcomes = Counter()
    for seed in range(COUNT):
        rng = random.Random(seed)
        form = family(rng)
        if (low and form.opset < 13) or (picks or 0) >= len(form.data):
            continue
        feeds = feeds_of(form, rng, picks)
        exact = expected(model_of(form, [None] * form.outputs, low=False, picks=picks), feeds)
        if exact is None or not all(value.size for value in exact):
            continue
        model = model_of(form, [value.ndim for value in exact], low=low, picks=picks)
        try:
            values = RUNTIME.load(model, "cpu", threads=1).run(feeds).values()
        except UnsupportedModelError:
            outcomes["refused"] += 1
            continue
        worst = max(distance(value, one) for value, one in zip(values, exact, strict=True))
        assert worst < LIMITS[low], (seed, form)
        outcomes["right"] += 1
    assert outcomes.total()


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        ("AveragePool <kernel_shape = [2,1], strides = [2,1], ceil_mode = 1, count_include_pad = 1> (x)", 22),
        ("Resize <mode = 'cubic', exclude_outside = 1> (x, , scales)", 19),
        ("Resize <mode = 'cubic', coordinate_transformation_mode = 'pytorch_half_pixel'> (x, , half)", 19),
        ("Pad (x, sides, number)", 22),
        ("Hardmax <axis = 1> (x)", 11),
        ("ConvTranspose <output_shape = [5,2], kernel_shape = [3,1]> (x, w)", 22),
    ],
)
def test_forms_of_other_exporters_that_are_computed_otherwise_are_refused(node, opset):
    graph = f"""agraph (float[1,2,5,2] x, float number) => (float[A,B,C,D] y)
    <float[2,2,3,1] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
     float[4] scales = {{1, 1, 2, 2}}, float[4] half = {{1, 1, 1, 0.5}},
     int64[8] sides = {{0,0,1,1,0,0,1,1}}> {{ y = {node.replace(chr(39), chr(34))} }}"""
    with pytest.raises(UnsupportedModelError, match="OpenVINO computes 1 node otherwise than ONNX"):
        RUNTIME.load(parse_model(graph, opset), "cpu")


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_layers_whose_batch_comes_first_are_refused(op, gates):
    graph = f"""
    agraph (float[2,5,3] x, float[1,{4 * gates},3] w, float[1,{4 * gates},4] r) => (float[A,B,C,D] y) {{
      y = {op} <hidden_size = 4, layout = 1> (x, w, r) }}"""
    with pytest.raises(UnsupportedModelError, match="OpenVINO computes 1 node otherwise than ONNX"):
        RUNTIME.load(parse_model(graph, 22), "cpu")


PICKED = """agraph (float[4,8,6] x, float[4] score)
    => (float[A,B,C] y) <float half = {{0.5}}, float[3] scales = {{1, 1, 2}}> {{
        is_picked = Greater (score, half) p = Compress <axis = {axis}> (x, is_picked) y = {node}
    }}"""


@pytest.mark.parametrize(
    ("axis", "node"),
    [
        (2, "MaxPool <kernel_shape = [2]> (p)"),
        (2, "AveragePool <kernel_shape = [2]> (p)"),
        (0, "Resize <mode = 'linear'> (p, , scales)"),
    ],
)
def test_windows_and_resizes_of_sizes_that_data_decide_are_refused(axis, node):
    """Resizes of picked rows ended the process."""
    graph = PICKED.format(axis=axis, node=node.replace(chr(39), chr(34)))
    size = 4 if axis == 0 else 6
    graph = graph.replace("float[4] score", f"float[{size}] score")
    with pytest.raises(UnsupportedModelError, match="of sizes that data decide: 'y"):
        RUNTIME.load(parse_model(graph, 19), "cpu")


@pytest.mark.parametrize("states", ["h", "rows"])
def test_recurrent_layers_over_picked_rows_need_as_many_states(states, run):
    """States of all rows beside some of them ended the process."""
    graph = f"""agraph (float[3,4,2] x, float[4] score, float[1,5,2] w, float[1,5,5] r, float[1,4,5] h)
    => (float[A,B,C,D] y) <float half = {{0.5}}> {{
      is_picked = Greater (score, half)
      p = Compress <axis = 1> (x, is_picked)
      rows = Compress <axis = 1> (h, is_picked)
      y = RNN <hidden_size = 5> (p, w, r, , , {states})
    }}"""
    model = parse_model(graph, 22)
    if states == "h":
        with pytest.raises(UnsupportedModelError, match=r"of sizes that data decide: .*RNNSequence"):
            RUNTIME.load(model, "cpu")
        return
    rng = random.Random(0)
    shapes = {"x": (3, 4, 2), "w": (1, 5, 2), "r": (1, 5, 5), "h": (1, 4, 5)}
    feeds = {name: numbers(rng, *shape) / 4 for name, shape in shapes.items()}
    feeds["score"] = np.array([1, 0, 1, 1], np.float32)
    np.testing.assert_allclose(RUNTIME.load(model, "cpu").run(feeds)["y"], run(model, feeds)["y"], rtol=1e-4)


def test_no_padding_follows_from_the_size_of_picked_images():
    graph = """agraph (float[4,2,5] x, float[4] score, float[2,2,3] w) => (float[A,B,C] y)
    <float half = {0.5}> {
      is_picked = Greater (score, half)
      p = Compress <axis = 0> (x, is_picked)
      y = ConvTranspose <auto_pad = "SAME_LOWER"> (p, w)
    }"""
    with pytest.raises(UnsupportedModelError, match=r"otherwise than ONNX: .*ConvTranspose"):
        RUNTIME.load(parse_model(graph, 22), "cpu")
