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


def _of_output(output: Any) -> Any:
    return output.loss


def _case(model: str, batch: Callable[[], dict[str, Any]], settings: Mapping[str, Any]) -> Case:
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
        if hasattr(config, "num_local_experts"):
            config._experts_implementation = "batched_mm"  # torch multiplies groups in FP32 alone
        module = kind._from_config(config, attn_implementation="sdpa" if kind._supports_sdpa else "eager")
    return Case(module=module.train(), inputs=batch(), loss=_of_output)


def _cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Read the configurations."""
    table = tomllib.loads(Path(__file__).with_name("transformers.toml").read_text(encoding="utf-8"))
    known = {"": {}, **table["settings"]}
    for name, row in table["models"].items():
        own = row.get("own", {})
        parts = {part: known[of] | own.get(part, {}) for part, of in row.get("parts", {}).items()}
        settings = known[row.get("of", "")] | own | parts
        yield name, partial(_case, row["model"], _BATCHES[row["batch"]], settings)


_BATCHES = {
    "causal": _causal,
    "classified": _classified,
    "heard": _heard,
    "large_pixels": _large_pixels,
    "paired": _paired,
    "pixels": _pixels,
    "spoken": _spoken,
    "translated": _translated,
}
CASES: Mapping[str, Callable[[], Case]] = dict(_cases())
