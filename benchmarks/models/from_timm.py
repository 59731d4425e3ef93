"""Small models of timm with random weights; dropout is off, so that steps can be compared."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.models.case import Case


def without_kernels_of_torchvision() -> None:
    """Let timm import a torchvision whose compiled part is for another torch: it uses none of it here."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


_kept: list[Any] = []


def _case(name: str, size: int, settings: Mapping[str, Any]) -> Case:
    import timm

    module = timm.create_model(name, num_classes=5, drop_rate=0.0, **settings)
    return Case(
        module=module.train(),
        inputs={"x": torch.randn(4, 3, size, size)},
        loss=F.cross_entropy,
        targets={"target": torch.arange(4) % 5},
    )


def _row(name: str, size: int = 64, **settings: Any) -> tuple[str, Callable[[], Case]]:
    return name, partial(_case, name, size, settings)


CASES: Mapping[str, Callable[[], Case]] = dict(
    [
        _row("beit_base_patch16_224", img_size=64, embed_dim=32, depth=2, num_heads=4),
        _row("coatnet_nano_rw_224", img_size=64),
        _row("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
        _row("convnextv2_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
        _row("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
        _row("efficientnet_b0", 32),
        _row("ghostnet_050"),
        _row("mobilenetv2_050"),
        _row("mobilenetv3_small_050"),
        _row("mobilevit_xxs"),
        _row("poolformer_s12"),
        _row("pvt_v2_b0"),
        _row("regnety_002"),
        _row("repvgg_a0"),
        _row("resnet18", 32),
        _row("resnet26d", 32),
        _row("rexnet_100"),
        _row("seresnet18", 32),
        _row(
            "swin_tiny_patch4_window7_224",
            img_size=64,
            embed_dim=16,
            depths=(2, 1),
            num_heads=(2, 4),
            window_size=4,
            drop_path_rate=0.0,
        ),
        _row("vit_tiny_patch16_224", img_size=64, depth=2),
        _row("xcit_nano_12_p16_224", img_size=64, depth=2),
    ]
)
