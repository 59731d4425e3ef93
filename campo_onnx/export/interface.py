"""What the inputs and outputs of a training step are called.

=====================  ==========================================================================
input                  meaning
=====================  ==========================================================================
``param.X``            a parameter, ``X`` its name in the module
``buf.X``              a buffer (running statistics)
``opt.S.X``            optimizer state ``S`` of a parameter (``mom``; ``m`` and ``v``); zeros at first
``step``               int64, number of updates so far (Adam, AdamW)
``lr``                 learning rate (with an optimizer)
``loss_scale``         the factor the loss is multiplied by before the backward pass
``input.X``            an input of the module, ``X`` its name in ``forward``
``target.X``           an argument of the loss after the module's output
=====================  ==========================================================================

=====================  ==========================================================================
output                 meaning
=====================  ==========================================================================
``loss``               the unscaled loss
``grads_finite``       bool; when false, every new state below is the old one (with ``loss_scale``)
``grad.X``             unscaled gradient of a parameter (without an optimizer)
``new.X``              the parameter after the update (with an optimizer)
``new_S.X``            the optimizer state after the update
``step_out``           the number of updates after this one
``buf_out.X``          a buffer after the step; a buffer that no step changes has none
=====================  ==========================================================================

A parameter that is frozen, or that the loss does not depend on, has no output.
"""

LOSS = "loss"
GRADS_FINITE = "grads_finite"
LOSS_SCALE = "loss_scale"
LEARNING_RATE = "lr"
STEP = "step"
STEP_OUT = "step_out"


def parameter(name: str) -> str:
    """Name the input of a parameter."""
    return f"param.{name}"


def new_parameter(name: str) -> str:
    """Name the output of an updated parameter."""
    return f"new.{name}"


def gradient(name: str) -> str:
    """Name the output of a gradient."""
    return f"grad.{name}"


def buffer(name: str) -> str:
    """Name the input of a buffer."""
    return f"buf.{name}"


def new_buffer(name: str) -> str:
    """Name the output of an updated buffer."""
    return f"buf_out.{name}"


def state(slot: str, name: str) -> str:
    """Name the input of one kind of optimizer state of a parameter."""
    return f"opt.{slot}.{name}"


def new_state(slot: str, name: str) -> str:
    """Name the output of one kind of optimizer state of a parameter."""
    return f"new_{slot}.{name}"
