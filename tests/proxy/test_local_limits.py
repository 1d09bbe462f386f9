from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from admitting import decision

from policies.windows import Level
from proxy.local_limits import MAX_SEEN, LocalLimits
from proxy.store.reservations import Count, Hits, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = 1_800_000_000_000
FIVE = {"of": "requests", "limit": 5, "per": "minute", "by": ["user"]}
TOKENS = {"of": "tokens", "limit": 200, "per": "day", "by": ["user"]}
AT_ONCE = {"of": "concurrency", "limit": 4, "by": ["key"]}


def counts(*limits: Mapping[str, Any], **fields: Any) -> tuple[Count, ...]:  # noqa: ANN401  members of a request
    return tuple(Count(bound, bound.name, None) for bound in decision(limits, **fields).limits)


def admitted(local: LocalLimits, *limits: Mapping[str, Any], times: int = 9, now: int = NOW) -> int:
    verdicts = [local.admit(counts(*limits, max_tokens=14), hits=Hits.NO, now=now) for _ in range(times)]
    return verdicts.count(Verdict.ADMITTED)


@pytest.mark.parametrize(
    ("workers", "limit", "seen", "passes"),
    [
        pytest.param(1, FIVE, None, 5, id="one worker that saw nothing has the limit"),
        pytest.param(2, FIVE, None, 2, id="two have half each, rounded down"),
        pytest.param(8, FIVE, None, 0, id="of too little for all nobody takes"),
        pytest.param(2, FIVE, Level(spent=1, at=NOW), 2, id="what was seen left is divided"),
        pytest.param(2, FIVE, Level(spent=4, at=NOW), 0, id="and rounded down too"),
        pytest.param(2, FIVE, Level(spent=4, at=NOW - 60_000), 2, id="once it has refilled since"),
        pytest.param(1, TOKENS, None, 5, id="tokens are held: 40 each of 200"),
        pytest.param(2, TOKENS, Level(spent=100, held=20, at=NOW), 1, id="beside those that others hold"),
        pytest.param(2, AT_ONCE, Level(held=4, at=NOW), 2, id="concurrency counts what is under way here"),
    ],
)
def test_a_worker_has_its_share(workers: int, limit: dict[str, Any], seen: Level | None, passes: int) -> None:
    local = LocalLimits(workers=workers, held_here=lambda _key: 0)
    if seen is not None:
        local.see(counts(limit), [seen])
    assert admitted(local, limit) == passes


def test_in_an_outage_one_more_limit_passes_at_most_whatever_each_worker_saw() -> None:
    workers = [LocalLimits(workers=3, held_here=lambda _key: 0) for _ in range(3)]
    limit = {**FIVE, "limit": 12, "per": "day"}
    workers[0].see(counts(limit), [Level(spent=12, at=NOW)])
    workers[1].see(counts(limit), [Level(spent=3, at=NOW - 9)])
    assert [admitted(local, limit) for local in workers] == [0, 3, 4]


def test_concurrency_begins_with_what_is_under_way_here() -> None:
    assert admitted(LocalLimits(workers=1, held_here=lambda _key: 3), AT_ONCE) == 1


def test_what_the_store_admitted_gives_its_place_back_when_it_ends() -> None:
    under_way = 4
    local = LocalLimits(workers=1, held_here=lambda _key: under_way)
    assert admitted(local, AT_ONCE) == 0
    under_way = 1
    assert admitted(local, AT_ONCE) == 3


def test_a_share_refills_as_slowly_as_it_is_small() -> None:
    local = LocalLimits(workers=2, held_here=lambda _key: 0)
    assert admitted(local, FIVE) == 2
    assert admitted(local, FIVE, now=NOW + 23_999) == 0
    assert admitted(local, FIVE, now=NOW + 24_000) == 1


def test_a_refusal_takes_from_none() -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0)
    assert admitted(local, FIVE, {**TOKENS, "limit": 1}) == 0
    assert admitted(local, FIVE) == 5


def test_what_is_held_comes_back_as_what_was_taken() -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0)
    taking = counts(TOKENS, AT_ONCE, max_tokens=14)
    assert local.admit(taking, hits=Hits.NO, now=NOW) is Verdict.ADMITTED
    local.end(taking, Verdict.ADMITTED, [10, 0], NOW)
    assert [(level.spent, level.held) for level in (local.level(each, NOW) for each in taking)] == [(10, 0), (0, 0)]


def test_an_observed_limit_refuses_nothing_and_counts_all() -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0)
    observed = {**FIVE, "mode": "observe"}
    assert admitted(local, observed, times=7) == 7
    assert local.level(counts(observed)[0], NOW).spent == 7


def test_what_is_settled_after_passes_while_anything_is_left() -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0)
    after = {**TOKENS, "limit": 20, "hold": "none"}
    taking = counts(after, max_tokens=14)
    verdicts = []
    for _ in range(4):
        verdicts.append(local.admit(taking, hits=Hits.NO, now=NOW))
        assert local.level(taking[0], NOW).held == 0
        if verdicts[-1] is Verdict.ADMITTED:
            local.end(taking, Verdict.ADMITTED, [19], NOW)
    assert verdicts == [Verdict.ADMITTED, Verdict.ADMITTED, Verdict.REFUSED, Verdict.REFUSED]
    assert local.level(taking[0], NOW).spent == 38


def test_hits_need_no_tokens() -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0)
    none = {**TOKENS, "limit": 1}
    assert local.admit(counts(FIVE, none), hits=Hits.MAYBE, now=NOW) is Verdict.HIT
    assert local.admit(counts(FIVE, none), hits=Hits.ONLY, now=NOW) is Verdict.HIT
    assert local.admit(counts(FIVE, none), hits=Hits.NO, now=NOW) is Verdict.REFUSED


def test_a_store_that_is_back_counts_alone() -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0)
    taking = counts(FIVE)
    local.admit(taking, hits=Hits.NO, now=NOW)
    local.see(taking, [Level(at=NOW)])
    local.end(taking, Verdict.ADMITTED, [1], NOW)
    assert local.level(taking[0], NOW).spent == 0


def test_what_was_counted_elsewhere_stays_when_the_store_is_heard_of_one_count() -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0)
    two = {**FIVE, "limit": 2}
    assert admitted(local, two) == 2
    for _ in range(4):
        local.see(counts(TOKENS), [Level(at=NOW)])
        assert admitted(local, two) == 0


@pytest.mark.parametrize(("remembered", "passes"), [(1, 5), (2, 0)])
def test_a_count_that_is_not_remembered_begins_anew(remembered: int, passes: int) -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0, remembered=remembered)
    assert admitted(local, FIVE) == 5
    local.level(Count(counts(FIVE)[0].bound, "another", None), NOW)
    assert admitted(local, FIVE) == passes


def test_memory_is_bounded() -> None:
    local = LocalLimits(workers=1, held_here=lambda _key: 0)
    bound = counts(FIVE)[0].bound
    for number in range(MAX_SEEN + 5):
        local.see([Count(bound, str(number), None)], [Level(spent=5, at=NOW)])
    assert local.level(Count(bound, "0", None), NOW).spent == 0
    assert local.level(Count(bound, str(MAX_SEEN), None), NOW).spent == 5
