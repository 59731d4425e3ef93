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

LOSS = "loss"
GRADS_FINITE = "grads_finite"
LOSS_SCALE = "loss_scale"
LEARNING_RATE = "lr"
STEP = "step"
STEP_OUT = "step_out"

PARAMETER, GRADIENT, SCALED_GRADIENT, INPUT, OUTPUT = "param", "grad", "scaled_grad", "input", "output"
"""First parts of names, where a framework joins the rest itself."""

_PARAMETER, _NEW_PARAMETER = f"{PARAMETER}.", "new."
_BUFFER, _NEW_BUFFER = "buf.", "buf_out."
_STATE, _NEW_STATE = "opt.", "new_"
_AVERAGE = "ema."
_GRADIENT, _SCALED_GRADIENT = f"{GRADIENT}.", f"{SCALED_GRADIENT}."
_ASSUMED = "assumed."
_INPUT, _TARGET, _OUTPUT = f"{INPUT}.", "target.", f"{OUTPUT}."

_NEXT = ((_PARAMETER, _NEW_PARAMETER), (_BUFFER, _NEW_BUFFER), (_STATE, _NEW_STATE))

RULE = f"param.X goes with new.X, buf.X with buf_out.X, opt.X with new_X, {STEP} with {STEP_OUT}"
"""The output that holds a state input's next value, for messages."""


def parameter(name: str) -> str:
    """Name the input of a parameter."""
    return f"{_PARAMETER}{name}"


def new_parameter(name: str) -> str:
    """Name the output of an updated parameter."""
    return f"{_NEW_PARAMETER}{name}"


def average(name: str) -> str:
    """Name the moving average of a parameter, in state and checkpoints."""
    return f"{_AVERAGE}{name}"


def averaged(name: str) -> str | None:
    """Name the parameter input that some state is the moving average of; None for any other state."""
    return parameter(name.removeprefix(_AVERAGE)) if name.startswith(_AVERAGE) else None


def gradient(name: str) -> str:
    """Name the output of a gradient."""
    return f"{_GRADIENT}{name}"


def scaled_gradient(name: str) -> str:
    """Name the output of a gradient that is still times the loss scale."""
    return f"{_SCALED_GRADIENT}{name}"


def buffer(name: str) -> str:
    """Name the input of a buffer."""
    return f"{_BUFFER}{name}"


def new_buffer(name: str) -> str:
    """Name the output of an updated buffer."""
    return f"{_NEW_BUFFER}{name}"


def state(slot: str, name: str) -> str:
    """Name the input of one kind of optimizer state of a parameter."""
    return f"{_STATE}{slot}.{name}"


def new_state(slot: str, name: str) -> str:
    """Name the output of one kind of optimizer state of a parameter."""
    return f"{_NEW_STATE}{slot}.{name}"


def batch_input(name: str) -> str:
    """Name the input that takes an argument of the module."""
    return f"{_INPUT}{name}"


def target(name: str) -> str:
    """Name the input that takes an argument of the loss."""
    return f"{_TARGET}{name}"


def output(name: str) -> str:
    """Name an output beside the loss."""
    return f"{_OUTPUT}{name}"


def assumption(text: str) -> str:
    """Name the output that says whether a batch is as assumed; the text says of one that is not why."""
    return f"{_ASSUMED}{text}"


def assumed(name: str) -> str | None:
    """Say in which way a batch is not as assumed if this output is false; None for any other output."""
    return name.removeprefix(_ASSUMED) if name.startswith(_ASSUMED) else None


def differentiated(name: str) -> str | None:
    """Tell whose gradient an output is, scaled or not; None for any other output."""
    found = (prefix for prefix in (_GRADIENT, _SCALED_GRADIENT) if name.startswith(prefix))
    return next((name.removeprefix(prefix) for prefix in found), None)


def is_scaled_gradient(name: str) -> bool:
    """Whether an output is a gradient that is still times the loss scale."""
    return name.startswith(_SCALED_GRADIENT)


def is_batch(name: str) -> bool:
    """Whether an input takes a part of the batch."""
    return name.startswith((_INPUT, _TARGET))


def stored(name: str) -> str | None:
    """Tell which parameter or buffer of the module an input is; None for any other input."""
    found = (prefix for prefix in (_PARAMETER, _BUFFER) if name.startswith(prefix))
    return next((name.removeprefix(prefix) for prefix in found), None)


def is_parameter(name: str) -> bool:
    """Whether an input is a parameter."""
    return name.startswith(_PARAMETER)


def is_buffer(name: str) -> bool:
    """Whether an input is a buffer."""
    return name.startswith(_BUFFER)


def is_optimizer_state(name: str) -> bool:
    """Whether an input is kept by the optimizer alone, and so is zero before the first step."""
    return name == STEP or name.startswith(_STATE)


def next_value(name: str) -> str | None:
    """Name the output that holds the next value of a state input; None for any other input.

    Examples
    --------
    >>> next_value("opt.m.fc.weight")
    'new_m.fc.weight'
    >>> next_value("lr") is None
    True
    """
    if name == STEP:
        return STEP_OUT
    found = ((prefix, new) for prefix, new in _NEXT if name.startswith(prefix))
    return next((new + name.removeprefix(prefix) for prefix, new in found), None)


def is_next_value(name: str) -> bool:
    """Whether an output is named as the next value of some state."""
    return name == STEP_OUT or name.startswith(tuple(new for _, new in _NEXT))


def may_be_frozen(name: str, inputs: Iterable[str]) -> bool:
    """Whether a state input may lack a next value: a buffer, or a parameter without optimizer state."""
    if not is_parameter(name):
        return is_buffer(name)
    own = name.removeprefix(_PARAMETER)
    states = (other.removeprefix(_STATE) for other in inputs if other.startswith(_STATE))
    return all(state.partition(".")[2] != own for state in states)
