"""Which commands read which file: what the campaign draws from."""

from dataclasses import dataclass

USER_CALIBRATION = "data/campo-onnx/calibrations/h200-fp16.json"
"""Where this user's calibrations lie, in a folder of cases."""

RANDOM_GRAPHS = tuple(f"graph-{number}.onnx" for number in range(6))
"""Graphs of :mod:`tests.random_graphs`: more kinds of operators, types and bodies than steps have."""

_OPTIMIZE = "optimize %% -o out.onnx --device v100"

# By file: the commands that read it and run no graph, and those that do. %% stands for it.
COMMANDS: dict[str, tuple[str, ...]] = {
    "step.onnx": (
        f"{_OPTIMIZE} --plan out.json",
        "optimize %% -o out.onnx --device h200 --strategy tf-amp --precision bf16",
        "compare %% --device v100 --json",
        "check mixed.onnx --against %% --device v100 --junit out.xml",
    ),
    "tiny.onnx": (
        "optimize %% -o out.onnx --device h200 --strategy tf-amp --keep-fp32 MatMul",
        "compare %% --device v100",
        "apply tiny_plan.json %%",
    ),
    "branches.onnx": (f"{_OPTIMIZE} --plan out.json", "compare %% --device v100"),
    "dims.onnx": (f"{_OPTIMIZE} --dim B=4",),
    "outside.onnx": (_OPTIMIZE, "check %% --against step.onnx --device v100 --github"),
    "w.bin": ("optimize outside.onnx -o out.onnx --device v100",),
    "mixed.onnx": (
        "check %% --against step.onnx --device v100 --junit out.xml --github",
        _OPTIMIZE,
    ),
    "plan.json": (
        "explain %%",
        "explain %% node_linear",
        "explain %% --json",
        "check mixed.onnx --against step.onnx --baseline %% --github --json",
    ),
    "tiny_plan.json": ("explain %%", "apply %% tiny.onnx"),
    "lists.toml": (
        "optimize tiny.onnx -o out.onnx --device v100 --lists %%",
        "compare tiny.onnx --device v100 --lists %%",
        "check tiny_mixed.onnx --against tiny.onnx --lists %% --github",
    ),
    "policy.toml": (
        "check --policy %% --junit out.xml",
        "check --policy %% --github",
        "check --policy %% --json",
    ),
    "cal.json": (
        "optimize tiny.onnx -o out.onnx --device %%",
        "compare tiny.onnx --costs model --device %% --profile profile.parquet",
    ),
    USER_CALIBRATION: (
        "devices",
        "devices --json",
        "optimize tiny.onnx -o out.onnx --device h200 --costs auto",
    ),
    "batch.npz": (),
    "profile.parquet": ("optimize tiny.onnx -o out.onnx --costs model --device cal.json --profile %%",),
    "state.safetensors": ("restore %%",),
    "store.sqlite": ("calibrate --from-store %% --device cpu --ops Relu --shapes 9 -o out.json",),
} | dict.fromkeys(RANDOM_GRAPHS, (f"{_OPTIMIZE} --strategy tf-amp",))

RUNNING: dict[str, tuple[str, ...]] = {
    "tiny.onnx": (
        "bench %% --device cpu --steps 6 --threads 1 -o out.json",
        "profile %% -o out.parquet --device cpu --steps 1 --threads 1 --store new.sqlite",
        "optimize %% -o out.onnx --device v100 --strategy tf-amp --safety data --inputs batch.npz",
        "optimize %% -o out.onnx --device cpu --costs measure --store new.sqlite",
        "train state.safetensors %%",
    ),
    "tiny_mixed.onnx": (
        "check %% --against tiny.onnx --inputs batch.npz",
        "bench tiny.onnx %% --device cpu --steps 6 --threads 1 --inputs batch.npz --plot out.svg",
    ),
    "batch.npz": (
        "optimize tiny.onnx -o out.onnx --device v100 --strategy tf-amp --safety data --inputs %%",
        "check tiny_mixed.onnx --against tiny.onnx --device v100 --inputs %%",
        "bench tiny.onnx --device cpu --steps 6 --threads 1 --inputs %%",
        "profile tiny.onnx -o out.parquet --device cpu --steps 1 --threads 1 --inputs %%",
    ),
    "profile.parquet": ("compare tiny.onnx --device cal.json --profile %%",),
    "state.safetensors": ("train %% tiny.onnx",),
    "store.sqlite": (
        "optimize tiny.onnx -o out.onnx --device cpu --costs measure --store %%",
        "profile tiny.onnx -o out.parquet --device cpu --steps 1 --threads 1 --store %%",
        "calibrate --device cpu --ops Relu --shapes 9 --store %% -o out.json",
    ),
}

OUTPUTS = ("out.onnx", "out.json", "out.xml", "out.parquet", "out.svg", "new.sqlite")
"""What commands may write."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command on a folder of which one file was mutated."""

    file: str
    command: str

    @property
    def words(self) -> list[str]:
        """The command line."""
        return self.command.replace("%%", self.file).split()


def cases_of(commands: dict[str, tuple[str, ...]]) -> tuple[Case, ...]:
    """Every pair of a file and a command that reads it."""
    return tuple(Case(file, command) for file, those in commands.items() for command in those)


CHEAP = cases_of(COMMANDS)
"""Cases that run no graph."""

BARE = tuple(case for case in CHEAP if "parquet" not in str(case) and "sqlite" not in str(case))
"""Of those, cases that need no profile and no store, which take a while to make."""

EXPENSIVE = cases_of(RUNNING)
"""Cases that do."""
