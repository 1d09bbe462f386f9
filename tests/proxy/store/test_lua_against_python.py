"""The arithmetic of limits in Lua, on a real server, against the same in Python: random sequences, equal at every step.

How many steps: `TIDEGATE_LUA_STEPS` (default: as many as a suite has time for). What the model is told stands in real
limits, and the scripts are called as a gateway calls them.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from zoneinfo import ZoneInfo

import msgspec
import pytest
import redis
from admitting import KEYS, decision
from clockwork import Clockwork, SteppedReservations
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from policies import windows
from policies.limits import Taking
from policies.windows import Level
from proxy.store.reservations import (
    WAITER_LIFE_MILLISECONDS,
    Ending,
    Hits,
    InTheWay,
    Settlement,
    Verdict,
    may_be_forgotten,
    read_admit,
    read_end,
    read_levels,
    share,
)
from proxy.store.rooms import window_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stores import StoreServer

    from policies.limits import BoundLimit
    from policies.windows import Tank
    from proxy.store.reservations import Count, Reserved

START = 4_000_000_000_000
"""The test's clock begins far ahead of the server's, which therefore ends no calendar window while the test runs."""
LEASE = 30_000
HALF_DAY = 43_200_000
MOST_USED = 10_000
"""Nobody uses so much that a level passes what is told apart: there it depends on how often it is written."""
MAX_WAIT = 600_000
"""How long those wait that wait for the next week."""
STEPS_IN_A_SEQUENCE = 50
STEPS = int(os.environ.get("TIDEGATE_LUA_STEPS", "2000"))
"""How many steps are taken in all."""

SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"of": "requests", "limit": 5, "per": "minute"},
    {"of": "requests", "limit": 3, "per": "second", "burst": 2},
    {"of": "requests", "limit": 9, "per": "day"},
    {"of": "requests", "limit": 2, "per": "3s", "mode": "observe"},
    {"of": "requests", "limit": 4, "per": "20s", "burst": 2, "on_exceed": "wait", "max_wait": "8s"},
    {"of": "requests", "limit": 3, "per": "week", "on_exceed": "wait", "max_wait": f"{MAX_WAIT}ms"},
    {"of": "tokens", "limit": 100, "per": "90s", "burst": 150},
    {"of": "tokens", "limit": 999_999_937, "per": "7d", "burst": 977},
    {"of": "tokens", "limit": 150, "per": "2d"},
    {"of": "tokens", "limit": 300, "per": "day"},
    {"of": "tokens", "limit": 0, "per": "minute"},
    {"of": "tokens", "limit": 200, "per": "10s", "charge_hits": "full"},
    {"of": "tokens", "limit": 100, "per": "91s", "mode": "observe"},
    {"of": "tokens", "limit": 90, "per": "month", "mode": "observe", "charge_hits": "full"},
    {"of": "tokens", "limit": 170, "per": "17s", "on_exceed": "wait", "max_wait": "9s"},
    {"of": "tokens", "limit": 170, "per": "18s", "on_exceed": "wait", "max_wait": "2s", "charge_hits": "full"},
    {"of": "output_tokens", "limit": 100, "per": "90s", "hold": "none"},
    {"of": "output_tokens", "limit": 200, "per": "day", "hold": "none", "charge_hits": "full"},
    {"of": "output_tokens", "limit": 80, "per": "month", "hold": "none", "mode": "observe"},
    {"of": "output_tokens", "limit": 90, "per": "11s", "hold": "none", "on_exceed": "wait", "max_wait": "7s"},
    {"of": "concurrency", "limit": 3},
    {"of": "concurrency", "limit": 2, "on_exceed": "wait", "max_wait": "30s"},
)
BOUND: tuple[BoundLimit, ...] = tuple(
    bound
    for each in SETTINGS
    for bound in decision([{**each, "by": ["organization"], "name": f"l{SETTINGS.index(each)}"}]).limits
)


def asking(bound: BoundLimit, amount: int) -> BoundLimit:
    """Return a limit as a request of this size is bound by it; not all that it may ask for is ever used."""
    if bound.taking is Taking.SPEND or bound.named.is_returned:
        return bound
    return msgspec.structs.replace(bound, ask=amount if bound.named.holds else bound.ask, worst=min(amount, MOST_USED))


@dataclass
class Known:
    """What the model remembers of one request; `held`, `spent` and `booked` by the limits' positions."""

    state: str
    at: int = 0
    verdict: Verdict = Verdict.REFUSED
    observed: tuple[tuple[int, int], ...] = ()
    in_the_way: tuple[InTheWay, ...] = ()
    came: int = 0
    held: list[int] = field(default_factory=list)
    spent: list[int] = field(default_factory=list)
    booked: list[int] = field(default_factory=list)


