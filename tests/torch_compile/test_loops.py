"""A few random training programs; ``python tests/torch_compile/loops.py`` runs hundreds."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import loops

CANCELS = 910029  # in either program, and in one weight that has small elements


@pytest.mark.parametrize("seed", [*range(5), CANCELS])
def test_random_programs_train_as_eager_does(seed: int) -> None:
    assert loops.difference(seed) == ""


def test_differences_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = loops.Network.forward

    def wrong(module, ids):
        return forward(module, ids) * (1.001 if torch.compiler.is_compiling() else 1.0)

    monkeypatch.setattr(loops.Network, "forward", wrong)
    assert "gradient" in loops.difference(0)
