"""Every template of the campaign once, with the size, data, strategy and precision that its seed draws."""

import pytest

from tests.formulas.oracle import RIGHT, TEMPLATES, Tried, outcome_of

WRONG_BY_RULES_ONCE = (
    ("densities.preconditioned", 1595),
    ("densities.line_search", 3108),
    ("signals.global_response", 4988),
    ("training.merged_statistics", 5552),
    ("science.bilinear_weight", 5929),
    ("training.sign_of_interpolation", 6072),
    ("signals.snr_in_decibels", 6539),
    ("losses.cox_partial_likelihood", 7301),
    ("science.stress_strain", 9027),
    ("training.accepted_moves", 9587),
    ("metrics.panoptic_quality", 14454),
    ("science.hash_features", 16091),
    ("science.lennard_jones", 19139),
    ("instruments.two_compartments", 41),
    ("instruments.two_compartments", 86),
    ("instruments.volatility_smile", 3700250),
    ("instruments.volatility_smile", 3700802),
    ("densities.bins_compared", 5200168),
    ("instruments.courant_step", 5200881),
    ("science.standardized", 7019796),
    ("metrics.modularity", 32002638),
    ("training.shares_of_temperature", 31010130),
)

WRONG_IN_OTHER_WORDS_ONCE = (
    ("signals.similarity_of_images", 20100122, 0.3),
    ("attention.alibi_by_mask", 20100177, 0.3),
    ("learning.triplet_by_cosine", 20100411, 0.3),
    ("metrics.coefficient_of_variation", 20100461, 0.3),
    ("metrics.convergence_of_averages", 20100462, 0.3),
    ("signals.matthews", 20101290, 0.3),
    ("training.polynomial_decay", 20101339, 0.3),
    ("instruments.a_weighting", 20201560, 0.3),
    ("attention.alibi", 20301456, 0.1),
    ("attention.softmax_by_hand", 20301482, 0.1),
    ("learning.rnnt_recursion", 25500034, 0.1),
    ("metrics.modularity", 20101070, 0.1),
)
"""With the share of nodes that are written so."""

CHOICES = (("training.least_probability", 7000965), ("instruments.hue", 7002349))
"""Values next to a threshold, or to where a remainder jumps."""


ONE_IN = 6
"""Formulas whose plans are tried on data, too, which takes most of the time and only raises nodes to FP32."""


@pytest.mark.parametrize("seed", range(len(TEMPLATES)))
def test_a_formula_is_right_or_fp32(seed: int) -> None:
    row = outcome_of(seed, tuple(Tried) if seed % ONE_IN == 0 else (Tried.NOTHING,))
    assert row["outcome"] in RIGHT, row


@pytest.mark.parametrize(("template", "seed"), WRONG_BY_RULES_ONCE)
def test_what_was_wrong_by_rules_once_is_right(template: str, seed: int) -> None:
    row = outcome_of(seed, template=template)
    assert row["outcome"] in RIGHT, row


@pytest.mark.parametrize(("template", "seed", "share"), WRONG_IN_OTHER_WORDS_ONCE)
def test_what_was_wrong_in_other_words_once_is_right(template: str, seed: int, share: float) -> None:
    row = outcome_of(seed, (Tried.NOTHING,), template=template, reworded_share=share)
    assert row["outcome"] in RIGHT, row


@pytest.mark.parametrize(("template", "seed"), CHOICES)
def test_rounding_explains_a_choice_of_values_next_to_each_other(template: str, seed: int) -> None:
    row = outcome_of(seed, (Tried.NOTHING,), template=template)
    assert row["outcome"] in RIGHT, row


@pytest.mark.parametrize("seed", range(0, len(TEMPLATES), 4))
def test_a_formula_in_other_words_is_right_or_fp32(seed: int) -> None:
    row = outcome_of(seed, (Tried.NOTHING,), reworded_share=0.1)
    assert row["outcome"] in RIGHT, row
