"""Sessions read and write torch's own memory: addresses are compared, and every copy is counted."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import Attention, Encoder, compiled, convolutions, perceptron
from torch import nn
from torch.autograd.profiler import profile

from campo_onnx.runtime.onnxruntime.addresses import AddressedSession

Run = tuple[dict[str, int], dict[str, int]]


class Counting(nn.Module):
    """A buffer that forward changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Any) -> Any:
        self.seen += x.mean(0).detach()
        return self.weight * x + self.seen


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Names and addresses of all that sessions read and write, from now on."""
    seen: list[Run] = []
    run = AddressedSession.run

    def watched(self: Any, read_at: Any, written_at: Any) -> None:
        read_at, written_at = list(read_at), list(written_at)
        places = ((p.name for p in side) for side in (self._reads, self._writes))
        seen.append(
            tuple(dict(zip(n, at, strict=True)) for n, at in zip(places, (read_at, written_at), strict=True))
        )
        run(self, read_at, written_at)

    monkeypatch.setattr(AddressedSession, "run", watched)
    return seen


def copies(trace: Any) -> int:
    """How often torch copied elements: contiguous() and clone() end up in copy_()."""
    return sum(event.count for event in trace.key_averages() if event.key == "aten::copy_")


# What is copied: AOTAutograd moves the new value of a changed buffer into it. It does so for every backend.
CASES = {
    "perceptron": (lambda: perceptron(0.5), (3, 4), 0),
    "attention": (Attention, (2, 5, 16), 0),
    "encoder": (lambda: Encoder(0.1), (2, 5, 32), 0),
    "batch normalization": (convolutions, (2, 3, 8, 8), 3),
    "changed buffer": (Counting, (3, 4), 1),
}


@pytest.mark.parametrize(("make", "shape", "changed"), CASES.values(), ids=CASES)
def test_nothing_is_copied_on_the_way_in_or_out(make: Any, shape: Any, changed: int, runs: list[Run]) -> None:
    module, x = make(), torch.randn(shape)
    call = compiled(module)
    gradient = torch.randn_like(call(x).detach())
    call(x).backward(gradient)
    module.zero_grad()
    runs.clear()

    with profile(use_kineto=False) as forward:
        y = call(x)
    (handed_over,) = (t for t in y.grad_fn.saved_tensors if t.dtype == torch.uint8)
    with profile(use_kineto=False) as backward:
        y.backward(gradient)

    between = range(handed_over.data_ptr(), handed_over.data_ptr() + max(1, handed_over.nbytes))
    state = {f"param.{n}": p for n, p in module.named_parameters()}
    state |= {f"buf.{n}": b for n, b in module.named_buffers()}
    own = {name: tensor.data_ptr() for name, tensor in state.items()}
    assert len(runs) == 2
    for reads, _ in runs:
        addresses = {name: at for name, at in reads.items() if at not in between}
        assert {name: at for name, at in addresses.items() if name in own} == {
            n: own[n] for n in addresses if n in own
        }
        others = {at for name, at in addresses.items() if name not in own and not name.startswith("drawn")}
        assert others <= {x.data_ptr(), gradient.data_ptr(), y.data_ptr()}
    written = [{at for at in writes.values() if at not in between} for _, writes in runs]
    assert y.data_ptr() in written[0]
    assert len(written[0]) == 1 + changed
    assert written[1] == {p.grad.data_ptr() for p in module.parameters()}
    assert not any(name.endswith(".copy") for _, writes in runs for name in writes)
    assert (copies(forward), copies(backward)) == (changed, 0)


def test_an_input_with_gaps_is_copied_by_each_pass_that_reads_it(runs: list[Run]) -> None:
    module, x = perceptron(0.0), torch.randn(6, 8)[::2, ::2]
    call = compiled(module)
    gradient = torch.randn_like(call(x).detach())
    with profile(use_kineto=False) as forward:
        y = call(x)
    with profile(use_kineto=False) as backward:
        y.backward(gradient)
    assert (copies(forward), copies(backward)) == (1, 1)
    # The same elements in another order are not a copy: the graph is told how they lie.
    turned = torch.randn(4, 3).t()
    call(turned)
    with profile(use_kineto=False) as forward:
        y = call(turned)
    assert copies(forward) == 0
    assert turned.data_ptr() in runs[-1][0].values()
