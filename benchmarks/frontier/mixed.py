"""Bounds on the gain of mixing FP16 and BF16 in one plan, over the better of both frontiers.

Three labels are no cut: a Cast from one low format to the other is cheaper than two by way of FP32. An LP
relaxation bounds what any plan costs from below. Expansion moves (Boykov, Veksler, Zabih 2001) bound it from
above: every node stays or takes one label, by the same LP, which is nearly always integral then.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from benchmarks.frontier.steps import case_of
from campo_onnx import Precision
from campo_onnx.emulation.emulated_steps import EmulatedSteps
from campo_onnx.emulation.sensitivity import measure_sensitivities, references_of
from campo_onnx.optimize.frontier import FrontierPoint, frontier
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.roundings import Rounding
from campo_onnx.optimize.strategies.optimal import free_nodes

Facts = dict[str, Any]
Labels = Mapping[str, int]

FP32, FORMATS = 0, (Precision.FP16, Precision.BF16)
"""Labels: FP32, then the formats."""

DIRECT = 4 / 6
"""Bytes of a Cast from one low format to the other over those of one from or to FP32."""

MOST_NODES, RUNS, _ROUNDS = 1000, 80, 4


@dataclass(kw_only=True)
class _Program:
    """A linear program: what is not negative, what it costs, and what is at least a sum of others."""

    costs: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    count: int = 0

    def variable(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def at_least(self, variable: int, plus: Sequence[int], minus: Sequence[int]) -> None:
        """State ``variable >= sum(plus) - sum(minus)``."""
        for column, value in ((variable, -1.0), *((p, 1.0) for p in plus), *((m, -1.0) for m in minus)):
            self.rows.append(self.count)
            self.columns.append(column)
            self.values.append(value)
        self.count += 1


class Mixture:
    """A step with three labels for each node.

    Parameters
    ----------
    problems
        The step in either format.
    errors
        What roundings add to the squared error, in either format.
    price_us
        Price of a unit of squared error.
    """

    def __init__(
        self, problems: Sequence[Problem], errors: Sequence[Mapping[Rounding, float]], price_us: float
    ) -> None:
        self._problems, self._errors, self._price_us = problems, errors, price_us
        first = problems[0]
        self.nodes = [node.name for node in first.view.nodes]
        broken = [{n for r, e in of.items() if e == math.inf for n in r.nodes} for of in errors]
        may = [set(free_nodes(of)) - bad for of, bad in zip(problems, broken, strict=True)]
        self.allowed = {
            name: [FP32, *(label for label, names in enumerate(may, 1) if name in names)]
            for name in self.nodes
        }
        self._program = _Program()
        self._label = {
            (name, label): self._program.variable(self._node_us(name, label))
            for name in self.nodes
            for label in range(3)
        }
        self._add_casts()
        self._add_errors()

    def _node_us(self, name: str, label: int) -> float:
        cost = self._problems[max(label, 1) - 1].costs.nodes[name]
        return cost.low_us if label else cost.fp32_us

    def _add_casts(self) -> None:
        for problem_site in self._problems[0].sites.values():
            us, producer = problem_site.cast_us, problem_site.producer
            consumers = problem_site.consumers
            for label in (1, 2):
                other = 3 - label
                direct = self._program.variable(us * (1.0 if producer is None else DIRECT))
                rest = None if producer is None else self._program.variable(us * (1.0 - DIRECT))
                for name in consumers:
                    reads = self._label[name, label]
                    minus = [] if producer is None else [self._label[producer, label]]
                    self._program.at_least(direct, [reads], minus)
                    if rest is not None and producer is not None:
                        self._program.at_least(rest, [reads], [*minus, self._label[producer, other]])
            if producer is None:
                continue
            up = self._program.variable(us)
            for name in consumers:
                self._program.at_least(up, [self._label[name, FP32]], [self._label[producer, FP32]])
            if problem_site.needs_fp32:
                self._program.at_least(up, [self._label[producer, 1], self._label[producer, 2]], [])

    def _add_errors(self) -> None:
        most_us = 2.0 * sum(self._node_us(name, FP32) for name in self.nodes)  # who pays more stays FP32
        for label, errors in enumerate(self._errors, 1):
            for rounding, error in errors.items():
                if not 0.0 < error < math.inf:
                    continue
                there = self._program.variable(min(self._price_us * error, most_us))
                minus = [] if rounding.unless is None else [self._label[rounding.unless, label]]
                for name in rounding.nodes:
                    self._program.at_least(there, [self._label[name, label]], minus)

    def solve(self, allowed: Mapping[str, Sequence[int]]) -> tuple[float, NDArray[np.float64]]:
        """Solve the relaxation where each node has some labels only."""
        program, count = self._program, len(self._program.costs)
        bounds = np.tile([0.0, 1.0], (count, 1))
        for (name, label), column in self._label.items():
            if label not in allowed[name]:
                bounds[column, 1] = 0.0
        shape = (program.count, count)
        above = coo_array((program.values, (program.rows, program.columns)), shape=shape).tocsr()
        rows = np.repeat(np.arange(len(self.nodes)), 3)
        equal = coo_array((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape=(len(self.nodes), count))
        scale = sum(self._node_us(name, FP32) for name in self.nodes)
        result = linprog(
            np.asarray(program.costs) / scale, A_ub=above, b_ub=np.zeros(program.count),
            A_eq=equal.tocsr(), b_eq=np.ones(len(self.nodes)), bounds=bounds, method="highs",
        )  # fmt: skip
        if not result.success:
            raise RuntimeError(result.message)
        return float(result.fun) * scale, result.x

    def cost_us(self, labels: Labels) -> float:
        """The exact cost of an assignment: the program with every label fixed."""
        chosen = {column for (name, label), column in self._label.items() if labels[name] == label}
        program = self._program
        least = np.zeros(program.count)
        first = np.full(program.count, -1)
        for row, column, value in zip(program.rows, program.columns, program.values, strict=True):
            if first[row] < 0:
                first[row] = column
            elif column in chosen:
                least[row] += value
        values = np.zeros(len(program.costs))
        values[[*chosen]] = 1.0
        np.maximum.at(values, first, least)
        return float(values @ np.asarray(program.costs))

    def expanded(self, labels: Labels) -> dict[str, int]:
        """Improve an assignment by expansion moves until none helps."""
        best, best_us = dict(labels), self.cost_us(labels)
        for _ in range(_ROUNDS):
            before_us = best_us
            for label in range(3):
                moves = {n: [one for one in (best[n], label) if one in self.allowed[n]] for n in self.nodes}
                _, x = self.solve(moves)
                moved = {n: max(moves[n], key=lambda one, n=n: x[self._label[n, one]]) for n in self.nodes}
                moved_us = self.cost_us(moved)
                if moved_us < best_us * (1.0 - 1e-9):
                    best, best_us = moved, moved_us
            if best_us >= before_us * (1.0 - 1e-9):
                break
        return best


def mixed(name: str, work: Path) -> Facts:
    """Bound what a plan of both formats costs, at a middle price of each frontier, beside either alone."""
    began = time.process_time()
    cases = [case_of(name, low, work, device="h200", form=FORMATS[0]) for low in FORMATS]
    problems = [case.problem for case in cases]
    errors = []
    for case in cases:
        with EmulatedSteps(references_of(case.imported, case.batches[:1]), work / "steps") as steps:
            errors.append(measure_sensitivities(case.problem, steps, most_runs=RUNS).squared_errors)
    frontiers = [frontier(problem, of) for problem, of in zip(problems, errors, strict=True)]
    rows = []
    for index, points in enumerate(frontiers):
        price_us = points[len(points) // 2].least_price_us
        rows.append({"price_of": FORMATS[index].value, **_bounds(problems, errors, frontiers, price_us)})
    return {
        "name": Path(name).stem,
        "nodes": len(problems[0].view.nodes),
        "rows": rows,
        "cpu_s": time.process_time() - began,
    }


def _bounds(
    problems: Sequence[Problem], errors: Sequence[Mapping[Rounding, float]],
    frontiers: Sequence[Sequence[FrontierPoint]], price_us: float,
) -> Facts:  # fmt: skip
    mixture = Mixture(problems, errors, price_us)
    fp32_us = mixture.cost_us(dict.fromkeys(mixture.nodes, FP32))
    alone_us, starts = [], []
    for label, points in enumerate(frontiers, 1):
        best = min(points, key=lambda p: p.time_us + price_us * p.squared_error)
        starts.append({name: label if name in best.low else FP32 for name in mixture.nodes})
        alone_us.append(mixture.cost_us(starts[-1]))
    start = starts[int(np.argmin(alone_us))]
    lower_us, _ = mixture.solve(mixture.allowed)
    labels = mixture.expanded(start)
    return {
        "fp16": alone_us[0] / fp32_us,
        "bf16": alone_us[1] / fp32_us,
        "envelope": min(alone_us) / fp32_us,
        "upper": mixture.cost_us(labels) / fp32_us,
        "lower": lower_us / fp32_us,
        "labels": [sum(label == of for label in labels.values()) for of in range(3)],
    }
