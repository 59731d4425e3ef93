"""Choose where the costs of a graph come from: measured here, modelled, or estimated from figures."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.catalog import found_calibrations
from campo_onnx.costs.estimated import estimate
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.costs.measured import measured_costs
from campo_onnx.costs.predicted import CostModel
from campo_onnx.costs.table import CostTable
from campo_onnx.errors import DeviceMismatchError, UsageError
from campo_onnx.ir.view import GraphView
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.targets.detect import is_here, machine_of
from campo_onnx.targets.target import Target

if TYPE_CHECKING:  # it needs polars, which a slim install has not
    from campo_onnx.measure.profile import Profile


def costs_for(
    view: GraphView,
    ports: Mapping[str, Ports],
    target: Target,
    precision: Precision,
    source: CostSource = CostSource.DATASHEET,
    evidence: Evidence | None = None,
) -> CostTable:
    """Find the costs of a graph on a device.

    `source`: where costs come from. ``CostTable.source`` says what ``auto`` chose.

    Raises UsageError if ``model`` is asked for, or a profile given, and there is no calibration of the
    device; DeviceMismatchError if a calibration or profile is of another device or precision, ``model`` is
    asked for and the user's calibration was made with other software, or ``measure`` is asked for a device
    that is not this machine's; ProfileError if the profile is of another graph, or the store fails.
    """
    basis = evidence or Evidence()
    if source is CostSource.DATASHEET:
        return estimate(view, ports, target, precision)
    calibration = basis.calibration or _found(target, precision, source)
    wants_model = source is CostSource.AUTO and (calibration is not None or basis.profile is not None)
    if source is CostSource.MODEL or wants_model:
        return _modelled(view, ports, target, precision, calibration, basis.profile)
    if source is CostSource.AUTO and not is_here(target):
        return estimate(view, ports, target, precision)
    here = machine_of(target, basis.threads)
    with nullcontext(basis.store) if basis.store is not None else Store() as store:
        timer = NodeTimer(machine=here, store=store)
        return measured_costs(view, ports, target, precision, timer, basis.on_progress)


def _found(target: Target, precision: Precision, source: CostSource) -> Calibration | None:
    """Find a calibration by name; one that no longer fits is passed over or, if asked for, refused."""
    refused = None
    for candidate in found_calibrations(target, precision) if source is not CostSource.MEASURE else ():
        if not candidate.refusal:
            return candidate.calibration
        refused = refused or candidate
    if refused is not None and source is CostSource.MODEL:
        raise DeviceMismatchError(
            f"the calibration {refused.file} does not fit",
            why=refused.refusal,
            remedy="Make it again with campo-onnx calibrate --force, or pass the file itself as "
            "--device FILE to use it anyway.",
        )
    return None


def _modelled(
    view: GraphView,
    ports: Mapping[str, Ports],
    target: Target,
    precision: Precision,
    calibration: Calibration | None,
    profile: "Profile | None",
) -> CostTable:
    if calibration is None:
        raise UsageError(
            f"no calibration of {target.name} in {precision.value} is installed",
            remedy="Make one on that device with campo-onnx calibrate; or take --costs datasheet.",
        )
    of = (calibration.hardware.name, calibration.precision, calibration.machine.runtime)
    if of != (target.name, precision, target.runtime.name):
        there, here = ("" if name == DEFAULT else f" with {name}" for name in (of[2], target.runtime.name))
        raise DeviceMismatchError(
            f"the calibration is of {calibration.hardware.name} in {calibration.precision.value}{there}",
            why=f"costs are wanted for {target.name} in {precision.value}{here}",
            remedy="Pass the calibration of that device and precision.",
        )
    if profile is None:
        return CostModel(calibration).predict(view, ports)
    profile.check_fits(view)
    profile.check_device(calibration.machine)
    return CostModel(calibration).predict(view, ports, profile.fp32_us(), profile.counters())
