"""A runtime in one file: ONNX's reference implementation, which rounds as the graph says.

It makes believe to have BF16 units: products in FP32 sleep for a while.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from campo_onnx.errors import ModelError
from campo_onnx.hardware.datasheet import Assumption, device
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.api import Capabilities, NodeTime, Place, Runtime, StepTimes, Support
from campo_onnx.runtime.host_tensor import HostTensor
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.overhead import Overhead
from campo_onnx.runtime.timing import Step, timing_of
from campo_onnx.targets.target import Target

Feeds = Mapping[str, NDArray[Any]]
PRODUCTS = frozenset({"MatMul", "Gemm"})
_BF16 = {"bf16_flops_per_s": 1e12, "bf16_tensor_flops_per_s": 1e13}
_NEXT_TO_NOTHING = Assumption(value=1e-6, reason="small graphs are worth rewriting")


class ToyProgram:
    note = ""

    def __init__(self, model: onnx.ModelProto, slow_s: float) -> None:
        self._evaluator, self._slow_s = ReferenceEvaluator(model), slow_s
        self._nodes = [node.name for node in model.graph.node]

    def bound(self, reads: Mapping[str, HostTensor], writes: Mapping[str, HostTensor]) -> Step:
        def step() -> None:
            values = self.run({name: tensor.array for name, tensor in reads.items()})
            for name, tensor in writes.items():
                tensor.write(values[name])

        return step

    def placed(self, feeds: Feeds) -> Step:
        return self.bound({name: HostTensor(array) for name, array in feeds.items()}, {})

    def addressed(self, reads: Sequence[Place], writes: Sequence[Place]) -> Any:
        raise NotImplementedError

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        values = dict(feeds)
        for _ in self._timed(values):
            pass
        return {name: np.asarray(values[name]) for name in self._evaluator.output_names}

    def _timed(self, values: dict[str, Any]) -> Iterator[float]:
        values |= self._evaluator.rt_inits_ | {"": None}
        for node in self._evaluator.rt_nodes_:
            began = time.perf_counter()
            operands = [values[name] for name in node.input]
            try:
                values |= zip(node.output, node.run(*operands), strict=False)
            except Exception as error:
                raise ModelError("the graph fails while it runs", why=str(error)) from None
            if node.op_type in PRODUCTS and operands[0].dtype == np.float32:
                time.sleep(self._slow_s)
            yield 1e6 * (time.perf_counter() - began)

    def node_times(self, feeds: Feeds, *, repeats: int, warmup: int = 2, **_: Any) -> StepTimes:
        rows = [list(self._timed(dict(feeds))) for _ in range(warmup + repeats)][warmup:]
        nodes = tuple(
            NodeTime(nodes=(name,), kernel="reference", precision=None, time=timing_of(times))
            for name, times in zip(self._nodes, zip(*rows, strict=True), strict=True)
        )
        return StepTimes(nodes=nodes, step=timing_of([sum(row) for row in rows]), accounted=1.0)

    def executed(self) -> Mapping[str, Precision]:
        return {}


@dataclass(frozen=True)
class Toy(Runtime):
    slow_s: float = 0.01
    name: str = "toy"
    version: str = "1"
    installed: str = "1"
    processors: tuple[str, ...] = ("cpu",)
    capabilities: Capabilities = Capabilities(  # noqa: RUF009
        captures=False, takes_addresses=False, traces_nodes=True,
        fuses_casts=False, keeps_nan=True, multiplies_in_tf32=False, has_low_cpu_kernels=True,
    )  # fmt: skip

    def problem(self, processor: str) -> str:
        return "" if processor == "cpu" else "the toy runs on no GPU"

    def machine(self, processor: str, threads: int = 0) -> Machine:
        cpu = Machine(provider="cpu", device="toy", driver="", cuda="", ort="1", tf32=False, threads=1)
        return replace(cpu, runtime=self.name)

    def overhead(self, processor: str, *, captured: bool = False) -> Overhead:
        return Overhead(launch_us=_NEXT_TO_NOTHING, host_us=_NEXT_TO_NOTHING)

    def support(self, signature: Signature, processor: str, precision: Precision) -> Support:
        is_native = precision is Precision.FP32 or signature.op.op_type in PRODUCTS | {"Relu", "Transpose"}
        return Support.NATIVE if is_native else Support.REFUSED

    def load(self, model: onnx.ModelProto, processor: str, **_: Any) -> ToyProgram:
        return ToyProgram(model, self.slow_s)

    def tensor(self, shape: Sequence[int], dtype: int, processor: str) -> HostTensor:
        return HostTensor.zeros(shape, dtype)


BF16_CPU = Target.of(replace(device("cpu"), name="toy-cpu", **_BF16), Toy())
