from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.catalog import Deployment, Model, ModelSettings
from policies.charges import WorstCase, worst_case
from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.dialects import view_of
from policies.routing import Latency, Standing, arrange, fits, fitting_first, order_candidates

if TYPE_CHECKING:
    from policies.routing import Choice

A, B, C = (Deployment(upstream=name, weight=weight) for name, weight in (("a", 1), ("b", 2), ("c", 1)))
IDLE = Standing(outstanding=0, latency_seconds=None, is_available=True, has_room=True)
AVOIDED, FULL = replace(IDLE, is_available=False), replace(IDLE, has_room=False)
CHOICES: tuple[Choice, ...] = ("weighted", "least_outstanding", "latency")


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


weights = st.lists(st.integers(1, 9), min_size=2, max_size=5)


@given(weights)
def test_first_and_second_places_have_the_shares_of_the_weights(parts: list[int]) -> None:
    """Every deployment's share of an even grid of draws is its weight's, but for one cell at each of its borders."""
    deployments = weighted(parts)
    whole, cells = sum(parts), 50 * sum(parts)
    orders = [order_candidates(deployments, (step + 0.5) / cells) for step in range(cells)]
    for first, weight in zip(deployments, parts, strict=True):
        seconds = [order[1] for order in orders if order[0] == first]
        assert len(seconds) == cells * weight // whole
        for second, other in zip(deployments, parts, strict=True):
            share = 0 if second == first else len(seconds) * other / (whole - weight)
            assert abs(seconds.count(second) - share) <= 1


def weighted(parts: list[int]) -> tuple[Deployment, ...]:
    return tuple(Deployment(upstream=str(index), weight=weight) for index, weight in enumerate(parts))


# ---------------------------------------------------------------- windows


def model(window: int | None = None, most: int | None = None) -> Model:
    return Model("m", ModelSettings(deployments=(A,), context_window=window, max_output_tokens=most))


def at(window: int | None) -> Deployment:
    return Deployment(upstream=str(window), context_window=window)


HUNDRED = [1] * 100


@pytest.mark.parametrize(
    ("window", "of_model", "most", "fields", "expected"),
    [
        pytest.param(116, None, None, {"prompt": HUNDRED}, True, id="100 and the API's 16 are 116"),
        pytest.param(115, None, None, {"prompt": HUNDRED}, False, id="which 115 do not hold"),
        pytest.param(None, 116, None, {"prompt": HUNDRED}, True, id="the model's window is the deployment's"),
        pytest.param(None, 115, None, {"prompt": HUNDRED}, False, id="if that has none of its own"),
        pytest.param(116, 10, None, {"prompt": HUNDRED}, True, id="a larger one of its own"),
        pytest.param(115, 999, None, {"prompt": HUNDRED}, False, id="and a smaller one"),
        pytest.param(None, None, None, {"prompt": HUNDRED}, True, id="no window speaks against nothing"),
        pytest.param(110, None, None, {"prompt": HUNDRED, "max_tokens": 10, "n": 5}, True, id="each of n by itself"),
        pytest.param(109, None, None, {"prompt": HUNDRED, "max_tokens": 10, "n": 5}, False, id="has to fit"),
        pytest.param(100, None, None, {"prompt": HUNDRED, "max_tokens": 0}, True, id="nothing is generated"),
    ],
)
def test_what_a_window_surely_holds(
    window: int | None, of_model: int | None, most: int | None, fields: dict[str, object], *, expected: bool
) -> None:
    served = model(of_model, most)
    assert fits(at(window), served, worst_of(Endpoint.COMPLETIONS, served, **fields)) is expected


@pytest.mark.parametrize(
    ("window", "of_model", "most", "ceiling", "expected"),
    [
        pytest.param(50, 90, None, None, True, id="an open ceiling is what the window leaves"),
        pytest.param(41, 90, None, None, True, id="beside the input"),
        pytest.param(40, 90, None, None, False, id="which has to fit"),
        pytest.param(50, None, None, None, True, id="the model's window is not known"),
        pytest.param(45, 90, 5, None, False, id="the model's own ceiling"),
        pytest.param(46, 90, 5, None, True, id="has to fit beside it"),
        pytest.param(45, 90, 5, 4, True, id="unless the request has its own"),
        pytest.param(45, 90, None, 5, False, id="which has to fit as well"),
        pytest.param(90, 90, None, 90, True, id="the model's whole window is taken for an open ceiling"),
    ],
)
def test_ceilings_of_a_chat_of_41_tokens(
    window: int, of_model: int | None, most: int | None, ceiling: int | None, *, expected: bool
) -> None:
    served = model(of_model, most)
    # 17 bytes of "role", "user", "content" and "hi", 8 tokens for the request and 16 for the message
    fields: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}]}
    if ceiling is not None:
        fields["max_tokens"] = ceiling
    assert fits(at(window), served, worst_of(Endpoint.CHAT, served, **fields)) is expected


