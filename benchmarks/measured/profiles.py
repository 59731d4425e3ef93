"""Profiles of FP32 steps: the input that the paper predicts low precision from."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.measured.plans import FEEDS, FP32, RUNTIME, folder_of
from benchmarks.measured.sides import THREADS
from campo_onnx.ir.importer import import_model
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.profiler import take_profile
from campo_onnx.measure.store import Store
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.detect import target_of

_STEPS = 20


def profiled(name: str, graphs: Path) -> Mapping[str, float]:
    """Profile a network's FP32 step as ``campo-onnx profile`` does; FP32 times in microseconds, by node.

    Parameters
    ----------
    name
        The network.
    graphs
        Parent of the folders of graphs.
    """
    from safetensors.numpy import load_file

    folder = folder_of(name, graphs)
    imported = import_model(folder / f"{FP32}.onnx")
    read = {value.name for value in imported.model.graph.input}
    feeds = {key: value for key, value in load_file(folder / FEEDS).items() if key in read}
    here = machine("cpu", THREADS, RUNTIME)
    with Store() as store:
        timer = NodeTimer(machine=here, store=store)
        return take_profile(imported, feeds, timer, target_of(here), steps=_STEPS).fp32_us()
