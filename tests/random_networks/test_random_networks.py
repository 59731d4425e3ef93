"""Some random networks, and that the oracle tells a wrong step from a right one."""

from typing import Any

import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from tests.random_networks import oracle
from tests.random_networks.network import network


@pytest.mark.parametrize("seed", [0, 1, 5, 7, 12])
@pytest.mark.filterwarnings("ignore")  # torch's, about what was drawn
def test_steps_are_torchs(seed: int) -> None:
    try:
        told = oracle.outcomes(network(seed))
    except oracle.NotDrawnError:
        pytest.skip("torch cannot train this one")
    assert told["cpu"] == "ok"
    assert {told["portable"], told["cuda"].partition(":")[0]} <= {"ok", "no kernel"}


def test_a_wrong_gradient_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **options: Any) -> onnx.ModelProto:
        model = export(*args, **options)
        for node in list(model.graph.node):
            if node.output[0].startswith("grad."):
                name, node.output[0] = node.output[0], f"half.{node.output[0]}"
                model.graph.node.add(op_type="Add", input=[node.output[0]] * 2, output=[name])
        return model

    export = oracle.export_training_step
    monkeypatch.setattr(oracle, "export_training_step", wrong)
    with pytest.raises(oracle.WrongError, match="is off by"):
        oracle.outcomes(network(7))
