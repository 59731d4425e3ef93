"""Costs without a device at hand: a roofline over public figures.

A node takes as long as its bytes or its FLOPs, whichever is longer, plus its launches. Good for
telling which nodes gain and by how much, roughly; not for predicting a step.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.costs.table import CostTable, NodeCost
from campo_onnx.devices.device import Device
from campo_onnx.ir.view import GraphView, OpNode, TensorInfo
from campo_onnx.ops.gemms import GemmShape
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.work import Work, WorkKind, moved_bytes, work_of

SOURCE = "datasheet"

TILE = 64
"""Rows and columns of the result that one thread block makes; libraries go down to this size."""

SPLIT_K = 1024
"""Length of a sum from which libraries give parts of it to further thread blocks."""

_CONSTANT = OpKey("", "Constant")
_HOST_ONLY = (WorkKind.VIEW, WorkKind.NONE)


def estimate(view: GraphView, ports: Mapping[str, Ports], device: Device, precision: Precision) -> CostTable:
    """Estimate every node of a graph, and Casts, on a device.

    Parameters
    ----------
    view
        The graph.
    ports
        For every node, the tensors that change precision with it.
    device
        Where it is to run.
    precision
        The low precision, FP16 or BF16.
    """
    cast = CastModel(
        r_us=(Precision.FP32.itemsize_bytes + precision.itemsize_bytes) / device.effective_bytes_per_us,
        c_i_us=device.launch_us,
    )
    nodes = {
        node.name: _node_cost(node, view, ports[node.name], device, precision, cast) for node in view.nodes
    }
    return CostTable(device=device.name, source=SOURCE, nodes=nodes, cast=cast)


def utilization(gemm: GemmShape, sm_count: int) -> float:
    """Share of the chip that a product fills, in (0, 1]: its thread blocks against the SMs.

    Examples
    --------
    >>> utilization(GemmShape(m=64, n=64 * 20, k=512), sm_count=80)
    0.25
    """
    tiles = math.ceil(gemm.m / TILE) * math.ceil(gemm.n / TILE)
    blocks = tiles * math.ceil(gemm.k / SPLIT_K) * gemm.batch
    return min(1.0, max(1, blocks) / sm_count)


def tensor_core_multiple(precision: Precision) -> int:
    """What dimensions of a product are to be multiples of: tensor cores load 16 bytes at a time.

    Examples
    --------
    >>> tensor_core_multiple(Precision.FP16)
    8
    """
    return 16 // precision.itemsize_bytes


def gemm_rate(gemm: GemmShape, device: Device, precision: Precision) -> tuple[float, bool]:
    """FLOPs per second of a product, and whether that is on tensor cores.

    Libraries take the faster of both. On CUDA cores FP16 and BF16 products run at the FP32 rate,
    because they accumulate in FP32.
    """
    used = utilization(gemm, device.sm_count)
    plain = device.fp32_flops_per_s * device.efficiency.cuda_cores * used
    peak = device.tensor_flops_per_s(precision)
    if peak is None:
        return plain, False
    aligned = gemm.is_aligned(tensor_core_multiple(precision))
    share = device.efficiency.tensor_cores * (1.0 if aligned else device.efficiency.unaligned)
    return max((plain, False), (peak * share * used, True))


def padded_us(
    node: OpNode,
    view: GraphView,
    ports: Ports,
    device: Device,
    precision: Precision,
    ends: Mapping[int, tuple[int, ...]],
    output_ends: tuple[int, ...] | None,
) -> float:
    """Estimate a matrix product in low precision on longer tensors, without what lengthens them.

    Parameters
    ----------
    node, view, ports
        The node, and what :func:`estimate` takes.
    device, precision
        Where it is to run, and in what.
    ends
        By input position, what each axis is longer by; without any this is the node as it is.
    output_ends
        The same for its first output; None where that keeps its size.
    """

    def longer(tensor: str, by: tuple[int, ...] | None) -> str:
        info = view.tensors.get(tensor)
        if info is None or info.shape is None:
            return tensor
        by = by or (0,) * len(info.shape)
        shape = tuple(size + end for size, end in zip(info.shape, by, strict=True))
        name = f"{tensor} {by}"  # a tensor that is read twice at one size is moved once
        tensors[name] = replace(info, name=name, shape=shape)
        return name

    tensors: dict[str, TensorInfo] = {}
    padded = replace(
        node,
        inputs=tuple(longer(tensor, ends.get(i)) for i, tensor in enumerate(node.inputs)),
        outputs=(longer(node.outputs[0], output_ends), *node.outputs[1:]),
    )
    alone = replace(view, nodes=(padded,), tensors=tensors)
    traffic_bytes = moved_bytes(padded, alone, ports, precision)
    return _time_us(work_of(padded, alone), traffic_bytes, device, precision)[0]


def copy_us(traffic_bytes: float, device: Device) -> float:
    """Estimate a node that only moves bytes, such as Pad and Slice; what it reads and writes counts."""
    return traffic_bytes / device.effective_bytes_per_us + device.launch_us


def _node_cost(
    node: OpNode, view: GraphView, ports: Ports, device: Device, precision: Precision, cast: CastModel
) -> NodeCost:
    if node.op == _CONSTANT:  # in place before the step
        fp32_us, low_us, on_tensor_cores = 0.0, 0.0, False
    else:
        work = work_of(node, view)
        fp32_us, _ = _time_us(work, moved_bytes(node, view, ports, None), device, Precision.FP32)
        if ports.refusal or work.kind in _HOST_ONLY:
            low_us, on_tensor_cores = fp32_us, False
        elif device.computes_in(precision):
            low_bytes = moved_bytes(node, view, ports, precision)
            low_us, on_tensor_cores = _time_us(work, low_bytes, device, precision)
        else:
            low_us, on_tensor_cores = fp32_us + _emulation_us(node, view, ports, cast), False
    return NodeCost(
        node=node.name, fp32_us=fp32_us, low_us=low_us, on_tensor_cores=on_tensor_cores, source=SOURCE
    )


def _time_us(work: Work, traffic_bytes: float, device: Device, precision: Precision) -> tuple[float, bool]:
    """Roofline time, and whether all its products run on tensor cores."""
    if work.kind in _HOST_ONLY:
        return device.host_us, False
    rates = [gemm_rate(gemm, device, precision) for gemm in work.gemms]
    if rates:
        seconds = sum(gemm.flops / rate for gemm, (rate, _) in zip(work.gemms, rates, strict=True))
    else:
        seconds = work.flops / _stream_rate(device, precision)
    launches = sum(gemm.steps for gemm in work.gemms) or 1
    time_us = max(traffic_bytes / device.effective_bytes_per_us, seconds * 1e6) + launches * device.launch_us
    return time_us, bool(rates) and all(on_tensor_cores for _, on_tensor_cores in rates)


def _stream_rate(device: Device, precision: Precision) -> float:
    # Elementwise BF16 kernels compute in FP32.
    fp16 = device.fp16_flops_per_s if precision is Precision.FP16 else None
    return (fp16 or device.fp32_flops_per_s) * device.efficiency.cuda_cores


def _emulation_us(node: OpNode, view: GraphView, ports: Ports, cast: CastModel) -> float:
    """Casts that a runtime puts around an FP32 kernel to run a low node."""
    tensors = [node.inputs[i] for i in ports.low_inputs] + [node.outputs[i] for i in ports.low_outputs]
    infos = [view.tensors.get(tensor) for tensor in tensors if tensor]
    return sum(cast.cast_us(info.elements or 0) for info in infos if info is not None)
