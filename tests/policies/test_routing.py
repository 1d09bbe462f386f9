from __future__ import annotations

import pytest

from policies.catalog import Deployment
from policies.routing import order_candidates

A, B, C = (Deployment(upstream=name, weight=weight) for name, weight in (("a", 1), ("b", 2), ("c", 1)))


@pytest.mark.parametrize(
    ("deployments", "draw", "expected"),
    [
        pytest.param((A,), 0.99, "a", id="one is always first"),
        pytest.param((A, B, C), 0.0, "abc", id="the lowest draw keeps the order"),
        pytest.param((A, B, C), 0.24, "acb", id="the first quarter is a's, its end the last one's"),
        pytest.param((A, B, C), 0.25, "bac", id="weight 2 owns the middle half"),
        pytest.param((A, B, C), 0.74, "bca", id="up to its end"),
        pytest.param((A, B, C), 0.75, "cab", id="the last quarter is c's"),
        pytest.param((A, B, C), 1.0, "cab", id="a draw of one is not lost"),
    ],
)
def test_candidates_are_ordered_by_weight_and_draw(
    deployments: tuple[Deployment, ...], draw: float, expected: str
) -> None:
    assert "".join(deployment.upstream for deployment in order_candidates(deployments, draw)) == expected


def test_first_tries_follow_the_weights() -> None:
    firsts = [order_candidates((A, B, C), step / 400)[0].upstream for step in range(400)]
    assert [firsts.count(name) for name in "abc"] == [100, 200, 100]
