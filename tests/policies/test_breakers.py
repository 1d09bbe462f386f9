from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from policies.breakers import Begun, Breaker, BreakerRules, BreakerState

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN
RULES = BreakerRules(failures=3, share=0.5, window_seconds=30, open_seconds=10, longest_open_seconds=60)


def fail(breaker: Breaker, *times: float) -> None:
    for now in times:
        breaker.failed(now, breaker.begin(now))


def succeed(breaker: Breaker, *times: float) -> None:
    for now in times:
        breaker.succeeded(now, breaker.begin(now))


def opened(rules: BreakerRules = RULES) -> Breaker:
    """Return a breaker that opened at 100."""
    breaker = Breaker(rules)
    fail(breaker, *[100] * rules.failures)
    assert breaker.state(100) is OPEN
    return breaker


def is_shut(breaker: Breaker, now: float) -> bool:
    return breaker.state(now) is CLOSED and breaker.is_available(now) and breaker.ready_at(now) == now


@pytest.mark.parametrize(
    ("good", "bad", "state"),
    [
        pytest.param([], [], CLOSED, id="nothing is known"),
        pytest.param([], [1, 2], CLOSED, id="two failures of three"),
        pytest.param([], [1, 2, 3], OPEN, id="three"),
        pytest.param([0, 0, 0], [1, 2, 3], OPEN, id="three of six are half"),
        pytest.param([0, 0, 0, 0], [1, 2, 3], CLOSED, id="three of seven are less"),
        pytest.param([0, 0, 0, 0], [1, 2, 3, 4], OPEN, id="four of eight are half again"),
        pytest.param([4, 5, 6, 7], [1, 2, 3], OPEN, id="it opens before what would have spoken for it"),
        pytest.param([], [0, 28, 29], OPEN, id="all within the window"),
        pytest.param([], [0, 29, 30], CLOSED, id="the first one is 30 s past"),
        pytest.param([], [0, 29, 30, 31], OPEN, id="the latest three count"),
        pytest.param([0, 0, 0, 0], [30, 31, 32], OPEN, id="successes are forgotten as well"),
        pytest.param([3, 3, 3, 3], [30, 31, 32], CLOSED, id="when their time is over"),
    ],
)
def test_when_it_opens(good: list[float], bad: list[float], state: BreakerState) -> None:
    breaker = Breaker(RULES)
    for now in sorted({*good, *bad}):
        succeed(breaker, *[now] * good.count(now))
        fail(breaker, *[now] * bad.count(now))
    assert breaker.state(max([0, *good, *bad])) is state


@pytest.mark.parametrize(
    ("bad", "good", "share"),
    [
        pytest.param(7, 93, 0.07, id="7 of 100"),
        pytest.param(29, 71, 0.29, id="29 of 100"),
        pytest.param(3, 7, 0.3, id="3 of 10"),
    ],
)
def test_a_share_is_reached_exactly(bad: int, good: int, share: float) -> None:
    breaker = Breaker(replace(RULES, failures=1, share=share))
    succeed(breaker, *[0] * good)
    fail(breaker, *[0] * (bad - 1))
    assert is_shut(breaker, 0)
    fail(breaker, 0)
    assert breaker.state(0) is OPEN


def test_an_open_breaker_waits_and_then_has_one_probe() -> None:
    breaker = opened()
    assert (breaker.state(109), breaker.is_available(109), breaker.ready_at(109)) == (OPEN, False, 110)
    assert (breaker.state(110), breaker.is_available(110), breaker.ready_at(110)) == (HALF_OPEN, True, 110)
    assert [breaker.begin(110).is_probe for _ in range(3)] == [True, False, False]
    assert (breaker.state(111), breaker.is_available(111), breaker.ready_at(111)) == (HALF_OPEN, False, 111)


def test_a_probe_that_succeeds_closes_it_and_what_was_seen_is_forgotten() -> None:
    breaker = opened()
    succeed(breaker, 110)
    assert is_shut(breaker, 110)
    fail(breaker, 111, 112)
    assert is_shut(breaker, 112)
    fail(breaker, 113)
    assert (breaker.state(113), breaker.ready_at(113)) == (OPEN, 123)


