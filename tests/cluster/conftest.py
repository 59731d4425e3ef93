"""One Ray cluster of two workers for all tests; everything here is skipped where Ray is not installed."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

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
"""


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


def workers(home):
    """Processes of this cluster's workers: they know the folder of modules."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            is_ours = os.fsencode(home) in (process / "environ").read_bytes()
            if is_ours and (process / "cmdline").read_bytes().startswith(b"ray::"):
                found.append(process)
    return found


@pytest.fixture
def kill_a_worker(home):
    """Begin to wait, beside the test, for a worker that is at a task, and kill it; gives who was killed."""
    killed, begun, ended = [], Event(), Event()

    def watch():
        begun.wait()
        while not killed and not ended.is_set():
            # A task may be over in a few milliseconds: processes are looked at more often than listed.
            for process in workers(home) * 20:
                with suppress(OSError):
                    if not killed and (process / "cmdline").read_bytes().startswith(b"ray::call"):
                        os.kill(int(process.name), signal.SIGKILL)
                        killed.append(process.name)

    def begin():
        begun.set()
        return killed

    thread = Thread(target=watch)
    thread.start()
    yield begin
    ended.set()
    begun.set()
    thread.join()
