"""The Campo paper's evaluation on graphs as coarse as its own: those of ONNX Runtime's gradient builder.

    PYTHONPATH=tests/integrations:. .venv-ortmodule/bin/python -m torch_shim benchmarks/coarse.py

Runs where onnxruntime-training 1.19.2 and PyTorch are installed (``make test-ortmodule``), and Jinja is.
A normalization, a softmax, a GELU and a convolution are one node here, and so are their gradients, as in
TensorFlow; in the exporter's graphs they are up to two dozen. Graphs are built, not run: throughputs are
predictions from public figures. Graphs are kept below ``--work``. Writes results/coarse.json and .md.
"""

import io
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import torch
from onnxruntime.capi import _pybind_state as native

from benchmarks.evaluation.predicted import figures, spread, with_ratios
from benchmarks.evaluation.strategies import TF_AMP
from benchmarks.pages import arguments, provenance, publish
from benchmarks.table1 import TABLE_1, estimated
from benchmarks.zoo import NOT_ON_RTX2080TI, TITLES
from benchmarks.zoo.export import ZOO
from campo_onnx import Options, Target, oplists, target
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.pipeline import decide, problem_of

DEVICES = ("v100", "rtx2080ti")
"""The paper's."""

CAMPO_TF, OPTIMAL_TF = "campo tf115", "optimal tf115"
ROWS = {
    TF_AMP: ("tf-amp", "tf115"),
    CAMPO_TF: ("campo", "tf115"),
    "campo": ("campo", "campo"),
    OPTIMAL_TF: ("optimal", "tf115"),
    "optimal": ("optimal", "campo"),
}
"""Strategy and lists; the paper's Campo has TensorFlow's lists."""

PAPER = {
    "v100": {"over_tf_amp": (0.209, 0.234), "fewer_casts": (0.277, 0.313)},
    "rtx2080ti": {"over_tf_amp": (0.208, 0.245), "fewer_casts": (0.277, 0.313)},
}
"""Results of the paper (sections 7.2 and 7.3): mean and most; its Casts are those of both GPUs."""

SWEEP_US = (50.0, 100.0, 250.0)
"""Lowest time of a node, and with it of a Cast, in three further cases."""

COSTS = ("ours", "table1", "slow", "whole_call")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1:
    """Costs of the paper's framework, by its Table 1.

    Parameters
    ----------
    cast_us
        A Cast of a small tensor: from the rows BiasAdd, with a Cast for each of two inputs and one output.
    call_us
        A small operation in FP32, of which the GPU's share is a few microseconds: the same rows.
    slower
        Median of the paper's FP32 time over our estimate, convolutions.
    """

    cast_us: float
    call_us: float
    slower: float


def table1() -> Table1:
    """Read Table 1."""
    small = [times for op, _, times, _, _ in TABLE_1 if op == "BiasAdd"]
    return Table1(
        cast_us=median((with_casts - fp16) * 1e3 / 3 for fp16, with_casts, _ in small),
        call_us=median(fp32 * 1e3 for _, _, fp32 in small),
        slower=median(
            times[2] / estimated(*node)["fp32_ms"]
            for op, _, times, _, node in TABLE_1
            if op.startswith("Conv2D")
        ),
    )


def devices(name: str, framework: Table1) -> dict[str, Target]:
    """A device under each assumption about costs."""
    ours = target(name)
    peaks = {
        key: getattr(ours.hardware, key) / framework.slower
        for key in ("fp32_flops_per_s", "fp16_flops_per_s", "fp16_tensor_flops_per_s")
    }
    return {
        "ours": ours,
        "table1": replace(ours, launch_us=framework.cast_us),
        "slow": replace(ours, launch_us=framework.cast_us, hardware=replace(ours.hardware, **peaks)),
    }


def exported(name: str, work: Path) -> onnx.ModelProto:
    """Export forward pass and loss with PyTorch's TorchScript exporter; the batch stays open."""
    path = work / f"{name}.forward.onnx"
    if path.exists():
        return onnx.load(path)
    entry = ZOO[name]
    inputs, targets = entry.batch(2)
    inputs = tuple(torch.rand_like(one) if one.is_floating_point() else one for one in inputs)

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = entry.build()

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return entry.loss(self.network(*tensors[: len(inputs)]), *tensors[len(inputs) :])

    step = Step().train()
    trained = {name for name, weight in step.named_parameters() if weight.requires_grad}
    step.requires_grad_(False)  # tracing keeps no activations then
    names = [f"input_{i}" for i in range(len(inputs) + len(targets))]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter is deprecated
        torch.onnx.export(
            step, (*inputs, *targets), file, export_params=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING, opset_version=17, keep_initializers_as_inputs=True,
            input_names=names, output_names=["loss"], dynamic_axes={one: {0: "batch"} for one in names},
        )  # fmt: skip
    model = onnx.load_model_from_string(file.getvalue())
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":  # its gradient reads the statistics
            node.output.extend(f"{node.output[0]}_{statistic}" for statistic in ("mean", "deviation"))
    model.metadata_props.add(key="trained", value=json.dumps(sorted(trained)))
    onnx.save(model, path)
    return model


