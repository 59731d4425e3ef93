"""What exporting costs and gives: nodes, bytes, seconds, and whether ONNX Runtime takes it.

    python -m benchmarks.export [--work DIR] [--models resnet50 ...] [--memory-gb 12]

Needs PyTorch. Each job is a step whose result is kept below ``--work``; it runs in a process of its own,
which gives its memory back. Steps run on the CPU provider, where a conservative estimate of their memory
fits. Writes results/export.json and .md when all jobs are done.
"""

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.pages import arguments, made, publish
from benchmarks.steps import Call, Facts, Records, Step, add_arguments, call_of, drive, in_own_process
from benchmarks.zoo import TITLES
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize.traffic import traffic
from campo_onnx.runtime.feeds import synthesize

THREADS, REPEATS = 2, 3
SMALL = {"bert_large": 1}  # 2 otherwise
FULL = {"bert_large": 10}  # 256 otherwise: the paper's on the V100
FORMS = ("matmul", "conv")
WITHOUT_CONVOLUTION = frozenset({"bert_large"})
SECONDS = {"export": 60, "stock": 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing to measure: an ``export``, or (``stock``) what ``torch.onnx`` makes of the same step."""

    kind: str
    model: str
    batch: int
    form: str = "matmul"  # of the weight gradient of convolutions
    has_update: bool = False

    @property
    def name(self) -> str:
        """What its file is called."""
        update = "update" if self.has_update else "gradients"
        return f"{self.kind}-{self.model}-b{self.batch}-{self.form}-{update}"


def jobs_of(model: str) -> Iterator[Job]:
    small, full = SMALL.get(model, 2), FULL.get(model, 256)
    for form in FORMS[:1] if model in WITHOUT_CONVOLUTION else FORMS:
        yield from (Job(kind="export", model=model, batch=n, form=form) for n in (small, full))
    yield Job(kind="stock", model=model, batch=small)
    yield from (Job(kind="export", model=model, batch=n, has_update=True) for n in (small, full))


def measure(job: Job, memory_bytes: float) -> Facts:
    """Do one job."""
    if job.kind == "stock":
        return by_torch_onnx(job)
    with TemporaryDirectory() as folder:
        return exported(job, Path(folder) / "step.onnx", memory_bytes)


def by_torch_onnx(job: Job) -> Facts:
    """Hand the step, traced and free of mutation, to ``torch.onnx``."""
    import torch

    from benchmarks.zoo.export import ZOO
    from campo_onnx.export import step_naming
    from campo_onnx.export.torch.arguments import arguments
    from campo_onnx.export.torch.step import Step
    from campo_onnx.export.torch.trace import trace

    entry = ZOO[job.model]
    inputs, targets = entry.batch(job.batch)
    with torch.device("meta"):
        module = entry.build()
    step = Step(
        module=module, loss=entry.loss, optimizer=None, loss_scale=False, unscale=False,
        inputs=arguments(inputs, module.forward, skip=0, kind="input", name_of=step_naming.batch_input),
        targets=arguments(targets, entry.loss, skip=1, kind="target", name_of=step_naming.target),
    )  # fmt: skip
    traced, _, _ = trace(step, frozenset())
    given = tuple(node.meta["val"] for node in traced.graph.nodes if node.op == "placeholder")
    logging.disable(logging.CRITICAL)  # it explains a failure at length
    began = time.perf_counter()
    with given[0].fake_mode, contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(traced, given, dynamo=True, verbose=False, opset_version=20)
        except torch.onnx.errors.OnnxExporterError as error:
            refused = str(error.__cause__).split("target=torch.ops.")[-1].split("]")[0]
            return {"nodes": None, "refused": refused}
    return {"nodes": len(program.model.graph), "export_s": time.perf_counter() - began}


def exported(job: Job, path: Path, memory_bytes: float) -> Facts:
    """Export, check in full, load, and step where that fits."""
    from benchmarks.zoo.export import ZOO, export

    optimizer = ZOO[job.model].optimizer if job.has_update else None
    began = time.perf_counter()
    model = export(job.model, job.batch, optimizer=optimizer, weight_gradient=job.form, path=path)
    export_s = time.perf_counter() - began
    imported = import_model(path)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3
    began = time.perf_counter()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    load_s = time.perf_counter() - began
    peak_bytes = traffic(imported.view).peak_bytes
    return {
        "nodes": len(model.graph.node),
        "file_bytes": path.stat().st_size,
        "export_s": export_s,
        "load_s": load_s,
        "peak_bytes": peak_bytes,
        "optimizer": optimizer,
        "step_s": stepped(session, imported) if peak_bytes < min(memory_bytes, free_bytes()) else None,
    }


def stepped(session: ort.InferenceSession, imported: Imported) -> float:
    """Seconds of the best of some steps; the loss and the flag of the gradients must be finite."""
    feeds = {name: first_value(name, value) for name, value in synthesize(imported.view).items()}
    names = [output.name for output in session.get_outputs()]
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        values = session.run(names, feeds)
        best = min(best, time.perf_counter() - began)
        if not all(np.isfinite(value).all() for value in values):
            raise AssertionError("a result is not finite")
        del values  # before the next step needs as much again
    return best


def first_value(name: str, made_up: NDArray[Any]) -> NDArray[Any]:
    """Start with an optimizer that has not stepped yet, and a loss scale of 1."""
    if name == "loss_scale":
        return np.ones_like(made_up)
    return np.zeros_like(made_up) if name == "step" or name.startswith("opt.") else made_up


def free_bytes() -> float:
    """Memory that can be had without swapping."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        rows = dict(line.split(":") for line in file)
    return float(rows["MemAvailable"].split()[0]) * 1024


def steps_of(models: list[str], memory_bytes: float) -> Iterator[Step]:
    for job in (job for model in models for job in jobs_of(model)):

        def work(call: Call, job: Job = job) -> Facts:
            return in_own_process(measure, job, memory_bytes)

        asked = asdict(job) | {"threads": THREADS, "repeats": REPEATS}
        yield Step(name=job.name, work=work, seconds=SECONDS[job.kind], asked=asked)


def collect(records: Records) -> Facts:
    """Put the jobs that are done together, by kind."""
    order = {model: position for position, model in enumerate(TITLES)}
    jobs = [facts["asked"] | facts["result"] for facts in records.all().values() if "result" in facts]
    jobs.sort(key=lambda job: (order[job["model"]], job["form"] != FORMS[0], job["batch"]))
    by_kind = {kind: [job for job in jobs if job["kind"] == kind] for kind in SECONDS}
    return {"made": made("torch"), "titles": dict(TITLES), "threads": THREADS, "repeats": REPEATS, **by_kind}


def publish_when_done(steps: list[Step], records: Records) -> tuple[Path, ...]:
    """Write the page, unless a job is missing: half of one would replace a whole one."""
    if any(records.find(step.name) is None for step in steps):
        return ()
    return publish("export", collect(records))


def main() -> int:
    """Measure what is not measured yet, then write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=[*TITLES], default=[*TITLES])
    parser.add_argument("--memory-gb", type=float, default=12.0, help="take no step that may need more")
    add_arguments(parser, work="build/export")
    options = parser.parse_args()
    steps = list(steps_of(options.models, options.memory_gb * 1e9))
    every = list(steps_of([*TITLES], options.memory_gb * 1e9))
    return drive(steps, call_of(options), options, partial(publish_when_done, every))


if __name__ == "__main__":
    sys.exit(main())
