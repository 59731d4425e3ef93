"""Where the costs of a graph come from: measured here, modelled, or estimated from public figures."""

from collections.abc import Callable, Mapping

from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.calibrate.catalog import found_calibrations
from campo_onnx.calibrate.fit import fit_cast
from campo_onnx.calibrate.samples import cast_samples
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.costs.predicted import CostModel
from campo_onnx.costs.roofline import estimate
from campo_onnx.costs.table import CostTable, NodeCost
from campo_onnx.devices import datasheet
from campo_onnx.devices.device import Device
from campo_onnx.errors import DeviceMismatchError, DeviceUnavailableError, UnsupportedModelError, UsageError
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.measure.node_timer import Bench
from campo_onnx.measure.profile import Profile
from campo_onnx.measure.signature import Signature, signature_of
from campo_onnx.measure.store import Store
from campo_onnx.ops.kernels import has_kernel
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.providers import Machine, choose_provider, machine

MEASURED = "measure"
_CONSTANT = OpKey("", "Constant")
_CASTS = 12
_LARGEST_CAST_ELEMENTS = 1 << 22


def costs_for(
    view: GraphView,
    ports: Mapping[str, Ports],
    device: Device,
    precision: Precision,
    source: CostSource = CostSource.DATASHEET,
    evidence: Evidence | None = None,
) -> CostTable:
    """Find the costs of a graph on a device.

    Parameters
    ----------
    view
        The graph.
    ports
        For every node, the tensors that change precision with it.
    device
        Where it is to run.
    precision
        The low precision.
    source
        Where costs come from. ``CostTable.source`` says what ``auto`` chose.
    evidence
        Calibration, profile and store.

    Raises
    ------
    UsageError
        If ``model`` is asked for, or a profile given, and there is no calibration of the device.
    DeviceMismatchError
        If a calibration or profile is of another device or precision, ``model`` is asked for and the
        user's calibration was made with other software, or ``measure`` is asked for a device that is
        not this machine's.
    DeviceUnavailableError
        If the device's provider does not load.
    ProfileError
        If the profile is of another graph, or the store fails.
    """
    known = evidence or Evidence()
    if source is CostSource.DATASHEET:
        return estimate(view, ports, device, precision)
    calibration = known.calibration or _found(device, precision, source)
    wants_model = source is CostSource.AUTO and (calibration is not None or known.profile is not None)
    if source is CostSource.MODEL or wants_model:
        return _modelled(view, ports, device, precision, calibration, known.profile)
    if source is CostSource.AUTO and not is_here(device):
        return estimate(view, ports, device, precision)
    here = this_machine(device, known.threads)
    if known.store is not None:
        return measured_costs(
            view, ports, device, precision, Bench(machine=here, store=known.store), known.on_progress
        )
    with Store() as store:
        bench = Bench(machine=here, store=store)
        return measured_costs(view, ports, device, precision, bench, known.on_progress)


def _found(device: Device, precision: Precision, source: CostSource) -> Calibration | None:
    """Find a calibration by name; one that no longer fits is passed over or, if asked for, refused."""
    refused = None
    for found in found_calibrations(device.name, precision) if source is not CostSource.MEASURE else ():
        if not found.refusal:
            return found.calibration
        refused = refused or found
    if refused is not None and source is CostSource.MODEL:
        raise DeviceMismatchError(
            f"the calibration {refused.file} does not fit",
            why=refused.refusal,
            remedy="Make it again with campo-onnx calibrate --force, or pass the file itself as "
            "--device FILE to take it all the same.",
        )
    return None


def is_here(device: Device) -> bool:
    """Whether this machine is, or has, the device, with a provider that loads."""
    try:
        this_machine(device)
    except (DeviceUnavailableError, DeviceMismatchError):
        return False
    return True


def this_machine(device: Device, threads: int = 0) -> Machine:
    """Identify this machine, which must have the device.

    Raises
    ------
    DeviceUnavailableError
        If the device's provider does not load.
    DeviceMismatchError
        If this machine has another GPU.
    """
    here = machine(choose_provider(device.provider), threads)
    if device.provider == "cuda":
        known = datasheet.matching(here.device)
        if known is None or known.name != device.name:
            raise DeviceMismatchError(
                f"{device.name} cannot be measured here",
                why=f"this machine has {here.device}",
                remedy="Measure on that device, or take --costs model or datasheet.",
            )
    return here


