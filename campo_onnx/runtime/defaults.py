"""Programs of graphs with initializers among their inputs: values that may be given, and need not be.

Neither runtime binds memory to them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray

from campo_onnx.ir.proto import replace_items
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import AddressedProgram, Place, Program, StepTimes, Tensor
from campo_onnx.runtime.timing import Step

Arrays = Mapping[str, NDArray[Any]]


def without_defaults(model: onnx.ModelProto, names: Arrays) -> onnx.ModelProto:
    """Copy a graph so that these inputs have to be given."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants = [tensor for tensor in copy.graph.initializer if tensor.name not in names]
    replace_items(copy.graph.initializer, constants)
    return copy


class ProgramWithDefaults:
    """A program that gets the values that its caller leaves out.

    Methods are those of :class:`~campo_onnx.runtime.api.Program`.

    `place`: copies an array to the processor.
    """

    def __init__(self, program: Program, defaults: Arrays, place: Callable[[NDArray[Any]], Tensor]) -> None:
        self._program, self._defaults, self._place = program, defaults, place

    @property
    def note(self) -> str:
        """Say which nodes run elsewhere."""
        return self._program.note

    def bound(self, reads: Mapping[str, Tensor], writes: Mapping[str, Tensor]) -> Step:
        """Bind tensors, and return what runs one step on them."""
        rest = {name: self._place(value) for name, value in self._defaults.items() if name not in reads}
        return self._program.bound({**rest, **reads}, writes)

    def placed(self, feeds: Arrays) -> Step:
        """Put inputs on the processor once, and return what runs one step on them."""
        return self._program.placed({**self._defaults, **feeds})

    def addressed(self, reads: Sequence[Place], writes: Sequence[Place]) -> AddressedProgram:
        """Run on memory of the caller, who gives every input."""
        return self._program.addressed(reads, writes)

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Run it once on arrays and copy the outputs."""
        return self._program.run({**self._defaults, **feeds})

    def node_times(
        self, feeds: Arrays, *, repeats: int, warmup: int = 2, on_step: Callable[[], None] | None = None
    ) -> StepTimes:
        """Time each executed node."""
        full = {**self._defaults, **feeds}
        return self._program.node_times(full, repeats=repeats, warmup=warmup, on_step=on_step)

    def executed(self) -> Mapping[str, Precision]:
        """Give the precision in which nodes are computed, where the runtime tells."""
        return self._program.executed()
