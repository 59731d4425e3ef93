"""A graph without a backward pass of ours: inference, or a piece of a graph that torch runs the rest of."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from campo_onnx.integrations.torch_compile.checks import raise_failed
from campo_onnx.integrations.torch_compile.concrete import Symbols, concrete_graph, drop_oldest
from campo_onnx.integrations.torch_compile.flat import Interface, result_of
from campo_onnx.integrations.torch_compile.planning import Planned
from campo_onnx.integrations.torch_compile.programs import address, allocated, open_part, rehearsed
from campo_onnx.ir.sizes.formulas import Sizes
from campo_onnx.runtime.api import AddressedProgram


class Piece:
    """One graph of static sizes in one session."""

    def __init__(self, flat: Interface, planned: Planned) -> None:
        self.flat, self.planned = flat, planned
        self._device = flat.device
        inputs = {t.name: (t, p) for t, p in zip(flat.inputs, flat.positions, strict=True)}
        self._reads = [inputs[name] for name in planned.imported.view.inputs]
        self._writes = [t.name for t in flat.outputs]

    @cached_property
    def _session(self) -> AddressedProgram | None:
        reads = {tensor.name: tensor.device for tensor, _ in self._reads}
        if not self._writes:
            return None
        return open_part(self.planned, None, reads, self._writes, self._device)

    def open(self) -> None:
        """Load it, which is done at the first run otherwise."""
        _ = self._session

    def rehearsal(self) -> Callable[[], None]:
        """Give what runs it once, on memory of its own."""
        return rehearsed(self.planned, self._session, [t.name for t, _ in self._reads], self._writes)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run it."""
        inputs = [*arguments, *(draw(None) for draw in self.flat.draws)]
        self.flat.indices.check(inputs)
        stored = [tensor.layout.stored(inputs[position]) for tensor, position in self._reads]
        written = [allocated(t, self._device) for t in self.flat.outputs]
        if self._session is not None:
            self._session.run(list(map(address, stored)), list(map(address, written)))
        outputs = [t.layout.restored(x) for t, x in zip(self.flat.outputs, written, strict=True)]
        raise_failed(self.flat.checks, lambda result: result_of(result, inputs, outputs))
        return [result_of(result, inputs, outputs) for result in self.flat.results]


class SizedGraph:
    """A graph, and what was made of it for each set of sizes; the latest ones are kept."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        make: Callable[[torch.fx.GraphModule, int], Callable[[list[Any]], Sequence[Any]]],
        *,
        kind: str,
        sessions: int,
    ) -> None:
        self._gm, self._make, self._sessions = gm, make, sessions
        self.kind = kind
        self._placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self._symbols = Symbols.of(self._placeholders)
        self.made: OrderedDict[Sizes, Callable[[list[Any]], Sequence[Any]]] = OrderedDict()

    @property
    def is_dynamic(self) -> bool:
        """Whether sizes differ from call to call."""
        return bool(self._symbols.names)

    def at(self, sizes: Sizes) -> Callable[[list[Any]], Sequence[Any]]:
        """Give what is made for some sizes."""
        if sizes in self.made:
            self.made.move_to_end(sizes)
            return self.made[sizes]
        self.made[sizes] = self._make(concrete_graph(self._gm, self._symbols, sizes), len(self._placeholders))
        drop_oldest(self.made, self._sessions)
        return self.made[sizes]

    def made_as_traced(self) -> None:
        """Make what the sizes call for that the graph was traced at: it fails now or never."""
        self.at(self._symbols.traced_at(self._placeholders))

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run it."""
        inputs = list(arguments)
        arguments.clear()
        return self.at(self._symbols.read(inputs))(inputs)
