"""A session's runtime: the faster one as measured, once; or the only one that runs the step."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from campo_onnx import Options, Precision, oplists, optimize_model
from campo_onnx.errors import ModelError, UnsupportedModelError, UsageError
from campo_onnx.export.optimizers import Momentum
from campo_onnx.runtime.registry import temporary_runtime
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate
from tests.runtime.toy import BF16_CPU, Toy, ToyProgram
from tests.training.momentum_step import LR, MOMENTUM, batch, first_state, gradient_model, step_model

ADDRESSED = replace(Toy.capabilities, takes_addresses=True)
FROM_FRACTIONS = "index = Cast<to = 7>(fail) row = Gather(buf.seen, index) buf_out.seen = Add(buf.seen, row)"
FEED = ("float loss_scale,", "float loss_scale, float fail,")


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("campo_onnx.runtime.registry._shipped", lambda: (RUNTIMES[0],))
    with temporary_runtime(Toy(slow_s=0.0, capabilities=ADDRESSED)):
        yield


def _onnxruntime() -> Any:
    from campo_onnx.runtime.onnxruntime.runtime import RUNTIME

    return RUNTIME


RUNTIMES = (_onnxruntime(),)


def _refuse(*_: object, **__: object) -> None:
    raise ModelError("the toy does not load it")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runtimes that were measured; the toy is the fastest."""
    names: list[str] = []

    def times(runs: Mapping[str, Callable[[], None]]) -> dict[str, float]:
        for name, run in runs.items():
            run()
            names.append(name)
        return {name: 1.0 if name == "toy" else 2.0 for name in runs}

    monkeypatch.setattr("campo_onnx.training.opened.times_us", times)
    return names


def session(model: onnx.ModelProto | None = None, **options: Any) -> TrainingSession:
    update = WeightUpdate(optimizer=Momentum(momentum=MOMENTUM), accumulate=2)
    return TrainingSession(
        model or gradient_model(),
        first_state(),
        update=update,
        settings={"lr": LR},
        provider="cpu",
        **options,
    )


def test_the_faster_runtime_is_taken_and_kept(measured: list[str]) -> None:
    assert session().runtime == "toy"
    assert measured == ["onnxruntime", "toy"]
    assert session().runtime == "toy"
    assert measured == ["onnxruntime", "toy"]  # by the choice that the first session kept
    assert session(threads=1).runtime == "toy"
    assert len(measured) == 4  # other threads, another choice
    assert session(runtime="onnxruntime").runtime == "onnxruntime"


def test_a_choice_that_no_longer_runs_is_made_again(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session().runtime == "toy"
    monkeypatch.setattr(Toy, "load", _refuse)
    assert session().runtime == "onnxruntime"


@pytest.mark.parametrize("holds_update", [False, True])
def test_measuring_leaves_no_trace(measured: list[str], holds_update: bool) -> None:
    states = []
    for runtime in ("toy", "auto"):
        if holds_update:
            training = TrainingSession(
                step_model(), first_state(), settings={"lr": LR}, provider="cpu", runtime=runtime
            )
        else:
            training = session(runtime=runtime)
        assert training.runtime == "toy"
        losses = [training.step(batch(number)).loss for number in range(4)]
        states.append(training.state() | {"losses": np.array(losses)})
    assert len(measured) == 2
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value)


def test_a_step_that_onnx_runtime_does_not_load_runs_in_the_other(measured: list[str]) -> None:
    options = Options(target=BF16_CPU, lists=oplists("campo"), low=Precision.BF16, strategy="torch-amp")
    mixed = optimize_model(gradient_model(), options).model
    with pytest.raises(UnsupportedModelError, match="ONNX Runtime cannot load"):
        session(mixed, runtime="onnxruntime")
    training = session(mixed)
    assert training.runtime == "toy"
    assert measured == []
    assert np.isfinite(training.step(batch(0)).loss)


def test_a_step_that_the_other_does_not_run_stays(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "load", _refuse)
    assert session().runtime == "onnxruntime"
    assert measured == []


def test_a_made_up_batch_that_fails_chooses_nothing(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ModelError("the graph fails while it runs")

    monkeypatch.setattr(ToyProgram, "run", fail)
    assert session().runtime == "onnxruntime"


def test_a_wrong_state_is_the_users_error() -> None:
    with pytest.raises(UsageError, match="param"):
        TrainingSession(gradient_model(), {}, update=WeightUpdate(optimizer=Momentum()), provider="cpu")


def test_arithmetic_of_64_bits_stays_with_onnx_runtime(measured: list[str]) -> None:
    model = gradient_model()
    model.graph.initializer.append(numpy_helper.from_array(np.array([3], np.int64), "three"))
    model.graph.node.append(onnx.helper.make_node("Mul", ["three", "three"], ["nine"], name="count"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("nine", TensorProto.INT64, [1]))
    assert session(model).runtime == "onnxruntime"
    assert measured == []


def test_indices_of_fractions_stay_with_onnx_runtime(measured: list[str]) -> None:
    """It says when one is out of range."""
    model = gradient_model(("buf_out.seen = Add(buf.seen, one)", FROM_FRACTIONS), FEED)
    assert session(model).runtime == "onnxruntime"
    assert measured == []
