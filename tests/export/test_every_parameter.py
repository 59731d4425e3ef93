"""No parameter of a translated operation is dropped: each is read, refused, or named here with its reason."""

import dis
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest


def unwrapped(translation: Any) -> tuple[Callable[..., Any], int]:
    """Give the function behind partial applications, and how many of its arguments they give.

    One that hands all operands on to another translation, which it is given, is that one.
    """
    bound = 0
    while isinstance(translation, partial):
        inner = next((value for value in translation.args if callable(value)), None)
        if inner is not None and takes_all(translation.func):
            translation, bound = inner, 0
        else:
            bound += len(translation.args)
            translation = translation.func
    return translation, bound


def takes_all(function: Callable[..., Any]) -> bool:
    """Whether a function takes any operands and settings."""
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds


def names_read(function: Callable[..., Any]) -> set[str]:
    """Names of the arguments that a function's code loads, those that an inner function reads included."""
    return {i.argval for i in dis.get_instructions(function) if i.opname.startswith("LOAD")} | set(
        function.__code__.co_cellvars
    )


def dropped(translation: Any, names: list[str], by_keyword: set[str]) -> Iterator[str]:
    """Name the arguments that a translation takes and does not read; those it does not take are refused."""
    function, bound = unwrapped(translation)
    parameters = list(inspect.signature(function).parameters.values())
    read = names_read(function)
    of_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p for p in parameters if p.kind == p.VAR_POSITIONAL), None)
    of_name = next((p for p in parameters if p.kind == p.VAR_KEYWORD), None)
    by_name = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    positions = iter(of_position[bound + 2 :])  # behind the graph and the expected result
    for name in names:
        if name in by_keyword:
            taker = name if name in by_name else of_name and of_name.name
        else:
            position = next(positions, rest)
            taker = position and position.name
        if taker is not None and taker not in read:
            yield name


def reading(g: Any, expected: Any, x: Any, *, axis: int) -> Any:
    return lambda: (x, axis)


def dropping(g: Any, expected: Any, x: Any, *_: Any, axis: int, **__: Any) -> Any:
    return x


def handing_on(count: int, translation: Any, g: Any, expected: Any, *operands: Any, **settings: Any) -> Any:
    return translation(g, expected, *operands, **settings)


def test_the_test_can_fail() -> None:
    assert not list(dropped(reading, ["x", "axis"], {"axis"}))
    assert list(dropped(dropping, ["x", "y", "axis", "mode"], {"axis", "mode"})) == ["y", "axis", "mode"]
    assert list(dropped(partial(dropping, None), ["y"], set())) == ["y"]
    assert list(dropped(partial(handing_on, 2, dropping), ["x", "y"], set())) == ["y"]


def test_jax() -> None:
    pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")
    from campo_onnx.export.jax.translate import TRANSLATIONS

    for primitive, translation in TRANSLATIONS.items():
        function, _ = unwrapped(translation)
        if (primitive, function.__name__) in NAMES_OF_KEYS:
            continue
        parameters = inspect.signature(function).parameters.values()
        # What no parameter of a translation takes is a TypeError there, and so a refusal.
        assert not [p.name for p in parameters if p.kind == p.VAR_KEYWORD], primitive
        names = {p.name for p in parameters if p.kind == p.KEYWORD_ONLY}
        assert not names - names_read(function), primitive


NAMES_OF_KEYS = {(f"random_{how}", "_key") for how in ("clone", "fold_in", "seed", "split", "unwrap", "wrap")}
"""A key is only told apart from others, by all of its parameters."""

WITHOUT_EFFECT = frozenset(
    {
        *("device", "layout", "memory_format", "non_blocking", "physical_layout", "pin_memory", "stride"),
        *("sparse", "sparse_grad"),  # how a gradient is stored
        "generator",  # a graph draws numbers of its own, and a compiled step lets torch draw them
    }
)
SAID_BY_THE_RESULT = frozenset(
    {"bias_sizes", "dtype", "half_to_float", "implicit", "input_dtype", "input_size", "out_int32"}
    | {"output_mask", "output_size", "size"}
)
"""Of which type and shape results are, and which of them there are."""

BY_DESIGN = frozenset(
    {
        *("reshape.default: shape", "squeeze.dims: dim", "unsqueeze.default: dim"),
        "arange.start_step: end",  # this and those: the result's shape says them
        *("convolution_backward.default: output_padding",),  # follows from the shapes, and so do these:
        *("avg_pool2d_backward.default: ceil_mode", "avg_pool3d_backward.default: ceil_mode"),
        *("native_layer_norm_backward.default: bias",),  # says which results there are
        "copy.default: self",  # overwritten
        *("full_like.default: self", "zeros_like.default: self", "ones_like.default: self"),  # its shape, in
        *("empty_like.default: self", "new_zeros.default: self", "new_empty_strided.default: self"),  # the
        *("bernoulli.p: self", "rand_like.default: self", "randn_like.default: self"),  # result as well
        "exponential.default: self",
        *("embedding.default: padding_idx", "embedding.default: scale_grad_by_freq"),  # of its gradient
        "leaky_relu_backward.default: self_is_result",  # a positive slope keeps the sign
        "sort.stable: stable",  # every sort is
    }
)


def test_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")
    from campo_onnx.export.torch.translate import TRANSLATIONS

    unread = set()
    for operation, translation in TRANSLATIONS.items():
        arguments = operation._schema.arguments
        by_keyword = {argument.name for argument in arguments if argument.kwarg_only}
        names = set(dropped(translation, [argument.name for argument in arguments], by_keyword))
        names -= WITHOUT_EFFECT | SAID_BY_THE_RESULT
        unread |= {f"{operation}: {name}".removeprefix("aten.") for name in names}
    assert unread == BY_DESIGN
