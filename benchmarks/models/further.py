"""A second table of models: families of transformers that the first has none of, exported.

    python -m benchmarks.models.further [--only STEP,...] [--limit-s S]

Runs until it says that all is done; killed, it goes on where it was. Writes results/models_further.json
and .md.
"""

from benchmarks.models import from_transformers, with_torch
from benchmarks.models.exactness import measured
from benchmarks.models.table import Build, Row, drawn, make


def _exported(build: Build) -> Row:
    return measured(drawn(build), with_torch.TORCH)


if __name__ == "__main__":
    families = {"transformers": (from_transformers.FURTHER, _exported)}
    make("models_further", __doc__, "models_out/further", families, "torch", "transformers")