def test_each_probe_that_fails_doubles_the_time_up_to_the_longest() -> None:
    breaker, lengths, now = opened(), [], 110.0
    for _ in range(5):
        fail(breaker, now)
        assert breaker.state(now) is OPEN
        lengths.append(breaker.ready_at(now) - now)
        now = breaker.ready_at(now)
    assert lengths == [20, 40, 60, 60, 60]
    succeed(breaker, now)
    fail(breaker, now, now, now)
    assert breaker.ready_at(now) == now + 10


def test_a_probe_that_ends_without_a_verdict_leaves_its_place() -> None:
    breaker = opened()
    breaker.ended(breaker.begin(110))
    assert (breaker.state(111), breaker.is_available(111)) == (HALF_OPEN, True)
    assert breaker.begin(111).is_probe


def test_the_end_of_an_attempt_takes_nothing_back() -> None:
    breaker = opened()
    other, probe = breaker.begin(109), breaker.begin(110)
    breaker.ended(other)
    assert not breaker.is_available(110)
    breaker.succeeded(111, probe)
    breaker.ended(probe)
    assert is_shut(breaker, 111)


@pytest.mark.parametrize("then", ["succeeded", "failed"])
def test_what_began_before_it_opened_says_nothing_any_more(then: str) -> None:
    breaker = Breaker(RULES)
    slow = [breaker.begin(90) for _ in range(9)]
    fail(breaker, 100, 100, 100)
    getattr(breaker, then)(105, slow.pop())
    assert (breaker.state(109), breaker.ready_at(109)) == (OPEN, 110)
    getattr(breaker, then)(110, slow.pop())
    assert (breaker.state(110), breaker.is_available(110)) == (HALF_OPEN, True)
    probe = breaker.begin(110)
    getattr(breaker, then)(111, slow.pop())
    assert (breaker.state(111), breaker.is_available(111)) == (HALF_OPEN, False)
    breaker.succeeded(112, probe)
    for late in slow:
        getattr(breaker, then)(113, late)
    assert is_shut(breaker, 113)
    fail(breaker, 114, 115)
    assert is_shut(breaker, 115), "late successes do not speak for it either, nor late failures against it"
    fail(breaker, 116)
    assert breaker.state(116) is OPEN


def test_what_is_sent_although_it_is_open_says_nothing() -> None:
    breaker = opened()
    forced = [breaker.begin(105) for _ in range(6)]
    breaker.succeeded(106, forced.pop())
    breaker.failed(106, forced.pop())
    assert (breaker.state(106), breaker.ready_at(106)) == (OPEN, 110)
    succeed(breaker, 110)
    for late in forced:
        breaker.failed(111, late)
    assert is_shut(breaker, 111)


def test_answers_that_break_off_count_once_and_as_failed() -> None:
    breaker = Breaker(replace(RULES, share=0.9))
    streams = [breaker.begin(0) for _ in range(3)]
    for stream in streams:
        breaker.succeeded(1, stream)
    for stream in streams:
        assert is_shut(breaker, 2)
        breaker.failed(2, stream)
    assert breaker.state(2) is OPEN


def test_they_count_though_their_beginning_is_long_past() -> None:
    breaker = Breaker(replace(RULES, share=1.0))
    streams = [breaker.begin(0) for _ in range(3)]
    for stream in streams:
        breaker.succeeded(1, stream)
    for stream in streams:
        breaker.failed(100, stream)
    assert breaker.state(100) is OPEN


def test_a_probe_that_breaks_off_after_it_closed_the_breaker_is_the_first_failure() -> None:
    breaker = opened()
    probe = breaker.begin(110)
    breaker.succeeded(111, probe)
    breaker.failed(200, probe)
    fail(breaker, 201)
    assert is_shut(breaker, 201)
    fail(breaker, 202)
    assert breaker.state(202) is OPEN


def test_the_probe_counts_with_those_after_it() -> None:
    breaker = opened(replace(RULES, failures=1))
    succeed(breaker, 110)
    fail(breaker, 111)
    assert breaker.state(111) is OPEN, "one of two"
    breaker = opened(replace(RULES, failures=1, share=0.6))
    succeed(breaker, 110)
    fail(breaker, 111)
    assert is_shut(breaker, 111)


