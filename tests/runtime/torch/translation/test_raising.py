"""Gradients that graphs spell out become torch's own operations, where they are just these."""

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from campo_onnx.export.torch import export_training_step
from campo_onnx.export.torch.state_dict import first_state
from campo_onnx.runtime.torch.translation import translate
from tests.runtime.torch.translation.beside import TOLERANCE, parsed, worst_deviation

pytestmark = pytest.mark.slow

LAYERS = {
    "plain": (nn.Conv2d(4, 6, 3), (2, 4, 7, 8)),
    "padded": (nn.Conv2d(4, 6, 3, padding=(1, 2)), (2, 4, 7, 8)),
    "strides that reach the end": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 7, 7)),
    "strides that do not": (nn.Conv2d(4, 6, 3, stride=(2, 3), padding=1), (2, 4, 8, 9)),
    "pads wider than the stride": (nn.Conv2d(4, 6, 5, stride=2, padding=4), (2, 4, 6, 6)),
    "dilated": (nn.Conv2d(4, 6, 3, dilation=2, padding=2), (2, 4, 7, 8)),
    "groups": (nn.Conv2d(4, 6, 3, groups=2, padding=1), (3, 4, 7, 8)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4, stride=2), (3, 4, 7, 8)),
    "one axis": (nn.Conv1d(4, 6, 3, stride=2, dilation=2), (3, 4, 12)),
    "three axes": (nn.Conv3d(2, 4, 3, padding=1, stride=(1, 2, 1)), (2, 2, 4, 5, 6)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5, 6)),
    "transposed, groups": (nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), (2, 4, 5, 6)),
}


def targets_of(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[str]:
    translation = translate(model)
    inputs = [torch.from_numpy(np.array(feeds[name])) for name in translation.inputs]
    with torch.no_grad():
        graph = make_fx(translation)(*inputs).graph
    graph.eliminate_dead_code()
    return [str(node.target) for node in graph.nodes]


@pytest.mark.parametrize("layer", LAYERS)
def test_the_gradient_of_a_weight_is_torchs_operation(layer):
    torch.manual_seed(0)
    module, shape = LAYERS[layer]
    x = torch.randn(shape)
    model = export_training_step(module, F.mse_loss, x, module(x).detach() + 1, loss_scale=False)
    feeds = {key: np.array(value) for key, value in first_state(module, model).items()}
    names = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    feeds |= dict(zip(names, (x.numpy(), module(x).detach().numpy() + 1), strict=True))
    assert worst_deviation(model, feeds) < TOLERANCE
    targets = targets_of(model, feeds)
    assert targets.count("aten.convolution_backward.default") == 1
    assert targets.count("aten.convolution.default") == 1  # the forward one: no gradient is spelled out


SWAPPED = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[2,4,6,6] x, float[2,5,4,4] dy) => (float[5,4,3,3] dw)
{
    images = Transpose <perm = [1, 0, 2, 3]> (x)
    kernel = Transpose <perm = [1, 0, 2, 3]> (dy)
    taps = Conv (images, kernel)
    dw = Transpose <perm = [1, 0, 2, 3]> (taps)
}
"""
FEEDS = {
    "x": np.random.default_rng(0).standard_normal((2, 4, 6, 6), np.float32),
    "dy": np.random.default_rng(1).standard_normal((2, 5, 4, 4), np.float32),
}


def test_a_convolution_whose_kernel_is_a_gradient_is_raised():
    model = parsed(SWAPPED)
    assert "aten.convolution_backward.default" in targets_of(model, FEEDS)
    assert worst_deviation(model, FEEDS) < TOLERANCE


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("=> (float[5,4,3,3] dw)", "=> (float[5,4,3,3] dw, float[4,5,3,3] taps)"),
        ("dw = Transpose <perm = [1, 0, 2, 3]> (taps)", "dw = Transpose <perm = [1, 0, 3, 2]> (taps)"),
        ("kernel = Transpose <perm = [1, 0, 2, 3]> (dy)", "kernel = Reshape <allowzero = 0> (dy, shape)"),
        ("Conv (images, kernel)", 'Conv <auto_pad = "VALID"> (images, kernel)'),
    ],
    ids=["read by others too", "turned otherwise", "a kernel that is not swapped", "automatic pads"],
)
def test_other_convolutions_stay_what_they_are(part, other):
    text = SWAPPED.replace(part, other)
    assert text != SWAPPED
    if "shape)" in other:
        text = text.replace("dw)\n{", "dw)\n<int64[4] shape = {5, 2, 4, 4}>\n{")
    model = parsed(text)
    assert "aten.convolution_backward.default" not in targets_of(model, FEEDS)
    assert worst_deviation(model, FEEDS) < TOLERANCE


POOL = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[2,3,6,6] x, float[2,3,3,3] dy) => (float[216] dx)
<int64[1] size = {216}, int64[1] long = {-1}>
{
    y, place = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    zeros = ConstantOfShape <value = float[1] {0}> (size)
    flat = Reshape (place, long)
    source = Reshape (dy, long)
    dx = ScatterElements <axis = 0> (zeros, flat, source)
}
"""
POOL_FEEDS = {
    "x": np.random.default_rng(0).standard_normal((2, 3, 6, 6), np.float32),
    "dy": np.random.default_rng(1).standard_normal((2, 3, 3, 3), np.float32),
}
BACKWARD = "aten.max_pool2d_with_indices_backward.default"
OVERLAPPING = {
    "kernel_shape = [2, 2]": "kernel_shape = [3, 3], pads = [1, 1, 1, 1]",
    "<axis = 0>": '<axis = 0, reduction = "add">',
}


def changed(text: str, changes: dict[str, str]) -> onnx.ModelProto:
    for part, other in changes.items():
        assert part in text
        text = text.replace(part, other)
    return parsed(text)


@pytest.mark.parametrize("changes", [{}, OVERLAPPING], ids=["tiles", "windows that overlap"])
def test_the_gradient_of_a_max_pool_is_torchs_operation(changes):
    model = changed(POOL, changes)
    assert BACKWARD in targets_of(model, POOL_FEEDS)
    assert worst_deviation(model, POOL_FEEDS) < TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"float[1] {0}": "float[1] {1}"},
        {"int64[1] size = {216}": "int64[1] size = {300}", "float[216] dx": "float[300] dx"},
        {**OVERLAPPING, "pads = [1, 1, 1, 1]": "pads = [1, 1, 0, 0]"},
    ],
    ids=["added to ones", "into a larger tensor", "pads at one end"],
)
def test_other_scattered_elements_stay_what_they_are(changes):
    model = changed(POOL, changes)
    assert BACKWARD not in targets_of(model, POOL_FEEDS)
    assert worst_deviation(model, POOL_FEEDS) < TOLERANCE


def test_max_pool_grad_of_onnx_runtime_knows_its_pool():
    node = onnx.helper.make_node("MaxPoolGrad", ["dy", "place"], ["dx"], kernel_shape=[2, 2], strides=[2, 2])
    model = parsed(POOL)
    del model.graph.node[1:]
    model.graph.node.append(node)
    x, dy = torch.from_numpy(POOL_FEEDS["x"]), torch.from_numpy(POOL_FEEDS["dy"])
    x.requires_grad_()
    F.max_pool2d(x, 2).backward(dy)
    with torch.no_grad():
        (result,) = translate(model)(x, dy)
    torch.testing.assert_close(result, x.grad)
