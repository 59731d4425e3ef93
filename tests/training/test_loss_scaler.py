"""The dynamic loss scale of NVIDIA's recipe."""

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campo_onnx.errors import UsageError
from campo_onnx.training.loss_scaler import LossScaler


def stepped(scaler: LossScaler, finite: bool, steps: int) -> LossScaler:
    for _ in range(steps):
        scaler = scaler.updated(finite=finite)
    return scaler


def test_starts_at_two_to_the_24() -> None:
    assert LossScaler().scale == 2.0**24


def test_halves_on_a_single_overflow() -> None:
    assert LossScaler().updated(finite=False).scale == 2.0**23
    assert stepped(LossScaler(), False, 10).scale == 2.0**14


def test_doubles_after_2000_clean_steps_and_not_before() -> None:
    low = LossScaler(scale=1024.0)
    assert stepped(low, True, 1999).scale == 1024
    assert stepped(low, True, 2000).scale == 2048
    assert stepped(low, True, 3999).scale == 2048
    assert stepped(low, True, 4000).scale == 4096


def test_an_overflow_starts_the_count_again() -> None:
    scaler = stepped(LossScaler(scale=1024.0), True, 1999).updated(finite=False)
    assert scaler.scale == 512
    assert stepped(scaler, True, 1999).scale == 512
    assert stepped(scaler, True, 2000).scale == 1024


def test_stays_within_its_limits() -> None:
    assert stepped(LossScaler(), False, 100).scale == 1
    assert stepped(LossScaler(), True, 2000).scale == 2.0**24
    assert stepped(LossScaler(largest=2.0**30), True, 2000).scale == 2.0**25
    assert stepped(LossScaler(smallest=2.0**-2), False, 100).scale == 0.25


def test_static_never_changes() -> None:
    scaler = LossScaler.static(128.0)
    assert scaler.updated(finite=False).scale == 128
    assert stepped(scaler, True, 5000).scale == 128


def test_is_a_value() -> None:
    scaler = LossScaler()
    scaler.updated(finite=False)
    assert scaler == LossScaler()
    with pytest.raises(FrozenInstanceError):
        scaler.scale = 1.0  # type: ignore[misc]


@given(st.lists(st.booleans(), max_size=60))
def test_state_survives_json_at_any_time(history: list[bool]) -> None:
    scaler = LossScaler(growth_interval=3)
    for finite in history:
        again = LossScaler.from_state_dict(json.loads(json.dumps(scaler.state_dict())))
        assert again == scaler
        assert again.updated(finite=finite) == scaler.updated(finite=finite)
        scaler = again.updated(finite=finite)
        assert 1 <= scaler.scale <= 2.0**24


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": 0.5},
        {"scale": 2.0**25},
        {"scale": float("nan")},
        {"largest": float("inf")},
        {"smallest": 0.0},
        {"backoff": 0.0},
        {"backoff": 2.0},
        {"growth": 0.5},
        {"growth_interval": 0},
        {"clean_steps": -1},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be"):
        replace(LossScaler(), **wrong)


@pytest.mark.parametrize(
    "state", [{"scales": 1.0}, {"scale": "1024"}, {"scale": None}, {"growth_interval": 3.5}, {"scale": True}]
)
def test_a_foreign_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not a loss scaler's state"):
        LossScaler.from_state_dict(state)
