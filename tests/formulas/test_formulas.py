"""Every template of the campaign once, with the size, data, strategy and precision that its seed draws."""

import pytest

from tests.formulas.oracle import TEMPLATES, outcome_of

RIGHT = frozenset({"ok", "nothing low", "FP32 itself is off"})

# Rules miss these, by seed, and drawn batches some. One that is mended fails until its row is corrected.
STILL_WRONG = {
    64: (
        "losses.temperature_kl",
        "wrong if tried on nothing, drawn batches",
        "drawn teachers and students differ by more than those of the formula",
    ),
    90: (
        "science.energy_difference",
        "wrong if tried on nothing",
        "two sums differ by far less than either is rounded",
    ),
    111: ("science.oscillator", "wrong if tried on nothing", "the phase grows over thousands of samples"),
    122: (
        "science.second_difference",
        "wrong if tried on nothing",
        "samples of a smooth function that are next to each other are all but the same",
    ),
}


@pytest.mark.parametrize("seed", range(len(TEMPLATES)))
def test_a_formula_is_right_or_fp32(seed: int) -> None:
    row = outcome_of(seed)
    if seed in STILL_WRONG:
        template, outcome, _ = STILL_WRONG[seed]
        assert (row["template"], row["outcome"]) == (template, outcome)
    else:
        assert row["outcome"] in RIGHT, row
