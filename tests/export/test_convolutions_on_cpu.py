"""Every form of a convolution and of its gradients that a step for a CPU may be written in, against torch."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_torch import TOLERANCE, weighted_sum, worst_deviation
from torch import nn

from campo_onnx.export.torch import export_training_step
from campo_onnx.lowering.convolutions import conv_on_cpu, patches, weight_gradient

IMAGE = (2, 4, 10, 9)
CONVOLUTIONS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), IMAGE),
    "unreached_end": (lambda: nn.Conv2d(4, 6, 3, stride=3), IMAGE),
    "pointwise": (lambda: nn.Conv2d(4, 6, 1), IMAGE),
    "pointwise_strided": (lambda: nn.Conv2d(4, 6, 1, stride=2), IMAGE),
    "pointwise_padded": (lambda: nn.Conv2d(4, 6, 1, padding=1), IMAGE),
    "one_pixel": (lambda: nn.Conv2d(4, 6, 1), (5, 4, 1, 1)),
    "few_positions": (lambda: nn.Conv2d(4, 32, 3, padding=1), (1, 4, 3, 4)),
    "few_positions_strided": (lambda: nn.Conv2d(4, 32, 3, stride=2, padding=1), (1, 4, 4, 5)),
    "more_padding_than_kernel": (lambda: nn.Conv2d(4, 6, 2, padding=3, dilation=2), IMAGE),
    "one_by_seven": (lambda: nn.Conv2d(4, 6, (1, 7), padding=(0, 3)), IMAGE),
    "dilated": (lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2), IMAGE),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGE),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1), IMAGE),
    "transposed_extra": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "transposed_grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), IMAGE),
    "one_axis": (lambda: nn.Conv1d(4, 6, 5, 2, 2, 2), (2, 4, 20)),
    "three_axes": (lambda: nn.Conv3d(4, 3, (2, 3, 1), (1, 2, 1), 1), (2, 4, 5, 6, 4)),
}
DEPTHWISE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), IMAGE),
    "strided": (lambda: nn.Conv2d(4, 8, (3, 2), stride=(2, 3), padding=(1, 0), groups=4), IMAGE),
    "dilated": (lambda: nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4), IMAGE),
    "transposed": (lambda: nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1, groups=4), IMAGE),
    "one_image": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), (1, *IMAGE[1:])),
    "one_axis": (lambda: nn.Conv1d(4, 4, 4, padding=3, groups=4), (2, 4, 20)),
    "three_axes": (lambda: nn.Conv3d(4, 4, (2, 3, 1), (1, 2, 1), 1, groups=4), (2, 4, 5, 6, 4)),
}


def preferring(wanted: str) -> Callable[..., str]:
    """Take this form where it is offered, and the operator itself elsewhere."""

    def cheapest(graph: Any, forms: Mapping[str, Any], values: Any, device: Any) -> str:
        return wanted if wanted in forms else next(iter(forms))

    return cheapest


class Behind(nn.Module):
    """A convolution behind a parameter of the image's shape, which shows the gradient of every pixel."""

    def __init__(self, convolution: Any, image: tuple[int, ...]) -> None:
        super().__init__()
        self.factor, self.convolution = nn.Parameter(torch.rand(image) + 0.5), convolution

    def forward(self, x: Any) -> Any:
        return self.convolution(self.factor * x)


@pytest.mark.parametrize("form", ["patches", "spread", "flipped", "product", "selected", "unfolded"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_forms(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of weights "matmul", the first, or what is wanted.
    compare(*CONVOLUTIONS[name], form, monkeypatch)


@pytest.mark.parametrize("form", ["conv", "pairs_1", "pairs_2"])
@pytest.mark.parametrize("name", DEPTHWISE)
def test_forms_of_depthwise_convolutions(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(*DEPTHWISE[name], form, monkeypatch)


def compare(
    build: Callable[[], Any], image: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "_FEW", patches.LARGEST_INDEX)
    monkeypatch.setattr(weight_gradient, "_FEWEST_OUTPUTS", 1)
    for chooser in (conv_on_cpu, weight_gradient):
        monkeypatch.setattr(chooser, "cheapest", preferring(form))
    torch.manual_seed(0)
    module, x = Behind(build(), image), torch.randn(image)
    assert worst_deviation(module, weighted_sum, [x], []) < TOLERANCE


def operators(module: Any, image: tuple[int, ...]) -> set[str]:
    model = export_training_step(Behind(module, image), weighted_sum, torch.ones(image), target="cpu")
    return {node.op_type for node in model.graph.node}


def test_large_images_are_convolved_and_small_ones_multiplied() -> None:
    assert operators(nn.Conv2d(32, 32, 3, padding=1), (2, 32, 40, 40)) & {"Conv", "ConvTranspose"} == {"Conv"}
    for size, is_gathered in ((6, True), (3, False)):
        deep = operators(nn.Conv2d(256, 256, 3, padding=1), (8, 256, size, size))
        assert not deep & {"Conv", "ConvTranspose"}
        assert "MatMul" in deep
        assert ("Gather" in deep) == is_gathered


def test_patches_of_large_images_are_not_all_made_at_once() -> None:
    image = (64, 64, 112, 112)
    with torch.device("meta"):
        module, x = Behind(nn.Conv2d(64, 64, 3, padding=1), image), torch.empty(image)
    model = export_training_step(module, weighted_sum, x, target="cpu")
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info]
    assert max(4 * math.prod(shape) for shape in shapes) <= 1 << 30
