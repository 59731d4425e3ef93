"""What exporting costs and gives: nodes, bytes, seconds, and whether ONNX Runtime and campo take it.

    python benchmarks/export.py [--work DIR] [--models resnet50 ...] [--memory-gb 12]

Each job writes one JSON file into the work folder, so that a run can be stopped and started again; tables
are written between the markers of ``results/export.md`` when all jobs are done. A job runs in a process of
its own, which gives its memory back. Steps run on the CPU provider, where a conservative estimate of their
memory fits; predictions are estimates from public figures of the devices.
"""

import argparse
import contextlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from export_tables import write_tables
from numpy.typing import NDArray

from campo_onnx import Options, __version__, device, export_model, oplists, optimize_model
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.view import TensorKind
from campo_onnx.runtime.feeds import synthesize

HERE = Path(__file__).parent
RESULT = HERE / "results" / "export.md"

THREADS = 2
REPEATS = 3
SMALL = {"bert_large": 1}  # 2 otherwise
FORMS = ("matmul", "conv")
WITHOUT_CONVOLUTION = frozenset({"bert_large"})
DEVICES = ("h200", "v100")
STRATEGIES = ("campo", "optimal")
TAKEN = {
    "day": date.today().isoformat(),
    "versions": f"campo-onnx {__version__}, torch {version('torch')}, onnx {onnx.__version__}, "
    f"ONNX Runtime {ort.__version__}",
    "threads": THREADS,
    "repeats": REPEATS,
}

Found = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing to measure.

    Parameters
    ----------
    kind
        ``export``: export, check, load, step; ``plan``: the same, then optimize for every device;
        ``eager``: compare the shallow variant with torch; ``stock``: what ``torch.onnx`` itself
        makes of the same traced step.
    model
        Name in the zoo.
    batch
        Samples; 0 for the shallow variant.
    form
        Form of the weight gradient of convolutions.
    has_update
        Whether the optimizer is in the graph.
    """

    kind: str
    model: str
    batch: int = 0
    form: str = "matmul"
    has_update: bool = False

    @property
    def name(self) -> str:
        """What its file is called."""
        update = "update" if self.has_update else "gradients"
        return f"{self.kind}-{self.model}-b{self.batch}-{self.form}-{update}"


def jobs_of(model: str, full: int) -> Iterator[Job]:
    """List what is measured of one model."""
    small = SMALL.get(model, 2)
    for form in FORMS[:1] if model in WITHOUT_CONVOLUTION else FORMS:
        yield Job(kind="eager", model=model, form=form)
        yield from (Job(kind="export", model=model, batch=n, form=form) for n in (small, full))
    yield Job(kind="stock", model=model, batch=small)
    yield Job(kind="export", model=model, batch=small, has_update=True)
    yield Job(kind="plan", model=model, batch=full, has_update=True)


def measure(job: Job, memory_bytes: float) -> Found:
    """Do one job."""
    from zoo.export import ZOO

    entry = ZOO[job.model]
    if job.kind == "eager":
        return against_eager(entry, job)
    if job.kind == "stock":
        return by_torch_onnx(entry, job)
    with TemporaryDirectory() as folder:
        return exported(entry, job, Path(folder) / "step.onnx", memory_bytes)


def against_eager(entry: Any, job: Job) -> Found:
    """Compare gradients, then new parameters."""
    from zoo.eager import compare

    found = [compare(entry, optimizer=o, weight_gradient=job.form) for o in (None, entry.optimizer)]
    return {
        "gradients": max(found[0].worst.values()),
        "parameters": max(found[1].worst.values()),
        "optimizer": entry.optimizer,
        "tensors": sum(found[0].tensors.values()),
    }


def by_torch_onnx(entry: Any, job: Job) -> Found:
    """Hand the step, traced and free of mutation, to ``torch.onnx``."""
    import torch

    from campo_onnx.export.torch.step import Step
    from campo_onnx.export.torch.trace import trace

    inputs, targets = entry.batch(job.batch)
    with torch.device("meta"):
        module = entry.build()
    names = [f"input.{i}" for i in range(len(inputs))], [f"target.{i}" for i in range(len(targets))]
    step = Step(
        module=module, loss=entry.loss, optimizer=None, loss_scale=False,
        inputs=dict(enumerate(names[0])), by_keyword=False, targets=names[1],
    )  # fmt: skip
    batch = dict(zip([*names[0], *names[1]], [*inputs, *targets], strict=True))
    traced, _ = trace(step, batch, frozenset())
    arguments = tuple(node.meta["val"] for node in traced.graph.nodes if node.op == "placeholder")
    logging.disable(logging.CRITICAL)  # it explains a failure at length
    began = time.perf_counter()
    with arguments[0].fake_mode, contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(traced, arguments, dynamo=True, verbose=False, opset_version=20)
        except torch.onnx.errors.OnnxExporterError as error:
            return {
                "nodes": None,
                "refused": str(error.__cause__).split("target=torch.ops.")[-1].split("]")[0],
            }
    return {"nodes": len(program.model.graph), "export_s": time.perf_counter() - began}


def exported(entry: Any, job: Job, path: Path, memory_bytes: float) -> Found:
    """Export, check in full, load, step, perhaps optimize."""
    from zoo.export import export

    optimizer = entry.optimizer if job.has_update else None
    began = time.perf_counter()
    model = export(job.model, job.batch, optimizer=optimizer, weight_gradient=job.form, path=path)
    export_s = time.perf_counter() - began
    imported = import_model(path)
    session, load_s = loaded(path)
    peak_bytes = peak_of(imported)
    found: Found = {
        "nodes": len(model.graph.node),
        "file_bytes": path.stat().st_size,
        "export_s": export_s,
        "load_s": load_s,
        "peak_bytes": peak_bytes,
        "optimizer": optimizer,
        "step_s": stepped(session, imported) if peak_bytes < min(memory_bytes, free_bytes()) else None,
    }
    del session
    if job.kind == "plan":
        found["plans"] = [planned(path, d, s) for d in DEVICES for s in STRATEGIES]
    return found


def loaded(path: Path) -> tuple[ort.InferenceSession, float]:
    """Open a session as a user would; seconds it took."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    began = time.perf_counter()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session, time.perf_counter() - began


