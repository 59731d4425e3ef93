"""Checkpoints: resuming, and that a wrong or damaged one changes nothing."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from momentum_step import assert_same, batch, first_state, session, step_model
from safetensors import safe_open
from safetensors.numpy import save_file

from campo_onnx.errors import CheckpointError, UsageError
from campo_onnx.training import checkpoint
from campo_onnx.training.checkpoint import load_checkpoint


def test_resuming_is_as_if_nothing_had_happened(tmp_path: Path) -> None:
    straight, broken = session(), session()
    for number in range(3):
        straight.step(batch(number))
        broken.step(batch(number))
    broken.step(batch(9, scale=1e18))
    straight.step(batch(9, scale=1e18))
    broken.save(tmp_path / "a.safetensors")
    resumed = session(state={name: value + 1 for name, value in first_state().items()})
    resumed.step(batch(5))  # so that its state lies in the other buffer
    resumed.restore(tmp_path / "a.safetensors")
    assert_same(resumed.state(), straight.state())
    assert resumed.scaler == straight.scaler
    assert resumed.steps == straight.steps
    assert resumed.step(batch(4)).loss == straight.step(batch(4)).loss
    assert_same(resumed.state(), straight.state())
    assert os.listdir(tmp_path) == ["a.safetensors"]


def other_model(path: Path) -> None:
    model = step_model(("[3, 1]", "[2, 1]"), ("[4, 3] x", "[4, 2] x"))
    session(model, state=first_state() | {"param.w": np.zeros((2, 1), np.float32)}).save(path)


def torn(path: Path) -> None:
    session().save(path)
    path.write_bytes(path.read_bytes()[:-5])


def torn_early(path: Path) -> None:
    session().save(path)
    path.write_bytes(path.read_bytes()[:20])


def empty(path: Path) -> None:
    path.touch()


def from_elsewhere(path: Path) -> None:
    save_file(first_state(), path)


def renamed(path: Path) -> None:
    model = step_model(("opt.m.w", "opt.v.w"), ("new_m.w", "new_v.w"))
    session(model).save(path)


def sealed(path: Path, **changes: str | None) -> None:
    """Write a checkpoint whose metadata differ, with a checksum that fits."""
    training = session()
    training.save(path)
    with safe_open(path, framework="numpy") as file:
        metadata = {name: value for name, value in (file.metadata() | changes).items() if value is not None}
    metadata["checksum"] = checkpoint._checksum(
        {name: value for name, value in metadata.items() if name != "checksum"}, training.state()
    )
    save_file(training.state(), path, metadata)


def other_signature(path: Path) -> None:
    sealed(path, signature="0")


def bad_scaler(path: Path) -> None:
    sealed(path, scaler='{"scale": -1.0}')


def no_scaler(path: Path) -> None:
    sealed(path, scaler=None)


def no_steps(path: Path) -> None:
    sealed(path, steps=None)


def earlier_version(path: Path) -> None:
    sealed(path, format="campo-onnx-checkpoint-1")


def edited(path: Path) -> None:
    session().save(path)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file(session().state(), path, metadata | {"steps": "7"})


def renamed_in_the_file(path: Path) -> None:
    session().save(path)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file({name.replace(".w", ".x"): value for name, value in session().state().items()}, path, metadata)


def flipped_in_a_weight(path: Path) -> None:
    session().save(path)
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)


def nothing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("write", "error", "why"),
    [
        (other_model, CheckpointError, r"another model.*is float32\[3, 1\] here"),
        (renamed, CheckpointError, r"another model: it lacks 'opt\.m\.w'"),
        (torn, CheckpointError, "torn"),
        (torn_early, CheckpointError, "torn"),
        (empty, CheckpointError, "torn"),
        (flipped_in_a_weight, CheckpointError, "checksum differs"),
        (edited, CheckpointError, "checksum differs"),
        (renamed_in_the_file, CheckpointError, "checksum differs"),
        (from_elsewhere, CheckpointError, "not a checkpoint of a training session"),
        (earlier_version, CheckpointError, "another version"),
        (other_signature, CheckpointError, "signature"),
        (bad_scaler, CheckpointError, "damaged: the loss scale is -1"),
        (no_scaler, CheckpointError, "only one of the two has a loss scale"),
        (no_steps, CheckpointError, "damaged: .*missing required field `steps`"),
        (nothing, UsageError, "does not exist"),
        (Path.mkdir, CheckpointError, "cannot be read"),
    ],
)
def test_wrong_checkpoints_change_nothing(
    tmp_path: Path, write: Callable[[Path], None], error: type[Exception], why: str
) -> None:
    path = tmp_path / "a.safetensors"
    write(path)
    training = session()
    training.step(batch())
    before, scaler = training.state(), training.scaler
    with pytest.raises(error, match=why):
        training.restore(path)
    assert_same(training.state(), before)
    assert (training.scaler, training.steps) == (scaler, 1)


@pytest.mark.parametrize("seed", range(60))
def test_any_damage_is_told(tmp_path: Path, seed: int) -> None:
    path, chance = tmp_path / "a.safetensors", random.Random(seed)
    training = session()
    training.step(batch())
    training.save(path)
    content = bytearray(path.read_bytes())
    if seed % 3:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    else:
        del content[chance.randrange(len(content)) :]
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_the_exit_code_is_that_of_a_damaged_file() -> None:
    assert CheckpointError("it broke").exit_code == 5


def test_a_checkpoint_that_cannot_be_written_harms_no_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    training = session()
    training.save(path)
    earlier = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    training.step(batch())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        training.save(path)
    assert path.read_bytes() == earlier
    assert os.listdir(tmp_path) == ["a.safetensors"]
    with pytest.raises(UsageError, match="cannot be written"):
        training.save(tmp_path / "missing" / "a.safetensors")


_SAVES = """
import sys
sys.path.insert(0, {tests!r})
from momentum_step import batch, session
training = session()
while True:
    training.step(batch(training.steps))
    training.save({path!r})
    print(training.steps, flush=True)
"""


def test_a_process_killed_while_it_writes_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path, chance = tmp_path / "a.safetensors", random.Random(0)
    for _ in range(3):
        script = _SAVES.format(tests=str(Path(__file__).parent), path=str(path))
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for _ in range(chance.randrange(5, 40)):
                written = int(running.stdout.readline())
            time.sleep(chance.random() / 500)
            running.kill()
        assert load_checkpoint(path).steps >= written
        training = session()
        training.restore(path)
        assert training.steps >= written
