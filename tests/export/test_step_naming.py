"""Names of inputs and outputs: written by exporters, read by sessions."""

import pytest

from campo_onnx.step import naming as step_naming


@pytest.mark.parametrize(
    ("name", "following"),
    [
        (step_naming.parameter("fc.weight"), step_naming.new_parameter("fc.weight")),
        (step_naming.buffer("bn.running_mean"), step_naming.new_buffer("bn.running_mean")),
        (step_naming.state("m", "fc.weight"), step_naming.new_state("m", "fc.weight")),
        (step_naming.STEP, step_naming.STEP_OUT),
    ],
)
def test_state_is_paired_with_its_next_value(name: str, following: str) -> None:
    assert step_naming.next_value(name) == following
    assert step_naming.is_next_value(following)
    assert not step_naming.is_next_value(name)


@pytest.mark.parametrize(
    "name",
    [
        step_naming.batch_input("step"),
        step_naming.target("labels"),
        step_naming.LEARNING_RATE,
        step_naming.LOSS_SCALE,
    ],
)
def test_what_is_fed_has_no_next_value(name: str) -> None:
    assert step_naming.next_value(name) is None
    assert step_naming.is_batch(name) == name.endswith((".step", ".labels"))


@pytest.mark.parametrize("name", [step_naming.LOSS, step_naming.GRADS_FINITE, step_naming.gradient("w")])
def test_results_are_no_state(name: str) -> None:
    assert not step_naming.is_next_value(name)


def test_only_what_the_optimizer_does_not_touch_may_be_frozen() -> None:
    inputs = [
        step_naming.parameter("fc.weight"),
        step_naming.parameter("weight"),
        step_naming.parameter("frozen"),
        step_naming.state("m", "fc.weight"),
        step_naming.buffer("mean"),
    ]
    names = [name for name in inputs if step_naming.may_be_frozen(name, inputs)]
    assert names == ["param.weight", "param.frozen", "buf.mean"]
