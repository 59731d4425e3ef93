"""Joules per step from a counter that moves rarely."""

import pytest

from campo_onnx.bench.energy import BLOCK_S, BLOCKS, energy_samples

POWER_W = {"a": 400.0, "b": 250.0}


class Gpu:
    """Draws power while steps run; its counter moves every 100 ms."""

    def __init__(self, step_s: float, period_s: float = 0.1) -> None:
        self.now_s = self.drawn_j = self.shown_j = 0.0
        self.step_s, self.period_s = step_s, period_s
        self.steps = {name: self.step(power) for name, power in POWER_W.items()}

    def step(self, power_w: float):
        def run() -> None:
            before = self.now_s // self.period_s
            self.now_s += self.step_s
            self.drawn_j += power_w * self.step_s
            if self.now_s // self.period_s > before:
                self.shown_j = self.drawn_j

        return run

    def clock(self) -> float:
        return self.now_s


@pytest.mark.parametrize("step_s", [0.0007, 0.01, 0.3, 7.0])
def test_energy_per_step(step_s: float) -> None:
    gpu = Gpu(step_s)
    done: list[int] = []
    samples = energy_samples(gpu.steps, lambda: gpu.shown_j, clock=gpu.clock, on_block=done.append)
    for name, power_w in POWER_W.items():
        assert samples[name] == pytest.approx([power_w * step_s] * BLOCKS, rel=0.01)
    assert done == list(range(1, 2 * BLOCKS + 1))
    assert gpu.now_s >= 2 * BLOCKS * BLOCK_S


def test_a_counter_that_stands_still_is_no_measurement() -> None:
    gpu = Gpu(0.01, period_s=1e9)
    assert energy_samples(gpu.steps, lambda: gpu.shown_j, clock=gpu.clock) == {}
    assert gpu.now_s < 10


def test_no_counter_is_no_measurement() -> None:
    gpu = Gpu(0.01)
    assert energy_samples(gpu.steps, lambda: None, clock=gpu.clock) == {}
    readings = iter([1.0, 2.0])
    assert energy_samples(gpu.steps, lambda: next(readings, None), clock=gpu.clock) == {}