def test_a_failure_that_is_told_twice_counts_once() -> None:
    breaker = Breaker(RULES)
    once = breaker.begin(0)
    for _ in range(9):
        breaker.failed(0, once)
    assert is_shut(breaker, 0)
    breaker = opened()
    probe = breaker.begin(110)
    breaker.failed(111, probe)
    breaker.failed(112, probe)
    assert breaker.ready_at(112) == 131
    succeed(breaker, 131)
    breaker.failed(132, probe)
    fail(breaker, 132, 132)
    assert is_shut(breaker, 132)


def test_a_cool_down_keeps_attempts_away_and_shows_in_no_state() -> None:
    breaker = Breaker(RULES)
    breaker.cool_down(50)
    breaker.cool_down(20)
    assert (breaker.state(49), breaker.is_available(49), breaker.ready_at(49)) == (CLOSED, False, 50)
    assert is_shut(breaker, 50)


def test_a_cool_down_and_an_open_breaker_each_have_to_be_over() -> None:
    breaker = opened()
    breaker.cool_down(115)
    assert [breaker.is_available(now) for now in (110, 114, 115)] == [False, False, True]
    assert [breaker.ready_at(now) for now in (100, 112, 120)] == [115, 115, 120]
    assert breaker.begin(112).is_probe, "sent although it cools down: its outcome counts all the same"
    breaker = opened()
    breaker.cool_down(105)
    assert breaker.ready_at(101) == 110


def test_other_rules_keep_what_was_seen() -> None:
    breaker = Breaker(RULES)
    fail(breaker, 0, 1)
    breaker.adopt(replace(RULES, failures=5))
    fail(breaker, 2, 3)
    assert is_shut(breaker, 3)
    breaker.adopt(replace(RULES, failures=2))
    assert is_shut(breaker, 3), "nothing has happened"
    fail(breaker, 4)
    assert breaker.state(4) is OPEN


@pytest.mark.parametrize(
    ("seconds", "failed_at", "state"),
    [
        pytest.param(300, 280, OPEN, id="in a longer window, what is past counts again"),
        pytest.param(300, 305, CLOSED, id="but for what is past there too"),
        pytest.param(10, 15, OPEN, id="in a shorter one, what is recent enough"),
        pytest.param(10, 16, CLOSED, id="and nothing else"),
    ],
)
def test_another_window_leaves_what_was_seen_in_its_place(
    seconds: float, failed_at: float, state: BreakerState
) -> None:
    breaker = Breaker(RULES)
    fail(breaker, 5, 7)  # kept as of 3 and 6, where the parts of the window begin
    breaker.adopt(replace(RULES, failures=2 if seconds == 10 else 3, window_seconds=seconds))
    fail(breaker, failed_at)
    assert breaker.state(failed_at) is state


def test_an_open_breaker_obeys_a_shorter_longest_time_at_once() -> None:
    breaker = opened(replace(RULES, open_seconds=600, longest_open_seconds=3600))
    breaker.adopt(RULES)
    assert (breaker.state(159), breaker.state(160)) == (OPEN, HALF_OPEN)
    fail(breaker, 160)
    assert breaker.ready_at(160) == 220


def test_a_longer_longest_time_does_not_keep_it_open_for_longer() -> None:
    breaker = opened(replace(RULES, longest_open_seconds=10))
    fail(breaker, 110, 120, 130)
    breaker.adopt(RULES)
    assert breaker.ready_at(130) == 140
    fail(breaker, 140)
    assert breaker.ready_at(140) == 160


def test_it_does_not_grow_with_traffic() -> None:
    breaker = Breaker(RULES)
    for step in range(20_000):
        succeed(breaker, step / 100, step / 100)
        fail(breaker, step / 100)
    assert len(pickle.dumps(breaker)) < 1000


# ---------------------------------------------------------------- against a slow and obvious one


@dataclass
class Attempt:
    begun: Begun
    is_probe: bool
    ended_at: float | None = None
    failed_at: float | None = None


