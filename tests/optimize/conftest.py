"""Problems small enough to check by hand: graphs as text, costs as figures; and random ones."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import onnx.parser
import pytest
from onnx import TensorProto

from campo_onnx.costs.table import CostTable, NodeCost
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.view import GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.optimize.eligibility import fixed_nodes
from campo_onnx.optimize.lists.classify import Classification, NodeClass, classify
from campo_onnx.optimize.lists.oplists import OpClass, OpLists, preset
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.safety import protected
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.optimize.updates import weight_update
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.target import target

H200 = target("h200")
_HEADER = '<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]> g '


def _read(text: str) -> Imported:
    return import_model(onnx.parser.parse_model(_HEADER + text))


def _costs(
    view: GraphView, costs: Mapping[str, tuple[float, float]], default: tuple[float, float], cast: CastModel
) -> CostTable:
    assert costs.keys() <= view.node.keys()
    rows = {node.name: costs.get(node.name, default) for node in view.nodes}
    return CostTable(
        target=replace(H200, hardware=replace(H200.hardware, name="paper")),
        source="hand",
        nodes={
            name: NodeCost(node=name, fp32_us=fp32_us, low_us=low_us, on_tensor_cores=False, source="hand")
            for name, (fp32_us, low_us) in rows.items()
        },
        cast=cast,
    )


def _problem_from(
    text: str,
    *,
    lists: OpLists | str = "campo",
    costs: Mapping[str, tuple[float, float]] | None = None,
    default: tuple[float, float] = (10.0, 5.0),
    cast_us: float = 1.0,
    keep_fp32: tuple[str, ...] = (),
) -> Problem:
    imported, low = _read(text), Precision.FP16
    view = imported.view
    op_lists = preset(lists) if isinstance(lists, str) else lists
    ports = {node.name: ports_of(view.signature(node.name), low) for node in view.nodes}
    fixed = fixed_nodes(
        imported,
        ports,
        low=low,
        target=H200,
        protected=protected(view, op_lists),
        keep_fp32=keep_fp32,
    )
    table = _costs(view, costs or {}, default, CastModel(r_us=0.0, c_i_us=cast_us))
    return Problem(
        view=view,
        low=low,
        classification=classify(view, op_lists, weight_update(view)),
        ports=ports,
        fixed=fixed,
        costs=table,
        digest=imported.digest,
    )


@pytest.fixture(scope="session")
def read() -> Callable[[str], Imported]:
    """Import a graph written as text: ``(inputs) => (outputs) <constants> { nodes }``."""
    return _read


@pytest.fixture(scope="session")
def exported() -> Callable[[str], GraphView]:
    """View of a graph in ``tests/data``, by name."""
    return lambda name: import_model(Path(__file__).parents[1] / "data" / f"{name}.onnx").view


@pytest.fixture(scope="session")
def problem_from() -> Callable[..., Problem]:
    """Pose a problem about a graph written as text; every Cast takes `cast_us`."""
    return _problem_from


class Answer(NamedTuple):
    """Low nodes, Casts as ``(tensor, precision)``, and the nodes that are written, as text in order."""

    low: frozenset[str]
    casts: frozenset[tuple[str, str]]
    written: tuple[str, ...]


class Golden(NamedTuple):
    """One case of a fixture file: a problem, a strategy, and what it must answer."""

    imported: Imported
    problem: Problem
    strategy: str
    expected: Answer

    def answer(self) -> Answer:
        """The strategy's low nodes and casts, and the graph that is written for them."""
        assignment = STRATEGIES[self.strategy].decide(self.problem)
        plan = make_plan(self.problem, assignment, strategy=self.strategy, lists="")
        casts = frozenset((cast.tensor, cast.dst.value) for cast in plan.casts)
        return Answer(plan.low_nodes, casts, _text_of(rewrite(self.imported, plan)))


