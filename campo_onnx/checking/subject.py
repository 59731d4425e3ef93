"""What the rules look at: both graphs, what was done between them, and what that costs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from campo_onnx.checking.pairing import Pairing, pair
from campo_onnx.checking.policy import Policy
from campo_onnx.checking.prediction import predicted_us
from campo_onnx.devices.datasheet import devices
from campo_onnx.devices.detect import resolve_device
from campo_onnx.devices.device import Device
from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.options import Options
from campo_onnx.pipeline import problem_of
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.sessions import open_session


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a committed plan makes of the FP32 graph, predicted like the mixed graph.

    Parameters
    ----------
    casts
        Casts it inserts.
    step_us
        Its step.
    """

    casts: int
    step_us: float


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One mixed graph under check.

    Parameters
    ----------
    given, mixed
        The FP32 graph and the one that was made from it.
    pairing
        What was done to it.
    problem
        Classes and costs of the FP32 graph.
    device
        What the costs are for.
    plan
        The committed plan, or None.
    policy
        What is asked.
    """

    given: Imported
    mixed: Imported
    pairing: Pairing
    problem: Problem
    device: Device
    plan: Plan | None
    policy: Policy

    @cached_property
    def step_us(self) -> float:
        """Predicted step of the mixed graph."""
        return predicted_us(self.problem, self.pairing, self.mixed.view, self.device)

    @property
    def fp32_us(self) -> float:
        """Predicted step of the FP32 graph."""
        return self.problem.costs.fp32_us

    @property
    def plan_fits(self) -> bool:
        """Whether the committed plan was made for this very graph."""
        return self.plan is not None and self.plan.digest == self.given.view.digest

    @cached_property
    def baseline(self) -> Baseline | None:
        """What the committed plan comes to now; None where there is none that fits.

        The step is predicted anew: the figures in the plan may be for another device, or come from
        another version's cost model.
        """
        if self.plan is None or not self.plan_fits:
            return None
        planned = import_model(rewrite(self.given, self.plan), self.policy.dims)
        pairing = pair(self.given, planned, title="the baseline", with_weights=False)
        return Baseline(
            casts=len(pairing.casts),
            step_us=predicted_us(self.problem, pairing, planned.view, self.device),
        )

    @cached_property
    def interface_changes(self) -> tuple[str, ...]:
        """What the graph's caller would notice."""
        return tuple(_interface_changes(self.given, self.mixed))

    @cached_property
    def refusal(self) -> str:
        """Why ONNX Runtime's CPU provider does not load the mixed graph; ``""`` where it does."""
        return _refusal(self.mixed)

    @cached_property
    def given_refusal(self) -> str:
        """The same for the FP32 graph: operators of ONNX Runtime's training build, say."""
        return _refusal(self.given)


def subject_of(given: Imported, mixed: Imported, policy: Policy, *, title: str) -> Subject:
    """Gather what the rules look at.

    Raises
    ------
    PlanMismatchError
        If the mixed graph belongs to another model.
    UsageError
        If the baseline cannot be read, or the policy names something that does not exist.
    """
    pairing = pair(given, mixed, title=title)
    plan = None if policy.baseline is None else _read_plan(policy.baseline)
    device = policy.device or _device_of(plan, mixed)
    options = Options(
        device=device,
        lists=policy.lists,
        low=pairing.low,
        keep_fp32=policy.keep_fp32,
        dims=policy.dims,
    )
    return Subject(
        given=given,
        mixed=mixed,
        pairing=pairing,
        problem=problem_of(given, options),
        device=device,
        plan=plan,
        policy=policy,
    )


def _device_of(plan: Plan | None, mixed: Imported) -> Device:
    """The device that the plan, or else the mixed graph, was made for, if its figures are known."""
    named = (made.device for made in (plan, mixed.stamp) if made is not None)
    name = next((name for name in named if name in devices()), "auto")
    return resolve_device(name)[0]


def _read_plan(path: Path) -> Plan:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"the baseline {path} does not exist",
            remedy="Write one with: campo-onnx optimize MODEL -o MIXED --plan FILE",
        ) from None
    except OSError as error:
        raise UsageError(f"the baseline {path} cannot be read", why=str(error)) from None
    return Plan.from_json(text, title=f"the baseline {path}")


def _interface_changes(given: Imported, mixed: Imported) -> list[str]:
    changes = []
    for what in ("input", "output"):
        before, after = ({v.name: v.type for v in getattr(m.model.graph, what)} for m in (given, mixed))
        changes += [f"{what} {name!r} is gone" for name in before if name not in after]
        changes += [f"{what} {name!r} is new" for name in after if name not in before]
        changes += [
            f"{what} {name!r} has another type or shape"
            for name, declared in before.items()
            if name in after and after[name] != declared
        ]
        if not changes and list(before) != list(after):
            changes.append(f"{what}s have another order")
    return changes


def _refusal(imported: Imported) -> str:
    try:
        open_session(imported.model, machine("cpu"), folder=imported.folder, strict=False)
    except UnsupportedModelError as error:
        return error.why
    return ""
