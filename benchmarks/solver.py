"""How long the exact assignment takes to solve, up to 100,000 nodes.

    python -m benchmarks.solver [--nodes 1000 10000 50000 100000]

Writes results/solver.json and .md. The problems are random layered graphs with random times, most
nodes free to choose: harder than real graphs, where lists and taint decide much beforehand.
"""

import argparse
import time
from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.pages import made, publish
from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.costs.table import CostTable, NodeCost
from campo_onnx.ir.view import GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.classify import Classification, NodeClass
from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.strategies.optimal import optimal


def random_problem(nodes: int, seed: int) -> Problem:
    """A chain with long and short skips; every node adds the results of two earlier ones."""
    rng = np.random.default_rng(seed)
    elements = (2 ** rng.uniform(8, 22, nodes)).astype(int)
    tensors = {"x": TensorInfo(name="x", dtype=TensorProto.FLOAT, shape=(1024,), kind=TensorKind.INPUT)}
    made, graph = ["x"], []
    for index in range(nodes):
        back = int(min(len(made), 1 + rng.geometric(0.05)))
        name = f"t{index}"
        tensors[name] = TensorInfo(
            name=name,
            dtype=TensorProto.FLOAT,
            shape=(int(elements[index]),),
            kind=TensorKind.ACTIVATION,
            is_output=index == nodes - 1,
        )
        inputs = (made[-1], made[-back])
        graph.append(OpNode(name=f"n{index}", op=OpKey("", "Add"), inputs=inputs, outputs=(name,)))
        made.append(name)
    view = GraphView(nodes=tuple(graph), tensors=tensors, inputs=("x",), outputs=(made[-1],), opset={"": 20})
    fp32_us = 3 + elements * 1e-4 * rng.uniform(0.5, 2, nodes)
    low_us = fp32_us * rng.uniform(0.3, 1.1, nodes)
    costs = CostTable(
        device="random",
        source="random",
        nodes={
            node.name: NodeCost(
                node=node.name,
                fp32_us=float(fp32_us[i]),
                low_us=float(low_us[i]),
                on_tensor_cores=False,
                source="random",
            )
            for i, node in enumerate(graph)
        },
        cast=CastModel(r_us=5e-5, c_i_us=3.0),
    )
    ports = {node.name: Ports(low_inputs=frozenset({0, 1}), low_outputs=frozenset({0})) for node in graph}
    kinds = rng.choice([OpClass.INFER, OpClass.CLEAR, OpClass.UNLISTED], nodes, p=[0.6, 0.35, 0.05])
    return Problem(
        view=view,
        low=Precision.FP16,
        classification=Classification(
            classes={node.name: NodeClass(op_class=kinds[i]) for i, node in enumerate(graph)},
            contained=frozenset(),
            taint_through_decisions=False,
        ),
        ports=ports,
        fixed={},
        costs=costs,
        digest=view.digest,
    )


def solve(nodes: int) -> dict[str, Any]:
    """Solve one problem: seconds, and how far above the proven bound its predicted step is."""
    problem = random_problem(nodes, seed=nodes)
    began = time.perf_counter()
    assignment = optimal(problem)
    seconds = time.perf_counter() - began
    return {
        "nodes": nodes,
        "low_nodes": len(assignment.low),
        "casts": sum(site.new_cast_us(assignment.low) > 0 for site in problem.sites.values()),
        "seconds": seconds,
        "gap": problem.predicted_us(assignment.low) / (assignment.lower_bound_us or 0.0) - 1,
    }


def main() -> None:
    """Solve one problem of each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", nargs="+", type=int, default=[1000, 10_000, 50_000, 100_000])
    rows = [solve(nodes) for nodes in parser.parse_args().nodes]
    print(*publish("solver", {"made": made("scipy"), "rows": rows}))


if __name__ == "__main__":
    main()
