from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from policies import windows
from policies.windows import Level, Rolling, Tank, Unwindowed, make_tank
from proxy.store.reservations import HOLD_LIFE_MILLISECONDS, Ending, Settlement, may_be_forgotten
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stores import StoreServer

START = 4_000_000_000_000
"""The test's clock begins far ahead of the machine's, so that no calendar window ends while the test runs."""
WINDOW = 40_000
"""Length of the test's calendar windows (ms)."""
GRACE = 90_000
LEASE = 30_000
TIME = b"redis.call('TIME')"


class Clockwork:
    """The scripts on a real server, at a time that the test sets: they read it from a key instead of `TIME`."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.scripts = {}
        for name in ("admit", "settle", "look", "renew", "expired"):
            source = Script(name).source
            assert source.count(TIME) == 1
            self.scripts[name] = client.register_script(source.replace(TIME, b"redis.call('HMGET', 'clock', 's', 'u')"))

    def at(self, now: int) -> None:
        self.client.hset("clock", mapping={"s": now // 1000, "u": now % 1000 * 1000})

    def run(self, name: str, keys: Sequence[str], arguments: Sequence[object]) -> Any:  # noqa: ANN401  a reply
        return self.scripts[name](keys=keys, args=list(arguments))


@dataclass(frozen=True)
class Row:
    """One limit of the test: how it is taken, and its tank; `is_calendar` ones begin anew every WINDOW.

    Those that do not hold want room for one, and take it all in the end.
    """

    name: str
    how: str
    tank: Tank
    is_calendar: bool = False
    mode: str = "enforce"
    holds: bool = True

    def needs(self, amount: int) -> int:
        return amount if self.holds else 1

    def takes(self, amount: int) -> int:
        return amount if self.holds else 0

    @property
    def is_single(self) -> bool:
        return self.how == "spend" or self.name == "concurrency"

    def span(self, now: int) -> tuple[int, int]:
        start = now - now % WINDOW
        return (start, start + WINDOW) if self.is_calendar else (0, 0)

    def key(self, now: int) -> str:
        return f"limit:{self.name}:{self.span(now)[0]}"


ROWS = (
    Row("five a minute", "spend", make_tank(Rolling(60_000), 5, None)),
    Row("burst of two", "spend", make_tank(Rolling(1_000), 3, 2)),
    Row("tokens", "miss", make_tank(Rolling(90_000), 100, 150)),
    Row("odd tokens", "miss", make_tank(Rolling(604_800_000), 999_999_937, 977)),
    Row("hits too", "hold", make_tank(Rolling(10_000), 200, None)),
    Row("none", "miss", make_tank(Rolling(60_000), 0, None)),
    Row("concurrency", "hold", make_tank(Unwindowed(), 3, None)),
    Row("day of requests", "spend", Tank(9), is_calendar=True),
    Row("day of tokens", "miss", Tank(300), is_calendar=True),
    Row("observed requests", "spend", make_tank(Rolling(60_000), 3, None), mode="observe"),
    Row("observed tokens", "miss", make_tank(Rolling(90_000), 100, None), mode="observe"),
    Row("observed, hits too", "hold", Tank(90), is_calendar=True, mode="observe"),
    Row("settled after", "miss", make_tank(Rolling(90_000), 100, None), holds=False),
    Row("settled after, hits too", "hold", Tank(200), is_calendar=True, holds=False),
    Row("observed, settled after", "miss", Tank(80), is_calendar=True, mode="observe", holds=False),
)


@dataclass
class Hold:
    """What the reference remembers of one request."""

    state: str
    verdict: str = ""
    at: int = 0
    lease: int = 0
    held: list[int] = field(default_factory=list)
    spent: list[int] = field(default_factory=list)
    takes: list[tuple[str, Row, int]] = field(default_factory=list)
    """Key, row and end of the calendar window of each limit."""
    asks: list[int] = field(default_factory=list)
    observed: str = ""


class Reference:
    """The scripts in pure Python, over `policies.windows`."""

    def __init__(self) -> None:
        self.levels: dict[str, Level] = {}
        self.holds: dict[str, Hold] = {}
        self.outbox: list[str] = []

    def level(self, key: str) -> Level:
        return self.levels.get(key, Level())

    def admit(self, name: str, rows: Sequence[Row], asks: list[int], hits: str, now: int) -> tuple[str, str]:
        if name in self.holds:
            hold = self.holds[name]
            return (hold.verdict, hold.observed) if hold.state == "held" else ("ended", "")
        verdict, observed = "hit" if hits == "only" else "admitted", []
        for number, (row, ask) in enumerate(zip(rows, asks, strict=True), 1):
            level = windows.leaked(self.level(row.key(now)), row.tank, now)
            if (hits == "only" and row.how == "miss") or windows.fits(level, row.tank, row.needs(ask), now):
                continue
            if row.mode == "observe":
                observed += [number, windows.left(level, row.tank)]
            elif hits != "maybe" or row.how != "miss":
                return "refused", ""
            else:
                verdict = "hit"
        hold = Hold("held", verdict, now, now + LEASE, asks=asks, observed=" ".join(map(str, observed)))
        for row, ask in zip(rows, asks, strict=True):
            spends = verdict == "admitted" and row.how == "spend"
            holds = not spends and (verdict == "admitted" or row.how != "miss")
            hold.spent.append(row.takes(ask) if spends else 0)
            hold.held.append(row.takes(ask) if holds else 0)
            hold.takes.append((row.key(now), row, row.span(now)[1]))
            if hold.spent[-1] or hold.held[-1]:  # a level that nothing is taken from stays as it is
                level, key = self.level(row.key(now)), row.key(now)
                self.levels[key] = windows.take(level, row.tank, now, spend=hold.spent[-1], hold=hold.held[-1])
                hold.held[-1] = self.levels[key].held - level.held
        self.holds[name] = hold
        return verdict, hold.observed

    def end(self, name: str, how: str, taken: list[int], hold: Hold, now: int, age: int) -> str:
        known = self.holds.get(name)
        if how == "orphan" and (known is None or known.state != "held" or known.lease > now):
            return "absent" if known is None else "alive" if known.state == "held" else "ended"
        if known is not None and (known.state == "settled" or (how == "release" and known.state != "held")):
            return "ended"
        before = known or Hold("none", at=now, held=[0] * len(taken), spent=[0] * len(taken))
        if before.state == "released":
            before = replace(before, held=[0] * len(taken), spent=[0] * len(taken))
        booked = []
        for i, (key, row, until) in enumerate(hold.takes):
            is_untouched = before.verdict == "hit" and before.spent[i] == before.held[i] == 0
            takes = {"settle": taken[i], "release": 0, "orphan": 0 if is_untouched else taken[i]}[how]
            booked.append(takes)
            if until and now >= until:
                continue
            level, more = self.level(key), takes - before.spent[i]
            if more == before.held[i] == 0:
                continue
            then = windows.booking_time(level, now, age)
            level = windows.give_back(level, row.tank, then, spent=max(0, -more), since=before.at, held=before.held[i])
            if before.state == "held":
                self.levels[key] = windows.take(level, row.tank, then, spend=max(0, more))
            else:
                self.levels[key] = windows.take_late(level, row.tank, then, max(0, more))
        ended = {"settle": "settled", "release": "released", "orphan": "orphaned"}[how]
        self.holds[name] = replace(before, state=ended, at=now, spent=booked, held=[0] * len(booked), takes=hold.takes)
        if how != "release":
            self.outbox.append(f"{how} {name}")
        return "corrected" if before.state == "orphaned" else ended


class Both(RuleBasedStateMachine):
    """Random sequences through the scripts and the reference; they have to agree on every verdict and level."""

    server: StoreServer

    def __init__(self) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(self.server.url, protocol=2)
        self.client.flushall()
        self.lua = Clockwork(self.client)
        self.python = Reference()
        self.now = START
        self.asked: dict[str, tuple[tuple[Row, ...], list[int], str]] = {}
        self.admitted: dict[str, Hold] = {}
        self.is_honest = True

    def teardown(self) -> None:
        self.client.close()
        self.client.connection_pool.disconnect()

    @initialize(offset=st.integers(0, 2 * WINDOW))
    def begin(self, offset: int) -> None:
        self.now += offset
        self.lua.at(self.now)

    @rule(milliseconds=st.one_of(st.integers(0, 3_000), st.integers(0, 100_000), st.just(7 * 86_400_000)))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.lua.at(self.now)

    @rule(
        name=st.sampled_from("abcdefghijkl"),
        rows=st.lists(st.sampled_from(ROWS), unique=True, max_size=4).map(tuple),
        amounts=st.lists(st.integers(0, 160), min_size=4, max_size=4),
        hits=st.sampled_from(["no", "maybe", "only"]),
    )
    def admit(self, name: str, rows: tuple[Row, ...], amounts: list[int], hits: str) -> None:
        """Admit a request; one that was admitted before repeats what it asked then, as a resent script does."""
        asks = [1 if row.is_single else amount for row, amount in zip(rows, amounts, strict=False)]
        rows, asks, hits = self.asked.get(name, (rows, asks, hits))
        if name in self.admitted and any(row.key(self.now) not in self._keys(name) for row in rows):
            return  # in another calendar window the gateway would not resend
        arguments: list[object] = [name, self.now, LEASE, 10**9, GRACE, hits, f"record of {name}", "limits"]
        for row, ask in zip(rows, asks, strict=True):
            arguments += [row.how, row.mode, row.tank.capacity, row.tank.amount, row.tank.period]
            arguments += [row.needs(ask), row.takes(ask), *row.span(self.now)]
        reply = self.lua.run("admit", [f"hold:{name}", "leases", *(row.key(self.now) for row in rows)], arguments)
        observed = "" if reply[0] == b"ended" else reply[-1].decode()
        assert (reply[0].decode(), observed) == self.python.admit(name, rows, asks, hits, self.now)
        if reply[0] in (b"admitted", b"hit"):
            self.asked[name] = (rows, asks, hits)
            self.admitted.setdefault(name, replace(self.python.holds[name]))
        if reply[0] != b"ended":
            self._compare(reply, [(row.key(self.now), row) for row in rows])

    def _keys(self, name: str) -> list[str]:
        return [key for key, _row, _until in self.admitted[name].takes]

    @rule(
        name=st.sampled_from("abcdefghijkl"),
        how=st.sampled_from(["settle", "settle", "release", "orphan"]),
        share=st.one_of(st.floats(0, 1), st.floats(0, 3)),
        age=st.one_of(st.just(0), st.integers(0, 20_000)),
    )
    def end(self, name: str, how: str, share: float, age: int) -> None:
        """End a request in any way, also again, also above what it held."""
        hold = self.admitted.get(name)
        if hold is None:
            return
        asks = hold.asks
        taken = asks if how == "orphan" else [round(ask * share) for ask in asks]
        taken = [0 if row.name == "concurrency" else n for (_, row, _), n in zip(hold.takes, taken, strict=True)]
        taken = [1 if row.how == "spend" else n for (_, row, _), n in zip(hold.takes, taken, strict=True)]
        self.is_honest &= all(n <= ask for n, ask in zip(taken, asks, strict=True)) and hold.verdict == "admitted"
        self.is_honest &= self.python.holds[name].state == "held"
        self._end(name, how, taken, hold, age)

    @rule(
        name=st.sampled_from("uvwxyz"),
        rows=st.lists(st.sampled_from(ROWS), unique=True, max_size=4).map(tuple),
        amounts=st.lists(st.integers(0, 160), min_size=4, max_size=4),
        age=st.one_of(st.integers(0, 3_000), st.integers(0, 100_000)),
    )
    def settle_late(self, name: str, rows: tuple[Row, ...], amounts: list[int], age: int) -> None:
        """Tell of a request that was admitted and ended while the store was away."""
        takes = [(row.key(self.now - age), row, row.span(self.now - age)[1]) for row in rows]
        taken = [0 if row.name == "concurrency" else amount for row, amount in zip(rows, amounts, strict=False)]
        self.is_honest = False
        self._end(name, "settle", taken, Hold("none", takes=takes), age)

    @rule(rows=st.lists(st.sampled_from(ROWS), unique=True, max_size=4).map(tuple))
    def look(self, rows: tuple[Row, ...]) -> None:
        """Look at limits: it tells the same, and leaves no trace."""
        before = self._contents()
        arguments = [n for row in rows for n in (row.tank.amount, row.tank.period, *row.span(self.now))]
        reply = self.lua.run("look", [row.key(self.now) for row in rows], arguments)
        assert reply[0] == b"seen"
        self._compare(reply, [(row.key(self.now), row) for row in rows])
        assert self._contents() == before

    def _contents(self) -> dict[bytes, tuple[bytes, int]]:
        """Return everything that is stored, with when it ends."""
        return {
            key: (self.client.dump(key), self.client.execute_command("PEXPIRETIME", key))
            for key in self.client.scan_iter()
        }

    def _end(self, name: str, how: str, taken: list[int], hold: Hold, age: int) -> None:
        record = "" if how == "release" else f"{how} {name}"
        arguments: list[object] = [name, how, 600_000, record, GRACE, age, "book"]
        for (_key, row, until), n in zip(hold.takes, taken, strict=True):
            arguments += [row.tank.capacity, row.tank.amount, row.tank.period, n, until]
        keys = [f"hold:{name}", "leases", "outbox", *(key for key, _, _ in hold.takes)]
        reply = self.lua.run("settle", keys, arguments)
        happened = self.python.end(name, how, taken, hold, self.now, age)
        assert reply[0].decode() == happened
        if happened in ("settled", "corrected", "released", "orphaned"):
            self._compare(reply, [(key, row) for key, row, until in hold.takes if not until or self.now < until], hold)

    def _compare(self, reply: list[Any], takes: list[tuple[str, Row]], hold: Hold | None = None) -> None:
        order = [key for key, _ in takes] if hold is None else [key for key, _, _ in hold.takes]
        assert reply[1] == self.now
        for key, row in takes:
            index = 2 + 3 * order.index(key)
            level = windows.leaked(self.python.level(key), row.tank, self.now)
            assert reply[index : index + 3] == [level.spent, level.carry, level.held], (key, level)

    @invariant()
    def nothing_is_passed(self) -> None:
        """Stay within each limit with what is spent and held, as long as nobody took more than was held.

        Limits that are observed, or hold nothing, promise nothing.
        """
        for key, level in self.python.levels.items() if self.is_honest else ():
            row = next(row for row in ROWS if f"limit:{row.name}:" in key)
            assert row.mode == "observe" or not row.holds or windows.fits(level, row.tank, 0, level.at)

    @invariant()
    def every_key_but_the_outbox_has_an_end(self) -> None:
        for key in self.client.scan_iter():
            assert key in (b"outbox", b"clock") or self.client.pttl(key) > 0, key

    @invariant()
    def every_end_left_its_record_once(self) -> None:
        records = [fields[b"record"].decode() for _, fields in self.client.xrange("outbox")]
        assert records == self.python.outbox


def test_scripts_and_arithmetic_agree_on_every_sequence(valkey: StoreServer) -> None:
    machine = type("Agreement", (Both,), {"server": valkey})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


@pytest.fixture
def clockwork(any_store: StoreServer) -> Any:  # noqa: ANN401  a generator of Clockwork
    with any_store.client() as client:
        lua = Clockwork(client)
        lua.at(START)
        yield lua


def admit_one(lua: Clockwork, *, deadline: int = START, span: tuple[int, int] = (0, 0)) -> list[Any]:
    arguments = ["r", deadline, LEASE, 10**9, GRACE, "no", "{}", "[]", "spend", "enforce", 5, 1, 12_000, 1, 1, *span]
    return lua.run("admit", ["hold", "leases", "limit"], arguments)


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        pytest.param({"deadline": START - 1}, b"late", id="after its deadline an admission takes nothing"),
        pytest.param({"span": (START + 1, START + 9)}, b"moved", id="before its calendar window likewise"),
        pytest.param({"span": (START - 9, START)}, b"moved", id="at the end of its calendar window likewise"),
    ],
)
def test_an_admission_out_of_time_leaves_nothing(clockwork: Clockwork, case: dict[str, Any], verdict: bytes) -> None:
    assert admit_one(clockwork, **case) == [verdict, START]
    assert clockwork.client.keys() == [b"clock"]


@pytest.mark.parametrize("odd", ["leases", "outbox", "limit"])
def test_a_key_of_the_wrong_type_changes_nothing_until_it_is_mended(clockwork: Clockwork, odd: str) -> None:
    keys = ["hold", "leases", "outbox", "limit"]
    end = ["r", "settle", 600_000, "{}", GRACE, 0, "book", 5, 1, 12_000, 1, 0]
    clockwork.client.set(odd, "junk")
    for call in (lambda: clockwork.run("settle", keys, end), lambda: admit_one(clockwork)):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call()
        if odd == "outbox":
            break  # an admission has no need of it
    assert set(clockwork.client.keys()) == {b"clock", odd.encode()}
    clockwork.client.delete(odd)
    assert clockwork.run("settle", keys, end) == [b"settled", START, 1, 0, 0]
    assert clockwork.client.xlen("outbox") == 1


def test_a_release_that_overtakes_its_admission_keeps_it_out(clockwork: Clockwork) -> None:
    end = ["r", "release", 600_000, "", GRACE, 0, "book", 5, 1, 12_000, 0, 0]
    clockwork.run("settle", ["hold", "leases", "outbox", "limit"], end)
    assert admit_one(clockwork)[0] == b"ended"
    assert not clockwork.client.exists("limit", "leases", "outbox")


@pytest.mark.parametrize(
    ("is_held", "doubt", "spent"),
    [
        pytest.param(True, "skip", 1, id="what is held is settled, whatever the doubt"),
        pytest.param(False, "book", 1, id="what was admitted without the store is booked"),
        pytest.param(False, "skip", 0, id="what may have been booked long ago is not booked again"),
    ],
)
def test_a_truth_that_comes_late(clockwork: Clockwork, is_held: bool, doubt: str, spent: int) -> None:  # noqa: FBT001
    if is_held:
        admit_one(clockwork)
    end = ["r", "settle", 600_000, "{}", GRACE, 0, doubt, 5, 1, 12_000, 1, 0]
    told = [clockwork.run("settle", ["hold", "leases", "outbox", "limit"], end) for _ in range(2)]
    assert told == [[b"settled", START, spent, 0, 0], [b"ended", START, spent, 0, 0]]
    assert clockwork.client.xlen("outbox") == 1


@pytest.mark.parametrize(
    ("was_sent", "age", "may_be"),
    [
        pytest.param(True, 60_000, False, id="sent, and its tombstone would be there"),
        pytest.param(True, 700_000, True, id="sent, and its tombstone may be gone"),
        pytest.param(False, 700_000, False, id="never sent before the spool told it"),
        pytest.param(False, 2 * HOLD_LIFE_MILLISECONDS, True, id="so old that what the spool told may be forgotten"),
    ],
)
def test_an_end_that_may_be_forgotten(was_sent: bool, age: int, may_be: bool) -> None:  # noqa: FBT001
    assert may_be_forgotten(Settlement("r", Ending.SETTLE, "", (), 0, was_sent), age) is may_be


@pytest.mark.parametrize(
    ("ends", "level"),
    [
        pytest.param([(18_000, 1)] * 3, [2, 6_000, 0], id="three that ended together refill once"),
        pytest.param([(30_000, 9), (30_000, 9)], [3, 6_000, 0], id="they fill the tank to its capacity"),
    ],
)
def test_what_was_admitted_without_the_store_and_is_told_late(
    clockwork: Clockwork, ends: list[tuple[int, int]], level: list[int]
) -> None:
    for number, (age, taken) in enumerate(ends):
        end = [f"r{number}", "settle", 600_000, "{}", GRACE, age, "book", 5, 1, 12_000, taken, 0]
        told = clockwork.run("settle", [f"hold:{number}", "leases", "outbox", "limit"], end)
    assert told == [b"settled", START, *level]


def test_a_hold_that_stands_is_exchanged_for_a_truth_that_comes_late(clockwork: Clockwork) -> None:
    arguments = ["r", START, LEASE, 10**9, GRACE, "no", "{}", "[]", "hold", "enforce", 5, 1, 12_000, 4, 4, 0, 0]
    clockwork.run("admit", ["hold", "leases", "limit"], arguments)
    clockwork.at(START + 60_000)
    end = ["r", "settle", 600_000, "{}", GRACE, 12_000, "book", 5, 1, 12_000, 3, 0]
    told = clockwork.run("settle", ["hold", "leases", "outbox", "limit"], end)
    assert told == [b"settled", START + 60_000, 2, 0, 0]  # held for 48 s, and refilling since


def test_an_observed_limit_takes_what_does_not_fit_and_gives_back_what_it_took(clockwork: Clockwork) -> None:
    """Asks that no limit tells apart are held up to what a level can be: 2^52 parts of a week."""
    tank = make_tank(Rolling(604_800_000), 11, None)
    most = windows.MAX_LEVEL // tank.period
    ask = windows.MAX_COUNT + 1
    head = [START, LEASE, 10**9, GRACE, "no", "{}", "[]"]
    replies = [
        clockwork.run(
            "admit",
            [f"hold:{number}", "leases", "limit"],
            [number, *head, "miss", "observe", tank.capacity, tank.amount, tank.period, ask, ask, 0, 0],
        )
        for number in (1, 2)
    ]
    assert replies == [[b"admitted", START, 0, 0, most, b"1 11"], [b"admitted", START, 0, 0, most, b"1 0"]]
    held = windows.take(Level(at=START), tank, START, hold=ask)
    assert held == windows.take(held, tank, START, hold=ask) == Level(0, 0, most, START)
    end = [1, "settle", 600_000, "{}", GRACE, 0, "book", tank.capacity, tank.amount, tank.period, 3, 0]
    assert clockwork.run("settle", ["hold:1", "leases", "outbox", "limit"], end) == [b"settled", START, 3, 0, 0]


@pytest.mark.parametrize(
    ("hits", "verdict", "spent"),
    [
        pytest.param("no", b"admitted", 9, id="at its worst case, though nothing was held"),
        pytest.param("only", b"hit", 0, id="but not where it was admitted for a hit only"),
    ],
)
def test_an_orphan_of_a_limit_that_holds_nothing(
    clockwork: Clockwork,
    hits: str,
    verdict: bytes,
    spent: int,
) -> None:
    arguments = ["r", START, LEASE, 10**9, GRACE, hits, "{}", "[]", "miss", "enforce", 5, 1, 12_000, 1, 0, 0, 0]
    told = clockwork.run("admit", ["hold", "leases", "limit"], arguments)
    assert told == [verdict, START, 0, 0, 0, b""]
    clockwork.at(START + LEASE)
    end = ["r", "orphan", 600_000, "{}", GRACE, 0, "book", 5, 1, 12_000, 9, 0]
    told = clockwork.run("settle", ["hold", "leases", "outbox", "limit"], end)
    assert told == [b"orphaned", START + LEASE, spent, 0, 0]


def test_renewing_extends_the_held_and_shortens_nothing(clockwork: Clockwork) -> None:
    admit_one(clockwork)
    clockwork.client.hset("gone", mapping={"state": "settled"})
    clockwork.client.pexpire("limit", 10**8)
    clockwork.at(START + 1_000)
    arguments = [LEASE, 10**9, 2, "r", "other", 1_000]
    assert clockwork.run("renew", ["leases", "hold", "gone", "limit"], arguments) == [1, START + 1_000]
    assert clockwork.client.zrange("leases", 0, -1, withscores=True) == [(b"r", START + 1_000 + LEASE)]
    assert clockwork.client.pttl("limit") > 10**7


def test_expired_leases_are_found_oldest_first_and_bounded(clockwork: Clockwork) -> None:
    clockwork.client.zadd("leases", {"c": START, "a": START - 9, "b": START - 5, "d": START + 1})
    assert clockwork.run("expired", ["leases"], [2]) == [b"a", b"b"]
    assert clockwork.run("expired", ["leases"], [9]) == [b"a", b"b", b"c"]
