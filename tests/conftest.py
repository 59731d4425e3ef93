"""Shared by many tests: graphs as text, plans made by hand, and ONNX Runtime to hold results against."""

import gc
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, parser

from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import problem_of
from campo_onnx.runtime.openvino.installed import openvino, openvino_problem
from campo_onnx.targets.target import target

# The same examples every time, however long one takes: a test that fails on one machine fails on all.
settings.register_profile(
    "campo", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("campo")


def pytest_configure() -> None:
    """Take Ctrl-C, also in a shell's background, where it is ignored: tests press it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Rooms whose tests start programs, sessions or frameworks, and files that take seconds: `make check` leaves
# them out, `make test` does not.
SLOW = {
    "bench", "benchmarks", "calibrate", "checking", "cli", "cluster", "cuda", "emulation", "export", "fuzz",
    "gpu_lease", "integrations", "random_graphs", "random_networks", "report", "runtime", "torch_compile",
    "training", "test_choose.py", "test_examples.py", "test_first_minutes.py", "test_foreign_operators.py",
    "test_frameworks_agree.py", "test_main_module.py", "test_padding_random.py", "test_pipeline.py",
    "test_public_api.py", "test_rewrite_any_plan.py", "test_traffic.py",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make check` leaves out."""
    tests = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(tests)
        if {path.parts[0], path.name} & SLOW:
            item.add_marker("slow")


@pytest.fixture(scope="session")
def bf16_units() -> None:
    """Skip where OpenVINO, or this CPU, computes in no BF16."""
    if problem := openvino_problem():
        pytest.skip(problem)
    units = openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "BF16" not in units:
        pytest.skip(f"this CPU has no BF16 units (OpenVINO tells {', '.join(units)})")


def pytest_collection_finish() -> None:
    """Keep what is there for the whole run, modules and tests, out of every garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep a developer's own calibrations and timings out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # programs started by tests need not compile
        yield


@pytest.fixture(autouse=True)
def ctrl_c_is_given_back() -> Iterator[None]:
    """Undo what the program does at its end: it gives Ctrl-C to the process, which here goes on."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


Arrays = Mapping[str, NDArray[Any]]

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
DATA = Path(__file__).parent / "data"
DIMS: Mapping[str, Mapping[str, int]] = {
    "bert_optimized_training": {"mask_dim0": 2, "ids_dim1": 8, "lab_dim0": 2, "lab_dim1": 8},
    "cnn_optimized_training": {"x_dim0": 4, "x_dim1": 3, "x_dim2": 8, "x_dim3": 8, "y_dim0": 4},
    "cnn_artifacts_training_model": {"B": 4},
}


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A plan made by hand, carried out."""

    imported: Imported
    problem: Problem
    plan: Plan
    model: ModelProto

    @property
    def nodes(self) -> dict[str, onnx.NodeProto]:
        return {node.name: node for node in self.model.graph.node}

    @property
    def casts(self) -> set[tuple[str, str]]:
        return {(n.input[0], n.output[0]) for n in self.model.graph.node if n.op_type == "Cast"}


def parse_model(graph: str, opset: int = 20, ir_version: int = 10) -> ModelProto:
    imports = f'"": {opset}, "com.microsoft": 1, "org.pytorch.aten": 1'
    return parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]> {graph}")


def lower_nodes(
    source: str | Path | ModelProto,
    low: Iterable[str] | Callable[[Problem], Iterable[str]] | None = None,
    precision: Precision = Precision.FP16,
    dims: Mapping[str, int] | None = None,
) -> Lowered:
    """Lower the named nodes, or else all that can be, whatever lists, costs and safety say."""
    if isinstance(source, Path) and source.parent == DATA:
        imported, problem = _asked_of_data(source, precision)
    else:
        imported, problem = _asked(
            parse_model(source) if isinstance(source, str) else source, precision, dims
        )
    if callable(low):
        chosen = frozenset(low(problem))
    elif low is None:
        chosen = frozenset(name for name, ports in problem.ports.items() if not ports.refusal)
    else:
        chosen = frozenset(low)
    verdicts = dict.fromkeys(problem.view.node, Verdict(decided_by=Reason.USER))
    plan = make_plan(problem, Assignment(low=chosen, verdicts=verdicts), strategy="test", lists="campo")
    return Lowered(imported=imported, problem=problem, plan=plan, model=rewrite(imported, plan))


def _asked(
    source: Path | ModelProto, precision: Precision, dims: Mapping[str, int] | None
) -> tuple[Imported, Problem]:
    imported = import_model(source, dims)
    options = Options(target=target("h200"), lists=preset("campo"), low=precision)
    return imported, replace(problem_of(imported, options), fixed={})


@cache
def _asked_of_data(path: Path, precision: Precision) -> tuple[Imported, Problem]:
    return _asked(path, precision, DIMS.get(path.stem))


def run_model(model: ModelProto | Path, feeds: Arrays | None = None) -> dict[str, NDArray[Any]]:
    """Run a model node by node on ONNX Runtime's CPU provider; without feeds, only load it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    payload = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(payload, options, providers=["CPUExecutionProvider"])
    if feeds is None:
        return {}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def assert_well_cast(imported: Imported, mixed: ModelProto) -> None:
    """Same interface, one Cast per tensor and type, and none that undoes another."""
    for field in ("input", "output"):
        assert list(getattr(imported.model.graph, field)) == list(getattr(mixed.graph, field))
    casts = [node for node in mixed.graph.node if node.op_type == "Cast"]
    keys = [(node.input[0], node.attribute[0].i) for node in casts]
    assert len(keys) == len(set(keys)), "a tensor is cast twice to one type"
    types = {name: info.dtype for name, info in imported.view.tensors.items()}
    before = {(node.input[0], node.output[0]) for node in imported.model.graph.node if node.op_type == "Cast"}
    changes_precision = {  # of tensors the given graph does not know, all are low
        node.output[0]: node.name
        for node in casts
        if {types.get(t, TensorProto.FLOAT16) for t in (*node.input, *node.output)} <= FLOATS
    }
    for node in casts:
        pair = (node.input[0], node.output[0])
        if node.output[0] in changes_precision and pair not in before:
            assert node.input[0] not in changes_precision, f"{node.name} undoes another Cast"


@pytest.fixture(scope="session")
def model_text() -> Callable[..., ModelProto]:
    """Parse a graph in text form; opsets and IR version are set."""
    return parse_model


@pytest.fixture(scope="session")
def lower() -> Callable[..., Lowered]:
    return lower_nodes


@pytest.fixture(scope="session")
def run() -> Callable[..., dict[str, NDArray[Any]]]:
    return run_model


@pytest.fixture(scope="session")
def well_cast() -> Callable[[Imported, ModelProto], None]:
    return assert_well_cast


@pytest.fixture(scope="session")
def dims_of() -> Callable[[Path], Mapping[str, int]]:
    """Sizes of the symbolic dimensions of a graph in ``tests/data``."""
    return lambda path: DIMS.get(path.stem, {})


@pytest.fixture(scope="session")
def imported_data() -> Callable[[Path], Imported]:
    """Read a graph in ``tests/data``, once in a process."""
    return cache(lambda path: import_model(path, DIMS.get(path.stem)))


@pytest.fixture
def integers() -> Callable[..., NDArray[np.float32]]:
    """Make small integers, which every precision holds exactly."""
    generator = np.random.default_rng(0)
    return lambda *shape: generator.integers(-3, 4, shape).astype(np.float32)


class Clock:
    """Time that passes only where a test says so; stands in for the module ``time`` of timings."""

    def __init__(self) -> None:
        self.now_us = 0.0

    def pass_us(self, us: float) -> None:
        self.now_us += us

    def perf_counter(self) -> float:
        return self.now_us / 1e6

    def perf_counter_ns(self) -> int:
        return round(self.now_us * 1e3)

    def taking(self, *us: float):
        """A step that takes so long; of several times one after the other, the last one from then on."""
        left = list(us)
        return lambda: self.pass_us(left.pop(0) if len(left) > 1 else left[0])


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("campo_onnx.runtime.timing.time", clock)
    return clock
