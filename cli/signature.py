"""Options of a command gathered in dataclasses: declared once, checked and read where they are meant."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command, some of whose parameters are dataclasses of options, one that Typer reads.

    Typer takes each option for a parameter of the function. The result has the fields of the dataclasses as
    its parameters, and calls the command with the dataclasses.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Loudness:
    ...     quiet: bool = False
    >>> @with_options
    ... def command(model: str, *, loudness: Loudness) -> None:
    ...     print(model, loudness)
    >>> print(inspect.signature(command))
    (model: str, *, quiet: bool = False)
    >>> command("step.onnx", quiet=True)
    step.onnx Loudness(quiet=True)
    """
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _of_fields(hints[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    signature = inspect.Signature(parameters)

    @wraps(command)
    def flat(*arguments: Any, **options: Any) -> None:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        values = bound.arguments
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    flat.__signature__ = signature  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _of_fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            _KEYWORD,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
