"""The commands of the program, each loaded when it is called: no start pays for the others."""

from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from .render.console import print_document

_COMMANDS = "demo optimize compare frontier explain devices profile bench calibrate check try"

HOME = {name: "try_step" if name == "try" else name for name in _COMMANDS.split()}
"""Module of each command, and the function in it, which are called alike; in the order of the help."""

HELP = ["-h", "--help"]
"""Names of the option for help."""

_SHORT = "campo_onnx.short_help"


def _without_python_types(params: list[Any]) -> list[Any]:
    """Show no Python types: Typer would write <bool> beside flags, and <list[Path]> beside arguments."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
        elif isinstance(param, TyperArgument) and hasattr(param, "display_type_rich"):
            param.display_type_rich = _no_type  # type: ignore[method-assign]
    return params


def _no_type(ctx: Any) -> str:
    """An argument's name says what it is."""
    return ""


class Command(TyperCommand):
    """A command whose help shows no Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its options and arguments."""
        return _without_python_types(super().get_params(ctx))

    def get_help_option_names(self, ctx: Any) -> list[str]:
        """Return the same names in every context: the command keeps the option that the first one makes."""
        return HELP

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; remembers how help was asked for."""
        ctx.meta[_SHORT] = "-h" in args
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        from .help import short, whole

        print_document((short if ctx.meta.get(_SHORT) else whole)(self, ctx))


@cache
def _loaded(name: str) -> Any:
    home = HOME[name]
    alone = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    alone.command(name=name, cls=Command)(getattr(import_module(f".{home}", __package__), home))
    return typer.main.get_command(alone)


class Commands(TyperGroup):
    """The program itself, which knows its commands by name until one is looked up."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(HOME)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command's module."""
        return _loaded(cmd_name) if cmd_name in HOME else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        from .help import whole

        print_document(whole(self, ctx))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its options."""
        return _without_python_types(super().get_params(ctx))
