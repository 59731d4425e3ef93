"""State inputs of a training-step graph, and the outputs that are their next values.

They are paired by name, as :mod:`campo_onnx.step.naming` says. A parameter or buffer without a
next value is frozen: kept on the device, never written. A parameter that has optimizer state is
trained, so there a missing next value is an error.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.ir.view import GraphView
from campo_onnx.step import naming as step_naming

Feed = NDArray[Any] | float | int | bool
"""An array of the input's type and shape, or a plain number for a scalar input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, ``TensorProto.DataType`` and shape of an input or output."""

    name: str
    dtype: int
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.numpy_dtype}{list(self.shape)}"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The type as NumPy knows it."""
        return helper.tensor_dtype_to_np_dtype(self.dtype)

    def fitted(self, value: Feed) -> NDArray[Any]:
        """Return a value as a contiguous array of this type and shape.

        Only plain numbers for scalar tensors are converted.
        """
        if isinstance(value, (bool, int, float)) and not self.shape:
            return np.asarray(value, self.numpy_dtype)
        array = np.asarray(value)
        if array.dtype != self.numpy_dtype or array.shape != self.shape:
            raise UsageError(
                f"{self.name!r} is {array.dtype}{list(array.shape)}",
                why=f"the graph takes {self}",
                remedy="Convert it before; the session neither casts nor reshapes.",
            )
        return np.ascontiguousarray(array).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInterface:
    """A training step's inputs and outputs, told apart."""

    state: Mapping[str, TensorSpec]  # state inputs by name
    # output that holds the next value of each state input; frozen ones are absent
    next_value: Mapping[str, str]
    # the other inputs by name: the batch, settings such as the learning rate, the loss scale
    feeds: Mapping[str, TensorSpec]
    metrics: Mapping[str, TensorSpec]  # the other outputs by name

    @property
    def signature(self) -> str:
        """Digest of names, types and shapes of the state: tells whether a checkpoint fits."""
        rows = sorted(f"{spec.name} {spec}" for spec in self.state.values())
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def first_state(self, start: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return a value for every state input.

        Optimizer state that is not given is zero, and moving averages begin as the parameters. UsageError
        says that a parameter or buffer is missing, a value is unknown or does not fit, or the count of
        updates is negative.
        """
        averages = {n: p for n in self.state if n not in start and (p := step_naming.averaged(n)) in start}
        start = {**start, **{name: start[parameter] for name, parameter in averages.items() if parameter}}
        missing = [n for n in self.state if n not in start and not step_naming.is_optimizer_state(n)]
        unknown = [name for name in start if name not in self.state]
        if missing or unknown:
            why = [f"it lacks {', '.join(missing)}"] if missing else []
            why += [f"the graph has no state {', '.join(unknown)}"] if unknown else []
            raise UsageError(
                "the first state does not fit the graph",
                why="; ".join(why),
                remedy="Give a value for every parameter and buffer, by the name of its input.",
            )
        state = {
            name: spec.fitted(start[name]) if name in start else np.zeros(spec.shape, spec.numpy_dtype)
            for name, spec in self.state.items()
        }
        if np.any(state.get(step_naming.STEP, 0) < 0):
            count = int(state[step_naming.STEP])
            raise UsageError(f"{step_naming.STEP!r} is {count}", remedy="It counts updates, from 0 on.")
        return state

    def difference(self, arrays: Mapping[str, NDArray[Any]]) -> str:
        """Say how a state read from a file differs in names, types or shapes; ``""`` if it does not."""
        if missing := sorted(self.state.keys() - arrays.keys()):
            return f"it lacks {missing[0]!r}" + (f" and {len(missing) - 1} more" if missing[1:] else "")
        if unknown := sorted(arrays.keys() - self.state.keys()):
            return f"it holds {unknown[0]!r}" + (f" and {len(unknown) - 1} more" if unknown[1:] else "")
        for name, spec in self.state.items():
            there = f"{arrays[name].dtype}{list(arrays[name].shape)}"
            if there != str(spec):
                return f"{name!r} is {spec} here, and {there} there"
        return ""


def step_interface(
    view: GraphView, pairs: Mapping[str, str | None] | None = None, constants: Iterable[str] = ()
) -> StepInterface:
    """Tell state, feeds and metrics of a training step apart.

    `pairs` are state inputs to pair otherwise than by name, with the output that holds the next value, or
    None for a parameter that is frozen. `constants` are inputs with a value in the file, which nobody has to
    feed. UsageError says that `pairs` names something the graph does not have, or that it has gradients and
    no update; UnsupportedModelError that state is left unpaired, two of a pair differ in type or shape, the
    graph updates nothing, or a shape is unknown.
    """
    interface = paired_interface(view, pairs, constants)
    if gradients_of(interface) and not any(map(step_naming.is_parameter, interface.next_value)):
        raise UsageError(
            "the graph gives gradients and updates no parameter",
            remedy="Say how to update, for example update=WeightUpdate(optimizer=AdamW()).",
        )
    if not interface.next_value:
        raise UnsupportedModelError(
            "the graph updates no state",
            why="no output is the next value of an input",
            remedy="Export the training step with an optimizer, or name the outputs with pairs.",
        )
    return interface


def gradients_of(interface: StepInterface) -> dict[str, str]:
    """Find the outputs that are gradients, by the name of the parameter that is an input."""
    outputs = ((step_naming.differentiated(output), output) for output in interface.metrics)
    return {
        name: output
        for name, output in outputs
        if name is not None and step_naming.parameter(name) in interface.state
    }


def paired_interface(
    view: GraphView, pairs: Mapping[str, str | None] | None = None, constants: Iterable[str] = ()
) -> StepInterface:
    """Tell state, feeds and metrics apart, of a graph that may leave the update to others.

    Parameters and errors are those of :func:`step_interface`.
    """
    named = dict(pairs or {})
    defaults = frozenset(constants)
    inputs = {name: _spec(view, name) for name in view.inputs if name not in defaults}
    outputs = {name: _spec(view, name) for name in view.outputs}
    _check_names(named, inputs, outputs)
    wanted = {name: named[name] if name in named else step_naming.next_value(name) for name in inputs}
    next_value = {name: output for name, output in wanted.items() if output in outputs and output is not None}
    frozen = {name for name, output in named.items() if output is None}
    frozen |= {name for name in inputs if name not in next_value and step_naming.may_be_frozen(name, inputs)}
    claimed = set(next_value.values())
    lost = [n for n, output in wanted.items() if output is not None and n not in next_value.keys() | frozen]
    lost += [name for name in outputs if name not in claimed and step_naming.is_next_value(name)]
    if lost:
        raise UnsupportedModelError(
            f"state without a counterpart: {', '.join(lost)}",
            why=step_naming.RULE,
            remedy="Name the counterparts: pairs={'input': 'output'}; {'input': None} freezes a parameter.",
        )
    for name, output in next_value.items():
        if str(inputs[name]) != str(outputs[output]):
            raise UnsupportedModelError(
                f"the state {name!r} is {inputs[name]}, but its next value {output!r} is {outputs[output]}"
            )
    state = next_value.keys() | frozen
    return StepInterface(
        state=MappingProxyType({name: spec for name, spec in inputs.items() if name in state}),
        next_value=MappingProxyType(next_value),
        feeds=MappingProxyType({name: spec for name, spec in inputs.items() if name not in state}),
        metrics=MappingProxyType({name: spec for name, spec in outputs.items() if name not in claimed}),
    )


def _check_names(
    pairs: Mapping[str, str | None], inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]
) -> None:
    unknown = [name for name in pairs if name not in inputs]
    unknown += [name for name in pairs.values() if name is not None and name not in outputs]
    if unknown:
        raise UsageError(
            f"pairs names {', '.join(unknown)}",
            why="the graph has no such input or output",
            remedy=f"Inputs: {', '.join(inputs)}. Outputs: {', '.join(outputs)}.",
        )


def _spec(view: GraphView, name: str) -> TensorSpec:
    info = view.tensors[name]
    if info.shape is None or info.dtype in (TensorProto.UNDEFINED, TensorProto.STRING, TensorProto.BFLOAT16):
        raise UnsupportedModelError(
            f"the input or output {name!r} of the training step has no static shape, or no type NumPy has",
            remedy="Export it with static shapes, in FP32 (optimizing keeps the interface).",
        )
    return TensorSpec(name=name, dtype=info.dtype, shape=info.shape)
