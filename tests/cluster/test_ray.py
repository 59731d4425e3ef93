"""A Ray cluster of two workers on this machine: the same results, killed workers, a killed command, messages.

Skipped where Ray is not installed: ``make test-cluster``.
"""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest

from campo_onnx.checking.batch import check_all, pairs_in, to_row
from campo_onnx.checking.policy import Policy
from campo_onnx.checking.reports import to_json
from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.ir.exporter import export_model
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.scale.pools import pool_for
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Task, run
from campo_onnx.targets.target import target
from tests.cluster.conftest import kill_who_is_stuck

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # files and sockets that Ray leaves to the collector

ROOT = Path(__file__).parent.parent.parent
GRAPHS = ("mlp_step", "cnn_step", "transformer_step")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Mixed graphs by three strategies, and their FP32 graphs."""
    folder = tmp_path_factory.mktemp("graphs")
    for name in ("mixed", "fp32"):
        (folder / name).mkdir()
    for graph in GRAPHS:
        path = ROOT / "benchmarks" / "data" / f"{graph}.onnx"
        for strategy in ("optimal", "campo", "tf-amp"):
            options = Options(target=target("v100"), lists=preset("campo"), strategy=strategy)
            export_model(optimize(path, options).model, folder / "mixed" / f"{graph}-{strategy}.onnx")
            (folder / "fp32" / f"{graph}-{strategy}.onnx").write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="module")
def pairs(folders):
    with chdir(folders):
        return pairs_in(Path("mixed"), Path("fp32"), Policy())


@pytest.fixture(scope="module")
def alone(folders, pairs):
    with chdir(folders):
        return check_all(pairs)


def test_checks_are_those_of_one_process(pool, folders, pairs, alone, tmp_path, monkeypatch):
    monkeypatch.chdir(folders)
    with Results(tmp_path / "rows.jsonl") as results:
        together = check_all(pairs, pool=pool, results=results)
    assert [to_row(verdicts) for verdicts in together] == [to_row(verdicts) for verdicts in alone]
    assert {verdicts.passed for verdicts in alone} == {True, False}


def test_a_killed_worker_costs_the_task_it_was_at(pool, home, tmp_path):
    import stuck

    names = [f"task{i}" for i in range(8)]
    tasks = [
        Task(key=name, function=stuck.stuck_at_first, arguments=(str(tmp_path), name, name == "task2"))
        for name in names
    ]

    def kill_one(done, total):
        if done == 3:
            kill_who_is_stuck(tmp_path / "task2")

    with Results(tmp_path / "rows.jsonl") as results:
        outcomes = run(tasks, pool, results, kill_one)
    assert {key: outcome.value for key, outcome in outcomes.items()} == {name: name for name in names}
    begun = {name: len((tmp_path / name).read_text().split()) for name in names}
    assert begun == {name: 2 if name == "task2" else 1 for name in names}
    with Results(tmp_path / "rows.jsonl") as results:  # the same work again is no work
        run(tasks, pool, results)
    assert {name: len((tmp_path / name).read_text().split()) for name in names} == begun


def test_a_task_that_kills_every_worker_is_given_up(pool):
    with Results() as results:
        outcomes = run(
            [Task(key="deadly", function=os.abort), Task(key="sound", function=abs, arguments=(-2,))],
            pool,
            results,
        )
    assert outcomes["deadly"].failure == "3 workers died while they were at 'deadly'"
    assert outcomes["sound"].value == 2


def test_a_full_disk_ends_the_work_and_keeps_what_was_there(pool, tmp_path, monkeypatch):
    tasks = [Task(key=f"{i}", function=abs, arguments=(-i,)) for i in range(6)]
    with Results(tmp_path / "rows.jsonl") as results:
        write, calls = os.write, []

        def fills(file, data):
            if data.startswith(b'{"key"'):
                calls.append(data)
                if len(calls) > 2:
                    raise OSError(28, "No space left on device")
            return write(file, data)

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", fills)
            with pytest.raises(UsageError, match=r"No space left on device.*2 results are kept"):
                run(tasks, pool, results)
    with Results(tmp_path / "rows.jsonl") as results:
        assert len(results) == 2
        assert {key: outcome.value for key, outcome in run(tasks, pool, results).items()} == {
            f"{i}": i for i in range(6)
        }


def test_the_command_killed_and_run_again(address, folders, alone, environment, tmp_path):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.json"
    command = [sys.executable, "-m", "campo_onnx", "check", "mixed", "--against", "fp32", "--json", "--quiet"]
    scaled = [*command, "--cluster", address, "--results", str(rows)]
    with subprocess.Popen(scaled, cwd=folders, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if rows.exists() and len(rows.read_bytes().splitlines()) >= 2:
                process.kill()
            time.sleep(0.01)
    with_kill = [json.loads(line)["key"] for line in rows.read_text().splitlines()]
    with out.open("w") as file:
        code = subprocess.run(scaled, cwd=folders, env=environment, stdout=file, check=False).returncode
    keys = [json.loads(line)["key"] for line in rows.read_text().splitlines()]
    assert keys[: len(with_kill)] == with_kill  # nothing is lost
    assert len(keys) == len({*keys}) == 9  # or done twice
    assert code == 9
    assert out.read_text() == to_json(alone)


@pytest.fixture
def silent_port():
    """A port that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "error", "why"),
    [
        ("127.0.0.1:{}", DeviceUnavailableError, r"no Ray cluster answers at 127\.0\.0\.1:\d+: Connection r"),
        ("ray://127.0.0.1:{}", UsageError, "is not the address of a Ray cluster"),
        ("somewhere", UsageError, "is not the address of a Ray cluster"),
    ],
)
def test_an_address_nobody_answers(pool, silent_port, monkeypatch, address, error, why):
    import ray

    asked = []  # Ray, which would wait for minutes
    monkeypatch.setattr(ray, "init", lambda *_, **options: asked.append(options))
    with pytest.raises(error, match=why), pool_for(1, address.format(silent_port)):
        pass
    assert asked == []
    assert pool.nodes()  # a cluster that this process has joined goes on


def test_a_worker_without_the_package(address, environment):
    command = (
        "import sys; from campo_onnx.scale.pools import pool_for\n"
        "with pool_for(1, sys.argv[1], needs=('campo_onnx', 'a_package_of_the_driver')): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, address], env=environment, capture_output=True, text=True, check=False
    )
    assert "DeviceUnavailableError" in done.stderr
    assert "cannot do the work: it cannot import a_package_of_the_driver. Install there" in done.stderr
