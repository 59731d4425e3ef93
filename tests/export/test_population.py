"""Networks of the population: the same by number, exported, and priced as the product plans them."""

import pytest

pytest.importorskip("torch")

from benchmarks.population import ALL_FP16, FAMILIES, PLANNED, UNPADDED
from benchmarks.population.networks import ACTIVATIONS_BYTES, activation_bytes, network
from benchmarks.population.rows import FORM, exported, measured, plan_of, row
from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.ir.importer import import_model


def layers(drawn, kind):
    return sum(type(module).__name__ == kind for module in drawn.module.modules())


def test_a_number_is_a_network():
    drawn = [network(number) for number in range(10)]
    assert [one.family for one in drawn] == [*FAMILIES * 2]
    for one in drawn:
        assert network(one.number).figures == one.figures
        assert activation_bytes(one) <= ACTIVATIONS_BYTES
    assert len({str(one.figures) for one in drawn}) == len(drawn)


def test_the_alexnets_have_the_papers_layers_and_figures():
    for number in (0, 6):
        drawn = network(number)
        kinds = ("Conv2d", "MaxPool2d", "Linear", "ReLU", "BatchNorm2d", "Dropout")
        assert [layers(drawn, kind) for kind in kinds] == [5, 3, 3, 7, 4, 2]
        figures = drawn.figures
        assert sum(len(value) for value in figures.values() if isinstance(value, list)) == 23
        assert all(kernels % 4 == 0 for kernels in figures["kernels"])
        assert all(width % 8 == 0 for width in figures["widths"])


@pytest.mark.parametrize("number", [7, 9])
def test_a_row_has_what_the_product_plans(number):
    """Priced without plans, and with problems shared by devices; an AlexNet and a transformer."""
    record, model = row(number, ("v100", "h200")), exported(network(number), FORM)
    for name in ("v100", "h200"):
        figures = record["devices"][name]
        assert figures["predicted_us"].keys() == {*PLANNED}
        for strategy in (*PLANNED[1:6], "optimal"):
            lists = {"tf-amp": "tf115", "torch-amp": "pytorch", "nvidia-amp": "nvidia"}.get(strategy, "campo")
            options = Options(target=target(name), lists=oplists(lists), strategy=strategy)
            plan = optimize_model(model, options).plan
            assert figures["predicted_us"][strategy] == pytest.approx(plan.predicted_us, rel=1e-12)
            assert figures["fp32_us"] == pytest.approx(plan.fp32_us, rel=1e-12)
            assert figures["casts"][strategy] == len(plan.casts)
        plan = plan_of(ALL_FP16, import_model(model), name)
        assert figures["predicted_us"][ALL_FP16] == pytest.approx(plan.predicted_us, rel=1e-12)
        assert figures["casts"][ALL_FP16] == len(plan.casts)
        assert figures["predicted_us"]["optimal"] <= figures["predicted_us"][UNPADDED] * (1 + 1e-9)


def test_steps_are_measured_where_a_device_is(monkeypatch):
    """The path, on the CPU provider: a small network, few steps."""
    from benchmarks.population import networks

    monkeypatch.setattr(networks, "ACTIVATIONS_BYTES", 3e7)
    numbers = [n for n in range(10) if FAMILIES[n % 5] == "transformer"]
    drawn = min((network(n) for n in numbers), key=activation_bytes)
    timings = measured(import_model(exported(drawn)), "cpu", steps=2)
    assert timings["provider"] == "cpu"
    assert {*timings["rows"]} == {"fp32", ALL_FP16, "tf-amp", "fine-grained", "campo", "optimal"}
    assert timings["rows"]["fp32"]["us"] > 0
