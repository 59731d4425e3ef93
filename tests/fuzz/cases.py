"""Which commands read which file: what the campaign draws from."""

import random
import re
import shlex
from dataclasses import dataclass

USER_CALIBRATION = "data/campo-onnx/calibrations/h200-fp16.json"
"""Where this user's calibrations lie, in a folder of cases."""

RANDOM_GRAPHS = tuple(f"graph-{number}.onnx" for number in range(6))
"""Graphs of :mod:`tests.random_graphs`: more kinds of operators, types and bodies than steps have."""

GIVEN_ONES, MIXED_ONES = "graphs/given", "graphs/mixed"
"""Folders of graphs, and of what was made of them."""

CHECK_ALL = f"check {MIXED_ONES} --against {GIVEN_ONES} --device v100 --min-speedup 0"
"""A check of the folders."""

_OPTIMIZE = "optimize %% -o out.onnx --device v100"

# By file: the commands that read it and run no graph, and those that do. %% stands for it.
COMMANDS: dict[str, tuple[str, ...]] = {
    "step.onnx": (
        f"{_OPTIMIZE} --plan out.json",
        "optimize %% -o out.onnx --device h200 --strategy tf-amp --precision bf16",
        "compare %% --device v100 --json",
        "check mixed.onnx --against %% --device v100 --junit out.xml",
        f"{_OPTIMIZE} --report out.html --execution graph",
        "optimize %% -o out.onnx --device h200 --precision auto --json --plan out.json",
        "compare %% --device v100 --report out.html --execution graph --format csv",
        f"{_OPTIMIZE} --rules --report out.html --plan out.json",
    ),
    "tiny.onnx": (
        "optimize %% -o out.onnx --device h200 --strategy tf-amp --keep-fp32 MatMul",
        "compare %% --device v100",
        "apply tiny_plan.json %%",
        "keep tiny_plan.json %%",
        f"{_OPTIMIZE} --strategy tf-amp --range lr=0:1 --report out.html --verbose",
        "check tiny_mixed.onnx --against %% --device v100 --range x=-1:1 --report out.html",
        "compare %% --device v100 --format markdown --plot out.svg --report out.html",
        f"{_OPTIMIZE} --dry-run --json --strict --allow Relu --infer Sub --deny Greater --keep-fp32 w.*",
        f"{_OPTIMIZE} --flat-weights --no-pads --min-gain 0 --strict --clear Where --report out.html",
        "compare %% --device h200 --precision bf16 --flat-weights --strict --keep-fp32 MatMul --format csv",
        f"{_OPTIMIZE} --min-gain 0 --rules --json",
        "optimize %% -o out.onnx --device zen4 --runtime openvino --precision bf16 --lower --min-gain 0",
        "check tiny_mixed.onnx --against %% --device v100 --max-casts 3 --max-drift 0.01 --min-speedup 1.5 "
        "--keep-fp32 MatMul --lists tf2 --format csv",
        "check tiny_mixed.onnx --against %% --device t4 --junit out.xml --report out.html --strict",
    ),
    "half.onnx": (
        _OPTIMIZE,
        "optimize %% -o out.onnx --device cpu --costs datasheet --strategy fp32 --json",
        "compare %% --device v100 --json --report out.html",
        "optimize %% -o out.onnx --device zen4 --plan out.json --report out.html",
    ),
    "partly.onnx": (
        f"{_OPTIMIZE} --plan out.json",
        "optimize %% -o out.onnx --device cpu --costs datasheet --probe off --report out.html",
        "compare %% --device zen4 --format csv",
        "optimize %% -o out.onnx --device h200 --precision bf16 --min-gain 0 --rules",
    ),
    f"{GIVEN_ONES}/a.onnx": (f"{CHECK_ALL} --results new.jsonl --github", f"{CHECK_ALL} --json"),
    f"{MIXED_ONES}/b.onnx": (
        f"{CHECK_ALL} --results new.jsonl --junit out.xml --format csv",
        f"{CHECK_ALL} --results results.jsonl --report out.html --strict --format markdown",
    ),
    "results.jsonl": (f"{CHECK_ALL} --results %% --github", f"{CHECK_ALL} --results %% --json"),
    "branches.onnx": (
        f"{_OPTIMIZE} --plan out.json",
        "compare %% --device v100",
        f"{_OPTIMIZE} --report out.html",
        f"{_OPTIMIZE} --rules --lower --keep-fp32 Relu",
    ),
    "dims.onnx": (
        f"{_OPTIMIZE} --dim B=4",
        f"{_OPTIMIZE} --dim B=4 --lower",
        "compare %% --dim B=4 --device v100 --json --report out.html",
    ),
    "outside.onnx": (_OPTIMIZE, "check %% --against step.onnx --device v100 --github"),
    "w.bin": ("optimize outside.onnx -o out.onnx --device v100",),
    "mixed.onnx": (
        "check %% --against step.onnx --device v100 --junit out.xml --github",
        _OPTIMIZE,
        "check %% --against step.onnx --device v100 --report out.html --json",
        f"{_OPTIMIZE} --report out.html --plan out.json",
    ),
    "tiny_graph.onnx": ("check %% --against tiny.onnx --baseline graph_plan.json --report out.html",),
    "plan.json": (
        "explain %%",
        "explain %% node_linear",
        "explain %% --json",
        "check mixed.onnx --against step.onnx --baseline %% --github --json",
        "explain %% --report out.html",
        "explain %% --top 0 --format csv",
        "explain %% --format markdown",
        "explain %% --rules",
        "explain %% --rules --json",
    ),
    "tiny_plan.json": (
        "explain %%",
        "apply %% tiny.onnx",
        "keep %% tiny.onnx",
        "explain %% --top 3 --report out.html --json",
    ),
    "graph_plan.json": (
        "explain %%",
        "check tiny_graph.onnx --against tiny.onnx --baseline %% --junit out.xml --report out.html",
    ),
    "lists.toml": (
        "optimize tiny.onnx -o out.onnx --device v100 --lists %%",
        "compare tiny.onnx --device v100 --lists %%",
        "check tiny_mixed.onnx --against tiny.onnx --lists %% --github",
        "compare tiny.onnx --device v100 --lists %% --report out.html",
    ),
    "policy.toml": (
        "check --policy %% --junit out.xml",
        "check --policy %% --github",
        "check --policy %% --json",
        "check --policy %% --report out.html",
    ),
    "cal.json": (
        "optimize tiny.onnx -o out.onnx --device %%",
        "compare tiny.onnx --costs model --device %% --profile profile.parquet",
        "optimize tiny.onnx -o out.onnx --device %% --execution graph --report out.html",
        "demo --folder demo --device %%",
    ),
    USER_CALIBRATION: (
        "devices",
        "devices --json",
        "devices h200",
        "devices --format markdown",
        "optimize tiny.onnx -o out.onnx --device h200 --costs auto",
    ),
    "batch.npz": (),
    "profile.parquet": ("optimize tiny.onnx -o out.onnx --costs model --device cal.json --profile %%",),
    "state.safetensors": ("restore %%",),
    "store.sqlite": (
        "devices --store %%",
        "calibrate --from-store %% --device cpu --ops Relu --shapes 9 -o out.json",
    ),
} | dict.fromkeys(
    RANDOM_GRAPHS,
    (
        f"{_OPTIMIZE} --strategy tf-amp",
        f"{_OPTIMIZE} --strategy tf-amp --report out.html",
        "compare %% --device v100 --report out.html",
        "optimize %% -o out.onnx --device v100 --rules --lower --probe off",
    ),
)

