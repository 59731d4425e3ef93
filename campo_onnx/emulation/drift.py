"""Distance of a mixed step from the FP32 step, relative to FP32's own error and to what training notices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from campo_onnx.emulation.numerics import difference, emulate, seeded
from campo_onnx.ir.importer import Imported
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.updates import earlier_versions
from campo_onnx.runtime.chunked_run import dims_of_feeds, run_in_pieces
from campo_onnx.runtime.machine import CPU, Machine
from campo_onnx.runtime.registry import machine

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Outputs: TypeAlias = Iterable[tuple[str, NDArray[Any]]]

MOST_IN_FP16 = 1e-2
"""Relative error that an output may have in FP16, unless told otherwise."""

FEWER_BITS = 2.0**13
"""FP16 has 13 bits fewer than FP32: what FP32 loses of an output, FP16 loses that many times over."""


GRANTED = 10.0
"""Against a limit of 1 % an output may lose a tenth of what FP16 has to lose of it: 10 times 1 %."""

POORLY_DETERMINED = 0.05
"""Relative error of FP32 itself from which on an output says nothing: it is zero but for rounding."""

_FEW = 64
"""Elements of an output below which two runs may be alike by chance."""

_ALL = 100.0
"""Such an output may lose all that FP16 has to lose of it: 100 times 1 %."""


_DRAWS = 3


def most_drift(low: Precision) -> float:
    """Relative error that an output may have unless told otherwise: 1 % in FP16, 8 % in BF16.

    Every rounding of BF16 is eight times that of FP16, and the error of an output with it; so is what FP32's
    own error comes to, which :class:`Reference` counts in FP16's.

    >>> most_drift(Precision.BF16)
    0.08
    """
    return MOST_IN_FP16 * 2.0 ** (Precision.FP16.fraction_bits - low.fraction_bits)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The FP32 step on one batch.

    An output that is a new version of an input (a weight after its update) counts as what the step
    adds to it: rounding is not small because a weight is large.

    FP16 has 13 bits fewer than FP32, so what FP32 loses of an output, FP16 has to lose 8,192 times over: all
    of the gradient of a key's bias, which is zero but for rounding, and much of the gradients of a
    deep network at random weights. What FP32 loses shows when inputs change in their last bit. The
    error of such an output is held against a tenth of that loss where FP32 knows it; where the output is zero
    but for rounding, against all of it, or against the size of all outputs of its kind.
    """

    model: onnx.ModelProto  # the FP32 graph, random nodes seeded
    feeds: Arrays
    # By output, the inputs that it may be a new version of (earlier_versions).
    earlier: Mapping[str, tuple[str, ...]]
    machine: Machine
    folder: Path | None = None
    computed: Arrays | None = None  # what the step makes of the batch, where it has been run already

    @cached_property
    def outputs(self) -> Arrays:
        """Results of the step on the batch."""
        if self.computed is not None:
            return self.computed
        return dict(self.run(self.model))

    def run(self, model: onnx.ModelProto, feeds: Arrays | None = None) -> Outputs:
        """Run another step on the batch, or on other values; outputs come one after another."""
        values = self.feeds if feeds is None else feeds
        return run_in_pieces(model, values, self.machine, folder=self.folder)

    @cached_property
    def _base_of(self) -> Mapping[str, str]:
        """The input that an output is a new version of: the closest one, if a step does not change all of it.

        The gradient of a loss that has the weights' squares in it is computed of weights, too, and is none.
        """
        bases = {}
        for output, names in self.earlier.items():
            value = self.outputs[output].astype(np.float64)
            distance = {n: _size(value - self.feeds[n]) for n in names}
            closest = min(distance, key=lambda name: distance[name])
            if distance[closest] < _size(value):
                bases[output] = closest
        return bases

    @cached_property
    def bases(self) -> Arrays:
        """The old version of every output that is a new one."""
        return {output: self.feeds[name] for output, name in self._base_of.items()}

    @cached_property
    def own_error(self) -> Mapping[str, float]:
        """Relative error of FP32 itself, by output.

        It is the distance of two runs. An output that it would excuse is computed a third time, and the least
        distance counts: a rectifier that chooses otherwise in one run says nothing of the rest. Of outputs
        with few elements, which may be alike by chance, it is the largest.
        """
        errors, doubtful = {}, dict[str, NDArray[Any]]()
        for name, moved in self._moved_in_last_bit(seed=0):
            errors[name] = self._size_of(name, moved) / self._sizes[name]
            if errors[name] * FEWER_BITS * GRANTED > 1.0:
                doubtful[name] = moved
        for name, moved in self._moved_in_last_bit(seed=2) if doubtful else ():
            if name in doubtful:
                distances = [
                    self._size_of(name, m) / self._sizes[name] for m in (moved, moved - doubtful[name])
                ]
                which = max if self.outputs[name].size < _FEW else min
                errors[name] = which(errors[name], *distances)
        return errors

    def _moved_in_last_bit(self, seed: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Differences of floating-point outputs when every value changes in its last bit."""
        changed, feeds = _with_weights_changed(self.model, seed=seed + 1), _changed(self.feeds, seed=seed)
        for name, value in self.run(changed, feeds):
            if self._sizes.get(name):
                yield name, self._moved(name, value, feeds)

    @cached_property
    def zero_but_for_rounding(self) -> frozenset[str]:
        """Outputs that FP32 itself does not know, such as the gradient of a bias before a normalization."""
        own = self.own_error
        return frozenset(name for name in self._sizes if own.get(name, float("inf")) > POORLY_DETERMINED)

    def error_of_rounding(self, low: Precision) -> Mapping[str, float]:
        """Relative error of the FP32 step where all it is given is moved by as much as `low` may round it.

        A rectifier or a max pooling that chooses otherwise changes a gradient at once, however little the
        values changed: what FP32 loses in its last bit does not show it. No mixed step can be better.

        Of each floating-point output it is the largest of a few draws; infinite where one is not finite.
        """
        worst: dict[str, float] = {}
        step = 2.0 ** -(low.fraction_bits + 1)
        for seed in range(_DRAWS):
            changed = _with_weights_changed(self.model, step=step, seed=2 * seed + 1)
            feeds = _changed(self.feeds, step=step, seed=2 * seed)
            for name, value in self.run(changed, feeds):
                if size := self._sizes.get(name):
                    moved = self._size_of(name, self._moved(name, value, feeds))
                    error = moved / size if np.isfinite(value).all() else float("inf")
                    worst[name] = max(worst.get(name, 0.0), error)
        return worst

    def _moved(self, name: str, again: NDArray[Any], feeds: Arrays) -> NDArray[Any]:
        """Difference of an output, or of its change by the step, from that of the batch."""
        moved: NDArray[Any] = again.astype(np.float64) - self.outputs[name].astype(np.float64)
        if base := self._base_of.get(name):
            moved -= feeds[base].astype(np.float64) - self.feeds[base]
        return moved

    def _size_of(self, name: str, moved: NDArray[Any]) -> float:
        """Size of what an output moves by; storing a large weight moves nothing."""
        if name not in self._base_of:
            return _size(moved)
        return max(_size(moved) - _size(np.spacing(np.abs(self.outputs[name]))), 0.0)

    def drift_of(self, actual: Arrays | Outputs) -> dict[str, float]:
        """Compare another step's outputs.

        Of floats it is the relative L2 error; of integers and truth values, the share that differs.

        `actual`: the outputs; or one after another, so that they need not all be held at once.
        """
        distances = {
            name: self._distance(name, value)
            for name, value in (actual.items() if isinstance(actual, Mapping) else actual)
        }
        errors: dict[str, float] = {}
        for name in self.outputs:
            error, size = distances[name], self._sizes.get(name, 1.0)
            errors[name] = 0.0 if error == 0.0 else (error / size if size else float("inf"))
            if name in self._sizes and errors[name] > 1 / FEWER_BITS:
                errors[name] = self._conditioned(name, error)
        return errors

    def squared_error_of(self, actual: Outputs) -> float:
        """Add up the squared errors of another step's outputs, each kind against the size of all of its kind.

        Kinds are those of :meth:`drift_of`: scalars, vectors and matrices, and new versions of inputs apart.
        Errors that know nothing of each other add up in it.

        It is infinite where an output is not finite. Outputs of other types than floats do not count.
        """
        squares: dict[tuple[bool, int], float] = {}
        for name, value in actual:
            if name in self._sizes:
                kind = self._kind(name)
                squares[kind] = squares.get(kind, 0.0) + self._distance(name, value) ** 2
        sizes = self._sizes_of_kinds
        relative = [0.0 if e == 0.0 else (e / sizes[k] if sizes[k] else np.inf) for k, e in squares.items()]
        return float(sum(relative))

    @property
    def shares(self) -> Mapping[str, float]:
        """By floating-point output, what its distance is multiplied by in :meth:`squared_error_of`."""
        sizes = {kind: np.sqrt(square) for kind, square in self._sizes_of_kinds.items()}
        return {name: float(np.divide(1.0, sizes[self._kind(name)])) for name in self._sizes}

    @cached_property
    def _sizes_of_kinds(self) -> Mapping[tuple[bool, int], float]:
        """Squared L2 norm of all outputs of a kind."""
        sizes: dict[tuple[bool, int], float] = {}
        for name, size in self._sizes.items():
            sizes[self._kind(name)] = sizes.get(self._kind(name), 0.0) + size**2
        return sizes

    def relative(self, name: str, actual: NDArray[Any]) -> float:
        """Relative L2 error of an output, however well FP32 itself determines it; of integers, as above."""
        error, size = self._distance(name, actual), self._sizes.get(name, 1.0)
        return 0.0 if error == 0.0 else (error / size if size else float("inf"))

    def conditioned(self, name: str, actual: NDArray[Any]) -> float:
        """The same in view of what FP32 loses of the output, as :meth:`drift_of` reports it."""
        error = self._distance(name, actual)
        return error if error in (0.0, float("inf")) else self._conditioned(name, error)

    def _distance(self, name: str, actual: NDArray[Any]) -> float:
        expected = self.outputs[name]
        if name in self._sizes:
            return difference(actual, expected)
        return float(np.mean(actual != expected)) if expected.size else 0.0

    def _conditioned(self, name: str, error: float) -> float:
        """The error of an output in view of how well FP32 knows it."""
        size = self._sizes[name]
        granted = _ALL if name in self.zero_but_for_rounding else GRANTED
        amplified = self.own_error.get(name, float("inf")) * FEWER_BITS * granted
        if not np.isfinite(error):
            return float("inf")
        most = max(size, size * amplified if np.isfinite(amplified) else 0.0)
        if name in self.zero_but_for_rounding:
            of_its_kind = self._typical[self._kind(name)] * float(np.sqrt(self.outputs[name].size))
            most = max(most, of_its_kind)
        return error / most if most else float("inf")

    @cached_property
    def _sizes(self) -> Mapping[str, float]:
        """L2 norm of every floating-point output, or of what the step adds to it."""
        sizes = {}
        for name, value in self.outputs.items():
            if np.issubdtype(value.dtype, np.floating):
                base = self.bases.get(name)
                exact = value.astype(np.float64)
                sizes[name] = _size(exact if base is None else exact - base)
        return sizes

    @cached_property
    def _typical(self) -> Mapping[tuple[bool, int], float]:
        """Root mean square of all outputs of a kind."""
        squares: dict[tuple[bool, int], float] = {}
        counts: dict[tuple[bool, int], int] = {}
        for name, size in self._sizes.items():
            kind = self._kind(name)
            if np.isfinite(size):
                squares[kind] = squares.get(kind, 0.0) + size**2
                counts[kind] = counts.get(kind, 0) + self.outputs[name].size
        return {kind: float(np.sqrt(total / max(counts[kind], 1))) for kind, total in squares.items()}

    def _kind(self, name: str) -> tuple[bool, int]:
        """New versions apart from the rest; scalars, vectors (biases and scales) and matrices each apart."""
        return name in self.bases, min(self.outputs[name].ndim, 2)


def references(imported: Imported, batches: Sequence[Arrays]) -> tuple[Reference, ...]:
    """Prepare the FP32 step of a graph on each batch; what is low in the file is emulated."""
    model = imported.model
    if imported.view.is_mixed:
        model = emulate(model, dims_of_feeds(model, batches[0]))
    model = seeded(model)
    earlier, here = earlier_versions(imported.view), machine(CPU)
    return tuple(
        Reference(model=model, feeds=feeds, earlier=earlier, machine=here, folder=imported.folder)
        for feeds in batches
    )


def worst_drift(model: onnx.ModelProto, batches: Iterable[Reference]) -> dict[str, float]:
    """Run another step on some batches, and compare every output: the largest error of each."""
    worst: dict[str, float] = {}
    for reference in batches:
        for name, error in reference.drift_of(reference.run(model)).items():
            worst[name] = max(error, worst.get(name, 0.0))
    return worst


def unfinite_in(arrays: Arrays) -> str | None:
    """Name the first array with a value that is not finite."""
    floats = (name for name, value in arrays.items() if np.issubdtype(value.dtype, np.floating))
    return next((name for name in floats if not np.isfinite(arrays[name]).all()), None)


def _size(array: NDArray[Any]) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.linalg.norm(array))


def _changed(feeds: Arrays, *, step: float = 0.0, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Move every FP32 value to a neighbour; integers stored as floats (masks, labels) stay.

    With `step`, by that share of it.
    """
    generator = np.random.default_rng(seed)
    return {name: _neighbours(value, generator, step) for name, value in feeds.items()}


def _neighbours(value: NDArray[Any], generator: np.random.Generator, step: float) -> NDArray[Any]:
    if value.dtype != np.float32 or value.size <= 1:
        return value
    up = generator.integers(0, 2, value.shape, dtype=np.int8).astype(bool)
    if step:
        moved = value * np.where(up, np.float32(1 + step), np.float32(1 - step))
    else:
        moved = np.nextafter(value, np.where(up, np.float32(np.inf), np.float32(-np.inf)), dtype=np.float32)
    with np.errstate(invalid="ignore"):
        return np.where((value == np.rint(value)) | ~np.isfinite(value), value, moved)


def _with_weights_changed(model: onnx.ModelProto, *, step: float = 0.0, seed: int) -> onnx.ModelProto:
    """The same for weights that lie in the file."""
    copy = deepcopy(model)
    generator = np.random.default_rng(seed)
    for tensor in copy.graph.initializer:
        is_here = tensor.data_location != TensorProto.EXTERNAL
        if tensor.data_type == TensorProto.FLOAT and is_here and len(tensor.dims):
            moved = _neighbours(numpy_helper.to_array(tensor), generator, step)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(moved), tensor.name))
    return copy