@dataclass
class Waiter:
    """One request in a line, by the model."""

    came: int
    until: int
    ask: int


class Model:
    """The scripts in Python, over `policies.windows`."""

    def __init__(self) -> None:
        self.now = START
        self.levels: dict[str, Level] = {}
        self.resets: dict[str, int] = {}
        self.known: dict[str, Known] = {}
        self.lines: dict[str, dict[str, Waiter]] = {}
        self.leases: dict[str, int] = {}
        self.epoch = 0

    def level(self, key: str) -> Level:
        return self.levels.get(key, Level())

    def forget(self, key: str) -> None:
        """Take away what the store has taken away."""
        _, _, name = key.partition(":hold:")
        if name:
            self.known.pop(name, None)
        self.levels.pop(key, None)
        self.resets.pop(key, None)
        self.lines.pop(key, None)
        if key == KEYS.leases:
            self.leases.clear()

    # admission

    def admit(self, name: str, counts: Sequence[Count], hits: Hits, deadline: int, came: int, waited: int) -> Known:
        known = self.known.get(name)
        if known is not None:
            return known if known.state == "held" else Known("ended", verdict=Verdict.ENDED)
        if self.now > deadline:
            return Known("nothing", verdict=Verdict.LATE)
        if any(count.span is not None and not count.span.holds(self.now) for count in counts):
            return Known("nothing", verdict=Verdict.MOVED)
        answer = Known("nothing", came=came or self.now * 1_000)
        awaited = self._judge(answer, name, counts, hits, waited)
        for count in counts:
            if count.bound.named.waits:
                self._stand_in_line(name, count, answer, is_waiting=count in awaited)
        if answer.verdict in (Verdict.ADMITTED, Verdict.HIT):
            self._take(answer, counts)
            self.known[name] = answer
            self.leases[name] = self.now + LEASE
        return answer

    def _judge(self, answer: Known, name: str, counts: Sequence[Count], hits: Hits, waited: int) -> list[Count]:
        """Find the verdict; return the counts that the request waits for, none unless it does."""
        words: list[str] = []
        awaited: list[Count] = []
        in_the_way: list[tuple[Count, InTheWay]] = []
        for position, count in enumerate(counts):
            before = self._alive_before(name, count, answer.came)
            ahead = min(sum(each.ask for each in before), count.bound.tank.capacity)
            level = windows.leaked(self.level(count.key), count.bound.tank, self.now)
            if (hits is Hits.ONLY and count.bound.taking is Taking.MISS) or windows.fits(
                level, count.bound.tank, count.bound.ask + ahead, self.now
            ):
                continue
            if count.bound.is_observed:
                answer.observed += ((position, windows.left(level, count.bound.tank)),)
                continue
            in_the_way.append((count, InTheWay(position, ahead, len(before))))
            if self._can_wait(count, level, waited):
                awaited.append(count)
                words.append("wait" if count.bound.taking is Taking.MISS else "wait, hits too")
            else:
                words.append("hit" if hits is Hits.MAYBE and count.bound.taking is Taking.MISS else "refuse")
        answer.verdict = self._verdict(words, hits)
        if answer.verdict is not Verdict.WAITING:
            awaited = []
            answer.in_the_way = tuple(each for _count, each in in_the_way)
        else:
            answer.in_the_way = tuple(each for count, each in in_the_way if count in awaited)
        return awaited

    def _verdict(self, words: Sequence[str], hits: Hits) -> Verdict:
        if "refuse" in words:
            return Verdict.REFUSED
        if "wait, hits too" in words or ("wait" in words and "hit" not in words):
            return Verdict.WAITING
        return Verdict.HIT if "hit" in words or hits is Hits.ONLY else Verdict.ADMITTED

    def _can_wait(self, count: Count, level: Level, waited: int) -> bool:
        bound = count.bound
        patience = bound.limit.wait_milliseconds - waited
        if not bound.named.waits or patience <= 0 or bound.ask > bound.tank.capacity:
            return False
        wait = windows.fits_in(Level(level.spent, level.carry, 0, level.at), bound.tank, bound.ask)
        if wait is None and count.span is not None:
            wait = count.span.end - self.now
        return wait is not None and wait <= patience

    def _line(self, count: Count) -> dict[str, Waiter]:
        return self.lines.setdefault(KEYS.line(count.bound)[0], {})

    def _before(self, name: str, count: Count, came: int) -> dict[str, Waiter]:
        line = self._line(count) if count.bound.named.waits else {}
        me = (line[name].came, name) if name in line else (came, "~")
        return {other: waiter for other, waiter in line.items() if (waiter.came, other) < me}

    def _alive_before(self, name: str, count: Count, came: int) -> list[Waiter]:
        return [waiter for waiter in self._before(name, count, came).values() if waiter.until >= self.now]

    def _stand_in_line(self, name: str, count: Count, answer: Known, *, is_waiting: bool) -> None:
        line = self._line(count)
        for other, waiter in self._before(name, count, answer.came).items():
            if waiter.until < self.now:
                del line[other]
        line.pop(name, None)
        if is_waiting:
            line[name] = Waiter(answer.came, self.now + WAITER_LIFE_MILLISECONDS, count.bound.ask)

    def _take(self, answer: Known, counts: Sequence[Count]) -> None:
        answer.state, answer.at = "held", self.now
        is_hit = answer.verdict is Verdict.HIT
        for count in counts:
            how, takes = count.bound.taking, count.bound.takes
            spend = takes if how is Taking.SPEND and not is_hit else 0
            hold = takes - spend if not (is_hit and how is Taking.MISS) else 0
            before = self.level(count.key)
            if spend or hold:
                self.levels[count.key] = windows.take(before, count.bound.tank, self.now, spend=spend, hold=hold)
            answer.spent.append(spend)
            answer.held.append(self.level(count.key).held - before.held)

    # ends

    def end(self, settlement: Settlement) -> str:
        name, how = settlement.request_id, settlement.ending
        known = self.known.get(name)
        state = None if known is None else known.state
        if how is Ending.ORPHAN and state == "held" and self.leases.get(name, 0) > self.now:
            return "alive"
        if how is Ending.ORPHAN and state != "held":
            self.leases.pop(name, None)
            return "absent" if known is None else "ended"
        if state == "settled" or (how is Ending.RELEASE and state == "released"):
            return "ended"
        before = known or Known("nothing", at=self.now)
        age = max(0, self.now - settlement.ended_milliseconds)
        is_doubtful = how is Ending.SETTLE and known is None and may_be_forgotten(settlement, age)
        ended = Known({"settle": "settled", "release": "released", "orphan": "orphaned"}[how], self.now)
        for i, each in enumerate(settlement.shares):
            held = before.held[i] if state == "held" else 0
            has = before.spent[i] if state == "held" else before.booked[i] if state == "orphaned" else 0
            is_untouched = before.verdict is Verdict.HIT and held == has == 0
            takes = 0 if how is Ending.RELEASE or (how is Ending.ORPHAN and is_untouched) else each.taken
            ended.booked.append(takes)
            if not is_doubtful and not (each.until and self.now >= each.until) and (takes != has or held):
                self._book(each.key, self._tank(each), age, takes - has, held, before.at, is_held=state == "held")
        self.known[name] = ended
        self.leases.pop(name, None)
        return "corrected" if state == "orphaned" else ended.state

    def _tank(self, each: Any) -> Tank:  # noqa: ANN401  a share
        return windows.Tank(each.capacity, each.amount, each.period)

    def _book(self, key: str, tank: Tank, age: int, more: int, held: int, since: int, *, is_held: bool) -> None:
        level = self.level(key)
        then = windows.booking_time(level, self.now, age)
        gives_back = max(0, -more) if since > self.resets.get(key, -1) else 0
        level = windows.give_back(level, tank, then, spent=gives_back, since=since, held=held)
        if is_held:
            self.levels[key] = windows.take(level, tank, then, spend=max(0, more))
        else:
            self.levels[key] = windows.take_late(level, tank, then, max(0, more))

    # the rest

    def renew(self, names: Sequence[str]) -> int:
        held = [name for name in names if name in self.known and self.known[name].state == "held"]
        for name in held:
            self.leases[name] = self.now + LEASE
        return len(held)

    def reset(self, counts: Sequence[Count]) -> None:
        for count in counts:
            if count.key in self.levels:
                self.levels[count.key] = Level(0, 0, self.levels[count.key].held, self.now)
                self.resets[count.key] = self.now


