"""Modules and source lines that nodes come from, as an exporter wrote them into the file.

``torch.onnx.export(dynamo=True)`` writes metadata to every node; other exporters write the module into the
node's name. Both are text from outside: parsed by patterns, cut to a length, and shown, never followed.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from onnx import NodeProto

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_TRACE = "pkg.torch.onnx.stack_trace"

_MOST_CHARACTERS = 20_000
_LONGEST = 200
_TEXT = re.compile(r"'([^'\\]*)'")
_FRAME = re.compile(r'^ *File "([^"\n]*)", line (\d{1,9}), in [^\n]*(?:\n +([^\n]*))?', re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Place in the user's program that a node comes from."""

    module: str = ""  # path of the module, `layers.2.fc2`; `""` where the file does not say
    kind: str = ""  # class of the module, `Linear`
    source: str = ""  # innermost line of the user's own, `model.py:5: return self.fc2(x)`


UNKNOWN = Origin()

KEEP_FP32 = "keep_fp32"
"""Part of the names of nodes that stay FP32, as the user's code asks: ``encoder/keep_fp32/MatMul``."""


def asks_for_fp32(node: str) -> bool:
    """Say whether the name of a node, or the first part of one, says that it is to stay FP32.

    >>> asks_for_fp32("encoder/keep_fp32/grad/MatMul"), asks_for_fp32("keep_fp32.0/MatMul")
    (True, False)
    """
    return KEEP_FP32 in node.split("/")


def origin_of(node: NodeProto) -> Origin:
    """Read the metadata of a node."""
    held = {
        prop.key: prop.value[:_MOST_CHARACTERS]
        for prop in node.metadata_props
        if prop.key in (_SCOPES, _CLASSES, _TRACE)
    }
    if not held:
        return UNKNOWN
    # The first scope is the whole network, the last the operation; classes stand beside them.
    *scopes, _ = _TEXT.findall(held.get(_SCOPES, "")) or [""]
    *classes, _ = _TEXT.findall(held.get(_CLASSES, "")) or [""]
    module = next((scope for scope in reversed(scopes) if scope), "")
    kind = classes[len(scopes) - 1].rpartition(".")[2] if module and len(classes) == len(scopes) else ""
    return Origin(module=module[:_LONGEST], kind=kind[:_LONGEST], source=_source(held.get(_TRACE, "")))


def _source(trace: str) -> str:
    """Innermost frame that is not in an installed package."""
    frames: list[tuple[str, str, str]] = _FRAME.findall(trace)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
    if not own:
        return ""
    path, line, code = own[-1]
    name = PurePosixPath(path.replace("\\", "/")).name
    return f"{name}:{line}{': ' if code.strip() else ''}{code.strip()}"[:_LONGEST]


def scope_of(node: str) -> tuple[str, ...]:
    """Split the name of a node into the modules it is in.

    >>> scope_of("layers.3.attention/grad/MatMul_1")
    ('layers', '3', 'attention', 'grad')
    >>> scope_of("/encoder/Gemm"), scope_of("node_mm_12")
    (('encoder',), ())
    >>> scope_of("/layers/layers.11/conv1/Conv")  # as torch's older exporter names members of a Sequential
    ('layers', '11', 'conv1')
    """
    steps: list[str] = []
    for step in node.split("/")[:-1]:
        if steps and step.startswith(f"{steps[-1]}."):
            steps.pop()
        steps.append(step)
    return tuple(part for step in steps for part in step.split(".") if part)


def scope_in(node: str, module: str) -> tuple[str, ...]:
    """Modules of a node: those of its metadata, else those of its name.

    >>> scope_in("node_linear_5", "layers.2.fc2")
    ('layers', '2', 'fc2')
    >>> scope_in("layers.2/Add", "")
    ('layers', '2')
    """
    return scope_of(f"{module}/") if module else scope_of(node)


def modules_around(scope: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of all modules that a scope is in, the outermost first.

    >>> modules_around(("layers", "2", "fc2"))
    ('layers', 'layers.2', 'layers.2.fc2')
    """
    return tuple(".".join(scope[: depth + 1]) for depth in range(len(scope)))
