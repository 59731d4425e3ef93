"""Kills and full disks: ``python -m tests.fuzz.kills --out FOLDER``.

Every command that writes is killed at each call that changes a file (a rename, a sync, a removal, a write
that is half done; those of SQLite and polars too), meets a full disk at each of them, and is killed at
random times. After each shot every file must be as it was or as the command leaves it, and whole; a model
must have its own weights; a store must keep every timing it had. Then the command runs once more, and must
leave nothing behind. Results are written shot by shot: a run that was stopped goes on where it was.
"""

import argparse
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz.campaign import renew
from tests.fuzz.faults import Fault, Trap, start_again_with_faults
from tests.fuzz.sandbox import Bounds, Outcome, memory_disk, prepare, run
from tests.fuzz.states import make_old_outputs, states
from tests.fuzz.subjects import make_folder

_CALIBRATE = "calibrate --device cpu --threads 1 --ops Relu --shapes 9 -o out.json --force"
COMMANDS = (
    "optimize outside.onnx -o out.onnx --device v100 --plan out.json --force",
    "optimize step.onnx -o out.onnx --device v100 --plan out.json --force",
    "optimize tiny.onnx -o tiny.onnx --device v100 --strategy tf-amp --force",
    "check tiny_mixed.onnx --against tiny.onnx --device v100 --junit out.xml",
    "compare tiny.onnx --device v100 --plot out.svg --force",
    "bench tiny.onnx --device cpu --steps 6 --threads 1 -o out.json --plot out.svg --force",
    "profile tiny.onnx -o out.parquet --device cpu --steps 1 --threads 1 --store store.sqlite --force",
    "optimize tiny.onnx -o out.onnx --device cpu --costs measure --store store.sqlite --force",
    f"{_CALIBRATE} --store store.sqlite",
    f"{_CALIBRATE} --store new.sqlite",
    "save out.safetensors",
    "optimize outside.onnx -o out.onnx --device v100 --plan out.json --report out.html --force",
    "optimize outside.onnx -o out.onnx --device v100 --simplify --force",
    "compare tiny.onnx --device v100 --plot out.svg --report out.html --force",
    "check tiny_mixed.onnx --against tiny.onnx --device v100 --junit out.xml --report out.html --force",
    "explain plan.json --report out.html --force",
    "demo --folder . --force",
    "keep tiny_plan.json tiny.onnx",
)
"""Every command that writes; ``save`` is a checkpoint of a training session."""

