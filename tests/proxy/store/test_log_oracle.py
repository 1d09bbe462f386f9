"""The oracle that judges a run by its log: it objects to what is wrong, and to nothing in logs of real runs."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from crowd import Crowd, stores
from hypothesis import given
from hypothesis import strategies as st
from log_oracle import (
    WAITER_LIFE_MILLISECONDS,
    Admit,
    Ask,
    End,
    Leave,
    LogOracle,
    Look,
    Taken,
    Terms,
    highest_level,
    most_at_once,
)
from store_log import Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from log_oracle import Entry
    from stores import StoreServer

REQUESTS = int(os.environ.get("TIDEGATE_LOG_REQUESTS", "1500"))
"""How many requests the real run has; each leaves some entries."""
BUCKET = Terms("tokens", burst=10, limit=10, window=1_000)
"""Ten a second: one in 100 ms."""
DAY = Terms("day", burst=10, start=0, end=5_000)
PLACES = Terms("concurrency", burst=1)
LINE = "line"


def admit(  # one line of a log, told by name
    request: str,
    now: int,
    verdict: str,
    asks: int = 6,
    terms: Terms = BUCKET,
    hits: str = "no",
    **more: Any,  # noqa: ANN401
) -> Admit:
    how = {"taken": Taken.MISS, "takes": asks} | {name: more.pop(name) for name in list(more) if name in Ask.__slots__}
    return Admit(request, now, hits, (Ask(terms, asks=asks, **how),), verdict, **more)


def end(request: str, now: int, truth: int, how: str = "settle", terms: Terms = BUCKET, age: int = 0) -> End:
    return End(request, now, how, ((terms, truth),), age)


def waiting(request: str, now: int, verdict: str = "waiting", came: int = 0, patience: int = 9_000) -> Admit:
    return admit(
        request, now, verdict, 1, PLACES, line=LINE, patience=patience, came=came or now * 1_000, taken=Taken.HOLD
    )


@pytest.mark.parametrize(
    ("log", "objections"),
    [
        pytest.param([admit("a", 0, "admitted"), admit("b", 0, "refused", 5)], [], id="6 and 5 of 10 do not fit"),
        pytest.param([admit("a", 0, "admitted"), admit("b", 0, "refused", 4)], ["verdict"], id="6 and 4 of 10 fit"),
        pytest.param(
            [admit("a", 0, "admitted"), admit("b", 0, "admitted", 5)],
            ["verdict", "promise", "promise"],
            id="11 of 10 at once break the promise",
        ),
        pytest.param([admit("a", 0, "admitted"), admit("b", 900, "refused", 5)], [], id="what is held does not refill"),
        pytest.param(
            [admit("a", 0, "admitted"), end("a", 100, 6), admit("b", 200, "admitted", 5), Look(BUCKET, 200, 5, 5)],
            [],
            id="what is settled refills from then on: 1 in 100 ms",
        ),
        pytest.param(
            [admit("a", 0, "admitted"), end("a", 100, 6), admit("b", 199, "admitted", 5)],
            ["verdict", "promise"],
            id="but not a millisecond before",
        ),
        pytest.param(
            [admit("a", 0, "admitted"), end("a", 0, 2), Look(BUCKET, 50, 2, 0), Look(BUCKET, 50, 1, 0)],
            ["used"],
            id="used is rounded up: 1.5 is 2",
        ),
        pytest.param(
            [admit("a", 0, "admitted"), end("a", 0, 2), end("a", 0, 2), Look(BUCKET, 0, 2, 0)],
            [],
            id="an end counts once",
        ),
        pytest.param(
            [admit("a", 0, "admitted"), end("a", 0, 6, "orphan"), end("a", 0, 1), Look(BUCKET, 0, 1, 0)],
            [],
            id="a truth replaces the worst case of an orphan",
        ),
        pytest.param(
            [
                admit("a", 0, "admitted"),
                end("a", 0, 6, "orphan"),
                end("a", 600, 0),
                Look(BUCKET, 600, 0, 0),
                admit("b", 600, "admitted", 10),
                admit("c", 600, "refused", 1),
            ],
            [],
            id="all of which has refilled: it is not given back twice",
        ),
        pytest.param(
            [admit("a", 0, "admitted", 1, taken=Taken.SPEND), end("a", 0, 0, "release"), Look(BUCKET, 0, 0, 0)],
            [],
            id="a release gives back what was spent at once",
        ),
        pytest.param(
            [
                admit("a", 0, "admitted", 6),
                end("a", 0, 0, "release"),
                end("a", 0, 9),
                Look(BUCKET, 0, 9, 0),
                end("a", 0, 9),
                Look(BUCKET, 0, 9, 0),
            ],
            [],
            id="what was used after all is booked beside no hold, once",
        ),
        pytest.param(
            [
                admit("a", 0, "admitted", 10, DAY),
                end("a", 0, 9, terms=DAY),
                admit("b", 4999, "refused", 2, DAY),
                admit("c", 5000, "moved", 2, DAY),
                end("d", 5001, 7, terms=DAY),
            ],
            [],
            id="a calendar window does not refill, and is over at its end",
        ),
        pytest.param(
            [admit("a", 5_000, "admitted", 1, DAY)], ["verdict"], id="nobody is admitted to a window that is over"
        ),
        pytest.param(
            [admit("a", 0, "admitted", 1, PLACES), admit("b", 0, "admitted", 1, PLACES)],
            ["verdict", "promise"],
            id="two at once where one may be",
        ),
        pytest.param(
            [
                admit("a", 0, "admitted", 1, PLACES),
                admit("b", 2, "admitted", 1, PLACES),
                end("a", 5, 0, terms=PLACES),
                end("b", 5, 0, terms=PLACES),
            ],
            ["verdict", "promise"],
            id="likewise when both have ended",
        ),
        pytest.param(
            [
                admit("a", 0, "admitted", 1, PLACES),
                end("a", 1, 0, "orphan", PLACES),
                admit("b", 2, "admitted", 1, PLACES),
            ],
            [],
            id="one after an orphan",
        ),
        pytest.param(
            [admit("a", 0, "admitted", 10), admit("b", 0, "hit", hits="maybe"), Look(BUCKET, 0, 0, 10)],
            [],
            id="who has nothing left is admitted for a hit only, and takes nothing",
        ),
        pytest.param([admit("a", 0, "hit", hits="maybe")], ["verdict"], id="but not who has"),
        pytest.param(
            [admit("a", 9, "late", deadline=8), admit("b", 9, "late", deadline=9)], ["verdict"], id="deadlines"
        ),
        pytest.param(
            [
                admit("a", 0, "admitted"),
                admit("a", 0, "admitted"),
                Look(BUCKET, 0, 0, 6),
                end("a", 1, 0),
                admit("a", 2, "ended"),
            ],
            [],
            id="a repeated admission says the same, until its request has ended",
        ),
        pytest.param([end("a", 0, 0, "release"), admit("a", 1, "admitted")], ["verdict"], id="not after its release"),
        pytest.param(
            [admit("a", 0, "admitted", 10), admit("b", 0, "admitted", 50, refuses=False), Look(BUCKET, 0, 0, 60)],
            [],
            id="an observed limit refuses nothing, and counts all",
        ),
        pytest.param(
            [
                admit("a", 0, "admitted", 1, takes=0),
                admit("b", 0, "admitted", 1, takes=0),
                end("a", 0, 30),
                end("b", 0, 30),
                Look(BUCKET, 0, 60, 0),
                admit("c", 5000, "refused", 1, takes=0),
                admit("d", 5100, "admitted", 1, takes=0),
            ],
            [],
            id="without a hold everybody passes while anything is left",
        ),
        pytest.param(
            [end("a", 0, 30), Look(BUCKET, 0, 10, 0), end("b", 1_000, 30, age=1_000)],
            [],
            id="a truth that nothing was held for",
        ),
        pytest.param(
            [
                admit("a", 0, "admitted"),
                admit("b", 0, "admitted", 4),
                end("a", 0, 6, "orphan"),
                end("b", 0, 4, "orphan"),
                end("b", 0, 8),
                Look(BUCKET, 0, 10, 0),
                end("a", 0, 2),
                Look(BUCKET, 0, 6, 0),
                Look(BUCKET, 0, 5, 0),
            ],
            ["used"],
            id="what did not fit of it does not come back with what another corrects",
        ),
        pytest.param(
            [
                admit("a", 0, "admitted"),
                end("a", 100, 6),
                end("b", 100, 30, age=100),
                Look(BUCKET, 100, 10, 0),
                Look(BUCKET, 100, 4, 0),
            ],
            ["used"],
            id="likewise of what is told late, beside all that was booked since",
        ),
        pytest.param(
            [
                waiting("a", 0, "admitted"),
                waiting("b", 1),
                waiting("c", 2),
                end("a", 3, 0, terms=PLACES),
                waiting("c", 4, came=2000),
                waiting("b", 5, "admitted", came=1000),
            ],
            [],
            id="those in line pass in the order in which they came",
        ),
        pytest.param(
            [
                waiting("a", 0, "admitted"),
                waiting("b", 1),
                waiting("c", 2),
                end("a", 3, 0, terms=PLACES),
                waiting("c", 4, "admitted", came=2000),
            ],
            ["verdict"],
            id="nobody takes the room of who came before",
        ),
        pytest.param(
            [
                waiting("a", 0, "admitted"),
                waiting("b", 1),
                waiting("c", 2),
                end("a", 3, 0, terms=PLACES),
                Leave("b", 4, (LINE,)),
                waiting("c", 5, "admitted", came=2000),
            ],
            [],
            id="but of who has left",
        ),
        pytest.param(
            [
                waiting("a", 0, "admitted"),
                waiting("b", 1),
                end("a", 3, 0, terms=PLACES),
                waiting("c", 1 + WAITER_LIFE_MILLISECONDS),
                waiting("d", 2 + WAITER_LIFE_MILLISECONDS, "admitted"),
            ],
            ["verdict"],
            id="or has not asked for long: then the next one passes, which is c",
        ),
        pytest.param([waiting("a", 0)], ["verdict"], id="nobody waits where there is room"),
        pytest.param(
            [waiting("a", 0, "admitted"), waiting("b", 1, patience=0)], ["verdict"], id="nor who has waited long enough"
        ),
    ],
)
def test_it_objects_to_what_is_wrong(log: list[Entry], objections: list[str]) -> None:
    assert [each.about for each in LogOracle().read(log)] == objections


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=12), st.fractions(0, 2, max_denominator=7))
def test_the_worst_span_is_found(passes: list[tuple[int, int]], rate: Fraction) -> None:
    times = sorted(passes)
    spans = [(i, j) for i in range(len(times)) for j in range(i, len(times))]
    worst = [sum(n for _, n in times[i : j + 1]) - rate * (times[j][0] - times[i][0]) for i, j in spans]
    assert highest_level(rate, passes) == max([Fraction(0), *worst])


def test_who_ends_when_another_begins_does_not_meet_it() -> None:
    oracle = LogOracle()
    log = [admit("a", 0, "admitted", 1, PLACES), end("a", 7, 0, terms=PLACES), admit("b", 7, "admitted", 1, PLACES)]
    assert oracle.read(log) == []
    assert most_at_once(oracle.passes[PLACES.key]) <= 1


# ---------------------------------------------------------------- real runs
class Run:
    """The log of a real run, and what was answered."""

    def __init__(self, log: Sequence[Entry], verdicts: Counter[str]) -> None:
        self.log = list(log)
        self.verdicts = verdicts


async def run(server: StoreServer, requests: int, *, seed: int) -> Run:
    async with Tap(server) as tap, stores(tap.url, 3) as opened:
        crowd = Crowd(opened, Random(seed))  # noqa: S311  a run that can be repeated
        await crowd.send(requests)
        await tap.last_words()
        return Run(tap.log(crowd.promised.get), crowd.verdicts)


async def test_a_run_over_three_connections_is_as_it_should_be(valkey: StoreServer) -> None:
    told = await run(valkey, REQUESTS, seed=1)
    oracle = LogOracle()
    assert oracle.read(told.log) == []
    kinds = Counter(type(entry).__name__ for entry in told.log)
    print(dict(told.verdicts), dict(kinds), f"{oracle.open_verdicts} verdicts were open")  # noqa: T201  with pytest -s
    assert {"admitted", "hit", "refused", "waiting", "late", "ended"} <= set(told.verdicts)
    assert oracle.open_verdicts <= kinds["Admit"] // 10


@pytest.fixture(scope="module")
def good_log(valkey_server: StoreServer) -> list[Entry]:
    """Return the log of a short run."""
    valkey_server.flush()
    return asyncio.run(run(valkey_server, 700, seed=2)).log


def say(now: str, instead: str) -> Callable[[list[Entry]], list[Entry]]:
    """Return a change of a log: another verdict on one that was not asked for before."""
    return on(
        Admit,
        lambda entry: [replace(entry, verdict=instead) if entry.verdict == now else entry],
    )


def on(kind: type[Entry], alter: Callable[[Any], list[Entry]]) -> Callable[[list[Entry]], list[Entry]]:
    """Return a change of the first entry of a kind, after the beginning of a log, that the alteration makes another.

    What was told of a request before, and is only repeated, is passed by.
    """

    def change(log: list[Entry]) -> list[Entry]:
        told = [entry.request if isinstance(entry, Admit | End) else position for position, entry in enumerate(log)]
        for position in range(len(log) // 8, len(log)):
            entry = log[position]
            is_first = told[position] not in [
                each for each, e in zip(told, log[:position], strict=False) if type(e) is kind
            ]
            if type(entry) is kind and is_first and (made := alter(entry)) != [entry]:
                return [*log[:position], *made, *log[position + 1 :]]
        raise AssertionError(kind)

    return change


def lose_an_end(log: list[Entry]) -> list[Entry]:
    """Take out whatever is told of the end of one request that held a place; some are told twice."""
    ends = [entry for entry in log[len(log) // 8 :] if isinstance(entry, End) and entry.how == "settle"]
    lost = next(end.request for end in ends if any(not terms.window and not terms.end for terms, _truth in end.truths))
    return [entry for entry in log if not (isinstance(entry, End) and entry.request == lost)]


def _truths(more: int) -> Callable[[End], list[Entry]]:
    def alter(entry: End) -> list[Entry]:
        if entry.how != "settle" or entry.age or not any(terms.end and truth > 1 for terms, truth in entry.truths):
            return [entry]
        return [replace(entry, truths=tuple((terms, max(0, truth + more)) for terms, truth in entry.truths))]

    return alter


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(say("refused", "admitted"), id="a refused request is admitted"),
        pytest.param(say("admitted", "refused"), id="one that fits is refused"),
        pytest.param(say("admitted", "waiting"), id="one that fits has to wait"),
        pytest.param(say("admitted", "hit"), id="one that fits is admitted for a hit only"),
        pytest.param(say("admitted", "late"), id="one in time is late"),
        pytest.param(say("hit", "admitted"), id="one that may only hit is admitted"),
        pytest.param(say("hit", "refused"), id="one that may hit is refused"),
        pytest.param(say("waiting", "admitted"), id="one passes those that came before"),
        pytest.param(say("waiting", "refused"), id="one that may wait is refused"),
        pytest.param(say("late", "admitted"), id="one is admitted after its deadline"),
        pytest.param(
            on(Look, lambda look: [look if look.terms.window else replace(look, used=look.used + 1)]),
            id="one more is used",
        ),
        pytest.param(on(Look, lambda look: [replace(look, held=look.held + 1)]), id="one more is held"),
        pytest.param(
            on(Look, lambda look: [look if look.terms.window or not look.used else replace(look, used=look.used - 1)]),
            id="one less is used",
        ),
        pytest.param(lose_an_end, id="the end of a request that held a place is lost"),
        pytest.param(on(End, _truths(1)), id="one more was used than was booked"),
        pytest.param(on(End, _truths(-1)), id="one less was used than was booked"),
        pytest.param(
            on(Admit, lambda entry: [] if entry.verdict == "admitted" else [entry]), id="an admission is not told of"
        ),
    ],
)
def test_it_objects_to_a_real_log_with_one_change(
    good_log: list[Entry], change: Callable[[list[Entry]], list[Entry]]
) -> None:
    assert LogOracle().read(change(good_log))


def test_it_does_not_object_to_the_log_without_a_change(good_log: list[Entry]) -> None:
    assert LogOracle().read(good_log) == []