def test_input_that_is_only_named_fits_for_sure_where_no_window_is_known() -> None:
    worst = WorstCase(1, 1, 0, candidates=1, is_input_bounded=False)
    assert [fits(at(window), model(), worst) for window in (10**9, None)] == [False, True]


def test_embeddings_generate_nothing() -> None:
    worst = worst_of(Endpoint.EMBEDDINGS, model(), input=HUNDRED)
    assert [fits(at(window), model(), worst) for window in (99, 100)] == [False, True]


def worst_of(endpoint: Endpoint, served: Model, **fields: object) -> WorstCase:
    return worst_case(EffectiveRequest(endpoint, fields, view_of(endpoint, fields)), served)


@pytest.mark.parametrize(
    ("tokens", "of_model", "windows", "expected"),
    [
        pytest.param(10, None, [10, 30, 20], [10, 30, 20], id="all hold it: as drawn"),
        pytest.param(25, None, [10, 30, 20], [30, 20, 10], id="who holds it, and then the larger of the others"),
        pytest.param(25, None, [10, 30, 20, 40], [30, 40, 20, 10], id="those who hold it as drawn"),
        pytest.param(99, None, [10, 30, 20], [30, 20, 10], id="nobody does: the largest first"),
        pytest.param(25, 15, [10, None, 20], [20, None, 10], id="absent is the model's"),
        pytest.param(25, None, [10, None, 20], [None, 20, 10], id="or any"),
        pytest.param(25, 5, [None, None], [None, None], id="where all have the model's it says nothing"),
    ],
)
def test_who_holds_a_request_is_tried_first(
    tokens: int, of_model: int | None, windows: list[int | None], expected: list[int | None]
) -> None:
    ordered = fitting_first([at(window) for window in windows], model(of_model), WorstCase(tokens, 0, 0))
    assert [deployment.context_window for deployment in ordered] == expected


# ---------------------------------------------------------------- how they stand


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("standings", "holds", "expected"),
    [
        pytest.param([IDLE], [True], "0", id="one"),
        pytest.param([AVOIDED], [False], "0", id="be it avoided"),
        pytest.param([IDLE, IDLE, IDLE], [True] * 3, "012", id="equals as drawn"),
        pytest.param([AVOIDED, IDLE, IDLE], [True] * 3, "120", id="who is avoided is last"),
        pytest.param([AVOIDED, IDLE, AVOIDED], [True] * 3, "102", id="all of them, as drawn"),
        pytest.param([AVOIDED, AVOIDED, AVOIDED], [False, True, True], "012", id="and if there is nobody else"),
        pytest.param([FULL, IDLE, IDLE], [True] * 3, "120", id="who is full comes later"),
        pytest.param([AVOIDED, FULL, IDLE], [True] * 3, "210", id="but before who is avoided"),
        pytest.param([IDLE, IDLE, IDLE], [False, True, True], "120", id="who may be too small comes later"),
        pytest.param([IDLE, FULL, IDLE], [False, True, True], "201", id="but before who is full"),
        pytest.param([FULL, FULL, IDLE], [False, True, False], "210", id="and so among the full"),
        pytest.param([AVOIDED, FULL, IDLE], [True, False, False], "210", id="too small is better than avoided"),
    ],
)
def test_who_stands_better_is_tried_first(
    choice: Choice, standings: list[Standing], holds: list[bool], expected: str
) -> None:
    order = arrange([A, B, C][: len(standings)], standings, choice=choice, fits=holds)
    assert "".join(map(str, order)) == expected


def standing(outstanding: int = 0, latency_seconds: float | None = None) -> Standing:
    return replace(IDLE, outstanding=outstanding, latency_seconds=latency_seconds)


@pytest.mark.parametrize(
    ("weights", "outstanding", "expected"),
    [
        pytest.param((1, 1, 1), (2, 1, 0), "210", id="the fewest first"),
        pytest.param((1, 1, 1), (1, 1, 0), "201", id="as drawn where they are the same"),
        pytest.param((1, 4, 2), (1, 3, 1), "210", id="for their weight: 1, 3/4, 1/2"),
        pytest.param((1, 3, 6), (1, 3, 6), "012", id="the same for their weight"),
        pytest.param((1, 9, 9), (0, 0, 0), "012", id="idle ones are drawn by weight already"),
    ],
)
def test_least_outstanding(weights: tuple[int, ...], outstanding: tuple[int, ...], expected: str) -> None:
    candidates = weighted(list(weights))
    order = arrange(candidates, [*map(standing, outstanding)], choice="least_outstanding", fits=[True] * 3)
    assert "".join(map(str, order)) == expected


