"""Steps of changing sizes: what a batch's sizes are, and the interface at them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import onnx

from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.size_ranges import SizeRange, outside, ranges_of
from campo_onnx.step.interface import Feed, StepInterface, TensorSpec
from campo_onnx.training.index_guard import IndexGuard

Sized: TypeAlias = tuple[StepInterface, IndexGuard]

_MOST_SIZES = 256
"""Sizes whose interface is remembered."""


@dataclass(kw_only=True)
class BatchSizes:
    """The sizes that batches of a step may have."""

    imported: Imported
    interface: StepInterface
    guard: IndexGuard
    _made: dict[tuple[tuple[str, int], ...], Sized] = field(default_factory=dict)

    @cached_property
    def ranges(self) -> Mapping[str, SizeRange]:
        """At which sizes the step holds, by dimension; empty where they do not change."""
        return ranges_of(self.imported.model)

    def of(self, batch: Mapping[str, Feed]) -> Sized:
        """Give the interface at the sizes of a batch, and the guard of its indices.

        UsageError says that its parts do not have the same sizes, or sizes at which the step does not hold.
        """
        if not self.ranges:
            return self.interface, self.guard
        sizes: dict[str, int] = {}
        for name, value in batch.items():
            for axis, dim in self._axes.get(name, {}).items():
                shape = np.shape(value)
                if len(shape) != len(self.interface.feeds[name].shape):
                    continue  # refused with the type that is expected
                if sizes.setdefault(dim, shape[axis]) != shape[axis]:
                    raise UsageError(
                        f"{name!r} has {dim}={shape[axis]}",
                        why=f"another part of the batch has {sizes[dim]}",
                        remedy="Give all parts of a batch one size.",
                    )
        for dim, size in sizes.items():
            if not self.ranges[dim].least <= size <= self.ranges[dim].most:
                raise outside(dim, size, self.ranges[dim])
        key = tuple(sorted(sizes.items()))
        if key not in self._made:
            if len(self._made) >= _MOST_SIZES:
                del self._made[next(iter(self._made))]
            self._made[key] = self._at(sizes)
        return self._made[key]

    @cached_property
    def _axes(self) -> Mapping[str, Mapping[int, str]]:
        """Dimensions of each input by axis."""
        return {
            value.name: {i: d.dim_param for i, d in enumerate(_dims(value)) if d.dim_param in self.ranges}
            for value in self.imported.model.graph.input
        }

    def _at(self, sizes: Mapping[str, int]) -> Sized:
        outputs = {value.name: value for value in self.imported.model.graph.output}
        metrics = {name: _sized(spec, outputs[name], sizes) for name, spec in self.interface.metrics.items()}
        is_open = self.guard.depends_on_sizes or None in metrics.values()
        here = import_model(self.imported.model, sizes, any_type=True) if is_open else self.imported
        feeds = {
            name: replace(spec, shape=_with(spec.shape, self._axes.get(name, {}), sizes))
            for name, spec in self.interface.feeds.items()
        }
        specs = {
            name: spec or replace(self.interface.metrics[name], shape=here.view.shape(name) or ())
            for name, spec in metrics.items()
        }
        interface = replace(self.interface, feeds=MappingProxyType(feeds), metrics=MappingProxyType(specs))
        guard = IndexGuard.of(here, interface.feeds) if self.guard.depends_on_sizes else self.guard
        return interface, guard


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return value.type.tensor_type.shape.dim


def _with(shape: tuple[int, ...], axes: Mapping[int, str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[axes[i]] if i in axes else n for i, n in enumerate(shape))


def _sized(spec: TensorSpec, value: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> TensorSpec | None:
    """Give an output at some sizes; None where the file does not say how it depends on them."""
    shape = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param) for d in _dims(value)]
    return None if None in shape else replace(spec, shape=tuple(n for n in shape if n is not None))
