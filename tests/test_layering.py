"""Imports go one way, heavy packages are imported only in their rooms, and importing is light."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A room may import from its own row and those above it.
ROOMS = (
    "campo_onnx.errors",
    "campo_onnx.version",
    "campo_onnx.wording",
    "campo_onnx.files",
    "campo_onnx.scale",
    "campo_onnx.ops",
    "campo_onnx.ir",
    "campo_onnx.hardware",
    "campo_onnx.runtime",
    "campo_onnx.targets",
    "campo_onnx.measure",
    "campo_onnx.calibrate",
    "campo_onnx.costs",
    "campo_onnx.optimize",
    "campo_onnx.builder",
    "campo_onnx.lowering",
    "campo_onnx.planning",
    "campo_onnx.step",
    "campo_onnx.export",
    "campo_onnx.emulation",
    "campo_onnx.training",
    "campo_onnx.bench",
    "campo_onnx.checking",
    "campo_onnx.report",
    "campo_onnx.integrations",
    "cli",
)

# Who may import a package that is heavy or belongs to one room only.
HOMES = {
    "onnx_graphsurgeon": ("campo_onnx.ir.edit", "campo_onnx.optimize.plan.rewrite"),
    "onnxruntime": ("campo_onnx.runtime.onnxruntime.installed",),  # which says what is missing
    "openvino": ("campo_onnx.runtime.openvino.installed",),
    "pynvml": ("campo_onnx.runtime",),
    "ray": ("campo_onnx.scale.cluster",),
    "matplotlib": ("campo_onnx.report.charts",),
    "jinja2": ("campo_onnx.report",),
    "rich": ("cli.render", "campo_onnx.training.display"),
    "typer": ("cli",),
    "torch": (
        "campo_onnx.export.torch",
        "campo_onnx.integrations",
        "campo_onnx.runtime.onnxruntime.kineto",
        "campo_onnx.runtime.torch",
    ),
    "jax": ("campo_onnx.export.jax",),
}


def modules() -> dict[str, Path]:
    paths = {}
    for package in ("campo_onnx", "cli"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(p for p in parts if p != "__init__")] = path
    return paths


def imports(path: Path) -> set[str]:
    """Absolute names of what a file imports; the command line's files import each other by ``.name``."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                assert path.is_relative_to(ROOT / "cli"), f"{path}: relative import"
                package = ".".join(path.parent.relative_to(ROOT).parts)
                names.add(f"{package}.{node.module}")
            else:
                names.add(node.module or "")
    return names


