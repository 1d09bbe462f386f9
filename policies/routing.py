"""Which of a model's deployments is tried first, and in which order the others stand in for it.

Knows weights; the random number is an argument. Whether another attempt is made at all is `retries`' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.catalog import Deployment


def order_candidates(deployments: Sequence[Deployment], draw: float) -> tuple[Deployment, ...]:
    """Return the deployments in the order they are to be tried, each place drawn by weight among those left.

    `draw` is in [0, 1) and serves for every place: what is left of it after one choice is as random for the next.
    """
    if len(deployments) == 1:
        return (deployments[0],)
    left = list(deployments)
    ordered: list[Deployment] = []
    while left:
        index, draw = _pick(left, draw)
        ordered.append(left.pop(index))
    return tuple(ordered)


def _pick(left: Sequence[Deployment], draw: float) -> tuple[int, float]:
    point = draw * sum(deployment.weight for deployment in left)
    for index, deployment in enumerate(left):
        if point < deployment.weight:
            return index, point / deployment.weight
        point -= deployment.weight
    return len(left) - 1, 0.0  # a draw of 1, or what rounding left of it
