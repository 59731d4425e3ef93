"""A calibration campaign on a Ray cluster, on the CPU provider: one store, a killed worker, and again."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from campo_onnx.calibrate.campaign import CHUNK, campaign, kinds_in, nodes_of
from campo_onnx.calibrate.run import Workload, calibrate
from campo_onnx.calibrate.samples import Sampling
from campo_onnx.devices.detect import device_of
from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Execution, Store
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.providers import machine

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # files and sockets that Ray leaves to the collector

WORKLOAD = Workload(
    ops=("MatMul",),
    sampling=Sampling(count=12, largest_bytes=1e5, largest_flops=1e6),
    casts=12,
    largest_cast_elements=1 << 16,
)


def signatures(path):
    with closing(sqlite3.connect(path)) as connection:
        return {row[0] for row in connection.execute("SELECT signature FROM timings")}


def run_campaign(pool, path, advance=lambda done, total: None):
    kinds = kinds_in(pool, "cpu")
    with Store(path) as store:
        failures = campaign(
            kinds, lambda _: WORKLOAD, pool, store,
            precision=Precision.FP16, execution=Execution.STREAM, advance=advance,
        )  # fmt: skip
    return kinds, failures


def test_one_store_as_if_one_process_had_timed(pool, kill_a_worker, tmp_path):
    alone, together = tmp_path / "alone.sqlite", tmp_path / "together.sqlite"
    seen, killed = [], []

    def kill_one(done, total):
        seen.append((done, total))
        if done > 0:  # what is in the store by now is not timed again
            killed[:] = kill_a_worker()

    kinds, failures = run_campaign(pool, together, kill_one)
    assert failures == ()
    assert killed
    here = machine("cpu")
    assert [kind.machine for kind in kinds] == [here]
    nodes = nodes_of(WORKLOAD, "cpu", Precision.FP16)
    assert seen[-1] == (-(-len(nodes) // CHUNK),) * 2
    with Store(alone) as store:
        timer = NodeTimer(machine=here, store=store)
        calibrate(WORKLOAD, timer, device_of(here), Precision.FP16)
    assert signatures(together) == signatures(alone)
    with Store(together) as store:
        timer = NodeTimer(machine=here, store=store, only_stored=True)
        made = calibrate(WORKLOAD, timer, device_of(here), Precision.FP16)
    assert "not in the store" not in str(made.failures)
    again = []
    run_campaign(pool, together, lambda *progress: again.append(progress))
    assert again == [(0, 0)]  # nothing is timed twice


def test_gpus_are_asked_for_and_there_are_none(pool):
    if any(node["Resources"].get("GPU") for node in pool.nodes()):
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceUnavailableError, match="no machine of the Ray cluster has a GPU"):
        kinds_in(pool, "cuda")


def test_the_command_writes_a_calibration(address, environment, tmp_path):
    asked = ["--quick", "--ops", "MatMul", "--shapes", "9", "--device", "cpu", "--cluster", address]
    done = subprocess.run(
        [sys.executable, "-m", "campo_onnx", "calibrate", *asked, "--store", str(tmp_path / "s.sqlite")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "campo-onnx" / "calibrations" / "cpu-fp16.json").is_file()