def differentiated(forward: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Let ONNX Runtime fuse and differentiate a graph whose batch is fixed, without moving Casts."""
    trained = set(json.loads(next(p.value for p in forward.metadata_props if p.key == "trained")))
    for value in forward.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "batch":
                dim.dim_value = batch
    names = [value.name for value in forward.graph.input]
    asked = native.OrtModuleGraphBuilderConfiguration()
    asked.initializer_names = names
    asked.initializer_names_to_train = [name for name in names if name in trained]
    asked.input_names_require_grad = []
    asked.build_gradient_graph = True
    casts = native.PropagateCastOpsConfiguration()
    casts.level = -1
    transformers = native.TrainingGraphTransformerConfiguration()
    transformers.propagate_cast_ops_config = casts
    builder = native.OrtModuleGraphBuilder()
    builder.initialize(forward.SerializeToString(), asked)
    builder.build(transformers)
    return onnx.load_model_from_string(builder.get_gradient_model())


def planned(imported: Imported, on: Target, strategy: str, lists: str, *, pads: bool = True) -> Plan:
    options = Options(target=on, lists=oplists(lists), strategy=strategy, pads=pads)
    return decide(problem_of(imported, options), imported, options)


def row(imported: Imported, on: Target, label: str) -> Row:
    strategy, lists = ROWS[label]
    plan = planned(imported, on, strategy, lists)
    unpadded = planned(imported, on, strategy, lists, pads=False) if plan.pads else plan
    return {
        **figures(plan, unpadded.predicted_us),
        "tensor_core_share": 0.0,
        "allowed_fp32": allowed_in_fp32(plan),
    }


def allowed_in_fp32(plan: Plan) -> int:
    """Products and convolutions that stay FP32."""
    return sum(d.op_class is OpClass.ALLOW and d.node not in plan.low_nodes for d in plan.decisions)


def models_on(name: str, work: Path, framework: Table1) -> Iterator[tuple[str, Row]]:
    """Plan each model for a device, under every assumption about costs."""
    position = DEVICES[::-1].index(name)
    for model, title in TITLES.items():
        if name == "rtx2080ti" and model in NOT_ON_RTX2080TI:
            continue
        graph = differentiated(exported(model, work), ZOO[model].batch_sizes[position])
        imported = import_model(graph)
        nodes = len(imported.view.nodes)
        model_row: Row = {"title": title, "batch": ZOO[model].batch_sizes[position], "nodes": nodes}
        model_row["ops"] = dict(Counter(node.op_type for node in graph.graph.node))
        for key, on in devices(name, framework).items():
            model_row[key] = with_ratios({label: row(imported, on, label) for label in ROWS})
        # Framework time of nodes other than Casts is the same in both precisions and decides nothing.
        added_us = nodes * (framework.call_us - framework.cast_us)
        model_row["whole_call"] = with_ratios(
            {
                label: r | {key: r[key] + added_us for key in ("step_us", "unpadded_us", "fp32_us")}
                for label, r in model_row["table1"].items()
            }
        )
        for cast_us in SWEEP_US:
            on = replace(target(name), launch_us=cast_us)
            labels = (TF_AMP, CAMPO_TF, OPTIMAL_TF)
            model_row[f"cast_{cast_us:g}"] = with_ratios(
                {label: row(imported, on, label) for label in labels}
            )
        print(name, title, nodes, flush=True)
        yield model, model_row


def summary(models: Mapping[str, Row], costs: str) -> Row:
    """Mean and most over the models, as the paper's text gives them."""
    keys = ("speedup", "over_tf_amp", "fewer_casts", "rewriting", "padding")
    by_label = {label: [m[costs][label] for m in models.values() if label in m[costs]] for label in ROWS}
    return {
        label: {key: extent for key in keys if (extent := spread(row[key] for row in rows))}
        for label, rows in by_label.items()
        if rows
    }


def main() -> None:
    """Build every graph, plan it, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--work", type=Path, default=Path("coarse_out"), help="where graphs are kept")
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    framework = table1()
    by_device = {}
    for name in DEVICES:
        models = dict(models_on(name, work, framework))
        by_device[name] = {
            "title": target(name).hardware.title,
            "launch_us": target(name).launch_us,
            "models": models,
            "summary": {costs: summary(models, costs) for costs in COSTS},
            "sweep": {f"{us:g}": summary(models, f"cast_{us:g}") for us in SWEEP_US},
            "paper": PAPER[name],
        }
    data = {"made": provenance("torch"), "labels": [*ROWS], "table1": asdict(framework), "devices": by_device}
    print(*publish("coarse", data))


if __name__ == "__main__":
    main()