@dataclass
class Sent:
    """What a gateway remembers of a request that it sent: its counts, as it asked, and since when it waits."""

    counts: tuple[Count, ...]
    hits: Hits
    came: int = 0
    is_admitted: bool = False


WAITED_FOR = [position for position, bound in enumerate(BOUND) if bound.named.waits]
SPENT = [position for position, bound in enumerate(BOUND) if bound.taking is Taking.SPEND]
POSITIONS = st.one_of(
    st.lists(st.sampled_from(range(len(BOUND))), unique=True, min_size=1, max_size=4),
    st.lists(st.sampled_from(WAITED_FOR), unique=True, min_size=1, max_size=2),
    st.lists(st.sampled_from(SPENT), unique=True, min_size=1, max_size=2),
)
AMOUNTS = st.lists(
    st.one_of(st.integers(0, 160), st.sampled_from([0, 1, 90, 100, 150, 170, 10**13])), min_size=4, max_size=4
)
PICK = st.integers(0, 9)
"""One of the requests that were sent last."""
AGES = st.one_of(st.just(0), st.integers(0, 20_000), st.integers(0, 100_000), st.just(4 * 86_400_000))


class Both(RuleBasedStateMachine):
    """Random sequences through the scripts and the model; they have to agree on every verdict and level."""

    server: ClassVar[StoreServer]
    steps: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(self.server.url, protocol=2)
        self.client.flushall()
        self.lua = Clockwork(self.client)
        self.gateway = SteppedReservations(self.lua, KEYS, ZoneInfo("Europe/Berlin"), lease_seconds=LEASE / 1_000)
        self.model = Model()
        self.sent: dict[str, Sent] = {}
        self.outbox: list[str] = []
        self.numbers = itertools.count()
        self.promised: dict[str, Tank] = {}
        self.is_honest = True

    def teardown(self) -> None:
        """Look once more: everything but the outbox has an end, and every end left its record once."""
        records = [fields[b"record"].decode() for _, fields in self.client.xrange(KEYS.outbox)]
        assert records == self.outbox
        endless = [key for key in self.client.scan_iter() if self.client.pttl(key) < 0]
        assert set(endless) <= {b"clock", KEYS.outbox.encode(), KEYS.audit.encode(), KEYS.cache.encode()}
        self.client.close()
        self.client.connection_pool.disconnect()

    @property
    def now(self) -> int:
        return self.model.now

    def _did(self, *words: str) -> None:
        self.steps.update(["steps", " ".join(words)])

    @initialize(offset=st.integers(0, 4 * HALF_DAY))
    def begin(self, offset: int) -> None:
        self._step_to(START + offset)

    @rule(
        milliseconds=st.one_of(
            st.integers(0, 3_000),
            st.integers(0, 100_000),
            st.integers(-5_000, 0),
            st.sampled_from([HALF_DAY, 14 * HALF_DAY, 62 * HALF_DAY]),
        )
    )
    def wait(self, milliseconds: int) -> None:
        """Let time pass, or set it back: what has outlived itself by then is gone, and nothing is lost by it."""
        self._did("clock step back" if milliseconds < 0 else "clock step")
        self._step_to(self.now + milliseconds)

    @rule(pick=PICK, off=st.sampled_from([-1, 0, 1]))
    def leap(self, pick: int, off: int) -> None:
        """Go to a moment at which something turns, or a millisecond beside it."""
        moments = [waiter.until for line in self.model.lines.values() for waiter in line.values()]
        moments += self.model.leases.values()
        ends = [count.span.end for count in self.gateway.counts(BOUND, self.now) if count.span is not None]
        moments += [end - back for end in ends for back in (0, MAX_WAIT)]
        for count in self.gateway.counts([BOUND[position] for position in WAITED_FOR], self.now):
            level = windows.leaked(self.model.level(count.key), count.bound.tank, self.now)
            if wait := windows.fits_in(Level(level.spent, level.carry, 0, level.at), count.bound.tank, count.bound.ask):
                moments += [self.now + wait, self.now + wait - count.bound.limit.wait_milliseconds]
        later = sorted(moment for moment in moments if moment > self.now)
        if later:
            self._did("leap")
            self._step_to(later[pick % len(later)] + off)

    def _step_to(self, now: int) -> None:
        self.model.now = now
        self.lua.at(now)
        for key in sorted(
            self.lua.expire(), key=lambda key: ":hold:" not in key
        ):  # what ends with its holds, after them
            self._did("expiry")
            self._nothing_is_lost_with(key)
            self.model.forget(key)

    def _nothing_is_lost_with(self, key: str) -> None:
        tank = next((b.tank for b in BOUND if key == KEYS.limit(b)), None)
        if tank is None or key not in self.model.levels:
            return
        level = windows.leaked(self.model.levels[key], tank, self.now)
        holders = [known for known in self.model.known.values() if known.state == "held"]
        assert level.spent == 0 or tank.amount == 0
        assert not holders or level.held == 0 or not any(self._holds(known, key) for known in holders)

    def _holds(self, known: Known, key: str) -> bool:
        counts = next(sent.counts for name, sent in self.sent.items() if self.model.known.get(name) is known)
        return any(count.key == key and held for count, held in zip(counts, known.held, strict=True))

    @rule(
        positions=POSITIONS,
        amounts=st.lists(AMOUNTS, min_size=1, max_size=5),
        hits=st.sampled_from(list(Hits)),
        late=st.integers(0, 30),
    )
    def admit(self, positions: list[int], amounts: list[list[int]], hits: Hits, late: int) -> None:
        """Admit some new requests to the same limits."""
        for each in amounts:
            bounds = [asking(BOUND[i], amount) for i, amount in zip(positions, each, strict=False)]
            sent = Sent(self.gateway.counts(bounds, self.now), hits)
            self._admit(f"r{next(self.numbers)}", sent, self.now - 1 if late == 0 else self.now + late)

    @rule(pick=PICK)
    def repeat(self, pick: int) -> None:
        """Send an admission again, as it was, or as one that waits does: where its limits count by now."""
        if name := self._picked(pick):
            self._repeat(name)

    def _repeat(self, name: str) -> None:
        sent = self.sent[name]
        if not sent.is_admitted:
            sent.counts = self.gateway.counts([count.bound for count in sent.counts], self.now)
        self._admit(name, sent, self.now)

    @rule(milliseconds=st.integers(0, 2_000))
    def wake(self, milliseconds: int) -> None:
        """Have all that wait ask again, after a pause."""
        waiting = [name for name, sent in self.sent.items() if sent.came]
        if waiting:
            self.wait(milliseconds)
        for name in waiting:
            self._repeat(name)

    @rule(ago=st.sampled_from([1, HALF_DAY, 2 * HALF_DAY, -2 * HALF_DAY]), positions=POSITIONS)
    def admit_elsewhen(self, ago: int, positions: list[int]) -> None:
        """Admit a request with the calendar windows of another time."""
        bounds = [BOUND[i] for i in positions]
        counts = self._counts_at(bounds, self.now - ago)
        self._admit(f"r{next(self.numbers)}", Sent(tuple(counts), Hits.NO), self.now)

    def _picked(self, pick: int) -> str | None:
        return list(self.sent)[-1 - pick % len(self.sent)] if self.sent else None

    def _counts_at(self, bounds: Sequence[BoundLimit], now: int) -> tuple[Count, ...]:
        counts = self.gateway.counts(bounds, now)
        self.gateway._spans.clear()  # noqa: SLF001  the next ones are of the present again
        return counts

    def _admit(self, name: str, sent: Sent, deadline: int) -> None:
        waited = max(0, self.now - sent.came // 1_000) if sent.came else 0
        reply = self.gateway.send_admit(
            name,
            sent.counts,
            hits=sent.hits,
            deadline=deadline,
            record=f"record of {name}".encode(),
            came_microseconds=sent.came,
            waited_milliseconds=waited,
        )
        holding = [each for each in sent.counts if each.bound.named.holds and not each.bound.is_observed]
        self.promised.update((each.key, each.bound.tank) for each in holding)
        reserved = read_admit(reply)
        expected = self.model.admit(name, sent.counts, sent.hits, deadline, sent.came, waited)
        self._did("admit", reserved.verdict)
        self._compare_notes(reserved, expected)
        self._compare(
            [count.key for count in sent.counts], [count.bound.tank for count in sent.counts], reserved.levels
        )
        if reserved.verdict in (Verdict.ADMITTED, Verdict.HIT, Verdict.WAITING):
            self.sent[name] = sent
            sent.came = reserved.came_microseconds if reserved.verdict is Verdict.WAITING else 0
            sent.is_admitted |= reserved.verdict is not Verdict.WAITING
        elif reserved.verdict is Verdict.REFUSED:
            self.sent.pop(name, None)  # its client has been told

    def _compare_notes(self, reserved: Reserved, expected: Known) -> None:
        assert reserved.verdict == expected.verdict
        assert reserved.now == self.now
        if reserved.levels:
            told = (reserved.observed, reserved.in_the_way, reserved.came_microseconds, reserved.epoch)
            assert told == (expected.observed, expected.in_the_way, expected.came, self.model.epoch)
        else:
            assert reserved.epoch is None

    def _compare(self, keys: Sequence[str], tanks: Sequence[Tank], levels: Sequence[Level]) -> None:
        for key, tank, level in zip(keys, tanks, levels, strict=bool(levels)):
            assert level == windows.leaked(self.model.level(key), tank, self.now), key

    @rule(
        pick=PICK,
        how=st.sampled_from([Ending.SETTLE, Ending.RELEASE, Ending.SETTLE, Ending.ORPHAN]),
        part=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1), st.floats(0, 3)),
        age=AGES,
        was_sent=st.booleans(),
    )
    def end(self, pick: int, how: Ending, part: float, age: int, *, was_sent: bool) -> None:
        """End a request in any way, also again, also above what it held; one that only waits is released."""
        name = self._picked(pick)
        if name is None:
            return
        sent = self.sent[name]
        bounds = [count.bound for count in sent.counts]
        taken = [bound.at_worst if how is Ending.ORPHAN else self._truth(bound, part) for bound in bounds]
        if not sent.is_admitted:
            how = Ending.RELEASE
        self._end(name, how, sent.counts, taken, age, was_sent=was_sent)

    def _truth(self, bound: BoundLimit, part: float) -> int:
        is_single = bound.taking is Taking.SPEND or bound.named.is_returned
        return bound.at_worst if is_single else round(bound.at_worst * part)

    @rule(name=st.sampled_from("uvwxyz"), positions=POSITIONS, amounts=AMOUNTS, age=AGES, was_sent=st.booleans())
    def settle_late(self, name: str, positions: list[int], amounts: list[int], age: int, *, was_sent: bool) -> None:
        """Tell of a request that was admitted and ended while the store was away."""
        bounds = [asking(BOUND[i], amount) for i, amount in zip(positions, amounts, strict=False)]
        counts = self._counts_at(bounds, self.now - age)
        self._end(name, Ending.SETTLE, counts, [bound.at_worst for bound in bounds], age, was_sent=was_sent)

    def _end(
        self, name: str, how: Ending, counts: Sequence[Count], taken: Sequence[int], age: int, *, was_sent: bool
    ) -> None:
        shares = tuple(share(count, amount) for count, amount in zip(counts, taken, strict=True))
        record = "" if how is Ending.RELEASE else f"{how} {name}"
        settlement = Settlement(name, how, record, shares, self.now - age, was_sent)
        self._note_honesty(settlement)
        send = self.gateway.send_spooled if age else self.gateway.send
        happened, levels = read_end(send(settlement))
        assert happened == self.model.end(settlement)
        self._did("end", happened)
        over = [each.until > 0 and self.now >= each.until for each in shares]
        alive = [(each, level) for each, level, is_over in zip(shares, levels, over, strict=True) if not is_over]
        if happened in ("settled", "corrected", "orphaned", "released"):
            self.outbox += [record] if record else []
        tanks = [self.model._tank(each) for each, _level in alive]  # noqa: SLF001
        self._compare([each.key for each, _level in alive], tanks, [level for _each, level in alive])

    def _note_honesty(self, settlement: Settlement) -> None:
        """Note whether everybody has told the truth in time, and has taken no more than was held."""
        known = self.model.known.get(settlement.request_id)
        if settlement.ending is Ending.RELEASE or (known is not None and known.state == "settled"):
            return
        booked = [] if known is None or known.state != "held" else zip(known.held, known.spent, strict=True)
        most = [held + spent for held, spent in booked]
        promised = [each.key in self.promised for each in settlement.shares]
        taken = [
            each.taken if is_promised else 0 for each, is_promised in zip(settlement.shares, promised, strict=True)
        ]
        is_untouched = known is not None and settlement.ending is Ending.ORPHAN
        self.is_honest &= is_untouched or (bool(most) and all(n <= m for n, m in zip(taken, most, strict=True)))

    @invariant()
    def nothing_passes_its_limit(self) -> None:
        """Stay within all limits with what is spent and held, but those that are observed or hold nothing."""
        for key, level in self.model.levels.items() if self.is_honest else ():
            tank = self.promised.get(key)
            assert tank is None or windows.fits(level, tank, 0, level.at), key

    @rule(milliseconds=st.sampled_from([0, LEASE, LEASE, 2 * LEASE]), at_most=st.integers(1, 5))
    def sweep(self, milliseconds: int, at_most: int) -> None:
        """Settle those whose lease is over at their worst, the oldest first, after a pause."""
        if milliseconds:
            self.wait(milliseconds)
        found = [name.decode() for name in self.lua.run("expired", [KEYS.leases], [at_most])]
        over = sorted((lease, name) for name, lease in self.model.leases.items() if lease <= self.now)
        self._did("sweep")
        assert found == [name for _lease, name in over[:at_most]]
        for name in found:
            counts = self.sent[name].counts
            self._end(name, Ending.ORPHAN, counts, [count.bound.at_worst for count in counts], 0, was_sent=False)

    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        """Let a request that waits leave."""
        waiting = [name for name, sent in self.sent.items() if sent.came]
        if waiting:
            self._did("leave")
            name = waiting[pick % len(waiting)]
            counts = self.sent.pop(name).counts
            self.gateway.send_leave(name, self.gateway.lines(counts))
            for count in counts:
                self.model.lines.get(KEYS.line(count.bound)[0], {}).pop(name, None)

    @rule(grows=st.integers(1, 10**9))
    def purge(self, grows: int) -> None:
        """Have the epoch of the cache grow: every admission tells the present one, repeated ones too."""
        self._did("purge")
        self.model.epoch = self.client.hincrby(KEYS.cache, "epoch", grows)

    @rule(newest=st.integers(1, 9))
    def renew(self, newest: int) -> None:
        """Keep some requests alive, with what they hold."""
        names = list(self.sent)[-newest:]
        counts = [count for name in names for count in self.sent[name].counts]
        self._did("renew")
        assert self.gateway.renew_now(names, counts) == self.model.renew(names)

    @rule(positions=POSITIONS)
    def look(self, positions: list[int]) -> None:
        """Look at limits: it tells the same, and changes nothing."""
        counts = self.gateway.counts([BOUND[i] for i in positions], self.now)
        self._did("look")
        before = self._contents()
        reply = self.lua.run("look", [count.key for count in counts], window_arguments(counts))
        assert reply[0] == b"seen"
        assert self._contents() == before
        self._compare([count.key for count in counts], [count.bound.tank for count in counts], read_levels(reply))

    def _contents(self) -> dict[bytes, tuple[bytes, int]]:
        """Return everything that is stored, with when it ends."""
        keys = list(self.client.scan_iter())
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            pipeline.dump(key)
            pipeline.execute_command("PEXPIRETIME", key)
        told = iter(pipeline.execute())
        return dict(zip(keys, zip(told, told, strict=True), strict=True))

    @rule(positions=POSITIONS, number=st.integers(0, 10**9))
    def reset(self, positions: list[int], number: int) -> None:
        """Have limits forget what they have spent."""
        counts = self.gateway.counts([BOUND[i] for i in positions], self.now)
        tanks, keys = [count.bound.tank for count in counts], [count.key for count in counts]
        arguments = ["{", 100, 60_000, *window_arguments(counts)]
        if self.client.exists(KEYS.audited(str(number))):
            return
        self._did("reset")
        reply = self.lua.run("reset", [KEYS.audit, KEYS.audited(str(number)), *keys], arguments)
        assert reply[0] == b"reset"
        self._compare(keys, tanks, read_levels(reply[:-1]))
        self.model.reset(counts)


