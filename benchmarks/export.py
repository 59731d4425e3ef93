"""Exports of the paper's models: nodes, bytes, memory, seconds.

    python -m benchmarks.export [--work DIR] [--limit-s 540]

Needs PyTorch. Each job is a step whose result is kept below ``--work``; it runs in a process of its own. All
of them take about six minutes; run the command again until it says that all is done. Times are CPU seconds,
which grow with what else a machine does: leave it alone during ``--only 'export-*'``. Writes
results/export.json and .md when all jobs are done.
"""

import contextlib
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import onnxruntime as ort

from benchmarks.pages import arguments, provenance, publish
from benchmarks.steps import Call, Facts, Records, Step, add_arguments, call_of, drive, in_own_process
from benchmarks.zoo import CONVOLUTIONAL, TITLES
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView
from campo_onnx.optimize.traffic import traffic
from campo_onnx.step import naming as step_naming

if TYPE_CHECKING:
    import torch

THREADS = 2
TARGETS = {"standard": None, "cpu": "cpu", "cuda": "v100"}
"""Target that a step is lowered for, by its name on the page: none, a CPU or a GPU."""

SECONDS = {"export": 8, "stock": 24}

PRODUCT, IMAGES, CONVOLUTION = "product", "product per image", "convolution"
"""Forms of the gradient of a convolution's weight in the file."""