@dataclass
class Remembers:
    """A breaker that remembers everything and reads its state from that."""

    rules: BreakerRules
    counted: list[Attempt] = field(default_factory=list)
    openings: list[tuple[float, float]] = field(default_factory=list)
    probe: Attempt | None = None
    cool_downs: list[float] = field(default_factory=list)

    def state(self, now: float) -> BreakerState:
        if not self.openings:
            return CLOSED
        at, length = self.openings[-1]
        return OPEN if now < at + min(length, self.rules.longest_open_seconds) else HALF_OPEN

    def is_available(self, now: float) -> bool:
        is_tried = self.state(now) is HALF_OPEN and self.probe is not None
        return self.state(now) is not OPEN and not is_tried and all(until <= now for until in self.cool_downs)

    def ready_at(self, now: float) -> float:
        at, length = self.openings[-1] if self.openings else (now, 0)
        return max(now, at + min(length, self.rules.longest_open_seconds), *self.cool_downs, now)

    def begin(self, now: float, begun: Begun) -> Attempt:
        attempt = Attempt(begun, is_probe=self.state(now) is HALF_OPEN and self.probe is None)
        if attempt.is_probe:
            self.probe = attempt
        elif self.state(now) is CLOSED:
            self.counted.append(attempt)
        return attempt

    def succeeded(self, now: float, attempt: Attempt) -> None:
        attempt.ended_at = now
        if attempt is self.probe:
            self.counted, self.openings, self.probe = [attempt], [], None

    def failed(self, now: float, attempt: Attempt) -> None:
        attempt.failed_at = now
        attempt.ended_at = now if attempt.ended_at is None else attempt.ended_at
        if attempt is self.probe:
            self.openings.append((now, min(self.openings[-1][1] * 2, self.rules.longest_open_seconds)))
            self.probe = None
        elif not self.openings and any(attempt is each for each in self.counted) and self.is_bad(now):
            self.openings.append((now, self.rules.open_seconds))

    def is_bad(self, now: float) -> bool:
        oldest = now - self.rules.window_seconds
        failed = sum(each.failed_at is not None and each.failed_at > oldest for each in self.counted)
        ended = sum(each.ended_at is not None and each.ended_at > oldest for each in self.counted)
        return failed >= self.rules.failures and failed >= self.rules.share * max(ended, failed)


class Both(RuleBasedStateMachine):
    """Random attempts through both; times are whole seconds, of which each is one part of the window."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = replace(RULES, window_seconds=10)
        self.breaker = Breaker(self.rules)
        self.remembers = Remembers(self.rules)
        self.now = 1000.0
        self.under_way: list[Attempt] = []

    @rule(seconds=st.one_of(st.integers(0, 3), st.integers(0, 40)))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        for _ in range(count):
            begun = self.breaker.begin(self.now)
            attempt = self.remembers.begin(self.now, begun)
            assert begun.is_probe is attempt.is_probe
            self.under_way.append(attempt)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), count=st.integers(1, 4), is_good=st.booleans())
    def answer(self, data: st.DataObject, count: int, is_good: bool) -> None:  # noqa: FBT001
        for _ in range(min(count, len(self.under_way))):
            attempt = data.draw(st.sampled_from(self.under_way))
            if is_good and not attempt.begun.has_succeeded:
                self.breaker.succeeded(self.now, attempt.begun)
                self.remembers.succeeded(self.now, attempt)
            elif not is_good:
                self.under_way.remove(attempt)
                self.breaker.failed(self.now, attempt.begun)
                self.remembers.failed(self.now, attempt)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(attempt)
        self.breaker.ended(attempt.begun)
        if attempt is self.remembers.probe:
            self.remembers.probe = None

    @rule(seconds=st.integers(0, 30))
    def cool_down(self, seconds: int) -> None:
        self.breaker.cool_down(self.now + seconds)
        self.remembers.cool_downs.append(self.now + seconds)

    @rule(failures=st.integers(1, 4), share=st.sampled_from([0.25, 0.5, 1.0]), longest=st.sampled_from([10, 25, 60]))
    def reload(self, failures: int, share: float, longest: int) -> None:
        self.rules = replace(self.rules, failures=failures, share=share, longest_open_seconds=longest)
        self.breaker.adopt(self.rules)
        self.remembers.rules = self.rules

    @invariant()
    def they_agree(self) -> None:
        for now in (self.now, self.now + 7, self.now + 100):
            assert self.breaker.state(now) is self.remembers.state(now)
            assert self.breaker.is_available(now) is self.remembers.is_available(now)
            assert self.breaker.ready_at(now) == self.remembers.ready_at(now)


def test_it_agrees_with_one_that_remembers_everything() -> None:
    run_state_machine_as_test(Both, settings=settings(max_examples=150, stateful_step_count=60, deadline=None))