def _modelled(
    view: GraphView,
    ports: Mapping[str, Ports],
    device: Device,
    precision: Precision,
    calibration: Calibration | None,
    profile: Profile | None,
) -> CostTable:
    if calibration is None:
        raise UsageError(
            f"there is no calibration of {device.name} in {precision.value}",
            remedy="Make one on that device with campo-onnx calibrate; or take --costs datasheet.",
        )
    if (calibration.device.name, calibration.precision) != (device.name, precision):
        raise DeviceMismatchError(
            f"the calibration is of {calibration.device.name} in {calibration.precision.value}",
            why=f"costs are wanted for {device.name} in {precision.value}",
            remedy="Pass the calibration of that device and precision.",
        )
    if profile is None:
        return CostModel(calibration).predict(view, ports)
    profile.check_fits(view)
    profile.check_device(calibration.machine)
    return CostModel(calibration).predict(view, ports, profile.fp32_us(), profile.counters())


def measured_costs(
    view: GraphView,
    ports: Mapping[str, Ports],
    device: Device,
    precision: Precision,
    bench: Bench,
    on_progress: Callable[[int, int], None] | None = None,
) -> CostTable:
    """Time every distinct node in both precisions: static profiling, as in the paper's section 4.2.

    A node that cannot be timed alone (control flow, an operator the provider refuses) keeps the
    estimate from figures, and its source says so. One that runs in FP32 only costs, in the low
    precision, the Casts around it.
    """
    signatures = {node.name: signature_of(node, view) for node in view.nodes}
    distinct = {s.key: s for n, s in signatures.items() if s is not None and view.node[n].op != _CONSTANT}
    total, done = 2 * _CASTS + len(distinct), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total)

    sweep = []
    for elements, cast in cast_samples(_CASTS, _LARGEST_CAST_ELEMENTS, precision):
        sweep.append((elements, bench.time(cast).median_us))
        advance()
    sweep = [(elements, us) for elements, us in sweep if us > 0]
    cast_model = fit_cast([elements for elements, _ in sweep], [us for _, us in sweep])
    times: dict[str, tuple[float, float] | None] = {}
    for key, signature in distinct.items():
        times[key] = _both_us(signature, precision, bench, cast_model, may_gain=device.computes_in(precision))
        advance()
    estimated = estimate(view, ports, device, precision).nodes
    nodes = {}
    for node in view.nodes:
        own = signatures[node.name]
        found = times.get(own.key) if own is not None else None
        nodes[node.name] = _measured_node(node, found, estimated[node.name], ports[node.name])
    return CostTable(device=device.name, source=MEASURED, nodes=nodes, cast=cast_model)


def _measured_node(
    node: OpNode, times: tuple[float, float] | None, estimated: NodeCost, ports: Ports
) -> NodeCost:
    if times is None:
        return estimated
    fp32_us, low_us = times
    return NodeCost(
        node=node.name,
        fp32_us=fp32_us,
        low_us=fp32_us if ports.refusal else low_us,
        on_tensor_cores=estimated.on_tensor_cores,
        source=MEASURED,
    )


def _both_us(
    signature: Signature, precision: Precision, bench: Bench, cast: CastModel, *, may_gain: bool
) -> tuple[float, float] | None:
    """FP32 and low-precision time of a node; None when it does not even run in FP32."""
    try:
        fp32_us = bench.time(signature).median_us
    except UnsupportedModelError:
        return None
    low = signature.lowered(precision)
    if low is None:
        return fp32_us, fp32_us
    try:
        low_us = bench.time(low).median_us
    except UnsupportedModelError:
        return fp32_us, fp32_us + _surrounding_casts_us(signature, precision, cast)
    opset = signature.view.opset.get(signature.node.op.domain, 1)
    if not (may_gain and has_kernel(signature.node.op, opset, bench.machine.provider, precision)):
        # ONNX Runtime runs the FP32 kernel between Casts; anything faster than the kernel is noise. Where
        # nothing computes in the low precision, it does so even with nodes that have a kernel and only
        # move bytes, once their neighbours are treated like that.
        low_us = max(low_us, fp32_us)
    return fp32_us, low_us


def _surrounding_casts_us(signature: Signature, precision: Precision, cast: CastModel) -> float:
    ports, node = signature.ports(precision), signature.node
    tensors = [node.inputs[i] for i in ports.low_inputs] + [node.outputs[i] for i in ports.low_outputs]
    return sum(cast.cast_us(signature.view.tensors[t].elements or 0) for t in tensors)