def _text_of(model: onnx.ModelProto) -> tuple[str, ...]:
    """Nodes as ``outputs = op(inputs)``; Casts with the type they cast to."""
    return tuple(
        f"{', '.join(node.output)} = {node.op_type}{_target(node)}({', '.join(node.input)})"
        for node in model.graph.node
    )


def _target(node: onnx.NodeProto) -> str:
    return f"<to={node.attribute[0].i}>" if node.op_type == "Cast" else ""


def _golden(title: str, text: str) -> Golden:
    question, _, answer = text.partition("\n----\n")
    settings, _, graph = question.partition("\n(")
    options = dict(line.split(": ", 1) for line in settings.strip().splitlines())
    expected = dict(re.findall(r"^(low|casts):[ ]*(.*)$", answer, re.MULTILINE))
    costs = {}
    for entry in options.pop("costs", "").split():
        name, fp32_us, low_us = re.fullmatch(r"(\w+)=([\d.]+)/([\d.]+)", entry).groups()
        costs[name] = (float(fp32_us), float(low_us))
    strategy = options.pop("strategy")
    problem = _problem_from(
        "(" + graph,
        lists=options.pop("lists"),
        default=costs.pop("default", (10.0, 5.0)),
        costs=costs,
        cast_us=float(options.pop("cast_us", "1")),
    )
    assert not options, f"{title}: unknown settings {options}"
    casts = frozenset(tuple(cast.split("->")) for cast in expected["casts"].split())
    written = tuple(line.strip() for line in answer.partition("\nwritten:\n")[2].strip().splitlines())
    expected_answer = Answer(frozenset(expected["low"].split()), casts, written)
    return Golden(_read("(" + graph), problem, strategy, expected_answer)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``test_golden_X(golden)`` the cases of ``fixtures/X.txt``."""
    if "golden" not in metafunc.fixturenames:
        return
    rule = metafunc.function.__name__.removeprefix("test_golden_")
    text = (Path(__file__).parent / "fixtures" / f"{rule}.txt").read_text(encoding="utf-8")
    _, *cases = re.split(r"^== (.+)$", text, flags=re.MULTILINE)
    titles = cases[::2]
    metafunc.parametrize(
        "golden", [_golden(t, c) for t, c in zip(titles, cases[1::2], strict=True)], ids=titles
    )


_CLASSES = (
    *(OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR) * 4,
    *(OpClass.DENY, OpClass.DENY, OpClass.UNLISTED),
)
_ELEMENTS = (1, 3, 10)


class _Maker:
    """Grows one random problem, node by node."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[OpNode] = []
        self.tensors: dict[str, TensorInfo] = {}
        self.ports: dict[str, Ports] = {}
        self.classes: dict[str, NodeClass] = {}
        self.fixed: dict[str, Verdict] = {}
        self.readable: list[str] = []
        self.lows: list[str] = []

    def tensor(self, name: str, dtype: int, kind: TensorKind = TensorKind.ACTIVATION) -> str:
        shape = (self.rng.choice(_ELEMENTS),)
        self.tensors[name] = TensorInfo(name=name, dtype=dtype, shape=shape, kind=kind)
        return name

    def chance(self, one_in: int) -> bool:
        return self.rng.randrange(one_in) == 0

    def node(self, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], ports: Ports) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(OpNode(name=name, op=OpKey("", op), inputs=inputs, outputs=outputs))
        self.ports[name] = ports
        self.classes[name] = NodeClass(op_class=OpClass.CLEAR)
        return name

    def compute(self) -> None:
        """A node of random class and ports that reads and makes FP32, and perhaps a mask."""
        rng, i = self.rng, len(self.nodes)
        inputs = tuple(rng.choice(self.readable) for _ in range(rng.choice((1, 1, 2, 2, 3))))
        outputs = tuple(self.tensor(f"t{i}_{j}", TensorProto.FLOAT) for j in range(rng.choice((1, 1, 1, 2))))
        mask = (self.tensor(f"m{i}", TensorProto.BOOL),) if self.chance(5) else ()
        fp32 = {p for p, t in enumerate(inputs) if self.tensors[t].dtype == TensorProto.FLOAT}
        any_inputs = frozenset(p for p in fp32 if self.chance(12))
        name = self.node(
            "Compute",
            inputs,
            outputs + mask,
            Ports(
                low_inputs=frozenset(p for p in fp32 - any_inputs if not self.chance(8)),
                low_outputs=frozenset(p for p in range(len(outputs)) if not self.chance(8)),
                any_inputs=any_inputs,
            ),
        )
        self.classes[name] = NodeClass(op_class=rng.choice(_CLASSES))
        if self.chance(8):
            self.fixed[name] = Verdict.refused(Refused.NO_SCHEMA.of())
        self.readable += outputs + mask

    def existing_cast(self) -> None:
        """A Cast of the given graph, down from FP32 or up to it."""
        i, up = len(self.nodes), bool(self.lows) and self.chance(2)
        floats = [t for t in self.readable if self.tensors[t].dtype == TensorProto.FLOAT]
        source = self.rng.choice(self.lows if up else floats)
        target = self.tensor(f"c{i}", TensorProto.FLOAT if up else TensorProto.FLOAT16)
        name = self.node("Cast", (source,), (target,), Ports(refusal=Refused.GIVEN_CAST.of()))
        self.fixed[name] = Verdict(decided_by=Reason.GIVEN_CAST)
        (self.readable if up else self.lows).append(target)

    def problem(self) -> Problem:
        rng, low = self.rng, Precision.FP16
        read = {t for node in self.nodes for t in node.inputs}
        results = [
            t for node in self.nodes for t in node.outputs if self.tensors[t].dtype == TensorProto.FLOAT
        ]
        outputs = tuple(t for t in results if t not in read or self.chance(10))
        tensors = {
            name: TensorInfo(
                name=name, dtype=info.dtype, shape=info.shape, kind=info.kind, is_output=name in outputs
            )
            for name, info in self.tensors.items()
        }
        inputs = tuple(name for name, info in tensors.items() if info.kind is TensorKind.INPUT)
        view = GraphView(
            nodes=tuple(self.nodes), tensors=tensors, inputs=inputs, outputs=outputs, opset={"": 20}
        )
        uses = [use for consumers in view.consumers.values() for use in consumers]
        costs = {}
        for node in self.nodes:
            fp32_us = float(rng.randrange(16))
            may_go_low = node.name not in self.fixed
            costs[node.name] = (fp32_us, float(rng.randrange(16)) if may_go_low else fp32_us)
        cast = CastModel(r_us=rng.choice((0.0, 0.25, 1.0)), c_i_us=rng.choice((0.0, 1.0, 3.0)))
        table = _costs(view, costs, (0.0, 0.0), cast)
        return Problem(
            view=view,
            low=low,
            classification=Classification(
                classes=self.classes,
                contained=frozenset(use for use in uses if self.chance(12)),
                taint_through_decisions=self.chance(2),
            ),
            ports=self.ports,
            fixed=self.fixed,
            costs=table,
            digest=view.digest,
        )


def _random_problem(rng: random.Random, *, most_nodes: int, casts: bool = True) -> Problem:
    maker = _Maker(rng)
    for i in range(rng.choice((1, 2))):
        maker.readable.append(maker.tensor(f"x{i}", TensorProto.FLOAT, TensorKind.INPUT))
    maker.readable.append(maker.tensor("w", TensorProto.FLOAT, TensorKind.CONSTANT))
    for _ in range(rng.randint(1, most_nodes)):
        if casts and maker.chance(6):
            maker.existing_cast()
        else:
            maker.compute()
    return maker.problem()


@pytest.fixture(scope="session")
def random_problem() -> Callable[..., Problem]:
    """Draw a problem: shared tensors, several outputs, fixed ports, masks, fixed nodes, existing Casts."""
    return _random_problem
