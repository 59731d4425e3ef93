"""Small models of transformers with random weights; dropout is off, so that steps can be compared."""

import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.models.case import Case

VOCABULARY, LENGTH, BATCH, IMAGE = 96, 12, 3, 32  # as in transformers.toml
_PLACE = 90
"""The token that stands for a patch of an image."""


def _causal() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _classified() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(BATCH) % 2}


def _pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "labels": torch.arange(BATCH) % 2}


def _large_pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.arange(BATCH) % 2}


def _translated() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.flip(1)}


def _spoken() -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 400), "labels": torch.arange(BATCH) % 2}


def _heard() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_features": torch.randn(BATCH, 20, 40), "labels": ids}


def _paired() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "return_loss": True,
        "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE),
    }


def _causal_without_mask() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids}


def _captioned() -> dict[str, Any]:
    return {**_causal(), "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE)}


def _placed() -> dict[str, Any]:
    """Give an image to the places of a text that stand for it, one for each of its patches."""
    ids = torch.randint(3, _PLACE, (BATCH, 24))
    ids[:, 2:18] = _PLACE
    images = torch.randn(BATCH, 3, IMAGE, IMAGE)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "pixel_values": images}


def _segmented() -> dict[str, Any]:
    labels = torch.randint(0, 2, (BATCH, IMAGE, IMAGE))
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "labels": labels}


def _series() -> dict[str, Any]:
    return {"past_values": torch.randn(BATCH, 32, 2), "future_values": torch.randn(BATCH, 4, 2)}


def _spectrum() -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 24, 16), "labels": torch.arange(BATCH) % 2}


def _transcribed() -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 400), "labels": torch.randint(1, 12, (BATCH, 5))}


def _written_down() -> dict[str, Any]:
    labels = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_features": torch.randn(BATCH, 40, 8), "labels": labels}


def _boxed() -> dict[str, Any]:
    """Give each image one box, of a class."""
    labels = [
        {"class_labels": torch.tensor([n % 2]), "boxes": torch.rand(1, 4) * 0.4 + 0.2} for n in range(BATCH)
    ]
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "labels": labels}


def _dated() -> dict[str, Any]:
    """Give a series with as much of the past as its lags reach, and a feature of time."""
    return {
        "past_values": torch.rand(BATCH, 18) + 0.5,
        "past_time_features": torch.randn(BATCH, 18, 1),
        "past_observed_mask": torch.ones(BATCH, 18),
        "future_values": torch.rand(BATCH, 4) + 0.5,
        "future_time_features": torch.randn(BATCH, 4, 1),
    }


def _deep() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.rand(BATCH, 64, 64) + 0.1}


def _described() -> dict[str, Any]:
    return {**_captioned(), "labels": torch.rand(BATCH, IMAGE, IMAGE)}


def _dictated() -> dict[str, Any]:
    labels = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_values": torch.randn(BATCH, 2000), "labels": labels}


def _filmed() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 2, 3, IMAGE, IMAGE), "labels": torch.arange(BATCH) % 2}


def _filtered() -> dict[str, Any]:
    return {"input_features": torch.randn(BATCH, 20, 8), "labels": torch.arange(BATCH) % 2}


def _laid_out() -> dict[str, Any]:
    """Give each word a place on a page: left, top, right, bottom."""
    least = torch.randint(0, 30, (BATCH, LENGTH, 2))
    return {**_causal(), "bbox": torch.cat([least, least + torch.randint(0, 30, least.shape)], -1)}


def _classified_pages() -> dict[str, Any]:
    return {**_laid_out(), "labels": torch.arange(BATCH) % 2}


def _looked_at() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16)}


def _played() -> dict[str, Any]:
    return {
        "states": torch.randn(BATCH, 4, 5),
        "actions": torch.randn(BATCH, 4, 3),
        "rewards": torch.randn(BATCH, 4, 1),
        "returns_to_go": torch.randn(BATCH, 4, 1),
        "timesteps": torch.arange(4).expand(BATCH, 4),
        "attention_mask": torch.ones(BATCH, 4),
    }


def _masked_pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "noise": torch.rand(BATCH, 16)}


def _read_aloud() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    voices = torch.randn(BATCH, 16)
    return {"input_ids": ids, "speaker_embeddings": voices, "labels": torch.randn(BATCH, 8, 8)}


