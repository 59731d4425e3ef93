"""A frontier with errors measured on batches: predicted from single roundings, then emulated as a whole."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from campo_onnx.emulation.drift import Arrays
from campo_onnx.emulation.emulated_steps import EmulatedSteps, kept_in_cache
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.emulation.sensitivity import Sensitivities, measure_sensitivities, references_of
from campo_onnx.errors import CheckFailedError
from campo_onnx.ir.importer import Imported
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.frontier import FrontierPlan, are_nested, frontier_plans, least_error_within
from campo_onnx.planning.options import Options

MOST_EMULATED = 20
"""Plans of a frontier that are emulated, unless told otherwise."""


_JUMPS = 3.0
"""Factor between emulated and predicted error beyond which a choice on few values is the likely cause."""

_ROUNDED_UP = 1.05  # what two digits may hide


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Plans from the fastest to the one without error."""

    problem: Problem
    plans: tuple[FrontierPlan, ...]
    sensitivities: Sensitivities
    batches: int

    @property
    def is_nested(self) -> bool:
        """Whether nodes only leave the low precision from each plan to the next."""
        return are_nested([one.point for one in self.plans])

    @property
    def factors(self) -> tuple[float, ...]:
        """Emulated over predicted error of the plans that were emulated and are predicted to have one."""
        return tuple(
            one.emulated_error / one.point.error
            for one in self.plans
            if one.emulated_error is not None and one.point.error > 0.0
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about all plans together."""
        measured = self.sensitivities
        shown = sum(one.emulated_error is not None for one in self.plans)
        batches = f"{self.batches} batch{'es' * (self.batches > 1)}"
        told = (
            f"Errors: {len(measured.squared_errors)} roundings measured in {measured.runs} emulated steps on "
        )
        told += batches
        if measured.directions:
            told += f", and estimated by {measured.directions} with gradients"
        if measured.together:
            told += f", {measured.together} of them together with neighbours (--runs)"
        nested = "nodes leave low precision one after another"
        order = nested if self.is_nested else "their nodes are not nested"
        if len(self.plans) > 1:
            lines = [f"{len(self.plans)} plans on the frontier, {shown} of them emulated and shown; {order}."]
        else:
            only = self.plans[0]
            than = "it, and rounding changes nothing in it" if only.low_nodes else "FP32"
            lines = [f"No plan in {only.low.name} is predicted to be faster than {than}."]
        lines.append(f"{told}.")
        if factors := sorted(self.factors):
            lines.append(
                f"Emulated errors are {factors[0]:.2f} to {factors[-1]:.2f} times the predicted ones."
            )
            if factors[0] < 1.0 / _JUMPS or factors[-1] > _JUMPS:
                lines.append(
                    "A rectifier near zero, or a pooling of near equals, may choose otherwise in one plan "
                    "and not in the next; more batches (--inputs) average that out."
                )
        return tuple(lines)


def measured_frontier(
    imported: Imported,
    problem: Problem,
    options: Options,
    batches: Sequence[Arrays],
    *,
    most_runs: int | None = None,
    most_emulated: int = MOST_EMULATED,
    tell: Callable[[int, int], None] = lambda steps, most: None,
) -> Frontier:
    """Find every plan of the frontier for errors that are measured on batches.

    `most_runs`: emulated steps for each batch that measure single roundings
    (:func:`campo_onnx.emulation.sensitivity.measure_sensitivities`).
    `most_emulated`: plans that are emulated as a whole, spread over the frontier; the first and the last are
    among them.
    """
    imported.refuse_result()
    with kept_in_cache(references_of(imported, batches)) as steps:
        sensitivities = measure_sensitivities(
            problem, steps, most_runs=most_runs, tell=lambda done, most: tell(done, most + most_emulated)
        )
        plans = list(frontier_plans(problem, imported, options, sensitivities.squared_errors))
        places = [*spread_over(len(plans), most_emulated)]
        runs = (sensitivities.runs + sensitivities.directions) // len(batches)
        for done, place in enumerate(places, 1):
            plans[place] = _emulated(plans[place], imported, options, steps)
            tell(runs + done, runs + len(places))
    return Frontier(problem=problem, plans=tuple(plans), sensitivities=sensitivities, batches=len(batches))


def chosen_plan(
    imported: Imported,
    problem: Problem,
    options: Options,
    batches: Sequence[Arrays],
    *,
    most_error: float | None = None,
    most_us: float | None = None,
    most_runs: int | None = None,
    tell: Callable[[int, int], None] = lambda steps, most: None,
) -> FrontierPlan:
    """Choose a plan of the frontier by its error, or by its time.

    `most_error`: take the fastest plan of at most this error, as predicted and as emulated.
    `most_us`: take the plan of least predicted error whose predicted step is at most this long.

    Raises CheckFailedError if the emulated errors of all plans are larger; UsageError if no plan is as fast;
    and see :func:`measured_frontier`.
    """
    if (most_error is None) == (most_us is None):
        raise ValueError("exactly one of most_error and most_us is to be set")
    imported.refuse_result()
    with kept_in_cache(references_of(imported, batches)) as steps:
        sensitivities = measure_sensitivities(problem, steps, most_runs=most_runs, tell=tell)
        plans = frontier_plans(problem, imported, options, sensitivities.squared_errors)
        if most_us is not None:
            return _emulated(least_error_within(plans, most_us), imported, options, steps)
        assert most_error is not None
        errors = []
        for plan in (one for one in plans if one.point.error <= most_error):
            errors.append(_error(plan.plan, imported, options, steps))
            if errors[-1] <= most_error:
                return replace(plan, emulated_error=errors[-1])
    raise CheckFailedError(
        f"no plan of the frontier has an error of at most {most_error:g}",
        why=f"the least on the batches is {min(errors):.2g}",
        remedy=f"Allow an error of {min(errors) * _ROUNDED_UP:.2g}.",
    )


def error_on(imported: Imported, options: Options, batches: Sequence[Arrays]) -> Callable[[Plan], float]:
    """Return what emulates a plan of a step on batches, and tells its error: infinite if it is not finite."""
    steps = kept_in_cache(references_of(imported, batches))
    return lambda plan: _error(plan, imported, options, steps)


def _emulated(one: FrontierPlan, imported: Imported, options: Options, steps: EmulatedSteps) -> FrontierPlan:
    return replace(one, emulated_error=_error(one.plan, imported, options, steps))


def _error(plan: Plan, imported: Imported, options: Options, steps: EmulatedSteps) -> float:
    mixed = seeded(emulate(rewrite(imported, plan), options.dims))
    return math.sqrt(steps.squared_error(mixed))


def spread_over(count: int, most: int) -> Iterator[int]:
    """Choose places in a list that lie evenly, its ends among them.

    >>> [*spread_over(10, 4)], [*spread_over(2, 4)]
    ([0, 3, 6, 9], [0, 1])
    """
    if count <= most:
        yield from range(count)
    else:
        yield from sorted({round(i * (count - 1) / max(most - 1, 1)) for i in range(most)})
