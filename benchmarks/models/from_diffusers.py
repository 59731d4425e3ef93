"""Small models of diffusers with random weights."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.models.case import Case


def _of_sample(output: Any, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(output.sample, target)


def _case(
    model: str, settings: Mapping[str, Any], inputs: Callable[[], dict[str, Any]], out: tuple[int, ...]
) -> Case:
    import diffusers

    module = getattr(diffusers, model)(**settings)
    for part in module.modules():
        if hasattr(part, "dropout_prob"):  # of labels
            part.dropout_prob = 0.0
    return Case(module=module.train(), inputs=inputs(), loss=_of_sample, targets={"target": torch.randn(out)})


def _noisy(*shape: int, **more: Any) -> dict[str, Any]:
    return {"sample": torch.randn(shape), "timestep": torch.tensor([3, 40]), **more}


_UNET = {"sample_size": 16, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}

CASES: Mapping[str, Callable[[], Case]] = {
    "unet_2d": partial(
        _case,
        "UNet2DModel",
        _UNET
        | {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda: _noisy(2, 3, 16, 16),
        (2, 3, 16, 16),
    ),
    "unet_2d_condition": partial(
        _case,
        "UNet2DConditionModel",
        _UNET
        | {
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "cross_attention_dim": 24,
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "attention_head_dim": 4,
        },
        lambda: _noisy(2, 4, 16, 16, encoder_hidden_states=torch.randn(2, 7, 24)),
        (2, 4, 16, 16),
    ),
    "autoencoder_kl": partial(
        _case,
        "AutoencoderKL",
        {
            "block_out_channels": (8, 16),
            "norm_num_groups": 4,
            "sample_size": 16,
            "latent_channels": 2,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        lambda: {"sample": torch.randn(2, 3, 16, 16)},
        (2, 3, 16, 16),
    ),
    "dit": partial(
        _case,
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "sample_size": 8,
            "norm_num_groups": 4,
            "num_embeds_ada_norm": 10,
        },
        lambda: {
            "hidden_states": torch.randn(2, 4, 8, 8),
            "timestep": torch.tensor([3, 40]),
            "class_labels": torch.tensor([1, 2]),
        },
        (2, 4, 8, 8),
    ),
    "vq_model": partial(
        _case,
        "VQModel",
        {
            "block_out_channels": (8, 16),
            "norm_num_groups": 4,
            "latent_channels": 3,
            "num_vq_embeddings": 12,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        lambda: {"sample": torch.randn(2, 3, 16, 16)},
        (2, 3, 16, 16),
    ),
}
