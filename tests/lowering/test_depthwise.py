"""Gradients of the weights of depthwise convolutions: what the forms compute, and where which is chosen."""

import math

import numpy as np
import pytest
from onnx import TensorProto

from campo_onnx.builder.compact import transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.convolutions.gradient_as_kernel import swapped_convolution
from campo_onnx.lowering.convolutions.passes import convolutions
from campo_onnx.lowering.convolutions.patches import Geometry, axes_of
from campo_onnx.lowering.convolutions.weight_gradient import by_pairs, weight_gradient
from campo_onnx.lowering.place import Place
from campo_onnx.targets.target import target

CPU = Place(target=target("cpu"))


class Convolution:
    """Shapes of a grouped convolution: depthwise, if no number of groups is asked for."""

    def __init__(
        self, batch, channels, size, taps, *, stride=1, padding=None, dilation=1, outputs=0, groups=0
    ):
        def each(number):
            return (number,) * len(size)

        self.geometry = Geometry(
            strides=each(stride),
            pads=each((taps - 1) // 2 if padding is None else padding),
            dilations=each(dilation),
            groups=groups or channels,
        )
        result = [(n + 2 * self.geometry.pads[0] - dilation * (taps - 1) - 1) // stride + 1 for n in size]
        outputs = outputs or channels
        self.shape = (outputs, channels // self.geometry.groups, *each(taps))
        self.x, self.gradient = (batch, channels, *size), (batch, outputs, *result)

    def values(self, g):
        return g.input("x", TensorProto.FLOAT, self.x), g.input("dy", TensorProto.FLOAT, self.gradient)


def graph(device=CPU):
    return Graph(opset=device.opset, target=device.operators)


def operators(g, value):
    return [node.op_type.rpartition(":")[2] for node in g.nodes_behind(value)]


def drawn(seed):
    """Draw a depthwise convolution of any rank that gives at least one element."""
    rng = np.random.default_rng(seed)
    while True:
        channels = int(rng.integers(2, 5))
        case = Convolution(
            int(rng.integers(1, 4)),
            channels,
            tuple(map(int, rng.integers(1, 9, rng.integers(1, 4)))),
            int(rng.integers(1, 5)),
            stride=int(rng.integers(1, 4)),
            padding=int(rng.integers(0, 4)),
            dilation=int(rng.integers(1, 3)),
            outputs=channels * int(rng.integers(1, 3)),
        )
        if min(case.gradient) > 0:
            return case


@pytest.mark.parametrize("seed", range(40))
def test_pairs_are_summed_as_a_convolution_does(run, seed):
    case = drawn(seed)
    g = graph()
    x, gradient = case.values(g)
    axes = axes_of(case.x, case.gradient, case.shape, case.geometry)
    forms = {f"pairs_{n}": by_pairs(g, x, gradient, case.shape, axes, n) for n in range(1, len(axes) + 1)}
    forms["conv"] = swapped_convolution(g, x, gradient, case.shape, case.geometry)
    rng = np.random.default_rng(seed)
    # Of small integers sums are exact.
    feeds = {
        name: rng.integers(-8, 9, v.shape).astype(np.float32) for name, v in (("x", x), ("dy", gradient))
    }
    results = run(g.model(forms, optional_inputs=frozenset()), feeds)
    for name in forms:
        np.testing.assert_array_equal(results[name], results["conv"], err_msg=name)
        assert results[name].shape == case.shape


DEPTHWISE = {
    "convnext_24": Convolution(8, 40, (24, 24), 7),
    "convnext_12": Convolution(8, 80, (12, 12), 7),
    "convnext_6": Convolution(8, 160, (6, 6), 7),
    "convnext_3": Convolution(8, 320, (3, 3), 7),
    "mobilenet_48": Convolution(8, 16, (48, 48), 3, stride=2),
    "mobilenet_24": Convolution(8, 72, (24, 24), 3, stride=2),
    "mobilenet_12": Convolution(8, 88, (12, 12), 3),
    "mobilenet_6": Convolution(8, 240, (6, 6), 5),
    "efficientnet_112": Convolution(4, 32, (112, 112), 3),
    "efficientnet_28": Convolution(4, 240, (28, 28), 5),
    "two_outputs": Convolution(4, 32, (14, 14), 3, outputs=64),
    "three_axes": Convolution(2, 32, (8, 16, 16), 3),
}
OTHERS = {
    "long_sequence": Convolution(2, 512, (256,), 4, padding=3),
    "groups_of_channels": Convolution(2, 128, (14, 14), 3, groups=32),
    "wide_image": Convolution(1, 8, (512, 512), 3),
}


def chosen(case, device=CPU):
    g = graph(device)
    value = weight_gradient(g, *case.values(g), case.shape, case.geometry, device.target)
    return operators(g, value)


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_gradients_are_two_products(name):
    own = chosen(DEPTHWISE[name])
    assert "Conv" not in own
    assert sum(op_type in ("MatMul", "FusedMatMul") for op_type in own) == 2
    small = math.prod(DEPTHWISE[name].x[2:]) <= 36
    assert ("Gather" in own) != small  # both axes of a small image are paired


@pytest.mark.parametrize("name", OTHERS)
def test_other_gradients_of_groups_stay_convolutions(name):
    assert "Conv" in chosen(OTHERS[name])


def test_a_gpu_convolves():
    assert "Conv" in chosen(DEPTHWISE["convnext_24"], Place(target=target("h200")))


@pytest.mark.parametrize("device", [CPU, Place(target=target("h200"))], ids=["cpu", "gpu"])
def test_gradients_that_lie_channels_last_are_recognized(run, device):
    case = DEPTHWISE["convnext_6"]
    g = Graph(opset=20)
    batch, channels, *size = case.gradient
    x = g.input("x", TensorProto.FLOAT, case.x)
    last = g.input("dy", TensorProto.FLOAT, (batch, *size, channels))
    gradient = transpose(g, last, [0, 3, 1, 2])
    weight = swapped_convolution(g, x, gradient, case.shape, case.geometry)
    imported = import_model(g.model({"dw": weight}, optional_inputs=frozenset()))
    model = convolutions(imported, device)
    assert model is not imported.model
    assert [node.op_type for node in model.graph.node].count("Conv") == device.target.hardware.is_gpu
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(-8, 9, v.shape).astype(np.float32) for name, v in (("x", x), ("dy", last))}
    np.testing.assert_array_equal(run(model, feeds)["dw"], run(imported.model, feeds)["dw"])
