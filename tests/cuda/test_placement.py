"""Every graph, as it came and mixed, runs wholly on the CUDA provider."""

from collections import Counter
from functools import cache
from pathlib import Path

import onnx
import pytest

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.onnxruntime.kernels import never_loads
from campo_onnx.runtime.registry import load
from tests.conftest import DIMS
from tests.cuda.conftest import graphs, optimized_nodes

PLANS = (
    ("optimal", Precision.FP16),
    ("tf-amp", Precision.FP16),
    ("torch-amp", Precision.FP16),
    ("fine-grained", Precision.FP16),
    ("optimal", Precision.BF16),
    ("fine-grained", Precision.BF16),
)
NEEDS_TRAINING_BUILD = "com.microsoft"


@cache
def imported(path: Path) -> Imported:
    return import_model(path, DIMS.get(path.stem, {}))


def is_loadable(path: Path) -> bool:
    """Whether release builds of ONNX Runtime have the graph's operators at all."""
    return not any(
        node.domain == NEEDS_TRAINING_BUILD and node.op_type.endswith(("Grad", "Training"))
        for node in onnx.load(path, load_external_data=False).graph.node
    )


GRAPHS = [path for path in graphs() if is_loadable(path)]


def casts(nodes: list[onnx.NodeProto]) -> int:
    return Counter(node.op_type for node in nodes)["Cast"]


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_the_given_graph_runs_on_cuda(path: Path, cuda: Machine) -> None:
    fp32 = imported(path)
    step = load(fp32.model, cuda, folder=fp32.folder).placed(synthesize(fp32.view))
    step()
    step()
    assert not [
        n for n in optimized_nodes(fp32.model, "cuda", folder=fp32.folder) if n.op_type.startswith("Memcpy")
    ]


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
@pytest.mark.parametrize(("strategy", "low"), PLANS, ids=lambda value: getattr(value, "value", value))
def test_the_mixed_graph_runs_on_cuda(path: Path, strategy: str, low: Precision, cuda: Machine) -> None:
    fp32 = imported(path)
    options = Options(
        target=target("h100"),
        lists=oplists(STRATEGIES[strategy].default_lists),
        strategy=strategy,
        low=low,
        dims=DIMS.get(path.stem, {}),
    )
    mixed = optimize_model(path, options).model
    load(mixed, cuda, folder=fp32.folder).placed(synthesize(fp32.view))()
    nodes = optimized_nodes(mixed, "cuda", folder=fp32.folder)
    assert not [node for node in nodes if node.op_type.startswith("Memcpy")]
    assert casts(nodes) == casts(list(mixed.graph.node)), "ONNX Runtime inserted or dropped a Cast"


@pytest.mark.parametrize("strategy", [*STRATEGIES])
def test_a_mask_of_integers_is_cast_as_often_as_planned(strategy: str, cuda: Machine, tmp_path: Path) -> None:
    """ONNX Runtime leaves out one of two Casts in a row, also with its optimizer off."""
    path = tmp_path / "masked.onnx"
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[64,512] x, float[512,512] w, float[512,512] v, int64[64,512] m) => (float[64,512] y) {
            a = MatMul(x, w)
            f = Cast<to = 1>(m)
            b = Mul(a, f)
            y = MatMul(b, v)
        }"""
    onnx.save(onnx.parser.parse_model(text), path)
    lists = oplists(STRATEGIES[strategy].default_lists)
    mixed = optimize_model(path, Options(target=target("v100"), lists=lists, strategy=strategy)).model
    assert casts(optimized_nodes(mixed, "cuda")) == casts(list(mixed.graph.node))


def test_a_node_without_a_kernel_is_refused(cuda: Machine) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[4] x) => (float[4] y) { y = Asinh(x) }'
    )
    model.graph.node[0].name = "asinh"
    with pytest.raises(UnsupportedModelError):
        load(model, cuda)


def test_a_copy_between_providers_is_seen(cuda: Machine) -> None:
    """So that the assertions above can fail."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[4] x) => (float[4] y) { a = Abs(x)\n'
        "b = Asinh(a)\n y = Abs(b) }"
    )
    assert [n for n in optimized_nodes(model, "cuda") if n.op_type.startswith("Memcpy")]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("opset", [14, 15, 20])
def test_batch_normalization_that_trains_is_known_not_to_load(
    opset: int, training: bool, cuda: Machine
) -> None:
    names = ", m2, v2" if training else ""
    statistics = ", float[3] m2, float[3] v2" if training else ""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        g (float[4,3,8,8] x, float[3] s, float[3] b, float[3] m, float[3] v)
            => (float[4,3,8,8] y{statistics}) {{
            [n] y{names} = BatchNormalization<training_mode = {int(training)}>(x, s, b, m, v)
        }}
    """)
    signature = import_model(model).view.signature("n")
    if never_loads(signature, "cuda"):
        with pytest.raises(UnsupportedModelError, match="Training mode"):
            load(model, cuda)
    else:
        load(model, cuda)
    assert never_loads(signature, "cuda") == training