def is_in(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


RUNTIMES = ROOT / "campo_onnx" / "runtime"

# Profilers that only CUDA has, and an optimizer of graphs that is not a runtime: nothing else is imported
# from the folder of a runtime.
EXCEPTIONS = {
    ("campo_onnx.measure.profiler", "campo_onnx.runtime.onnxruntime.kernel_trace"),
    ("campo_onnx.measure.profiler", "campo_onnx.runtime.onnxruntime.kineto"),
    ("campo_onnx.measure.counters", "campo_onnx.runtime.onnxruntime.ncu"),
    ("campo_onnx.bench.meters", "campo_onnx.runtime.onnxruntime.ncu"),
    ("campo_onnx.builder.target", "campo_onnx.runtime.onnxruntime.kernels"),  # its own operators are written
    ("campo_onnx.emulation.simplify", "campo_onnx.runtime.onnxruntime.optimized"),
}


def into_runtimes(module: str, imported: set[str]) -> list[str]:
    """Imports from the folder of a runtime: the registry hands runtimes out."""
    rooms = [f"campo_onnx.runtime.{path.parent.name}" for path in RUNTIMES.glob("*/runtime.py")]
    return [
        f"{module} imports {name}, which is a runtime's own"
        for name in imported
        for room in rooms
        if is_in(name, room) and not is_in(module, room) and (module, name) not in EXCEPTIONS
    ]


def arrows(imported: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports from the second."""
    pairs = ((rank(module), rank(name)) for module, names in imported.items() for name in names)
    return {(ROOMS[a], ROOMS[b]) for a, b in pairs if a is not None and b is not None and a != b}


def rank(module: str) -> int | None:
    return next((i for i, room in enumerate(ROOMS) if is_in(module, room)), None)


def wrong_ways(module: str, imported: set[str]) -> list[str]:
    """Imports that go up, or are made by a module that is in no room."""
    ours = [name for name in imported if rank(name) is not None]
    if rank(module) is None:
        return [f"{module} is in no room, and imports {name}" for name in ours]
    return [f"{module} imports {name}, which stands above it" for name in ours if rank(name) > rank(module)]


def strangers(module: str, imported: set[str]) -> list[str]:
    """Heavy packages that are imported outside of their rooms."""
    return [
        f"{module} imports {name}"
        for name in imported
        if (homes := HOMES.get(name.partition(".")[0])) and not any(is_in(module, home) for home in homes)
    ]


def imports_by_module() -> dict[str, set[str]]:
    by_module = {module: imports(path) for module, path in modules().items()}
    del by_module["campo_onnx"]  # it names the package's public parts and loads them on first use
    return by_module


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    return imports_by_module()


@pytest.mark.parametrize("rule", [wrong_ways, strangers, into_runtimes], ids=lambda rule: rule.__name__)
def test_imports_stay_in_order(imported: dict[str, set[str]], rule: Callable[..., list[str]]) -> None:
    assert not [fault for module, names in imported.items() for fault in rule(module, names)]


def test_sessions_are_seen_in_the_folder_of_their_runtime_only() -> None:
    words = re.compile(r"InferenceSession|OrtValue|io_binding|ExecutionProvider")
    seen = {
        path.relative_to(ROOT).parent.as_posix()
        for folder in ("campo_onnx", "cli")
        for path in (ROOT / folder).rglob("*.py")
        if words.search(path.read_text(encoding="utf-8"))
    }
    assert seen == {"campo_onnx/runtime/onnxruntime"}


# Where processors have their names; the other files speak of torch's devices.
NAMES_PROCESSORS = {
    "campo_onnx.builder.target",
    "campo_onnx.hardware.datasheet",
    "campo_onnx.hardware.hardware",
    "cli.completion",
}
SPEAK_OF_TORCH = ("campo_onnx.export.torch", "campo_onnx.integrations", "campo_onnx.runtime.torch")


def processors_named(source: str) -> bool:
    """Whether a text that is more than one of a comment or docstring is the name of a processor."""
    return any(
        isinstance(n, ast.Constant) and n.value in ("cpu", "cuda") for n in ast.walk(ast.parse(source))
    )


def test_processors_are_named_in_one_place() -> None:
    naming = {
        module for module, path in modules().items() if processors_named(path.read_text(encoding="utf-8"))
    }
    assert {m for m in naming if not any(is_in(m, room) for room in SPEAK_OF_TORCH)} == NAMES_PROCESSORS
    assert processors_named('machine("cpu")')
    assert not processors_named('"""On ``"cpu"``."""')


def test_disorder_is_told() -> None:
    assert wrong_ways("campo_onnx.ir.view", {"campo_onnx.planning.pipeline", "campo_onnx.ops.key"}) == [
        "campo_onnx.ir.view imports campo_onnx.planning.pipeline, which stands above it"
    ]
    assert wrong_ways("campo_onnx.attic", {"campo_onnx.errors"})
    assert strangers("campo_onnx.ir.view", {"onnxruntime.capi", "numpy"}) == [
        "campo_onnx.ir.view imports onnxruntime.capi"
    ]
    assert into_runtimes("campo_onnx.bench.loading", {"campo_onnx.runtime.onnxruntime.sessions"}) == [
        "campo_onnx.bench.loading imports campo_onnx.runtime.onnxruntime.sessions, which is a runtime's own"
    ]
    assert not into_runtimes("campo_onnx.bench.loading", {"campo_onnx.runtime.registry"})
    assert strangers("campo_onnx.runtime.onnxruntime.sessions", {"onnxruntime"})
    assert not strangers("campo_onnx.runtime.onnxruntime.installed", {"onnxruntime"})


def loaded_after(statement: str, *, whole: bool = False) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name if whole else name.partition(".")[0] for name in answer.stdout.split()}


HEAVY = {
    "jinja2",
    "matplotlib",
    "onnxruntime",
    "openvino",
    "torch",
    "typer",
    "onnx",
    "onnx_graphsurgeon",
    "scipy",
    "polars",
}


def test_importing_the_package_is_light() -> None:
    assert not loaded_after("import campo_onnx") & HEAVY


def test_planning_does_without_statistics() -> None:
    loaded = loaded_after(
        "import campo_onnx.planning.pipeline, campo_onnx.costs.choose, campo_onnx.bench.verify", whole=True
    )
    assert not {"scipy.stats", "scipy.optimize"} & loaded


def test_runtimes_are_listed_without_loading_them() -> None:
    loaded = loaded_after(
        "from campo_onnx.runtime.registry import runtimes; print([r.capabilities for r in runtimes()])"
    )
    assert not {"onnxruntime", "openvino", "torch"} & loaded


def test_lightness_can_fail() -> None:
    assert loaded_after("import campo_onnx; campo_onnx.optimize_model") & HEAVY


def test_help_does_not_load_onnx() -> None:
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    assert not loaded_after(f"import {script.module.partition('.')[0]}.main") & (HEAVY - {"typer"})