@pytest.mark.parametrize(
    ("weights", "stands", "expected"),
    [
        pytest.param((1, 1, 1), [(0, 2.0), (0, 1.0), (0, 0.1)], "120", id="the faster of two, its like with the third"),
        pytest.param((1, 1, 1), [(0, 1.0), (0, 1.0), (0, 1.0)], "012", id="as fast as each other: as drawn"),
        pytest.param((1, 1, 1), [(0, 3.0), (0, 1.0), (0, 2.0)], "120", id="the slowest is last of all"),
        pytest.param((1, 1, 1), [(3, 1.0), (0, 3.9), (0, 9.0)], "102", id="1 s behind three others is 4 s"),
        pytest.param((1, 1, 1), [(3, 1.0), (0, 4.1), (0, 9.0)], "012", id="and less than 4.1"),
        pytest.param((3, 1, 1), [(3, 1.0), (0, 1.9), (0, 9.0)], "102", id="1 s behind 3/3 is 2 s"),
        pytest.param((3, 1, 1), [(3, 1.0), (0, 2.1), (0, 9.0)], "012", id="and less than 2.1"),
        pytest.param((1, 9, 1), [(0, 1.0), (0, 1.1), (0, 9.0)], "012", id="a weight makes nobody faster"),
        pytest.param((1, 1, 1), [(0, None), (0, 1.0), (0, 9.0)], "012", id="unmeasured as fast as the fastest: drawn"),
        pytest.param((1, 1, 1), [(0, 1.0), (0, None), (0, 9.0)], "012", id="drawn second"),
        pytest.param((1, 1, 1), [(0, 1.0), (0, None), (0, 0.9)], "120", id="the fastest of all, not of two"),
        pytest.param((1, 1, 1), [(1, None), (0, 1.0), (0, 9.0)], "102", id="one measure at a time is not all"),
        pytest.param((1, 1, 1), [(1, None), (0, None), (0, None)], "120", id="nobody measured: by load"),
        pytest.param((1, 1, 1), [(2, 0.0), (1, 0.0), (0, 9.0)], "102", id="who takes no time at all: by load"),
    ],
)
def test_latency(weights: tuple[int, ...], stands: list[tuple[int, float | None]], expected: str) -> None:
    candidates = weighted(list(weights))
    order = arrange(candidates, [standing(*each) for each in stands], choice="latency", fits=[True] * 3)
    assert "".join(map(str, order)) == expected


def test_who_may_be_too_small_is_chosen_among_those_of_its_size() -> None:
    small = [at(30), at(20), at(20), at(10)]
    stands = [standing(9), standing(2), standing(1), standing(0)]
    for choice in ("least_outstanding", "latency"):
        assert arrange(small, stands, choice=choice, fits=[False] * 4) == (0, 2, 1, 3)
    assert arrange(small, stands, choice="least_outstanding", fits=[True] * 4) == (3, 2, 1, 0)


@pytest.mark.parametrize("choice", CHOICES)
def test_idle_equals_are_tried_first_by_their_weights(choice: Choice) -> None:
    deployments = weighted([1, 2, 5])
    firsts = []
    for step in range(800):
        drawn = order_candidates(deployments, step / 800)
        firsts.append(drawn[arrange(drawn, [standing(0, 1.0)] * 3, choice=choice, fits=[True] * 3)[0]])
    assert [firsts.count(deployment) for deployment in deployments] == [100, 200, 500]


def test_the_slowest_of_three_is_never_first_and_the_others_as_often_as_they_are_drawn_against_it() -> None:
    """Of weights 1, 1, 1: the fastest is among the first two drawn in 2 of 3 orders, and the second in the third."""
    deployments = weighted([1, 1, 1])
    seconds = dict(zip(deployments, (1.0, 2.0, 3.0), strict=True))
    firsts = []
    for step in range(600):
        drawn = order_candidates(deployments, (step + 0.5) / 600)
        stands = [standing(0, seconds[deployment]) for deployment in drawn]
        firsts.append(drawn[arrange(drawn, stands, choice="latency", fits=[True] * 3)[0]])
    assert [firsts.count(deployment) for deployment in deployments] == [400, 200, 0]


stands_of_any_kind = st.builds(
    Standing,
    outstanding=st.integers(0, 20),
    latency_seconds=st.one_of(st.none(), st.floats(0, 1000)),
    is_available=st.booleans(),
    has_room=st.booleans(),
)


