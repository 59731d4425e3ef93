"""Two hundred random graphs; ``python -m tests.random_graphs`` draws any number."""

import pytest

from tests.random_graphs.__main__ import outcome_of

COUNT, BATCH = 200, 25


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_no_random_graph_breaks_an_oracle(first):
    rows = [outcome_of(seed) for seed in range(first, first + BATCH)]
    broken = [row for row in rows if row["outcome"].startswith("BROKEN")]
    assert not broken
    assert sum(row["outcome"] == "ok" for row in rows) >= BATCH // 4