def _seen() -> dict[str, Any]:
    return {
        "input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH)),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
        "visual_embeds": torch.randn(BATCH, 5, 16),
        "visual_attention_mask": torch.ones(BATCH, 5),
        "labels": torch.rand(BATCH, 4).softmax(-1),
    }


def _answered() -> dict[str, Any]:
    ids = torch.randint(6, VOCABULARY, (BATCH, LENGTH))
    ids[:, 3] = 5  # the question
    places = {"start_positions": torch.arange(BATCH) + 4, "end_positions": torch.arange(BATCH) + 5}
    return {"input_ids": ids, **places}


def _captioned_pairs() -> dict[str, Any]:
    return {**_captioned(), "labels": torch.arange(BATCH) % 2}


def _masked() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, 32))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _pieced() -> dict[str, Any]:
    """Give patches of an image with their rows and columns, and a text."""
    rows, columns = torch.arange(16) // 4 + 1, torch.arange(16) % 4 + 1
    places = torch.stack([rows, columns], -1).float().expand(BATCH, 16, 2)
    patches = torch.cat([places, torch.randn(BATCH, 16, 48)], -1)
    return {"flattened_patches": patches, "labels": torch.randint(3, VOCABULARY, (BATCH, LENGTH))}


def _of_output(output: Any) -> Any:
    """Give the model's own loss; where it computes none, the mean square of its first output."""
    loss = getattr(output, "loss", None)
    return output[0].square().mean() if loss is None else loss


def case_of(
    model: str, batch: Callable[[], dict[str, Any]], settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Case:
    """Give a model of transformers with these settings, a batch, and its own loss."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(transformers, model)
        config = kind.config_class(**settings)
        for part in (config, *(c for c in vars(config).values() if hasattr(c, "to_dict"))):
            for name, value in list(vars(part).items()):
                if "drop" in name and isinstance(value, float):
                    setattr(part, name, 0.0)
            part.use_cache = False
        if any(hasattr(config, name) for name in ("num_local_experts", "num_experts", "n_routed_experts")):
            config._experts_implementation = "batched_mm"  # torch multiplies groups in FP32 alone
        module = kind._from_config(config, attn_implementation="sdpa" if kind._supports_sdpa else "eager")
    return Case(module=module.train(), inputs=batch(), loss=_of_output, options=dict(options))


def table(file: str) -> dict[str, Any]:
    """Read a file of configurations."""
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def _cases(file: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Read the configurations of a file."""
    shared = {"": {}, **table("transformers.toml")["settings"]}
    for name, row in table(file)["models"].items():
        own = row.get("own", {})
        parts = {part: shared[of] | own.get(part, {}) for part, of in row.get("parts", {}).items()}
        settings = shared[row.get("of", "")] | own | parts
        options = {"assume": row["assume"]} if "assume" in row else {}
        yield name, partial(case_of, row["model"], _BATCHES[row["batch"]], settings, options)


_BATCHES = {
    "answered": _answered,
    "boxed": _boxed,
    "captioned": _captioned,
    "captioned_pairs": _captioned_pairs,
    "causal": _causal,
    "causal_without_mask": _causal_without_mask,
    "classified": _classified,
    "classified_pages": _classified_pages,
    "dated": _dated,
    "deep": _deep,
    "described": _described,
    "dictated": _dictated,
    "filmed": _filmed,
    "filtered": _filtered,
    "heard": _heard,
    "laid_out": _laid_out,
    "large_pixels": _large_pixels,
    "looked_at": _looked_at,
    "masked": _masked,
    "masked_pixels": _masked_pixels,
    "paired": _paired,
    "pieced": _pieced,
    "pixels": _pixels,
    "placed": _placed,
    "played": _played,
    "read_aloud": _read_aloud,
    "seen": _seen,
    "segmented": _segmented,
    "series": _series,
    "spectrum": _spectrum,
    "spoken": _spoken,
    "transcribed": _transcribed,
    "translated": _translated,
    "written_down": _written_down,
}
CASES: Mapping[str, Callable[[], Case]] = dict(_cases("transformers.toml"))
FURTHER: Mapping[str, Callable[[], Case]] = dict(_cases("transformers_further.toml"))
