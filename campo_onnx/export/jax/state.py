"""From a pytree of parameters to a session's state, and back."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from campo_onnx.errors import UsageError
from campo_onnx.export.jax.names import names_of
from campo_onnx.step import naming as step_naming


def first_state(parameters: Any, **others: Any) -> dict[str, NDArray[Any]]:
    """Give every leaf by the name of its input.

    `others` are further trees of the state, by the key that the exported function has them under: ``buf``,
    ``opt``.

    >>> first_state({"dense": {"bias": np.zeros(2, np.float32)}})
    {'param.dense.bias': array([0., 0.], dtype=float32)}
    """
    tree = {step_naming.PARAMETER: parameters, **others}
    return dict(zip(names_of(tree), map(np.array, jax.tree.leaves(tree)), strict=True))


def tree_of(state: Mapping[str, NDArray[Any]], like: Any, *, key: str = step_naming.PARAMETER) -> Any:
    """Give a session's weights as the pytree that they came from.

    `state`: what :meth:`~campo_onnx.training.session.TrainingSession.state` gives.
    `like`: the tree that was exported, or one of the same structure.
    `key`: which part of the state: ``param``, or the key of another tree.
    """
    names = names_of({key: like})
    if missing := [name for name in names if name not in state]:
        more = f" and {len(missing) - 3} more" if missing[3:] else ""
        raise UsageError(
            f"the state lacks {', '.join(missing[:3])}{more}",
            remedy="Give the tree that the step was exported from.",
        )
    return jax.tree.unflatten(jax.tree.structure(like), [state[name] for name in names])