RUNNING: dict[str, tuple[str, ...]] = {
    "tiny.onnx": (
        "bench %% --device cpu --steps 6 --threads 1 -o out.json",
        "profile %% -o out.parquet --device cpu --steps 1 --threads 1 --store new.sqlite",
        "optimize %% -o out.onnx --device v100 --strategy tf-amp --safety data --inputs batch.npz",
        "optimize %% -o out.onnx --device cpu --costs measure --store new.sqlite",
        "train state.safetensors %%",
        "optimize %% -o out.onnx --device v100 --simplify",
        "optimize %% -o out.onnx --device cpu --verify --verify-steps 6 --report out.html",
        "compare %% --device cpu --costs datasheet --measure --steps 6 --report out.html",
        "compare %% --device v100 --drift planned --drift dfp16 --inputs batch.npz --report out.html",
        "bench %% --device cpu --steps 6 --threads 1 --format csv --fail-if-slower",
        "bench tiny_mixed.onnx %% --device cpu --steps 6 --threads 1 --seconds 0 --tolerance 0.5 --json",
        "frontier %% --device v100 --inputs batch.npz --runs 1 --emulated 2 --format csv",
        "optimize %% -o out.onnx --device v100 --rules --inputs batch.npz --min-gain 0",
        "optimize %% -o out.onnx --device v100 --max-error 0.01 --inputs batch.npz",
        "optimize %% -o out.onnx --device cpu --verify --repair --verify-steps 6 --report out.html",
        "optimize %% -o out.onnx --device h200 --precision auto --max-error 0.01 --inputs batch.npz --rules",
        "frontier %% --device h200 --precision auto --runs 2 --emulated 2 --report out.html",
        "optimize %% -o out.onnx --device zen4 --runtime openvino --safety data --inputs batch.npz",
        "bench %% --runtime openvino --steps 6 --threads 1 --seconds 0 --json",
    ),
    "train.py": (
        "try %%:make --steps 6 --seconds 0 --threads 1 -o out.json --report out.html",
        "try %%:make --steps 6 --seconds 0 --threads 1 --json",
    ),
    "partly.onnx": (
        "bench step.onnx %% --device cpu --steps 6 --threads 1 --batch 16",
        "optimize %% -o out.onnx --device cpu --verify --verify-steps 6",
        "check %% --against tiny.onnx --device v100 --inputs batch.npz",
        "frontier %% --device h200 --precision bf16 --runs 1 --emulated 2 --plot out.svg",
    ),
    "half.onnx": (
        "optimize %% -o out.onnx --device cpu --inputs batch.npz",
        "frontier %% --device v100 --runs 1 --emulated 2 --json",
    ),
    f"{MIXED_ONES}/a.onnx": (f"{CHECK_ALL} --workers 2 --results new.jsonl",),
    "branches.onnx": (
        "optimize %% -o out.onnx --device v100 --simplify",
        "frontier %% --device v100 --runs 1 --emulated 2 --format markdown",
    ),
    "outside.onnx": ("optimize %% -o out.onnx --device v100 --simplify --plan out.json",),
    "graph-4.onnx": ("optimize %% -o out.onnx --device v100 --simplify",),
    "tiny_mixed.onnx": (
        "check %% --against tiny.onnx --inputs batch.npz",
        "bench tiny.onnx %% --device cpu --steps 6 --threads 1 --inputs batch.npz --plot out.svg",
    ),
    "batch.npz": (
        "optimize tiny.onnx -o out.onnx --device v100 --strategy tf-amp --safety data --inputs %%",
        "optimize tiny.onnx -o out.onnx --device v100 --inputs %% --report out.html",
        "check tiny_mixed.onnx --against tiny.onnx --device v100 --inputs %%",
        "bench tiny.onnx --device cpu --steps 6 --threads 1 --inputs %%",
        "compare tiny.onnx --device v100 --drift planned --inputs %% --format csv",
        "profile tiny.onnx -o out.parquet --device cpu --steps 1 --threads 1 --inputs %%",
        "frontier tiny.onnx --device v100 --inputs %% --runs 1 --emulated 2 --plot out.svg --json",
        "optimize tiny.onnx -o out.onnx --device v100 --max-time-us 60 --inputs %%",
    ),
    "profile.parquet": ("compare tiny.onnx --device cal.json --profile %%",),
    "state.safetensors": ("train %% tiny.onnx",),
    "store.sqlite": (
        "optimize tiny.onnx -o out.onnx --device cpu --costs measure --store %%",
        "profile tiny.onnx -o out.parquet --device cpu --steps 1 --threads 1 --store %%",
        "calibrate --device cpu --ops Relu --shapes 9 --store %% -o out.json",
        "calibrate --quick --device cpu --ops MatMul --shapes 9 --store %% -o out.json",
    ),
}