AT_RANDOM = "killed at random"
_TRIES, _TOO_SHORT = 3, "every node was too short to be timed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One fault and what is wrong after it.

    Parameters
    ----------
    command
        The command line.
    fault
        What it met.
    event
        At which call; of random times, which of them.
    code
        The exit code; minus the signal that ended it; None where it was killed at a random time.
    violations
        What is wrong.
    """

    command: str
    fault: str
    event: int
    code: int | None
    violations: tuple[str, ...]


class Range:
    """Where a command is shot at.

    Parameters
    ----------
    command
        The command line.
    sound
        A folder of :func:`tests.fuzz.subjects.make_folder`.
    work
        Where to work.
    """

    def __init__(self, command: str, sound: Path, work: Path) -> None:
        self.command, self._sound, self._folder = command, sound, work / "run"
        self._trap = Trap()
        self._begin()
        self._old = states(self._folder)
        outcome = self._run()
        if outcome.code not in (0, 9):  # a check that fails has a report
            raise RuntimeError(f"{command}: {outcome.code} {outcome.err}")
        self._new, self._seconds, self._code = states(self._folder), outcome.seconds, outcome.code

    def events(self, fault: Fault, rng: random.Random, most: int) -> list[int]:
        """Numbers of the calls that are to meet a fault: all, or so many that are drawn from them."""
        self._begin()
        self._run(first=self._trap.at(1 << 40, fault))
        every = range(self._trap.seen)
        return list(every) if len(every) <= most else sorted(rng.sample(every, most))

    def at(self, event: int, fault: Fault) -> Shot | None:
        """Let a call meet a fault; None if the command came to its end before it."""
        self._begin()
        outcome = self._run(first=self._trap.at(event, fault))
        if not self._trap.met:
            return None
        problems = self._of_kill() if fault is Fault.KILLED else self._of_full_disk(outcome)
        if fault is Fault.KILLED and outcome.code != -9:
            problems.append(f"exit code {outcome.code}")
        return self._shot(fault.name.lower().replace("_", " "), event, outcome, problems)

    def at_random(self, number: int, rng: random.Random) -> Shot | None:
        """Kill the command at some time; None if it was done before."""
        self._begin()
        outcome = self._run(bounds=Bounds(seconds=rng.uniform(0.0, self._seconds)))
        if outcome.code is not None:
            return None
        return self._shot(AT_RANDOM, number, outcome, self._of_kill())

    def _begin(self) -> None:
        renew(self._folder, self._sound)

    def _run(self, **options: object) -> Outcome:
        options.setdefault("bounds", Bounds(seconds=300))
        return run(self.command.split(), self._folder, **options)  # type: ignore[arg-type]

    def _shot(self, fault: str, event: int, outcome: Outcome, problems: list[str]) -> Shot:
        shot = Shot(
            command=self.command, fault=fault, event=event, code=outcome.code, violations=tuple(problems)
        )
        again = self._run()
        for _ in range(_TRIES):  # on a busy machine a calibration may find nothing that can be timed
            if again.code != 5 or _TOO_SHORT not in again.err:
                break
            again = self._run()
        new = states(self._folder)
        left = [path.name for path in self._folder.glob(".campo-onnx-*")]
        if again.code != self._code or left or {n: s for n, s in new.items() if n in self._new} != self._new:
            why = f"run once more: {again.code}, {left} left, {again.err[:200]}"
            return Shot(**{**asdict(shot), "violations": (*problems, why)})
        return shot

    def _of_kill(self) -> list[str]:
        now = states(self._folder)
        return [
            f"{name}: {now.get(name, 'gone')} is neither {self._old.get(name)} nor {self._new.get(name)}"
            for name in sorted({*self._old, *self._new})
            if now.get(name) not in (self._old.get(name), self._new.get(name))
        ]

    def _of_full_disk(self, outcome: Outcome) -> list[str]:
        problems = self._of_kill()
        if outcome.code not in (self._code, 2, 5):
            problems.append(f"exit code {outcome.code}")
        errors = [line for line in outcome.err.splitlines() if line.startswith("error:")]
        if outcome.code != self._code and len(errors) != 1:
            problems.append(f"not one message: {outcome.err[:300]}")
        expected = {*self._old, *self._new}
        names = [path.name for path in self._folder.iterdir() if path.is_file()]
        strange = [name for name in names if name not in expected]
        return problems + [
            f"{n} is left" for n in strange if not n.startswith(("store.", "new.", "out.onnx."))
        ]


def shots(
    command: str, options: argparse.Namespace, work: Path, done: set[tuple[object, ...]]
) -> Iterator[Shot]:
    """Fire every shot at a command that was not fired before."""
    rng = random.Random(f"{options.seed} {command}")
    place = Range(command, options.out / "sound", work)
    for fault in Fault:
        name = fault.name.lower().replace("_", " ")
        for event in place.events(fault, rng, options.calls):
            if (command, name, event) not in done and (shot := place.at(event, fault)):
                yield shot
    for number in range(options.random):
        if (command, AT_RANDOM, number) not in done:
            at = random.Random(f"{options.seed} {command} {number}")
            if shot := place.at_random(number, at):
                yield shot


def main() -> int:
    """Fire every shot; returns 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kills", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seed", type=int, default=0, help="of the times, and of the choice of calls")
    parser.add_argument("--calls", type=int, default=25, help="calls of each command that meet a fault")
    parser.add_argument("--random", type=int, default=25, help="kills at random times, of each command")
    parser.add_argument("--only", help="commands that begin with this")
    parser.add_argument("--bare", action="store_true", help="without a profile and a store to begin with")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start_again_with_faults("tests.fuzz.kills", options.out)
    prepare()
    if not (options.out / "sound").is_dir():
        make_folder(options.out / "sound", bare=options.bare)
        make_old_outputs(options.out / "sound")
    log = options.out / "kills.jsonl"
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    done = {(row["command"], row["fault"], row["event"]) for row in rows}
    with tempfile.TemporaryDirectory(dir=memory_disk()) as work, log.open("a", encoding="utf-8") as file:
        for command in COMMANDS:
            if not command.startswith(options.only or ""):
                continue
            for shot in shots(command, options, Path(work), done):
                rows.append(asdict(shot))
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
                if shot.violations:
                    shutil.copytree(Path(work) / "run", options.out / f"shot-{len(rows)}", dirs_exist_ok=True)
                    print(shot, flush=True)
    counts = {
        "shots": len(rows),
        "by fault": Counter(row["fault"] for row in rows),
        "by command": Counter(row["command"] for row in rows),
        "violations": sum(bool(row["violations"]) for row in rows),
    }
    print(json.dumps(counts, indent=1))
    return int(bool(counts["violations"]))


if __name__ == "__main__":
    raise SystemExit(main())