@given(st.data(), st.integers(1, 7), st.sampled_from(CHOICES))
def test_everybody_is_tried_once_and_nobody_before_who_stands_better(
    data: st.DataObject, count: int, choice: Choice
) -> None:
    candidates = data.draw(
        st.lists(
            st.builds(
                Deployment,
                upstream=st.just("u"),
                weight=st.integers(1, 9),
                context_window=st.sampled_from([None, 1, 2, 3]),
            ),
            min_size=count,
            max_size=count,
        )
    )
    stands = data.draw(st.lists(stands_of_any_kind, min_size=count, max_size=count))
    holds = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    order = arrange(candidates, stands, choice=choice, fits=holds)
    assert sorted(order) == list(range(count))
    faults = [
        (0, not stands[index].has_room, not holds[index]) if stands[index].is_available else (1, False, False)
        for index in order
    ]
    assert faults == sorted(faults)
    assert [i for i in order if not stands[i].is_available] == [i for i in range(count) if not stands[i].is_available]
    if choice == "weighted":
        assert list(order) == sorted(order, key=lambda index: (faults[order.index(index)], index))


@given(st.data(), st.integers(2, 5))
def test_who_is_idle_and_was_never_measured_is_tried_when_it_is_drawn(data: st.DataObject, count: int) -> None:
    others = data.draw(
        st.lists(
            st.builds(standing, st.integers(0, 20), st.floats(0.001, 1000)), min_size=count - 1, max_size=count - 1
        )
    )
    candidates = weighted(data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)))
    assert arrange(candidates, [standing(), *others], choice="latency", fits=[True] * count)[0] == 0


# ---------------------------------------------------------------- latencies


@pytest.mark.parametrize(
    ("notes", "now", "expected"),
    [
        pytest.param([], 5, None, id="nothing is known"),
        pytest.param([(3.0, 0)], 0, 3.0, id="one measure"),
        pytest.param([(3.0, 0), (1.0, 0)], 0, 2.0, id="two at the same time count the same"),
        pytest.param([(3.0, 0), (1.0, 0), (2.0, 0), (4.0, 0)], 0, 2.5, id="and so do four"),
        pytest.param([(3.0, 10), (1.0, 10)], 10, 2.0, id="whenever that was"),
        pytest.param([(3.0, 0), (0.0, 10)], 10, 1.0, id="after 10 s the first counts half: 1/2 of 3, of 3/2"),
        pytest.param([(5.0, 0), (0.0, 20)], 20, 1.0, id="after 20 s a quarter: 1/4 of 5, of 5/4"),
        pytest.param([(3.0, 0)], 10, 1.5, id="untried for 10 s it is taken for twice as fast"),
        pytest.param([(3.0, 0)], 40, 0.1875, id="for 40 s, sixteen times"),
        pytest.param([(3.0, 0)], 1e9, 0.0, id="for years, as fast as can be"),
        pytest.param([(3.0, 0), (7.0, 1e9)], 1e9, 7.0, id="and then what it was is forgotten"),
    ],
)
def test_what_is_expected_of_measures(notes: list[tuple[float, float]], now: float, expected: float | None) -> None:
    latency = Latency()
    for seconds, at_ in notes:
        latency.note(seconds, at_)
    assert latency.estimate(now) == expected


def test_under_heavy_traffic_a_change_shows_within_a_hundred_answers() -> None:
    latency = Latency()
    for _ in range(10_000):
        latency.note(0.1, 0)
    for _ in range(100):
        latency.note(10, 0)
    estimate = latency.estimate(0)
    assert estimate is not None
    assert isclose(estimate, 10 - 9.9 * (31 / 32) ** 100, rel_tol=1e-9)  # the latest of 32 counts one in 32


def test_who_is_tried_counts_as_slow_as_it_was_until_its_answer() -> None:
    latency = Latency()
    latency.note(8, 0)
    assert latency.estimate(30) == 1
    latency.begin(30)
    assert latency.estimate(30) == 8
    assert latency.estimate(40) == 4, "an answer that never comes is no reason not to try again"
    latency.note(0.1, 40)
    estimate = latency.estimate(40)
    assert estimate is not None
    assert 0.1 < estimate < 0.6  # 1/16 of 8 s, beside 0.1 s


def test_trying_who_was_never_measured_is_no_measure() -> None:
    latency = Latency()
    latency.begin(5)
    assert latency.estimate(6) is None


def test_who_was_slow_is_tried_again_one_attempt_at_a_time() -> None:
    """A hundred times slower: 2^6.644 is just above a hundred, so that it is tried every 66.44 s, and no more often."""
    fast, slow, tries = Latency(), Latency(), []
    slow.note(10, 0)
    for step in range(1, 2_000):
        now = step / 10
        fast.note(0.1, now)
        stands = [standing(0, fast.estimate(now)), standing(0, slow.estimate(now))]
        if arrange([A, C], stands, choice="latency", fits=[True] * 2)[0] == 1:
            slow.begin(now)
            tries.append(now)
    assert tries == [66.5, 133.0, 199.5]