def test_scripts_and_arithmetic_agree_at_every_step(valkey: StoreServer) -> None:
    steps: Counter[str] = Counter()
    machine = type("Agreement", (Both,), {"server": valkey, "steps": steps})
    tried = settings(
        max_examples=STEPS // STEPS_IN_A_SEQUENCE,
        stateful_step_count=STEPS_IN_A_SEQUENCE,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=tried)
    print(*(f"{number:7} {what}" for what, number in steps.most_common()), sep="\n")  # noqa: T201  with pytest -s
    assert steps["steps"] > STEPS // 2


# ---------------------------------------------------------------- what chance seldom finds
ONE_OF = {(bound.limit.of, bound.limit.per, bound.named.waits): i for i, bound in enumerate(BOUND)}
PLACES = ONE_OF["concurrency", None, True]
WEEK = ONE_OF["requests", "week", True]
MINUTE = ONE_OF["requests", "minute", False]
DAY = ONE_OF["tokens", "day", False]


@pytest.fixture
def steered(valkey: StoreServer) -> Iterator[Both]:
    """Return the machine for a test that takes its steps itself; each is compared as ever."""
    machine = type("Steered", (Both,), {"server": valkey, "steps": Counter()})()
    machine.begin(0)
    yield machine
    machine.teardown()


