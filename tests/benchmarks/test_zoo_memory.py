"""Batches that fit on a device."""

from benchmarks.zoo.memory import HELD, USABLE, fitting_batch


def test_more_memory_never_means_a_smaller_batch() -> None:
    sizes = [256, 128, 64, 32, 16, 8]
    for model in HELD:
        batches = [fitting_batch(model, sizes, memory_gb=gb) or 0 for gb in (4, 11, 24, 40, 80, 141)]
        assert batches == sorted(batches)


def test_what_is_chosen_fits_and_the_next_larger_does_not() -> None:
    sizes = [256, 128, 64, 32, 16, 8]
    for model, held in HELD.items():
        chosen = fitting_batch(model, sizes, memory_gb=80, together=3)
        assert chosen is not None
        assert 3 * held.at(chosen) <= USABLE * 80
        assert all(3 * held.at(n) > USABLE * 80 for n in sizes if n > chosen)


def test_too_little_memory_is_too_little_for_any_batch() -> None:
    assert fitting_batch("vgg16", [64, 32], memory_gb=2) is None
