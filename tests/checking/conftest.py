"""A training step that gains from FP16 on a V100 as it is, and is checked within a second."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx.checking.check import check
from campo_onnx.checking.policy import Policy
from campo_onnx.checking.rules import RULES, VALID
from campo_onnx.checking.verdict import Status
from campo_onnx.ir.exporter import export_model
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

NAMES = [VALID, *(rule.name for rule in RULES)]

STEP = """g (float[128,512] x, float[512,512] w, float[512,512] v) => (
    float loss, float[512,512] grad_w, float[512,512] grad_v) {
    [first] h = MatMul(x, w)
    [bias] a = Add(h, b)
    [relu] r = Relu(a)
    [second] y = MatMul(r, v)
    [square] s = Mul(y, y)
    [mean] loss = ReduceMean<keepdims = 0>(s)
    [dropped] d = Mul(y, k)
    [transposed_r] rt = Transpose<perm = [1, 0]>(r)
    [weight_v] grad_v = MatMul(rt, d)
    [transposed_v] vt = Transpose<perm = [1, 0]>(v)
    [backward] dr = MatMul(d, vt)
    [gate] q = Where(positive, dr, zero)
    [sign] positive = Greater(a, zero)
    [transposed_x] xt = Transpose<perm = [1, 0]>(x)
    [weight_w] grad_w = MatMul(xt, q)
}"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """An FP32 step and its mixed version, written to a folder."""

    folder: Path
    plan: Plan

    @property
    def fp32(self) -> Path:
        return self.folder / "step.onnx"

    @property
    def mixed(self) -> Path:
        return self.folder / "mixed.onnx"

    @property
    def baseline(self) -> Path:
        return self.folder / "plan.json"


def checked(step, **policy):
    verdicts = check(step.mixed, step.fp32, Policy(**policy))
    assert [v.rule for v in verdicts.verdicts] == NAMES
    return {v.rule: v.finding for v in verdicts.verdicts}


def red(findings):
    return [name for name, finding in findings.items() if finding.status is Status.FAILED]


@pytest.fixture(scope="session")
def fp32_model(model_text: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    model = model_text(STEP)
    generator = np.random.default_rng(0)
    for name, value in (
        ("b", generator.normal(0, 0.1, 512)),
        ("k", generator.integers(1, 3, 512)),
        ("zero", np.zeros(1)),
    ):
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    nodes = {node.name: node for node in model.graph.node}
    ordered = [nodes.pop(n) for n in ("first", "bias", "sign")] + list(nodes.values())
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


@pytest.fixture(scope="session")
def shared_step(fp32_model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Step:
    """Written once; tests that change a file take `step`."""
    folder = tmp_path_factory.mktemp("made")
    onnx.save(fp32_model, folder / "step.onnx")
    optimized = optimize(folder / "step.onnx", Options(target=target("v100"), lists=preset("campo")))
    assert len(optimized.plan.low_nodes) > 5
    export_model(optimized.model, folder / "mixed.onnx", folder=folder)
    (folder / "plan.json").write_text(optimized.plan.to_json())
    return Step(folder=folder, plan=optimized.plan)


@pytest.fixture
def step(shared_step: Step, tmp_path: Path) -> Step:
    """Copy the files to a folder of the test's own."""
    for path in shared_step.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return Step(folder=tmp_path, plan=shared_step.plan)


@pytest.fixture
def edit(step: Step) -> Callable[[Callable[[onnx.ModelProto], object]], Path]:
    """Change the mixed file."""

    def apply(change: Callable[[onnx.ModelProto], object]) -> Path:
        model = onnx.load(step.mixed)
        change(model)
        step.mixed.write_bytes(model.SerializeToString())
        return step.mixed

    return apply
