"""Names of a training step's inputs and outputs; exporters write them, sessions read them.

=====================  ==========================================================================
input                  meaning
=====================  ==========================================================================
``param.X``            a parameter, ``X`` its name in the module; the FP32 master weight
``buf.X``              a buffer (running statistics)
``opt.S.X``            optimizer state ``S`` of a parameter (``mom``; ``m`` and ``v``); zeros at first
``step``               int64, number of updates so far (Adam, AdamW)
``lr``                 learning rate (with an optimizer)
``loss_scale``         the factor the loss is multiplied by before the backward pass
``ema.X``              a parameter's moving average; no graph reads it, a session keeps it
``input.X``            an input of the module, ``X`` its name in ``forward``
``target.X``           an argument of the loss after the module's output
=====================  ==========================================================================

=====================  ==========================================================================
output                 meaning
=====================  ==========================================================================
``loss``               the unscaled loss
``grads_finite``       bool; when false, every new state below is the old one (with ``loss_scale``)
``grad.X``             unscaled gradient of a parameter (without an optimizer)
``scaled_grad.X``      the gradient times the loss scale, where it is left to the update to unscale it
``new.X``              the parameter after the update (with an optimizer)
``new_S.X``            the optimizer state after the update
``step_out``           the number of updates after this one
``buf_out.X``          a buffer after the step; a buffer that no step changes has none
``assumed.X``          bool; whether the batch is as the export assumed of it, X in words
``output.X``           what the loss returns besides its value, under the name it gives
=====================  ==========================================================================

A parameter that is frozen, or that the loss does not depend on, has no output.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LOSS = "loss"
GRADS_FINITE = "grads_finite"
LOSS_SCALE = "loss_scale"
LEARNING_RATE = "lr"
STEP = "step"
STEP_OUT = "step_out"

PARAMETER, GRADIENT, SCALED_GRADIENT, INPUT, OUTPUT = "param", "grad", "scaled_grad", "input", "output"
"""First parts of names, where a framework joins the rest itself."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Names with one beginning; called with the rest, it gives one of them."""

    beginning: str

    def __call__(self, rest: str) -> str:
        return f"{self.beginning}{rest}"

    def include(self, name: str) -> bool:
        """Whether a name begins like that."""
        return name.startswith(self.beginning)

    def rest(self, name: str) -> str | None:
        """The part of a name behind the beginning; None where it begins otherwise."""
        return name.removeprefix(self.beginning) if self.include(name) else None


parameter, new_parameter = _Names(f"{PARAMETER}."), _Names("new.")
buffer, new_buffer = _Names("buf."), _Names("buf_out.")
average = _Names("ema.")
gradient, scaled_gradient = _Names(f"{GRADIENT}."), _Names(f"{SCALED_GRADIENT}.")
batch_input, target, output = _Names(f"{INPUT}."), _Names("target."), _Names(f"{OUTPUT}.")
assumption = _Names("assumed.")
_state, _new_state = _Names("opt."), _Names("new_")

_NEXT = ((parameter, new_parameter), (buffer, new_buffer), (_state, _new_state))

RULE = f"param.X goes with new.X, buf.X with buf_out.X, opt.X with new_X, {STEP} with {STEP_OUT}"
"""The output that holds a state input's next value, for messages."""

is_parameter, is_buffer = parameter.include, buffer.include
is_scaled_gradient = scaled_gradient.include

assumed = assumption.rest
"""In which way a batch is not as assumed if an output is false; None for any other output."""


def averaged(name: str) -> str | None:
    """Name the parameter input that some state is the moving average of; None for any other state."""
    own = average.rest(name)
    return None if own is None else parameter(own)


def state(slot: str, name: str) -> str:
    """Name the input of one kind of optimizer state of a parameter."""
    return _state(f"{slot}.{name}")


def new_state(slot: str, name: str) -> str:
    """Name the output of one kind of optimizer state of a parameter."""
    return _new_state(f"{slot}.{name}")


def differentiated(name: str) -> str | None:
    """Tell whose gradient an output is, scaled or not; None for any other output."""
    return gradient.rest(name) if gradient.include(name) else scaled_gradient.rest(name)


def is_batch(name: str) -> bool:
    """Whether an input takes a part of the batch."""
    return batch_input.include(name) or target.include(name)


def stored(name: str) -> str | None:
    """Tell which parameter or buffer of the module an input is; None for any other input."""
    return parameter.rest(name) if parameter.include(name) else buffer.rest(name)


def is_optimizer_state(name: str) -> bool:
    """Whether an input is kept by the optimizer alone, and so is zero before the first step."""
    return name == STEP or _state.include(name)


def next_value(name: str) -> str | None:
    """Name the output that holds the next value of a state input; None for any other input.

    >>> next_value("opt.m.fc.weight")
    'new_m.fc.weight'
    >>> next_value("lr") is None
    True
    """
    if name == STEP:
        return STEP_OUT
    return next((new(name.removeprefix(own.beginning)) for own, new in _NEXT if own.include(name)), None)


def is_next_value(name: str) -> bool:
    """Whether an output is named as the next value of some state."""
    return name == STEP_OUT or any(new.include(name) for _, new in _NEXT)


def may_be_frozen(name: str, inputs: Iterable[str]) -> bool:
    """Whether a state input may lack a next value: a buffer, or a parameter without optimizer state."""
    own = parameter.rest(name)
    if own is None:
        return is_buffer(name)
    return all(state.partition(".")[2] != own for state in filter(None, map(_state.rest, inputs)))