_PRODUCTS = frozenset({"Gemm", "MatMul", "FusedMatMul"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing to measure: an ``export``, or (``stock``) what ``torch.onnx`` makes of the same step."""

    kind: str
    model: str
    target: str = "standard"
    has_update: bool = False

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.kind}-{self.model}-{self.target}{'-update' if self.has_update else ''}"


def jobs_of(model: str) -> Iterator[Job]:
    """Give what is measured of a model."""
    yield from (Job(kind="export", model=model, target=target) for target in TARGETS)
    yield Job(kind="export", model=model, has_update=True)
    yield Job(kind="stock", model=model)


def measure(job: Job) -> Facts:
    """Do one job, at the paper's batch size on a V100."""
    if job.kind == "stock":
        return by_torch_onnx(job.model)
    with TemporaryDirectory() as folder:
        return exported(job, Path(folder) / "step.onnx")


def exported(job: Job, path: Path) -> Facts:
    """Export, check in full, and load."""
    from benchmarks.zoo.export import ZOO, export

    entry = ZOO[job.model]
    batch, update = max(entry.batch_sizes), {"optimizer": entry.optimizer if job.has_update else None}
    began = time.process_time()
    model = export(
        job.model, batch, target=TARGETS[job.target], unscale=job.has_update, path=path, **update
    )  # fmt: skip
    export_s = time.process_time() - began
    view = import_model(path).view
    return {
        "batch": batch,
        **update,
        "nodes": len(model.graph.node),
        "file_bytes": path.stat().st_size,
        "export_s": export_s,
        "load_s": None if job.target == "cuda" else seconds_to_load(path),
        "peak_bytes": traffic(view).peak_bytes,
        "forms": None if job.has_update or job.model not in CONVOLUTIONAL else forms(job.model, view),
    }


def seconds_to_load(path: Path) -> float:
    """Time what the CPU provider takes to load a step, with ONNX Runtime's default optimizations."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3
    began = time.process_time()
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return time.process_time() - began


def forms(model: str, view: GraphView) -> dict[str, dict[str, int]]:
    """Count the forms of the weight gradients in a graph, by kind of layer."""
    import torch

    from benchmarks.zoo.export import ZOO

    with torch.device("meta"):
        module = ZOO[model].build()
    by_kind: dict[str, Counter[str]] = {}
    for name, layer in module.named_modules():
        gradient = step_naming.scaled_gradient(f"{name}.weight")
        if isinstance(layer, torch.nn.modules.conv._ConvNd) and gradient in view.producer:
            by_kind.setdefault(_kind(layer), Counter()).update(_forms_behind(gradient, view))
    return {kind: dict(counts) for kind, counts in sorted(by_kind.items())}


def _kind(layer: "torch.nn.modules.conv._ConvNd") -> str:
    stride = "" if set(layer.stride) == {1} else f", stride {layer.stride[0]}"
    return f"{' x '.join(map(str, layer.kernel_size))}{stride}{', transposed' if layer.transposed else ''}"


def _forms_behind(tensor: str, view: GraphView, is_sum: bool = False) -> Iterator[str]:
    """Find the products that a gradient is moved or summed up from; a layer that is used twice has two."""
    node = view.producer[tensor]
    op_type = node.op.op_type
    if op_type == "Conv":
        yield CONVOLUTION
    elif op_type in _PRODUCTS:
        yield IMAGES if is_sum else PRODUCT
    else:
        for operand in node.inputs if op_type in ("Add", "Sum") else node.inputs[:1]:
            yield from _forms_behind(operand, view, is_sum or op_type == "ReduceSum")


def by_torch_onnx(model: str) -> Facts:
    """Hand the step, traced and free of mutation, to ``torch.onnx``."""
    import torch

    from benchmarks.zoo.export import ZOO
    from campo_onnx.export.torch.arguments import arguments
    from campo_onnx.export.torch.step import Step
    from campo_onnx.export.torch.trace import trace

    entry = ZOO[model]
    inputs, targets = entry.batch(max(entry.batch_sizes))
    with torch.device("meta"):
        module = entry.build()
    step = Step(
        module=module, loss=entry.loss, optimizer=None, loss_scale=False, unscale=False,
        inputs=arguments(inputs, module.forward, skip=0, kind="input", name_of=step_naming.batch_input),
        targets=arguments(targets, entry.loss, skip=1, kind="target", name_of=step_naming.target),
    )  # fmt: skip
    traced, _, _ = trace(step, frozenset())
    tensors = tuple(node.meta["val"] for node in traced.graph.nodes if node.op == "placeholder")
    logging.disable(logging.CRITICAL)  # it explains a failure at length
    with tensors[0].fake_mode, contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(traced, tensors, dynamo=True, verbose=False, opset_version=20)
        except torch.onnx.errors.OnnxExporterError as error:
            refused = str(error.__cause__).split("target=torch.ops.")[-1].split("]")[0]
            return {"nodes": None, "refused": refused}
    return {"nodes": len(program.model.graph)}


def steps_of(models: list[str]) -> Iterator[Step]:
    """Give one step for each job."""
    for job in (job for model in models for job in jobs_of(model)):

        def work(call: Call, job: Job = job) -> Facts:
            call.deadline.need(SECONDS[job.kind])
            return in_own_process(measure, job)

        yield Step(name=job.name, work=work, seconds=SECONDS[job.kind], asked=asdict(job))


def collect(records: Records) -> Facts:
    """Put the jobs that are done together, by kind."""
    order = {model: position for position, model in enumerate(TITLES)}
    done = [facts for facts in records.all().values() if "result" in facts]
    jobs = [facts["asked"] | facts["result"] for facts in done]
    jobs.sort(key=lambda job: (order[job["model"]], job["has_update"], [*TARGETS].index(job["target"])))
    by_kind = {kind: [job for job in jobs if job["kind"] == kind] for kind in SECONDS}
    return {
        "made": provenance("torch"),
        "titles": dict(TITLES),
        "threads": THREADS,
        "load_average": max(f["load_average"][0] for f in done if f["asked"]["kind"] == "export"),
        "targets": [*TARGETS],
        **by_kind,
    }


def publish_when_done(steps: list[Step], records: Records) -> tuple[Path, ...]:
    """Write the page, unless a job is missing: half of one would replace a whole one."""
    if any(records.result(step.name) is None for step in steps):
        return ()
    return publish("export", collect(records))


def main() -> int:
    """Measure what is not measured yet, then write the page."""
    parser = arguments(__doc__)
    add_arguments(parser, work="build/export")
    options = parser.parse_args()
    steps = [*steps_of([*TITLES])]
    return drive(steps, call_of(options), options, partial(publish_when_done, steps))


if __name__ == "__main__":
    sys.exit(main())
