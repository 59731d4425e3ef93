"""Plans that are kept, and where a joint graph is cut."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import Encoder, compiled
from onnx import ModelProto

from campo_onnx.integrations.torch_compile import report
from campo_onnx.integrations.torch_compile.cut import cut
from campo_onnx.ir.importer import import_model
from campo_onnx.planning import kept_plans


def trained(folder: Path) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Encoder()
    run = compiled(module, dynamic=False, device="v100", strategy="nvidia-amp", plans=folder)
    run(torch.randn(4, 7, 32)).sum().backward()
    (graph,) = report(module).graphs
    return graph.plan


def test_a_plan_is_made_once_and_damaged_ones_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(tmp_path / "plans")
    (kept,) = (tmp_path / "plans").glob("*.json")
    plans: list[str] = []
    planned = kept_plans.planned
    monkeypatch.setattr(
        kept_plans, "planned", lambda *arguments: plans.append("again") or planned(*arguments)
    )
    assert trained(tmp_path / "plans") == first
    assert not plans
    kept.write_text(kept.read_text()[:-100])
    assert trained(tmp_path / "plans") == first
    assert plans == ["again"]


JOINT = """joint (float[8, 16] x, float[16, 16] w, float[8, 16] dy) => (float[8, 16] y, float[16, 16] dw) {
    p = MatMul(x, w)
    r = Relu(p)
    t = Transpose<perm = [1, 0]>(r)
    y = Sigmoid(r)
    zero = Constant<value_float = 0.0>()
    mask = Greater(p, zero)
    dr = Mul(dy, y)
    dp = Where(mask, dr, zero)
    ds = MatMul(t, dp)
    dw = Add(ds, w)
}"""


def test_the_cut_keeps_least_bytes(model_text: Callable[..., ModelProto]) -> None:
    """Every choice of what runs late is tried: free nodes, and nodes that may run twice."""
    view = import_model(model_text(JOINT)).view
    ends = {"forward_outputs": ["y"], "backward_outputs": ["dw"], "tangents": ["dy"]}
    sizes = {"x": 512.0, "w": 0.0}
    split = cut(view, **ends, input_bytes=sizes)
    nodes = {node.outputs[0]: node for node in view.nodes}
    late = {"dr", "dp", "ds", "dw"}

    def cost(more: set[str]) -> float:
        """Bytes that cross if `more` runs in the backward half as well; infinite if it cannot."""
        reads = {t for name in late | more for t in nodes[name].inputs if t != "zero"}
        return sum(view.tensors[t].nbytes if t in nodes else sizes[t] for t in reads - late - more - {"dy"})

    choices = ("mask", "t")  # a comparison that the forward pass does not need, and a transposition
    best = min(cost(set(some)) for n in range(3) for some in itertools.combinations(choices, n))
    kept_bytes = sum(view.tensors[t].nbytes for t in split.kept if t in view.producer)
    assert kept_bytes == best == 512 + 128 + 512  # y, the mask, and r or its transpose
    assert set(split.kept) - {"w"} == {"y", "mask", "t"}
