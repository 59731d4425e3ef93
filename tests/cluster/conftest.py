"""One Ray cluster of two workers for all tests; everything here is skipped where Ray is not installed."""

import os
import signal
import sys
import time
from contextlib import suppress

import pytest

from campo_onnx.scale.pools import pool_for

STUCK = """
import os, time
from pathlib import Path

def stuck_at_first(folder, name, is_stuck):
    path = Path(folder) / name
    with path.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while is_stuck and len(path.read_text().split()) == 1:  # until it is killed, and begun again
        time.sleep(0.01)
    return name

def time_chunk(folder, stuck_at, *arguments):
    # As a campaign does; whoever comes to the node `stuck_at` first waits there until it is killed.
    from campo_onnx.calibrate import campaign

    first = arguments[-1][0]
    stuck_at_first(folder, f"chunk{first}", first == stuck_at)
    return campaign.time_chunk(*arguments)
"""


def kill_who_is_stuck(path):
    """Wait until a process has written down that it is at a task, and kill it."""
    while True:
        with suppress(OSError, IndexError):  # not begun, or about to be
            os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
            return
        time.sleep(0.01)


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A folder of modules that workers find."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "stuck.py").write_text(STUCK)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def pool(home):
    pytest.importorskip("ray")
    with pool_for(2, "local", needs=("campo_onnx", "stuck")) as opened:
        yield opened


@pytest.fixture
def address(pool):
    """The cluster's, for commands that join it: there may be others on this machine."""
    import ray

    return ray.get_runtime_context().gcs_address


@pytest.fixture
def environment(tmp_path):
    """For commands that join the cluster: this process's modules, and a home of their own."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, "XDG_DATA_HOME": str(tmp_path)}
