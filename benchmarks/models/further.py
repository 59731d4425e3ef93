"""A second table of models: families of transformers that the first has none of, exported, else compiled.

    python -m benchmarks.models.further [--only STEP,...] [--limit-s S]

Runs until it says that all is done; killed, it goes on where it was. Writes results/models_further.json
and .md.
"""

from benchmarks.models import compiled, from_transformers, with_torch
from benchmarks.models.exactness import measured
from benchmarks.models.table import Build, Row, drawn, make
from campo_onnx.errors import UnsupportedModelError, UsageError


def _taken(build: Build) -> Row:
    """Export a model; one that decides by its data is refused there, and goes through torch.compile."""
    try:
        return measured(drawn(build), with_torch.TORCH)
    except (UnsupportedModelError, UsageError) as error:
        refusal = str(error)
    try:
        return {**compiled.row(build), "refusal": refusal}
    except Exception as error:  # it goes on the page, beside the refusal
        said = next(iter(str(error).splitlines()), "")
        return {"refused": f"{refusal} Compiled: {type(error).__name__}: {said}"}


if __name__ == "__main__":
    families = {"transformers": (from_transformers.FURTHER, _taken)}
    make("models_further", __doc__, "models_out/further", families, "torch", "transformers")
