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


def _of_output(output: Any) -> Any:
    return output.loss


def _case(
    model: str, batch: Callable[[], dict[str, Any]], settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Case:
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


def _table(file: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def _cases(file: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Read the configurations of a file."""
    known = {"": {}, **_table("transformers.toml")["settings"]}
    for name, row in _table(file)["models"].items():
        own = row.get("own", {})
        parts = {part: known[of] | own.get(part, {}) for part, of in row.get("parts", {}).items()}
        settings = known[row.get("of", "")] | own | parts
        options = {"assume": row["assume"]} if "assume" in row else {}
        yield name, partial(_case, row["model"], _BATCHES[row["batch"]], settings, options)


_BATCHES = {
    "captioned": _captioned,
    "causal": _causal,
    "causal_without_mask": _causal_without_mask,
    "classified": _classified,
    "heard": _heard,
    "large_pixels": _large_pixels,
    "paired": _paired,
    "pixels": _pixels,
    "placed": _placed,
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
