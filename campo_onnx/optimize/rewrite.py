"""Carry out a plan: set types, insert Casts, Pads and Slices. Nothing is decided here."""

from collections.abc import Mapping, Sequence

import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto

from campo_onnx.ir.convert import converted
from campo_onnx.ir.edit import model_of, topology_of
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.sort import fresh, sort_nodes
from campo_onnx.ir.stamp import Stamp, structure_digest, write_stamp
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import Ports, low_attribute
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.padding.insert import insert_pads
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.problem import low_twins


def rewrite(imported: Imported, plan: Plan) -> onnx.ModelProto:
    """Write a plan into a graph.

    The FP32 version of a tensor keeps its name; its low version is called ``<name>_fp16``. Casts
    stand right behind the producer (to FP32) or before the first reader (to the low precision).

    Parameters
    ----------
    imported
        The given model; not changed.
    plan
        What to do.

    Returns
    -------
    onnx.ModelProto
        The mixed-precision model. Initializers whose bytes lie outside the model file still do,
        also where a low version of them is wanted; the exporter converts those as it writes.

    Raises
    ------
    PlanMismatchError
        If the plan was made for another graph.
    """
    plan.check_fits(imported.view)
    work = _Rewriting(imported, plan)
    for node in list(work.graph.nodes):
        work.rewire(node)
    insert_pads(work, plan.pads)
    work.graph.nodes[:] = [node for node in work.nodes if not work.is_dead(node)]
    model = model_of(
        work.graph,
        imported.model,
        retyped=work.retyped,
        dtype=work.low.onnx_dtype,
        attributes=work.attributes,
        initializers=work.initializers,
    )
    sort_nodes(model.graph)  # an existing Cast that gained earlier readers moves up
    stamp = Stamp(
        strategy=plan.strategy,
        lists=plan.lists,
        device=plan.device,
        low=plan.low,
        digest=structure_digest(model.graph),
    )
    write_stamp(model, stamp)
    return model


class _Rewriting:
    """One run of :func:`rewrite`: the topology being edited and what was added to it."""

    def __init__(self, imported: Imported, plan: Plan) -> None:
        self.low = Precision(plan.low)
        self.view = imported.view
        self.folder = imported.folder
        self.constants = imported.constants
        self.graph = topology_of(imported.model.graph)
        self.nodes: list[gs.Node] = []
        self.attributes: dict[str, Mapping[str, int | TensorProto]] = {}
        self.initializers: list[TensorProto] = []
        self.retyped: dict[str, str] = {}  # low tensor's name to its FP32 name
        self._low_nodes = plan.low_nodes
        self._cast = {cast.tensor: cast for cast in plan.casts}
        self._ports = {n.name: ports_of(self.view.signature(n.name), self.low) for n in self.view.nodes}
        self._tensors = self.graph.tensors()
        self._twins = low_twins(self.view, self.low)
        self._low_tensor: dict[str, gs.Tensor] = {}
        self._taken_tensors = set(self.view.tensors)
        self._taken_nodes = set(self.view.node)
        captures = (t for n in self.view.nodes for t in n.captures)
        self._read_outside = frozenset((*self.view.outputs, *captures))

    def rewire(self, node: gs.Node) -> None:
        """Give one node its low inputs and outputs, and put it, with its casts, behind the last."""
        ports = self._ports[node.name]
        if node.name in self._low_nodes:
            for index in sorted(ports.low_inputs):
                node.inputs[index] = self._low_version(node.inputs[index])
            if ports.attribute:
                given = self.view.node[node.name].attributes
                value = low_attribute(given.get(ports.attribute), ports, self.low)
                self.attributes[node.name] = {ports.attribute: value}
        for index in sorted(ports.any_inputs):
            self._follow(node, index)
        self.nodes.append(node)
        if node.name in self._low_nodes:
            self._lower_outputs(node, ports)

    def _lower_outputs(self, node: gs.Node, ports: Ports) -> None:
        for index in sorted(ports.low_outputs):
            fp32 = node.outputs[index]
            low = self._new_low_tensor(fp32.name)
            node.outputs[index] = low
            cast = self._cast.get(fp32.name)
            if cast is not None:
                self._insert_cast(low, fp32, Precision.FP32)

    def _follow(self, node: gs.Node, index: int) -> None:
        """Let a reader of shapes read the low version where the FP32 one is no longer made."""
        tensor = self.view.node[node.name].inputs[index]
        maker = self.view.producer.get(tensor)
        if maker is None or maker.name not in self._low_nodes or tensor in self._cast:
            return
        if maker.outputs.index(tensor) not in self._ports[maker.name].low_outputs:
            return  # a statistic of a normalization, say, is FP32 all the same
        node.inputs[index] = self._low_tensor[tensor]

    def _low_version(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the low version of an FP32 tensor, making it where there is none yet."""
        name = tensor.name
        if name in self._low_tensor:
            return self._low_tensor[name]
        if name in self._twins:
            self._low_tensor[name] = self._tensors[self._twins[name]]
        elif name in self.constants:
            low = self._new_low_tensor(name)
            self.initializers.append(converted(self.constants[name], low.name, self.low, self.folder))
        else:
            self._insert_cast(tensor, self._new_low_tensor(name), self.low)
        return self._low_tensor[name]

    def _new_low_tensor(self, name: str) -> gs.Tensor:
        # Where the graph casts the tensor itself, its low version has a name already.
        twin = self._twins.get(name)
        if twin is not None and name in self.view.producer and twin in self._tensors:
            low = self._tensors[twin]
            low.inputs.clear()
        else:
            low = self.new_tensor(f"{name}_{self.low.value}")
            self.retyped[low.name] = name
        self._low_tensor[name] = low
        return low

    def _insert_cast(self, source: gs.Tensor, target: gs.Tensor, to: Precision) -> None:
        cast = self.new_node("Cast", f"{source.name}_to_{to.value}", [source], target)
        cast.attrs["to"] = to.onnx_dtype
        self.nodes.append(cast)

    def new_tensor(self, stem: str) -> gs.Tensor:
        """Make a tensor with a name of its own, close to `stem`."""
        name = fresh(stem, self._taken_tensors)
        self._taken_tensors.add(name)
        return gs.Variable(name)

    def new_node(self, op_type: str, stem: str, inputs: Sequence[gs.Tensor], output: gs.Tensor) -> gs.Node:
        """Make a node with a name of its own, which stands nowhere yet."""
        name = fresh(stem, self._taken_nodes)
        self._taken_nodes.add(name)
        return gs.Node(op_type, name=name, inputs=list(inputs), outputs=[output])

    def is_dead(self, node: gs.Node) -> bool:
        """Whether an existing Cast, or a constant, lost its last reader."""
        if node.op not in ("Cast", "Constant") or node.name not in self.view.node:
            return False
        if not node.outputs:
            return True  # a Cast whose result its source's maker now makes itself
        had_readers = any(t.name in self.view.consumers for t in node.outputs)
        return had_readers and all(not t.outputs and t.name not in self._read_outside for t in node.outputs)
