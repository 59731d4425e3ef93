"""Every template of the campaign once, with the size, data, strategy and precision that its seed draws."""

import pytest

from tests.formulas.oracle import RIGHT, TEMPLATES, outcome_of

WRONG_BY_RULES_ONCE = (1595, 3108, 4988, 5552, 5929, 6072, 6539, 7301, 9027, 9587, 14454, 16091, 19139)


@pytest.mark.parametrize("seed", [*range(len(TEMPLATES)), *WRONG_BY_RULES_ONCE])
def test_a_formula_is_right_or_fp32(seed: int) -> None:
    row = outcome_of(seed)
    assert row["outcome"] in RIGHT, row
