"""A module as it was: what an export changes of it is put back, and what a step changes of it is found."""

import pickle
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

_CONTAINERS = (dict, list, set)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)


class Snapshot:
    """The attributes of a module and all its children, with the lists and dictionaries in them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._modules = [(name, child, dict(vars(child))) for name, child in module.named_modules()]
        self._contents: dict[int, tuple[Any, Any]] = {}
        for _, _, attributes in self._modules:
            self._keep(attributes.values())

    def _keep(self, values: Any) -> None:
        for value in values:
            if isinstance(value, _CONTAINERS) and id(value) not in self._contents:
                self._contents[id(value)] = value, value.copy()
                self._keep(value.values() if isinstance(value, dict) else value)
            elif isinstance(value, tuple):
                self._keep(value)

    def restore(self) -> None:
        """Put everything back."""
        for _, child, attributes in self._modules:
            now = vars(child)
            if not _same(now, attributes):
                now.clear()
                now.update(attributes)
        for container, content in self._contents.values():
            if not _same(container, content):
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(content)

    def changes(self) -> list[str]:
        """Name the attributes that are not as they were."""
        changed = []
        for name, child, attributes in self._modules:
            now = vars(child)
            for key in attributes.keys() | now.keys():
                old, new = attributes.get(key), now.get(key)
                if old is not new or self._differs(new):
                    changed.append(f"{name}.{key}" if name else key)
        return sorted(changed)

    def _differs(self, value: Any) -> bool:
        if isinstance(value, tuple):
            return any(self._differs(item) for item in value)
        if id(value) not in self._contents:
            return False
        content = self._contents[id(value)][1]
        inner = value.values() if isinstance(value, dict) else value
        return not _same(value, content) or any(self._differs(item) for item in inner)


def _same(now: Any, before: Any) -> bool:
    """Whether two containers hold the same objects; by identity, as tensors have no truth value."""
    if isinstance(now, Mapping):
        return list(now) == list(before) and all(now[key] is before[key] for key in now)
    if isinstance(now, set):
        return bool(now == before)
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


class Dice:
    """Random numbers that a graph cannot draw: Python's, NumPy's, and those of generators within reach.

    Attributes of the module, and global names of both, may hold generators.
    """

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any]) -> None:
        within: list[Any] = []
        for child in module.modules():
            within += [*vars(child).values(), *getattr(type(child).forward, "__globals__", {}).values()]
        cells = getattr(loss, "__closure__", None) or ()
        within += [*getattr(loss, "__globals__", {}).values(), *map(_content, cells)]
        generators = {id(value): value for value in within if isinstance(value, _GENERATORS)}
        self._generators = list(generators.values())
        self._before = self._states()

    def _states(self) -> list[Any]:
        legacy = np.random.get_state()  # noqa: NPY002  (what modules draw from, not we)
        return [random.getstate(), legacy, *map(_state, self._generators)]

    def thrown(self) -> bytes:
        """Tell where all of them stand."""
        return pickle.dumps(self._states())

    def restore(self) -> None:
        """Put all of them back."""
        random.setstate(self._before[0])
        np.random.set_state(self._before[1])  # noqa: NPY002
        for generator, state in zip(self._generators, self._before[2:], strict=True):
            if isinstance(generator, random.Random):
                generator.setstate(state)
            elif isinstance(generator, np.random.Generator):
                generator.bit_generator.state = state
            else:
                generator.set_state(state)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound later
        return None


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return (
        generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()
    )
