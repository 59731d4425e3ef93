"""How long the exact assignment takes to solve, up to 100,000 nodes.

    python benchmarks/solver.py [--nodes 1000,10000,50000,100000]

Writes benchmarks/results/solver.md. The problems are random layered graphs with random times, most
nodes free to choose: harder than real graphs, where lists and taint decide much beforehand.
"""

import argparse
import time
from datetime import date
from pathlib import Path

import numpy as np
from onnx import TensorProto

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

RESULT = Path(__file__).parent / "results" / "solver.md"


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
    )


def main() -> None:
    """Solve one problem of each size and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="1000,10000,50000,100000")
    lines = [
        "# Solving the exact assignment",
        "",
        f"Random graphs, one run each, {date.today().isoformat()}, two shared CPU cores. The gap is "
        "predicted step over proven lower bound: what scaling to integers can hide.",
        "",
        "| nodes | low | casts | seconds | us per node | gap |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for nodes in map(int, parser.parse_args().nodes.split(",")):
        problem = random_problem(nodes, seed=nodes)
        begin = time.perf_counter()
        assignment = optimal(problem)
        seconds = time.perf_counter() - begin
        predicted_us = problem.predicted_us(assignment.low)
        bound_us = assignment.lower_bound_us or 0.0
        casts = sum(site.new_cast_us(assignment.low) > 0 for site in problem.sites.values())
        lines.append(
            f"| {nodes} | {len(assignment.low)} | {casts} | {seconds:.2f} | {seconds / nodes * 1e6:.1f} "
            f"| {predicted_us / bound_us - 1:.1e} |"
        )
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
