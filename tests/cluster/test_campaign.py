"""A calibration campaign on a Ray cluster, on the CPU provider: one store, a killed worker, and again."""

import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial

import pytest

from campo_onnx.calibrate import campaign as campaign_module
from campo_onnx.calibrate.campaign import CHUNK, campaign, kinds_in, nodes_of
from campo_onnx.calibrate.run import Workload, calibrate
from campo_onnx.calibrate.samples import Sampling
from campo_onnx.errors import DeviceUnavailableError, UnsupportedModelError
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Execution, Store
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.detect import target_of
from tests.cluster.conftest import kill_who_is_stuck

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # files and sockets that Ray leaves to the collector

WORKLOAD = Workload(
    ops=("MatMul",),
    sampling=Sampling(count=12, largest_bytes=1e5, largest_flops=1e6),
    casts=12,
    largest_cast_elements=1 << 16,
)


NOTHING_IS_TOO_SHORT = """
import sys
from dataclasses import replace
from campo_onnx.measure.store import Store
add = Store.add
Store.add = lambda store, key, timing: add(store, key, replace(timing, median_us=1 + timing.median_us))
"""  # to be fitted, whatever else this machine does
COMMAND = f"""{NOTHING_IS_TOO_SHORT}
from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name="campo-onnx")
script.load()()
"""


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


def test_one_store_as_if_one_process_had_timed(pool, home, tmp_path, monkeypatch):
    import stuck

    alone, together = tmp_path / "alone.sqlite", tmp_path / "together.sqlite"
    seen = []

    def kill_one(done, total):
        seen.append((done, total))
        if done == 1:  # what is in the store by now is not timed again
            kill_who_is_stuck(tmp_path / f"chunk{CHUNK}")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "add", Store.add)  # and given back
        exec(NOTHING_IS_TOO_SHORT, {})
        patched.setattr(campaign_module, "time_chunk", partial(stuck.time_chunk, str(tmp_path), CHUNK))
        kinds, failures = run_campaign(pool, together, kill_one)
    assert failures == ()
    begun = {path.name: len(path.read_text().split()) for path in tmp_path.glob("chunk*")}
    assert begun == {f"chunk{n * CHUNK}": 2 if n == 1 else 1 for n in range(seen[-1][1])}
    here = machine("cpu")
    assert [kind.machine for kind in kinds] == [here]
    nodes = nodes_of(WORKLOAD, machine("cpu"), Precision.FP16)
    assert seen[-1] == (-(-len(nodes) // CHUNK),) * 2
    with Store(alone) as store:
        timer = NodeTimer(machine=here, store=store)
        for node in nodes:
            with suppress(UnsupportedModelError):
                timer.time(node)
    assert signatures(together) == signatures(alone)
    with Store(together) as store:
        timer = NodeTimer(machine=here, store=store, only_stored=True)
        calibration = calibrate(WORKLOAD, timer, target_of(here), Precision.FP16)
    assert "not in the store" not in str(calibration.failures)
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
        [sys.executable, "-c", COMMAND, "calibrate", *asked, "--store", str(tmp_path / "s.sqlite")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "campo-onnx" / "calibrations" / "cpu-fp16.json").is_file()
