"""Coarse training graphs of the zoo, by ONNX Runtime's gradient builder."""

from collections import Counter
from pathlib import Path

import pytest

from campo_onnx.ir.importer import import_model


@pytest.mark.usefixtures("ortmodule")
def test_a_normalization_and_its_gradient_are_one_node_each(tmp_path: Path) -> None:
    from benchmarks import coarse  # needs the training build and torch

    graph = coarse.differentiated(coarse.exported("dcgan_generator", tmp_path), 64)
    ops = Counter(node.op_type for node in graph.graph.node)
    assert (ops["BatchNormInternal"], ops["BatchNormalizationGrad"]) == (7, 7)
    assert (ops["Conv"], ops["ConvGrad"], ops["ConvTranspose"], ops["ConvTransposeGrad"]) == (5, 5, 5, 5)
    imported = import_model(graph)
    assert imported.view.tensors["input_0"].shape == (64, 100, 1, 1)
    targets = coarse.devices("v100", coarse.table1())
    assert targets["slow"].hardware.fp32_flops_per_s < targets["table1"].hardware.fp32_flops_per_s / 5
    steps = {}
    for label, (strategy, lists) in coarse.ROWS.items():
        steps[label] = coarse.planned(imported, targets["table1"], strategy, lists).predicted_us
    assert steps[coarse.OPTIMAL_TF] <= min(steps[coarse.TF_AMP], steps[coarse.CAMPO_TF])
