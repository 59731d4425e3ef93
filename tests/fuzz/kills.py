"""Kills and full disks at every step that writes: ``python -m tests.fuzz.kills --out FOLDER``.

Every file that was there must be as it was or as the command leaves it, and whole; a model must have its
own weights. After a full disk there is one message, and nothing else.
"""

import argparse
import errno
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from campo_onnx.errors import CampoError
from campo_onnx.ir.importer import import_model
from campo_onnx.training.checkpoint import load_checkpoint
from tests.fuzz.sandbox import Outcome, in_child, prepare, run
from tests.fuzz.subjects import make_folder

COMMANDS = (
    "optimize outside.onnx -o out.onnx --device v100 --plan out.json --force",
    "optimize step.onnx -o out.onnx --device v100 --plan out.json --force",
    "check mixed.onnx --against step.onnx --device v100 --junit out.xml",
    "compare step.onnx --device v100 --plot out.svg --force",
    "bench step.onnx --device cpu --steps 6 --threads 1 -o out.json --force",
    "profile step.onnx -o out.parquet --device cpu --steps 1 --threads 1 --store store.sqlite --force",
    "save out.safetensors",
)
"""Every command that writes; ``save`` is a checkpoint of a training session."""

Fault = Callable[[], None]


def killed() -> None:
    """End the process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def disk_full() -> None:
    """Refuse as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def at_event(number: int, fault: Fault, met: Path) -> Callable[[], None]:
    """Return what makes the `number`-th rename, sync, removal or write of a process meet a fault.

    A write meets it when half of it is on the disk. That it was met at all is left at `met`.
    """

    def inject() -> None:
        seen = 0

        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal seen
                seen += 1
                if seen == number + 1:
                    if original in writes and len(args) > 1:
                        half = args[1][: len(args[1]) // 2]
                        original(args[0], half, *args[2:], **kwargs)
                    os.close(os.open(met, os.O_CREAT | os.O_WRONLY))
                    fault()
                return original(*args, **kwargs)

            return call

        writes = (Path.write_text, Path.write_bytes)
        removals = ("unlink", "rmdir") if fault is killed else ()  # a full disk refuses none
        for name in ("replace", "rename", "fsync", *removals):
            setattr(os, name, counted(getattr(os, name)))
        for original in writes:
            setattr(Path, original.__name__, counted(original))
        from campo_onnx.ir import exporter

        exporter._Digested.write = counted(exporter._Digested.write)

    return inject


@dataclass(frozen=True, slots=True)
class Shot:
    """One fault and what is wrong after it."""

    command: str
    event: int
    fault: str
    code: int | None
    violations: tuple[str, ...]


def shots(command: str, sound: Path, work: Path, fault: Fault) -> list[Shot]:
    """Meet a fault at every event of a command, one run for each."""
    folder = work / "run"
    _renew(sound, folder)
    _old_outputs(folder)
    old = _states(folder)
    outcome = run(command.split(), folder)
    if outcome.code:
        raise RuntimeError(f"{command}: {outcome.code} {outcome.err}")
    new = _states(folder)
    found: list[Shot] = []
    while True:
        _renew(sound, folder)
        _old_outputs(folder)
        event = len(found)
        met = folder.parent / "met"
        outcome = run(command.split(), folder, first=at_event(event, fault, met))
        if not met.exists():
            return found
        wrong = _violations(folder, outcome, fault, old, new)
        found.append(Shot(command, event, fault.__name__, outcome.code, tuple(wrong)))


def _violations(
    folder: Path, outcome: Outcome, fault: Fault, old: dict[str, str], new: dict[str, str]
) -> list[str]:
    now = _states(folder)
    found = [
        f"{name}: neither as before nor as after"
        for name in sorted({*old, *new})
        if now.get(name, "gone") not in (old.get(name, "gone"), new.get(name, "gone"))
    ]
    strange = [path.name for path in folder.iterdir() if path.name not in now]
    if fault is killed:
        if outcome.code != -signal.SIGKILL:
            found.append(f"exit code {outcome.code}")
        return found
    if outcome.code not in (0, 2, 5):
        found.append(f"exit code {outcome.code}")
    if outcome.code and outcome.err.count("error:") != 1:
        found.append("not one message")
    found += [f"{name} is left" for name in strange if not name.startswith(("store.", "out.onnx."))]
    return found


def _renew(sound: Path, folder: Path) -> None:
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(parents=True)
    shutil.copytree(sound, folder)


def _old_outputs(folder: Path) -> None:
    """Put outputs of earlier runs there: a model with weights of its own beside it, and others."""
    import onnx
    from onnx import numpy_helper

    from campo_onnx.ir.exporter import export_model

    model = onnx.load(folder / "outside.onnx")
    for tensor in model.graph.initializer:
        if (array := numpy_helper.to_array(tensor)).dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(array + np.float32(1), tensor.name))
    onnx.save(model, folder / "old.onnx", save_as_external_data=True, location="old.bin", size_threshold=1024)
    given = import_model(folder / "old.onnx")
    export_model(given.model, folder / "out.onnx", folder=folder)
    for name in ("old.onnx", "old.bin"):
        (folder / name).unlink()
    for name in ("out.json", "out.xml", "out.svg"):
        (folder / name).write_text("old", encoding="utf-8")
    shutil.copy(folder / "state.safetensors", folder / "out.safetensors")
    if (folder / "profile.parquet").exists():
        shutil.copy(folder / "profile.parquet", folder / "out.parquet")


def _states(folder: Path) -> dict[str, str]:
    """What each file says; of what differs from run to run, only that it is whole."""
    return {
        path.name: _state(path)
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith((".", "store.", "out.onnx."))
    }


def _state(path: Path) -> str:
    data = path.read_bytes()
    if data == b"old":
        return "old"
    match path.suffix:
        case ".onnx":
            return in_child(lambda: import_model(path).digest)
        case ".json" | ".xml" | ".svg":
            text = data.decode()
            if path.suffix == ".json":
                json.loads(text)
            return "whole" if text.rstrip().endswith(("}", ">")) else f"{len(data)} bytes"
        case ".parquet":
            return "whole" if data.endswith(b"PAR1") else f"{len(data)} bytes"
        case ".safetensors":
            return in_child(lambda: _checkpoint_state(path))
    return f"{len(data)} bytes"


def _checkpoint_state(path: Path) -> str:
    try:
        return f"step {load_checkpoint(path).steps}"
    except CampoError as error:
        return str(error)


def main() -> int:
    """Fire every shot; returns 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kills", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--rounds", type=int, default=1, help="how often")
    parser.add_argument("--only", help="commands that begin with this")
    parser.add_argument("--bare", action="store_true", help="without a profile and a store to begin with")
    given = parser.parse_args()
    prepare()
    given.out.mkdir(parents=True, exist_ok=True)
    if not (given.out / "sound").is_dir():
        make_folder(given.out / "sound", with_profile=not given.bare)
    counts: Counter[str] = Counter()
    broken = 0
    for _ in range(given.rounds):
        for fault in (killed, disk_full):
            for command in COMMANDS:
                if not command.startswith(given.only or ""):
                    continue
                for shot in shots(command, given.out / "sound", given.out / "work", fault):
                    counts[f"{shot.fault}: {shot.command}"] += 1
                    if shot.violations:
                        broken += 1
                        print(shot, flush=True)
    print(json.dumps({"shots": counts.total(), "violations": broken, "by command": counts}, indent=1))
    return int(bool(broken))


if __name__ == "__main__":
    raise SystemExit(main())
