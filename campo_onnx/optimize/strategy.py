"""A strategy: a value that says everything about itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command's help lists strategies, and is to be there at once
    from campo_onnx.optimize.problem import Assignment, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to decide precision."""

    name: str
    title: str
    rule: "Callable[..., Assignment]"  # decides. It gets the problem and, by name, the parameters.
    # Figures that the rule is to be tuned by, with their defaults.
    parameters: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    default_lists: str = "campo"
    compared_with: tuple[str, ...] = ()  # further presets that `compare` shows it with
    # Whether it decides by costs: it may then zero-pad, and returns FP32 where too little is won.
    is_cost_aware: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))

    def decide(self, problem: "Problem") -> "Assignment":
        """Answer the question."""
        return self.rule(problem, **self.parameters)

    def tuned(self, **parameters: float) -> "Strategy":
        """The same strategy with other figures; those it does not know are not for it."""
        own = {name: value for name, value in parameters.items() if name in self.parameters}
        return replace(self, parameters={**self.parameters, **own})


def later(home: str) -> "Callable[..., Assignment]":
    """A rule that is imported when it is first used."""
    module, _, function = home.partition(":")

    def rule(problem: "Problem", **parameters: float) -> "Assignment":
        decide: Callable[..., Assignment] = getattr(import_module(module), function)
        return decide(problem, **parameters)

    return rule
