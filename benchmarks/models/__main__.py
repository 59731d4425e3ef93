"""The table of models: what is taken, and how exact it is.

    python -m benchmarks.models [--only STEP,...] [--limit-s S]

Runs until it says that all is done; killed, it goes on where it was. Writes results/models.json and .md.
"""

from functools import partial

from benchmarks.models import with_jax, with_torch
from benchmarks.models.exactness import measured
from benchmarks.models.table import Build, Families, Row, drawn, make, of_torch

_PACKAGES = ("torch", "transformers", "timm", "diffusers", "jax", "flax", "equinox", "optax")


def _of_torch(build: Build) -> Row:
    return measured(drawn(build), with_torch.TORCH)


def _of_jax(build: Build) -> Row:
    return measured(partial(with_jax.drawn, build()), with_jax.JAX)


if __name__ == "__main__":
    jax: Families = {family: (cases, _of_jax) for family, cases in with_jax.FAMILIES.items()}
    make("models", __doc__, "models_out", {**of_torch(_of_torch), **jax}, *_PACKAGES)