def verdict_of(machine: Both, name: str, position: int) -> Verdict:
    """Admit one request to one limit, and return the verdict that scripts and model agreed on."""
    before = Counter(machine.steps)
    sent = Sent(machine.gateway.counts([asking(BOUND[position], 5)], machine.now), Hits.NO)
    machine._admit(name, sent, machine.now)  # noqa: SLF001
    return next(Verdict(word.removeprefix("admit ")) for word in machine.steps - before if word.startswith("admit "))


def end_of(machine: Both, name: str, how: Ending) -> None:
    """End a request that was admitted, with its worst case as the truth."""
    counts = machine.sent[name].counts
    machine._end(name, how, counts, [count.bound.at_worst for count in counts], 0, was_sent=False)  # noqa: SLF001


@pytest.mark.parametrize(("more", "verdict"), [(0, Verdict.WAITING), (1, Verdict.ADMITTED)], ids=["as long", "longer"])
def test_who_waits_is_alive_as_long_as_is_said(steered: Both, more: int, verdict: Verdict) -> None:
    told = [verdict_of(steered, name, PLACES) for name in "abc"]
    assert told == [Verdict.ADMITTED, Verdict.ADMITTED, Verdict.WAITING]
    end_of(steered, "a", Ending.SETTLE)
    steered.wait(WAITER_LIFE_MILLISECONDS + more)
    assert verdict_of(steered, "d", PLACES) is verdict


