"""One Ray cluster of two workers for all tests; everything here is skipped where Ray is not installed."""

import os
import signal
import sys
from pathlib import Path

import pytest

from campo_onnx.scale.pools import pool_for

SLOWLY = """
import os, time
from pathlib import Path

def slow(folder, name):
    with (Path(folder) / name).open("a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(1.0)
    return name
"""


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A folder of modules that workers find."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "slowly.py").write_text(SLOWLY)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def pool(home):
    pytest.importorskip("ray")
    with pool_for(2, "local", needs=("campo_onnx", "slowly")) as opened:
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


def workers_at_work(home):
    """Processes of this cluster that are at a task: they know the folder of modules."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = os.fsencode(home) in (process / "environ").read_bytes()
            if is_ours and (process / "cmdline").read_bytes().startswith(b"ray::call"):
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found


@pytest.fixture
def kill_a_worker(home):
    """Kill a worker that is at a task; whether there was one."""

    def kill():
        for pid in workers_at_work(home)[:1]:
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    return kill