OUTPUTS = re.compile(
    r"out\.(onnx|json|xml|html|parquet|svg)|out\.onnx\.[0-9a-f]{16}\.data|new\.(sqlite|jsonl)|plans/[0-9a-f-]+\.json"
    r"|demo/(bert_layer\.onnx|bert_layer\.mixed\.onnx|plan\.json)"
)
"""Files that commands may write."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command on a folder of which one file was mutated."""

    file: str
    command: str

    @property
    def words(self) -> list[str]:
        """The command line."""
        return shlex.split(self.command.replace("%%", self.file))


def cases_of(commands: dict[str, tuple[str, ...]]) -> tuple[Case, ...]:
    """Every pair of a file and a command that reads it."""
    return tuple(Case(file, command) for file, those in commands.items() for command in those)


CHEAP = cases_of(COMMANDS)
"""Cases that run no graph."""

BARE = tuple(case for case in CHEAP if "parquet" not in str(case) and "sqlite" not in str(case))
"""Of those, cases that need no profile and no store, which take a while to make."""

EXPENSIVE = cases_of(RUNNING)
"""Cases that do."""


_RUNNING_SHARE = 1 / 40  # of cases that run a graph: each takes as long as twenty others


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which cases are drawn.

    Parameters
    ----------
    is_cheap
        Whether only commands are drawn that run no graph and need no profile or store.
    containing
        Only commands that contain one of these texts; none takes all.
    """

    is_cheap: bool = False
    containing: tuple[str, ...] = ()

    def draw(self, rng: random.Random) -> Case:
        """Draw a case."""
        is_expensive = rng.random() < _RUNNING_SHARE
        pools = (BARE,) if self.is_cheap else (EXPENSIVE, CHEAP) if is_expensive else (CHEAP, EXPENSIVE)
        return rng.choice(next(cases for pool in pools if (cases := self._of(pool))))

    def _of(self, pool: tuple[Case, ...]) -> list[Case]:
        return [c for c in pool if not self.containing or any(text in str(c) for text in self.containing)]
