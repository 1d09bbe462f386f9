"""Which of a model's deployments is tried first, and in which order the others stand in for it (SPEC §8).

Knows weights, windows, and how deployments stand, as it is told; time and random numbers are arguments. Whether another
attempt is made at all is `retries`' business, when a deployment is avoided that of `breakers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Final, Literal, assert_never

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from policies.catalog import Deployment, Model
    from policies.charges import WorstCase

    Choice = Literal["weighted", "least_outstanding", "latency"]

_HALF_LIFE_SECONDS: Final = 10.0
"""In which a measured latency counts half as much, and what is no longer measured is taken to be half as long."""
_MOST_MEASURES: Final = 32.0
"""The latest measure weighs at least one in so many: what changes under heavy traffic shows soon."""


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


def fits(deployment: Deployment, model: Model, worst: WorstCase) -> bool:
    """Tell whether a deployment's context window surely holds a request: the bound on its input, and a whole candidate.

    A window that is not configured speaks against nothing. Nor does a ceiling that the request leaves open and the
    model's `max_output_tokens` does not close: the server then generates until its window is full, as it would in any.
    """
    window = _window(deployment, model)
    if window is None:
        return True
    return worst.is_input_bounded and worst.input_tokens + _ceiling(model, worst) <= window


def fitting_first(drawn: Sequence[Deployment], model: Model, worst: WorstCase) -> tuple[Deployment, ...]:
    """Return the deployments that a request fits in the order drawn, and then the others, the largest window first."""
    if all(deployment.context_window is None for deployment in drawn):
        return tuple(drawn)

    def place(deployment: Deployment) -> float:
        window = _window(deployment, model)
        return -inf if window is None or fits(deployment, model, worst) else -window

    return tuple(sorted(drawn, key=place))


def _window(deployment: Deployment, model: Model) -> int | None:
    return deployment.context_window or model.settings.context_window


def _ceiling(model: Model, worst: WorstCase) -> int:
    """Return the most tokens that one candidate is to have; none for what `worst_case` took the window for."""
    ceiling = worst.output_tokens // worst.candidates if worst.candidates else 0
    return 0 if ceiling == model.settings.context_window else ceiling


@dataclass(frozen=True, slots=True)
class Standing:
    """How a deployment stands with one worker.

    `outstanding` are attempts under way there, `latency_seconds` how long it is expected to take (`Latency.estimate`;
    None before it was measured). Not `is_available`: its breaker is open, it cools down, or fails its health checks.
    Not `has_room`: whoever goes there waits in its upstream's line.
    """

    outstanding: int
    latency_seconds: float | None
    is_available: bool
    has_room: bool


def arrange(
    candidates: Sequence[Deployment], standings: Sequence[Standing], *, choice: Choice, fits: Sequence[bool]
) -> tuple[int, ...]:
    """Return the indexes of a decision's candidates, which are in the order drawn, in the order in which to try them.

    Those that are not available come last, as drawn. Before them come those without room, and in both groups those that
    a request may not fit after those that it fits: bounds are generous, so a deployment that may be too small is better
    than a line. Equals are ordered by choice:

    - `weighted`: as drawn.
    - `least_outstanding`: who has the fewest attempts under way for its weight; as drawn where that is the same.
    - `latency`: of the first two as drawn, who is expected to answer sooner goes first; the other one is compared with
      the third, and so on. Expected is latency × (1 + outstanding ÷ weight): an idle deployment answers as fast
      whatever its weight, and who is heavier bears more at once. Two that are drawn by weight, instead of the best of
      all, keep workers that know the same from all going to the same place. Who was never measured counts with the
      least latency of its equals: it is tried when it is drawn, and not by everybody until its first answer.
    """
    if len(candidates) == 1:
        return (0,)

    def group(index: int) -> tuple[bool, bool, bool]:
        standing = standings[index]
        return (False, not standing.has_room, not fits[index]) if standing.is_available else (True, True, True)

    def equals(index: int) -> tuple[tuple[bool, bool, bool], int | None]:
        """Those that may be too small are so in different degrees, and come from the largest to the smallest."""
        is_small = group(index)[2]
        return group(index), candidates[index].context_window if is_small else None

    ordered: list[int] = []
    for ((is_avoided, *_), _), members in groupby(sorted(range(len(candidates)), key=group), key=equals):
        alike = list(members)
        ordered += alike if is_avoided else _choose(alike, candidates, standings, choice)
    return tuple(ordered)


def _choose(
    drawn: list[int], candidates: Sequence[Deployment], standings: Sequence[Standing], choice: Choice
) -> list[int]:
    """Return equals in the order of `choice`."""

    def load(index: int) -> float:
        return standings[index].outstanding / candidates[index].weight

    match choice:
        case "weighted":
            return drawn
        case "least_outstanding":
            return sorted(drawn, key=load)
        case "latency":
            seconds = _expected_seconds({index: standings[index].latency_seconds for index in drawn})
            return _better_of_two(drawn, lambda index: (seconds[index] * (1 + load(index)), load(index)))
        case _:
            assert_never(choice)


def _expected_seconds(measured: Mapping[int, float | None]) -> dict[int, float]:
    least = min((seconds for seconds in measured.values() if seconds is not None), default=1.0)
    return {index: least if seconds is None else seconds for index, seconds in measured.items()}


def _better_of_two(drawn: list[int], cost: Callable[[int], tuple[float, float]]) -> list[int]:
    left = list(drawn)
    ordered: list[int] = []
    while left:
        better = min(left[:2], key=cost)
        left.remove(better)
        ordered.append(better)
    return ordered


class Latency:
    """How long a deployment is expected to take until it answers: a mean in which what is long past counts for less.

    The longer nobody tries a deployment, the faster it is taken to be, so that who was slow is tried again: one that
    took a hundred times as long as the others after about seven half-lives, by one attempt at a time.
    """

    __slots__ = ("_mean_seconds", "_measures", "_noted_at", "_tried_at")

    def __init__(self) -> None:
        self._mean_seconds = 0.0
        self._measures = 0.0
        self._noted_at = 0.0
        self._tried_at = 0.0

    def begin(self, now: float) -> None:
        """Note that it is being tried: until its answer is noted, or for a while, it counts as slow as it was."""
        self._tried_at = now

    def note(self, seconds: float, now: float) -> None:
        """Note how long an answer took that was not refused: who refuses fast is not fast."""
        self._measures = min(_MOST_MEASURES, self._measures * _faded(now - self._noted_at) + 1)
        self._mean_seconds += (seconds - self._mean_seconds) / self._measures
        self._noted_at = self._tried_at = now

    def estimate(self, now: float) -> float | None:
        """Return the expected seconds; None before anything was noted."""
        return self._mean_seconds * _faded(now - self._tried_at) if self._measures else None


def _faded(seconds: float) -> float:
    return float(0.5 ** (seconds / _HALF_LIFE_SECONDS))
