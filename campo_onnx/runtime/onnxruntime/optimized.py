"""Graphs as ONNX Runtime's own optimizer writes them."""

import errno
from pathlib import Path

import onnx

from campo_onnx.files import temporary_folder
from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.onnxruntime.providers import ORT_NAME
from campo_onnx.runtime.onnxruntime.sessions import RUNTIME_ERRORS, first_line, refused, session_options

_WRONG_RULES = ["Pad_Fusion", "WeightBiasQuantization"]
"""Zeros around an image become the padding of a MaxPool, which is lower than any number; FP32 biases between
quantized tensors are rounded."""


def cleaned_up(
    model: onnx.ModelProto, processor: str, *, threads: int = 0, folder: Path | None = None
) -> onnx.ModelProto:
    """Let ONNX Runtime's optimizer rewrite a graph by the rules that hold on every provider.

    External data that it leaves as it is stays where it is.
    """
    options = session_options(processor, threads=threads, folder=folder)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return written_by_runtime(model, processor, options)


def written_by_runtime(
    model: onnx.ModelProto, processor: str, options: ort.SessionOptions
) -> onnx.ModelProto:
    """Load a model, and read back what ONNX Runtime's optimizer made of it, its copies and Casts included."""
    data = model.SerializeToString()

    def load() -> None:
        ort.InferenceSession(
            data,
            options,
            providers=[ORT_NAME[processor]],
            enable_fallback=0,
            disabled_optimizers=_WRONG_RULES,
        )

    with temporary_folder() as scratch:
        written = scratch / "optimized.onnx"
        options.optimized_model_filepath = str(written)
        try:
            load()
        except RUNTIME_ERRORS as error:
            # A full disk and a model that is refused raise the same; only the second does without the file.
            options.optimized_model_filepath = ""
            try:
                load()
            except RUNTIME_ERRORS:
                raise refused(error) from None
            raise OSError(errno.EIO, first_line(error), str(written)) from None
        return onnx.load(written, load_external_data=False)
