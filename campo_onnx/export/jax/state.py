"""Leaves of a pytree by name, and a session's state as one."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from campo_onnx.errors import UsageError
from campo_onnx.export.translation import path_part
from campo_onnx.step import naming as step_naming


def names_of(tree: Any) -> Sequence[str]:
    """Name each leaf by its path; that of a variable of flax.nnx ends with the variable."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)[0]]
    return [".".join(map(path_part, path)) for path in paths]


def check_arrays(tree: Any) -> None:
    """Refuse what is not an array in a tree."""
    for name, leaf in zip(names_of(tree), jax.tree_util.tree_leaves(tree, is_leaf=_is_variable), strict=True):
        is_number = isinstance(leaf, bool | int | float | complex)
        if not is_number and not _is_variable(leaf) and not hasattr(leaf, "dtype"):
            raise UsageError(
                f"the argument {name!r} is not an array but {type(leaf).__name__}",
                remedy="Close over it; give eqx.partition(module, eqx.is_array)[0] of an equinox module, and "
                "combine inside.",
            )


def tensors_of(tree: Any) -> tuple[Any, Any]:
    """Part a tree into its tensors, and what becomes part of the graph: truth values and texts.

    Both are like the given tree, with None in the place of the other's leaves.
    """
    tensors = jax.tree.map(lambda leaf: None if isinstance(leaf, bool | str) else leaf, tree)
    fixed = jax.tree.map(lambda leaf: leaf if isinstance(leaf, bool | str) else None, tree)
    return tensors, fixed


def together(tensors: Any, fixed: Any) -> Any:
    """Put together what :func:`tensors_of` parted."""
    return jax.tree.map(
        lambda tensor, fixed_tensor: tensor if fixed_tensor is None else fixed_tensor,
        tensors,
        fixed,
        is_leaf=lambda leaf: leaf is None,
    )


def _is_variable(node: Any) -> bool:
    # By name, since flax need not be installed; one that holds several arrays is taken apart as any tree is.
    kinds = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(node).__mro__)
    is_one = any(kind.startswith("flax.nnx") and kind.endswith(".Variable") for kind in kinds)
    return is_one and len(jax.tree_util.tree_leaves(node)) == 1


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
