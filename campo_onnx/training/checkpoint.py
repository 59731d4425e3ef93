"""Checkpoints: state tensors as safetensors, written whole or not at all."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from campo_onnx.errors import CheckpointError, UsageError
from campo_onnx.files import refuse_special, replacing
from campo_onnx.files.codec import DecodeError, from_json, from_plain, to_plain
from campo_onnx.training.loss_scaler import LossScaler

_FORMAT = "campo-onnx-checkpoint-2"
_CHECKSUM = "checksum"
_EARLIER = "Restore an earlier one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything needed to go on training as if nothing had happened.

    `signature` is a digest of names, types and shapes of the state, see
    :attr:`campo_onnx.step.interface.StepInterface.signature`.
    """

    state: Mapping[str, NDArray[Any]]  # state tensors by the name of their graph input
    signature: str
    steps: int  # steps taken so far, skipped ones included
    scaler: LossScaler | None = None
    updates: int | None = None  # updates so far, skipped ones included; None in files of earlier versions


def save_checkpoint(checkpoint: Checkpoint, target: Path) -> None:
    """Write a checkpoint beside its final place, then move it there.

    UsageError says that it cannot be written; an existing file is then as it was.
    """
    # safetensors keeps metadata as strings: each fact as JSON, the signature as it is.
    facts = to_plain(replace(checkpoint, state={}))
    texts = {
        n: fact if n == "signature" else json.dumps(fact) for n, fact in facts.items() if fact is not None
    }
    metadata = texts | {"format": _FORMAT}
    del metadata["state"]
    metadata[_CHECKSUM] = _checksum(metadata, checkpoint.state)
    remedy = "Training goes on unchanged, and an earlier checkpoint of this name is kept."
    with replacing(target, title=f"the checkpoint {target}", remedy=remedy, also=(SafetensorError,)) as path:
        save_file(dict(checkpoint.state), path, metadata)


def load_checkpoint(source: Path) -> Checkpoint:
    """Read a checkpoint.

    CheckpointError says that it is torn or damaged, by as little as a bit, or not a checkpoint of ours.
    """
    refuse_special(source)
    try:
        with safe_open(source, framework="numpy") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.offset_keys()}
    except FileNotFoundError:
        raise UsageError(f"the checkpoint {source} does not exist", remedy="Check its path.") from None
    except (OSError, SafetensorError, ValueError, TypeError, LookupError, AttributeError) as error:
        # The last four: a type that numpy has not, a name that is not a path.
        raise CheckpointError(
            f"the checkpoint {source} cannot be read",
            why=f"it is torn, damaged or of another format ({error})",
            remedy=_EARLIER,
        ) from None
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(
            f"{source} is not a checkpoint of a training session",
            why="it is a safetensors file from elsewhere, or from another version of campo-onnx",
            remedy="To start from its weights, load them and pass them as the session's state.",
        )
    # safetensors itself has no checksum: a flipped bit in a weight would go unnoticed.
    if metadata.pop(_CHECKSUM, None) != _checksum(metadata, state):
        raise CheckpointError(
            f"the checkpoint {source} is damaged",
            why="its content is not what was written: the checksum differs",
            remedy=_EARLIER,
        )
    texts = {name: text for name, text in metadata.items() if name != "format"}
    try:
        facts = {name: text if name == "signature" else from_json(text) for name, text in texts.items()}
        checkpoint = from_plain({**facts, "state": {}}, Checkpoint)
    except (DecodeError, UsageError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint {source} is damaged", why=str(error), remedy=_EARLIER
        ) from None
    return replace(checkpoint, state=MappingProxyType(state))


def _checksum(metadata: Mapping[str, str], state: Mapping[str, NDArray[Any]]) -> str:
    """CRC-32 of everything in a checkpoint, in an order that does not depend on the file's."""
    value = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(state):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(np.ascontiguousarray(state[name]).data, value)
    return f"{value:08x}"
