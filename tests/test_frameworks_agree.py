"""The same network out of PyTorch, JAX and ORTModule gets the same precision for the same operations."""

import pytest

from benchmarks.frameworks import agreement as compared
from benchmarks.frameworks import roles
from campo_onnx.optimize.lists.patterns.findings import Finding

LARGE_FLOPS = 1e8
"""Below it a product takes about as long as its launch, and its neighbours' casts decide about it."""

SMALL_SHARE = 0.02
"""Of the step: what may be left to costs in one role of one graph where another graph is low."""

IN_PIECES = ("attention", "h200")
"""ORTModule's gradient of a softmax is one kernel, which adds up in FP32. In pieces its sum and difference
stay FP32, and on a device whose products gain little, products beside them are left to costs as well."""

SHARE_IN_PIECES = 0.04
COSTS = "casts would cost more than low precision gains"

EXPLAINED = {
    Finding.SQUARES,
    Finding.SUM_OF_SQUARES,
    Finding.MAX_POOL_GRADIENT,
    "follows an FP32-only node",
    "on the deny list",
    "a constant the low precision loses",
    "an FP32 boundary to the framework",
    # What the analysis of values keeps; the frameworks write normalizations in different pieces.
    "values that are needed more exactly than the low precision holds them",
    "gradients without a loss scale",
    "a value that overflows",
    "squares of unknown size that are summed",
    "sums of thousands of values",
    "an operator that has no schema in ONNX",
    COSTS,
    "not between low nodes",
    "means that are taken off, which would be off all along a row",
}


@pytest.fixture(scope="module")
def agreements():
    return list(compared.every_agreement())


@pytest.fixture(scope="module", params=list(compared.NETWORKS))
def optimal(request, agreements):
    (agreement,) = (
        a for a in agreements if (a.network, a.device, a.strategy) == (request.param, "v100", "optimal")
    )
    return agreement


def shares_of(agreement, kind):
    return {role: by for role, by in agreement.shares.items() if role.kind == kind}


def large_products(agreement):
    products = shares_of(agreement, roles.PRODUCT)
    return {role: by for role, by in products.items() if role.flops > LARGE_FLOPS}


def test_the_products_of_a_network_are_the_same_in_every_graph(optimal):
    products = shares_of(optimal, roles.PRODUCT)
    assert products
    for role, by in products.items():
        assert len({len(share.decisions) for share in by.values()}) == 1, f"{role}: {by}"
    parts = {role.part for role in products}
    assert parts == {roles.FORWARD, roles.DATA_GRADIENT, roles.WEIGHT_GRADIENT}


def test_products_get_the_same_precision_in_every_graph(agreements):
    for a in agreements:
        in_pieces = (a.network, a.device) == IN_PIECES
        for role, by in large_products(a).items():
            differs = len({share.precision for share in by.values()}) > 1
            reasons = {why for share in by.values() for why in share.why_fp32}
            assert not differs or (in_pieces and reasons == {COSTS}), f"{a.network} {a.device}: {role}"


def test_large_products_are_low_in_every_graph(optimal):
    assert large_products(optimal)
    for role, by in large_products(optimal).items():
        assert {share.precision for share in by.values()} == {"fp16"}, role


def test_the_loss_is_found_in_every_graph_and_stays_fp32(agreements):
    for a in agreements:
        forward = roles.Role(part=roles.FORWARD, kind=roles.LOSS)
        for framework, share in a.shares[forward].items():
            assert share.precision == "fp32", f"{a.network} {framework}"


def test_a_softmax_whose_gradient_is_taken_is_exact_but_for_the_exponents_of_one_in_pieces(agreements):
    (agreement,) = (
        a for a in agreements if (a.network, a.device, a.strategy) == ("attention", "v100", "optimal")
    )
    forward = roles.Role(part=roles.FORWARD, kind=roles.SOFTMAX)
    assert {name: share.precision for name, share in agreement.shares[forward].items()} == {
        **dict.fromkeys(compared.FRAMEWORKS, "fp32"),
        "jax": "mixed",  # e / sum(e): all that the sum divides is exact
    }


def test_every_difference_has_a_known_reason(agreements):
    for a in agreements:
        for role, by in a.shares.items():
            if role.kind == roles.LAYOUT or not compared.differs(by):
                continue
            for framework, share in by.items():
                assert set(share.why_fp32) <= EXPLAINED, (
                    f"{a.network} {a.device} {a.strategy} {framework} {role}"
                )


def test_what_the_exact_plans_leave_to_costs_is_small(agreements):
    for a in agreements:
        for role, by in a.shares.items():
            if a.strategy != "optimal" or role.kind == roles.LAYOUT or not compared.differs(by):
                continue
            for framework, share in by.items():
                in_pieces = (a.network, a.device) == IN_PIECES
                bound_us = (SHARE_IN_PIECES if in_pieces else SMALL_SHARE) * share.plan.predicted_us
                assert share.left_to_costs_us <= bound_us, f"{a.network} {a.device} {framework} {role}"


def test_the_results_name_every_difference(agreements):
    differing = {str(role) for a in agreements for role, by in a.shares.items() if compared.differs(by)}
    rows = [row for result in compared.results(agreements).values() for row in result["rows"]]
    shown = {row["role"] for row in rows if any(cell["differs"] for cell in row["cells"])}
    assert {name for name in differing if not name.startswith(roles.LAYOUT)} == shown