def stepped(session: ort.InferenceSession, imported: Imported) -> float:
    """Seconds of the best of some steps; the loss and the flag of the gradients must be finite."""
    feeds = {name: first_value(name, value) for name, value in synthesize(imported.view).items()}
    names = [output.name for output in session.get_outputs()]
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        values = session.run(names, feeds)
        best = min(best, time.perf_counter() - began)
        for value in values:
            if not np.isfinite(value).all():
                raise AssertionError("a result is not finite")
        del values  # before the next step needs as much again
    return best


def first_value(name: str, made_up: NDArray[Any]) -> NDArray[Any]:
    """Start with an optimizer that has not stepped yet, and a loss scale of 1."""
    if name == "loss_scale":
        return np.ones_like(made_up)
    return np.zeros_like(made_up) if name == "step" or name.startswith("opt.") else made_up


def peak_of(imported: Imported) -> int:
    """Bytes of all inputs, outputs and, at the worst moment, living tensors between them."""
    tensors = imported.view.tensors
    last = {name: i for i, node in enumerate(imported.view.nodes) for name in node.inputs if name}
    size = {
        name: int(np.prod(info.shape or (), dtype=np.int64))
        * onnx.helper.tensor_dtype_to_np_dtype(info.dtype).itemsize
        for name, info in tensors.items()
    }
    inner = {
        name for name, info in tensors.items() if info.kind is TensorKind.ACTIVATION and not info.is_output
    }
    graph_io = {name for name, info in tensors.items() if info.is_graph_io}
    living = peak = 0
    for i, node in enumerate(imported.view.nodes):
        made = {name for name in node.outputs if name} - graph_io
        living += sum(size[name] for name in made)
        peak = max(peak, living)
        ended = {name for name in node.inputs if last.get(name) == i and name in inner}
        living -= sum(size[name] for name in ended | {name for name in made if name not in last})
    return peak + sum(size[name] for name in graph_io)


def free_bytes() -> float:
    """Memory that can be had without swapping."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        rows = dict(line.split(":") for line in file)
    return float(rows["MemAvailable"].split()[0]) * 1024


def planned(path: Path, device_name: str, strategy: str) -> Found:
    """Optimize a step, write and check the result, and load it."""
    began = time.perf_counter()
    options = Options(device=device(device_name), lists=oplists("campo"), strategy=strategy)
    result = optimize_model(path, options)
    optimize_s = time.perf_counter() - began
    mixed = path.with_name(f"{device_name}-{strategy}.onnx")
    export_model(result.model, mixed)
    _, load_s = loaded(mixed)
    return {
        "device": device_name,
        "strategy": strategy,
        "low": len(result.plan.low_nodes),
        "casts": len(result.plan.casts),
        "fp32_us": result.plan.fp32_us,
        "predicted_us": result.plan.predicted_us,
        "optimize_s": optimize_s,
        "nodes": len(result.model.graph.node),
        "load_s": load_s,
    }


def run_jobs(jobs: list[Job], work: Path, memory_bytes: float) -> dict[str, Found]:
    """Do what is not done yet."""
    results = {}
    for number, job in enumerate(jobs, 1):
        path = work / f"{job.name}.json"
        if not path.exists():
            print(f"[{number}/{len(jobs)}] {job.name}", end=" ", file=sys.stderr, flush=True)
            began = time.perf_counter()
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found = pool.submit(measure, job, memory_bytes).result()
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(asdict(job) | TAKEN | found, indent=1), encoding="utf-8")
            draft.replace(path)
            print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        results[job.name] = json.loads(path.read_text(encoding="utf-8"))
    return results


def main() -> None:
    """Measure, then write the tables."""
    from zoo.export import ZOO

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("build/export"), help="folder for finished jobs")
    parser.add_argument("--models", nargs="+", choices=[*ZOO], default=[*ZOO])
    parser.add_argument("--memory-gb", type=float, default=12.0, help="take no step that may need more")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    jobs = [job for model in options.models for job in jobs_of(model, ZOO[model].batch_sizes[1])]
    results = run_jobs(jobs, options.work, options.memory_gb * 1e9)
    if len(options.models) == len(ZOO):
        write_tables([*results.values()], RESULT)
    else:
        print(json.dumps([*results.values()], indent=1))


if __name__ == "__main__":
    main()
