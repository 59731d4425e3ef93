"""Memory of planning: weights outside the model file are read in pieces, never held."""

import subprocess
import sys

import onnx
import pytest

ROWS, LAYERS = 4096, 6
WEIGHT_BYTES = 4 * ROWS * ROWS
PROGRAM = (
    "import resource, sys\n"
    "from campo_onnx_cli.main import run\n"
    "try: run()\n"
    "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is counted in other units there")
def test_planning_holds_no_weights(tmp_path):
    chain = " ".join(f"h{i + 1} = MatMul(h{i}, w{i})" for i in range(LAYERS))
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> '
        f"g (float[64, {ROWS}] h0) => (float[64, {ROWS}] h{LAYERS}) {{ {chain} }}"
    )
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(LAYERS * WEIGHT_BYTES)  # zeros, which take no room on the disk
    for i in range(LAYERS):
        weight = model.graph.initializer.add(name=f"w{i}", data_type=1, dims=[ROWS, ROWS])
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", i * WEIGHT_BYTES), ("length", WEIGHT_BYTES)):
            weight.external_data.add(key=key, value=str(value))
    onnx.save(model, tmp_path / "m.onnx")
    words = ["optimize", "m.onnx", "--device", "v100", "--probe", "off", "--dry-run", "--quiet"]
    planning = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert planning.returncode == 0, planning.stderr
    starting = subprocess.run([sys.executable, "-c", PROGRAM, "devices"], capture_output=True, text=True)
    grown_bytes = int(planning.stderr.split()[-1]) - int(starting.stderr.split()[-1])
    assert grown_bytes < LAYERS * WEIGHT_BYTES / 2
