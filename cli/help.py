"""The help of a command: whole for ``--help``, and for ``-h`` what one needs first, on one screen."""

import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from textwrap import shorten, wrap
from typing import Any

import typer

LINES = 40
"""Most lines of what ``-h`` prints."""

_FIRST = {
    "optimize": "--output --plan --report --dry-run --force --dim --device --precision --max-error --inputs "
    "--safety --lists --keep-fp32 --verify"
}
"""Options that ``-h`` shows of commands that have too many for one screen; the others it names."""

_END = re.compile(r"(?<!e\.g\.)(?<=[.;])\s")
_WIDTHS = (60, 100)  # narrowest and widest text
_INDENT, _COLUMN = 2, 26


def whole(command: Any, ctx: Any) -> str:
    """Everything that a command, or the program, tells of itself."""
    width = _width()
    blocks = [_usage(command, ctx), *_paragraphs(command.help, width)]
    for title, params in _panels(command, ctx).items():
        rows = [_record(param, ctx) for param in params]
        blocks.append("\n".join((_bold(title), *_table(rows, width))))
    if isinstance(command, typer.core.TyperGroup):
        named = {name: command.get_command(ctx, name) for name in command.list_commands(ctx)}
        rows = [(name, _first_line(each.help)) for name, each in named.items() if each is not None]
        blocks.append("\n".join((_bold("Commands"), *_table(rows, width))))
    if command.epilog:
        blocks += _paragraphs(command.epilog, width)
    return "\n\n".join(blocks)


def short(command: Any, ctx: Any) -> str:
    """The first of it, in at most :data:`LINES` lines: one for each option, and the names of the others."""
    width = _width()
    shown = _panels(command, ctx)
    first = _FIRST.get(command.name or "", "").split()
    others: list[str] = []
    if first:
        options = [param for params in shown.values() for param in params if _name(param) not in first]
        others = [_name(param) for param in options if _is_option(param)]
        shown = {
            title: [param for param in params if _name(param) in first or not _is_option(param)]
            for title, params in shown.items()
        }
    blocks = [_usage(command, ctx), "\n".join(wrap(_first_line(command.help), width))]
    rows = [_record(param, ctx) for params in shown.values() for param in params]
    rows = [(names, _first_sentence(text)) for names, text in rows]
    ends = [f"Also {', '.join(others)}."] if others else []
    ends.append(f"All of it: {ctx.command_path} --help")
    ends = ["\n".join(wrap(end, width, break_on_hyphens=False)) for end in ends]
    for lay_out in (_table, _lines):
        text = "\n\n".join((*blocks, "\n".join(lay_out(rows, width)), *ends))
        if text.count("\n") < LINES:
            break
    return text


def _width() -> int:
    narrowest, widest = _WIDTHS
    return max(narrowest, min(widest, shutil.get_terminal_size().columns - 1))


def _usage(command: Any, ctx: Any) -> str:
    return f"{_bold('Usage:')} {ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}"


def _panels(command: Any, ctx: Any) -> dict[str, list[Any]]:
    """Arguments and options by the heading that they stand under, in the order of the program."""
    panels: dict[str, list[Any]] = {}
    general: list[Any] = []
    for param in command.get_params(ctx):
        if getattr(param, "hidden", False) or _record(param, ctx) is None:
            continue
        title = getattr(param, "rich_help_panel", None) or ("" if _is_option(param) else "Arguments")
        (panels.setdefault(title, []) if title else general).append(param)
    return panels | ({"Options": general} if general else {})


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _name(param: Any) -> str:
    return str(max(param.opts, key=len))


def _record(param: Any, ctx: Any) -> Any:
    """Names with the placeholder of the value, and what is told of it."""
    record = param.get_help_record(ctx)
    return None if record is None else (_plain(record[0]).removeprefix("* "), _plain(record[1]))


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def _first_line(text: str | None) -> str:
    return _plain((text or "").partition("\n\n")[0])


def _first_sentence(text: str) -> str:
    return _END.split(text, maxsplit=1)[0].rstrip(".;")


def _paragraphs(text: str | None, width: int) -> Iterator[str]:
    for paragraph in (text or "").strip().split("\n\n"):
        yield "\n".join(wrap(_plain(paragraph), width))


def _table(rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    for names, text in rows:
        lines = wrap(text, width - _COLUMN) or [""]
        head = " " * _INDENT + names
        if len(head) > _COLUMN - 2:
            yield head
        else:
            lines[0] = head.ljust(_COLUMN) + lines[0]
            yield lines.pop(0)
        yield from (" " * _COLUMN + line for line in lines)


def _lines(rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """One row on one line, whose last words are left out where the terminal is narrow."""
    for names, text in rows:
        head = (" " * _INDENT + names).ljust(_COLUMN - 2) + "  "
        yield head + shorten(text, max(width - len(head), len(" ...")), placeholder=" ...")


def _bold(text: str) -> str:
    return typer.style(text, bold=True) if sys.stdout.isatty() else text
