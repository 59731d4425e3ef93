"""First steps of a session on a device: versions, whether anything runs, what counters can be read."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from benchmarks.steps import Call
from campo_onnx import Target, __version__
from campo_onnx.calibrate.catalog import file_name
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import FLOAT
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.measure.node_timer import LAUNCH_NODE, NodeTimer
from campo_onnx.measure.one_node import one_node_model, one_node_view
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature, make_signature
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.onnxruntime.ncu import LIMIT_S, count, tensor_pipe_share
from campo_onnx.runtime.onnxruntime.providers import ORT_NAME
from campo_onnx.runtime.onnxruntime.sessions import assignments, placed_elsewhere
from campo_onnx.runtime.registry import load
from campo_onnx.runtime.timing import Effort, measure

_STEP_EFFORT = Effort(warmup=2, repeats=10, least=3, budget_s=20.0)
_TELLING_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES", "ORT_CUDA_GEMM_OPTIONS")
_GPU_FIELDS = "name,driver_version,compute_cap,memory.total,clocks.max.sm,clocks.max.mem,power.limit"

LOW = Precision.FP16


@dataclass(frozen=True, kw_only=True)
class Session:
    """Graphs and nodes to measure, the device, and where files go.

    Parameters
    ----------
    folder
        Where results lie.
    bench
        Times nodes.
    device
        Figures of the device.
    graphs
        Training steps to bench and profile.
    forms
        Graphs of one model in several forms, by name and form; the first of each is among `graphs`.
    ops
        Operators of the quick calibration; those of ``calibrate --quick`` where empty.
    shapes
        Its shapes of each; with 24, a GPU has time for the rest within half an hour.
    round_s
        Seconds after which no further round of steps that take turns begins.
    """

    folder: Path
    bench: NodeTimer
    device: Target
    graphs: tuple[Path, ...]
    forms: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)
    ops: tuple[str, ...] = ()
    shapes: int = 24
    round_s: float = 40.0

    @property
    def provider(self) -> str:
        """Where it runs."""
        return self.bench.machine.provider

    @property
    def on_cpu(self) -> bool:
        """Whether there is no GPU in it."""
        return self.provider == "cpu"

    @property
    def calibrated(self) -> Path | None:
        """The calibration that this session made, the full one first; None before it did."""
        own = (self.calibration_path(LOW, full=full) for full in (True, False))
        return next((path for path in own if path.exists()), None)

    def calibration_path(self, precision: Precision, *, full: bool) -> Path:
        """Where a calibration goes: the full one under the name it is shipped as."""
        name = file_name(self.device, precision)
        return self.folder / (name if full else name.replace(".json", ".quick.json"))


def both_us(fp32: Signature, session: Session) -> dict[str, float]:
    """Time of a node in both precisions."""
    low = lowered(fp32, ports_of(fp32, LOW), LOW)
    assert low is not None
    return {"fp32_us": session.bench.time(fp32).median_us, "low_us": session.bench.time(low).median_us}


def matmul(m: int, k: int, n: int) -> Signature:
    """A matrix product in FP32."""
    return make_signature(OpKey("", "MatMul"), [(FLOAT, (m, k)), (FLOAT, (k, n))], [(FLOAT, (m, n))])


def facts(session: Session, call: Call) -> dict[str, Any]:
    """Device, driver and every version that may change a time."""
    entries: dict[str, Any] = {
        "campo_onnx": __version__,
        "onnxruntime": ort.__version__,
        "onnxruntime_build": ort.get_build_info(),
        "providers": ort.get_available_providers(),
        "onnx": onnx.__version__,
        "python": sys.version.split()[0],
        "machine": asdict(session.bench.machine),
        "environment": {name: os.environ[name] for name in _TELLING_VARIABLES if name in os.environ},
        "torch": _printed(sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda)"),
    }
    if not session.on_cpu:
        entries["nvidia_smi"] = _printed("nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv")
        entries["cudnn"] = _cudnn_version()
        entries["ncu"] = _printed("ncu", "--version")
    return entries


def _printed(*words: str) -> str:
    program = shutil.which(words[0])
    if program is None:
        return "not installed"
    try:
        done = subprocess.run([program, *words[1:]], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (
        done.stdout.strip() if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]
    )


def _cudnn_version() -> str:
    try:
        library = ctypes.CDLL("libcudnn.so.9")  # ONNX Runtime's provider has loaded it
    except OSError as error:
        return str(error)
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return str(library.cudnnGetVersion())


def check_provider(session: Session, call: Call) -> dict[str, Any]:
    """The provider loads, names survive, nothing runs elsewhere; and BF16 inputs can be bound."""
    by_precision: dict[str, Any] = {}
    fp32 = matmul(64, 64, 64)
    for precision in (None, Precision.FP16, Precision.BF16):
        signature = fp32 if precision is None else lowered(fp32, ports_of(fp32, precision), precision)
        if signature is None or (session.on_cpu and precision is Precision.BF16):
            continue
        program = load(one_node_model(signature, 2), session.bench.machine)
        values = synthesize(one_node_view(signature))
        feeds = {f"{name}_{copy}": value for copy in range(2) for name, value in values.items()}
        program.placed(feeds)()
        assigned = assignments(program.session)
        by_precision[precision.value if precision else "fp32"] = {
            "nodes": sorted(a.node for a in assigned),
            "all_on_provider": all(a.provider == ORT_NAME[session.provider] for a in assigned),
        }
    return by_precision


def step_of(graph: Path, session: Session, call: Call) -> dict[str, Any]:
    """Load a graph and run whole steps of it."""
    imported = as_it_runs(import_model(graph), Place.on(session.bench.machine))
    settings = LoadSettings(must_stay=False)
    program = load(imported.model, session.bench.machine, folder=imported.folder, settings=settings)
    elsewhere = placed_elsewhere(assignments(program.session), session.provider)
    run = program.placed(synthesize(imported.view))
    return {
        "nodes": len(imported.view.nodes),
        "elsewhere": sorted({f"{a.op_type} on {a.provider}" for a in elsewhere}),
        "nodes_elsewhere": len(elsewhere),
        **asdict(measure(run, _STEP_EFFORT)),
    }


def count_some(session: Session, call: Call) -> dict[str, Any]:
    """Hardware counters of a few nodes, and the tensor pipes' share of each graph's step."""
    if session.on_cpu:
        return {"refusal": "there is no GPU in this session"}
    models = {
        "Relu of four numbers": one_node_model(LAUNCH_NODE, 1),
        "product in FP32": one_node_model(matmul(4096, 4096, 4096), 1),
        "product in FP16, with its Casts": _cast_product(4096, 4096, 4096),
        "unaligned product in FP16, with its Casts": _cast_product(4096, 4095, 4096),
    }
    with tempfile.TemporaryDirectory() as workshop:
        files = [Path(workshop) / f"{i}.onnx" for i in range(len(models))]
        for file, model in zip(files, models.values(), strict=True):
            file.write_bytes(model.SerializeToString())
        counted = count(files)
    counters: dict[str, Any] = dict(zip(models, counted, strict=True))
    for graph in session.graphs:
        call.deadline.need(0.0)
        limit_s = max(30.0, min(LIMIT_S, call.deadline.left_s))
        counters[f"tensor pipe share of {graph.stem}"] = tensor_pipe_share(graph, limit_s=limit_s)
    return counters


def _cast_product(m: int, k: int, n: int) -> onnx.ModelProto:
    """A product in the low precision whose inputs and output are FP32, as in an optimized step."""
    low = LOW.onnx_dtype
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 20]>
        product (float[{m},{k}] a, float[{k},{n}] b) => (float[{m},{n}] y) {{
            [down_a] a_low = Cast <to = {low}> (a)
            [down_b] b_low = Cast <to = {low}> (b)
            [product] y_low = MatMul (a_low, b_low)
            [up] y = Cast <to = 1> (y_low)
        }}
    """)
