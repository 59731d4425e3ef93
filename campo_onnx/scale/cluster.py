"""Workers on a Ray cluster: the only importer of ray."""

import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.scale.work import ATTEMPTS, Outcome, Task, call, died

LOCAL = "local"
"""Address that starts Ray on this machine, for as long as the work takes."""

_ANSWER_S = 5.0  # for a connection, and then for a task that does nothing
_PROBE_S = 60.0
_AHEAD = 2  # tasks handed to Ray for each CPU: one that runs and one that waits


class RayPool:
    """Workers that Ray starts, watches and replaces, on every node of a cluster.

    `address`: ``HOST:PORT`` of a cluster that this machine belongs to, ``auto`` for the one that runs here,
    or ``local`` to start one here.
    `workers`: CPUs of a cluster that is started here; 1 takes all.
    `needs`: packages that every node must be able to import, this one in the same version.

    Raises UsageError: on opening: if Ray is not installed, or the address is none. DeviceUnavailableError: on
    opening: if nobody answers, or a node lacks a package or has another version of ours.
    """

    def __init__(self, address: str, *, workers: int = 1, needs: Sequence[str] = ("campo_onnx",)) -> None:
        self._address, self._workers, self._needs = address, workers, tuple(needs)
        self._ray: Any = None

    def __enter__(self) -> Self:
        self._ray = _imported()
        with ExitStack() as undone:
            if not self._ray.is_initialized():  # a cluster that was joined before stays joined
                undone.callback(self._ray.shutdown)
            self._connect()
            self._check_nodes()
            undone.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.shutdown()

    def nodes(self) -> tuple[Mapping[str, Any], ...]:
        """The nodes that are alive, as Ray describes them."""
        return tuple(node for node in self._ray.nodes() if node["Alive"])

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Do tasks, and give each with its outcome as soon as there is one, in any order."""
        waiting, running = iter(tasks), dict[Any, Task]()
        while True:
            while len(running) < self._at_a_time() and (task := next(waiting, None)) is not None:
                running[self._begin(task)] = task
            if not running:
                return
            done, _ = self._ray.wait(list(running), num_returns=1)
            for reference in done:
                task = running.pop(reference)
                yield task, self._outcome(task, reference)

    def on_each_node(self, function: Callable[[], Any], resources: Mapping[str, float]) -> dict[str, Any]:
        """Call a function once on every node that has some resources; by the node's ID."""
        able = [n for n in self.nodes() if all(n["Resources"].get(r, 0) >= v for r, v in resources.items())]
        pinned = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        references = {}
        for node in able:
            options = _options(resources) | {"scheduling_strategy": pinned(node["NodeID"], soft=False)}
            references[node["NodeID"]] = self._ray.remote(function).options(**options).remote()
        results = {}
        for node in able:
            try:
                results[node["NodeID"]] = self._ray.get(references[node["NodeID"]], timeout=_PROBE_S)
            except self._ray.exceptions.RayError as error:
                raise DeviceUnavailableError(
                    f"the node {_title(node)} of the Ray cluster does not respond",
                    why=_last_line(error),
                    remedy="Look at it with `ray status`, or take it out of the cluster.",
                ) from None
        return results

    def _connect(self) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
        if self._address == LOCAL:
            cpus = self._workers if self._workers > 1 else None
            # Workers of this machine find what this process finds, installed or not.
            environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}
            self._ray.init(num_cpus=cpus, include_dashboard=False, runtime_env=environment, **options)
            return
        if self._address != "auto":
            _refuse_silence(self._address)
        try:
            self._ray.init(address=self._address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _nobody(self._address, _last_line(error)) from None

    def _check_nodes(self) -> None:
        """Find out before any work whether every node can do it."""
        versions = self.on_each_node(_probe_of(self._needs), {"CPU": 1})
        if not versions:
            raise DeviceUnavailableError(
                "the Ray cluster has no CPU for tasks", remedy="Start its nodes with --num-cpus 1 or more."
            )
        here = _probe_of(self._needs[:1])()
        for node in self.nodes():
            version = versions.get(node["NodeID"], here)
            if isinstance(version, list):
                raise DeviceUnavailableError(
                    f"the node {_title(node)} of the Ray cluster cannot do the work",
                    why=f"it cannot import {', '.join(version)}",
                    remedy="Install there what is installed here, in the environment that starts Ray.",
                )
            if version != here:
                raise DeviceUnavailableError(
                    f"the node {_title(node)} of the Ray cluster has campo-onnx {version}",
                    why=f"this is {here}, and results would not be the same",
                    remedy="Install the same version on every node.",
                )

    def _at_a_time(self) -> int:
        return max(1, _AHEAD * int(self._ray.cluster_resources().get("CPU", 1)))

    def _begin(self, task: Task) -> Any:
        options = _options(task.resources or {}) | {"max_retries": ATTEMPTS - 1}
        return self._ray.remote(call).options(**options).remote(task)

    def _outcome(self, task: Task, reference: Any) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(reference)
        except self._ray.exceptions.WorkerCrashedError:
            return died(task)
        except self._ray.exceptions.RayError as error:
            return Outcome(failure=_last_line(error))
        return outcome


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its later default; silences a warning
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ModuleNotFoundError:
        raise UsageError(
            "--cluster needs Ray, which is not installed", remedy="pip install 'campo-onnx[ray]'"
        ) from None
    return ray


def _probe_of(needs: tuple[str, ...]) -> Callable[[], str | list[str]]:
    def probe() -> str | list[str]:
        # Travels by value, since it must run where nothing of ours is installed.
        from importlib.util import find_spec

        if missing := [name for name in needs if find_spec(name) is None]:
            return missing
        from campo_onnx.version import VERSION

        return VERSION

    return probe


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": resources.get("CPU", 1), "num_gpus": resources.get("GPU", 0), "resources": others}


def _refuse_silence(address: str) -> None:
    """Ask for a connection: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal()) or "/" in host:
        raise UsageError(
            f"{address!r} is not the address of a Ray cluster",
            remedy="Give HOST:PORT (`ray start --head` prints it), auto, or local.",
        )
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise _nobody(address, getattr(error, "strerror", None) or str(error)) from None


def _nobody(address: str, why: str) -> DeviceUnavailableError:
    return DeviceUnavailableError(
        f"no Ray cluster answers at {address}",
        why=why,
        remedy="Start one with `ray start --head`, join this machine to it with `ray start "
        "--address=HOST:PORT`, or use --cluster local.",
    )


def _title(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
