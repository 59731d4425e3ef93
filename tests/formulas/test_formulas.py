"""Every template of the campaign once, with the size, data, strategy and precision that its seed draws."""

import pytest

from tests.formulas.oracle import RIGHT, TEMPLATES, outcome_of


@pytest.mark.parametrize("seed", range(len(TEMPLATES)))
def test_a_formula_is_right_or_fp32(seed: int) -> None:
    row = outcome_of(seed)
    assert row["outcome"] in RIGHT, row