@pytest.mark.parametrize(
    ("early", "verdict"), [(0, Verdict.WAITING), (1, Verdict.REFUSED)], ids=["in time", "too early"]
)
def test_who_has_patience_enough_waits_for_the_next_window(steered: Both, early: int, verdict: Verdict) -> None:
    span = steered.gateway.counts([BOUND[WEEK]], steered.now)[0].span
    assert span is not None
    assert [verdict_of(steered, name, WEEK) for name in "abc"] == [Verdict.ADMITTED] * 3
    steered.wait(span.end - MAX_WAIT - early - steered.now)
    assert verdict_of(steered, "d", WEEK) is verdict


@pytest.mark.parametrize(("early", "is_booked"), [(0, False), (1, True)], ids=["at its end", "before its end"])
def test_a_calendar_window_is_not_touched_from_its_end_on(steered: Both, early: int, *, is_booked: bool) -> None:
    count = steered.gateway.counts([BOUND[DAY]], steered.now)[0]
    assert count.span is not None
    verdict_of(steered, "a", DAY)
    steered.wait(count.span.end - early - steered.now)
    end_of(steered, "a", Ending.SETTLE)
    assert steered.client.hget(count.key, "spent") == (b"5" if is_booked else b"0")


@pytest.mark.parametrize("passes", [0, 1], ids=["at once", "a moment later"])
def test_what_was_reset_is_not_given_back_as_well(steered: Both, passes: int) -> None:
    for name in "ab":
        verdict_of(steered, name, MINUTE)
    steered.wait(passes)
    steered.reset([MINUTE], 1)
    steered.wait(passes)
    verdict_of(steered, "c", MINUTE)
    end_of(steered, "a", Ending.RELEASE)
    steered.look([MINUTE])
    assert windows.leaked(steered.model.level(KEYS.limit(BOUND[MINUTE])), BOUND[MINUTE].tank, steered.now).spent == 1
