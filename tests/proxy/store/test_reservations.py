from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from clockwork import Clockwork

from policies import windows
from policies.windows import Level, Rolling, make_tank
from proxy.store.reservations import (
    HOLD_LIFE_MILLISECONDS,
    Ending,
    Settlement,
    Verdict,
    may_be_forgotten,
    read_admit,
)

if TYPE_CHECKING:
    from stores import StoreServer

START = 4_000_000_000_000
"""The test's clock begins far ahead of the machine's, so that no calendar window ends while the test runs."""
GRACE = 90_000
LEASE = 30_000


@pytest.fixture
def clockwork(any_store: StoreServer) -> Any:  # noqa: ANN401  a generator of Clockwork
    with any_store.client() as client:
        lua = Clockwork(client)
        lua.at(START)
        yield lua


def notes(observed: str = "", in_the_way: str = "", came: int = START, epoch: str = "0") -> bytes:
    """Return what an admission notes: observed limits, those in the way, when the request came, the cache's epoch."""
    return f"{observed};{in_the_way};{came * 1_000};{epoch}".encode()


def admit_one(
    lua: Clockwork,
    *,
    request: str = "r",
    deadline: int = START,
    hits: str = "no",
    span: tuple[int, int] = (0, 0),
    taken: str = "spend",
    ask: int = 1,
    patience: int = 0,
) -> list[Any]:
    arguments: list[object] = [request, deadline, LEASE, 10**9, GRACE, hits, "{}", "[]", 0, 3_000]
    arguments += [taken, "wait" if patience else "enforce", 5, 1, 12_000, ask, ask, *span, patience]
    hold = "hold" if request == "r" else f"hold:{request}"
    line = ["line", "waiters"] if patience else []
    return lua.run("admit", [hold, "leases", "cache", "limit", *line], arguments)


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


@pytest.mark.parametrize(
    ("command", "epoch"),
    [
        pytest.param(("HSET", "cache", "epoch", "1796025469842"), 1_796_025_469_842, id="as it stands there"),
        pytest.param(("HSET", "cache", "purged:all", "5"), 0, id="none"),
        pytest.param(("PING",), 0, id="nothing at all"),
        pytest.param(("SET", "cache", "junk"), None, id="a key of the wrong type"),
        pytest.param(("HSET", "cache", "epoch", "1;2 x"), None, id="no number"),
        pytest.param(("HSET", "cache", "epoch", "9" * 5_000), None, id="more than any number"),
    ],
)
def test_an_admission_tells_the_epoch_of_the_cache_and_depends_on_nothing_there(
    clockwork: Clockwork, command: tuple[str, ...], epoch: int | None
) -> None:
    clockwork.client.execute_command(*command)
    for _ in range(2):
        reserved = read_admit(admit_one(clockwork))
        assert (reserved.verdict, reserved.epoch) == (Verdict.ADMITTED, epoch)


@pytest.mark.parametrize(
    ("verdict", "first"),
    [
        pytest.param(Verdict.HIT, {"hits": "only"}, id="a hit"),
        pytest.param(Verdict.REFUSED, {"ask": 9}, id="a refusal"),
        pytest.param(Verdict.WAITING, {"ask": 5, "patience": 10**6}, id="one that waits"),
    ],
)
def test_every_verdict_that_reads_levels_tells_the_epoch(
    clockwork: Clockwork, verdict: Verdict, first: dict[str, Any]
) -> None:
    clockwork.client.hset("cache", "epoch", 7)
    if verdict is Verdict.WAITING:
        admit_one(clockwork)
    reserved = read_admit(admit_one(clockwork, request="other", **first))
    assert (reserved.verdict, reserved.epoch) == (verdict, 7)


def test_an_admission_that_is_repeated_tells_the_present_epoch(clockwork: Clockwork) -> None:
    told = []
    for epoch in (7, 8):
        clockwork.client.hset("cache", "epoch", epoch)
        told.append(read_admit(admit_one(clockwork)).epoch)
    assert told == [7, 8]


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
    arguments = [
        "r",
        START,
        LEASE,
        10**9,
        GRACE,
        "no",
        "{}",
        "[]",
        0,
        0,
        "hold",
        "enforce",
        5,
        1,
        12_000,
        4,
        4,
        0,
        0,
        0,
    ]
    clockwork.run("admit", ["hold", "leases", "cache", "limit"], arguments)
    clockwork.at(START + 60_000)
    end = ["r", "settle", 600_000, "{}", GRACE, 12_000, "book", 5, 1, 12_000, 3, 0]
    told = clockwork.run("settle", ["hold", "leases", "outbox", "limit"], end)
    assert told == [b"settled", START + 60_000, 2, 0, 0]  # held for 48 s, and refilling since


def test_an_observed_limit_takes_what_does_not_fit_and_gives_back_what_it_took(clockwork: Clockwork) -> None:
    """Asks that no limit tells apart are held up to what a level can be: 2^52 parts of a week."""
    tank = make_tank(Rolling(604_800_000), 11, None)
    most = windows.MAX_LEVEL // tank.period
    ask = windows.MAX_COUNT + 1
    head = [START, LEASE, 10**9, GRACE, "no", "{}", "[]", 0, 0]
    replies = [
        clockwork.run(
            "admit",
            [f"hold:{number}", "leases", "cache", "limit"],
            [number, *head, "miss", "observe", tank.capacity, tank.amount, tank.period, ask, ask, 0, 0, 0],
        )
        for number in (1, 2)
    ]
    assert replies == [[b"admitted", START, 0, 0, most, notes("1 11")], [b"admitted", START, 0, 0, most, notes("1 0")]]
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
    arguments = [
        "r",
        START,
        LEASE,
        10**9,
        GRACE,
        hits,
        "{}",
        "[]",
        0,
        0,
        "miss",
        "enforce",
        5,
        1,
        12_000,
        1,
        0,
        0,
        0,
        0,
    ]
    told = clockwork.run("admit", ["hold", "leases", "cache", "limit"], arguments)
    assert told == [verdict, START, 0, 0, 0, notes()]
    clockwork.at(START + LEASE)
    end = ["r", "orphan", 600_000, "{}", GRACE, 0, "book", 5, 1, 12_000, 9, 0]
    told = clockwork.run("settle", ["hold", "leases", "outbox", "limit"], end)
    assert told == [b"orphaned", START + LEASE, spent, 0, 0]


def test_a_release_that_comes_after_the_sweep_gives_back_what_the_sweep_booked(clockwork: Clockwork) -> None:
    """The gateway that gave the admission up could not reach the store, the one that swept it could."""
    keys = ["hold", "leases", "outbox", "limit"]
    admit_one(clockwork)
    clockwork.at(START + LEASE)
    orphan = ["r", "orphan", 600_000, "{}", GRACE, 0, "book", 5, 1, 10**9, 1, 0]
    assert clockwork.run("settle", keys, orphan)[:3] == [b"orphaned", START + LEASE, 1]
    release = ["r", "release", 600_000, "", GRACE, 0, "book", 5, 1, 10**9, 0, 0]
    assert clockwork.run("settle", keys, release)[:3] == [b"corrected", START + LEASE, 0]
    assert clockwork.run("settle", keys, release)[:3] == [b"ended", START + LEASE, 0]


@pytest.mark.parametrize(
    ("taken", "life"),
    [
        pytest.param("spend", 12_000 + GRACE, id="what is spent is forgotten some time after it has refilled"),
        pytest.param("hold", HOLD_LIFE_MILLISECONDS, id="what is held not before its hold"),
    ],
)
def test_how_long_a_limit_remembers(clockwork: Clockwork, taken: str, life: int) -> None:
    admit_one(clockwork, taken=taken)
    assert 0.9 * life < clockwork.client.pttl("limit") <= life


def test_a_limit_forgets_sooner_once_nothing_is_held(clockwork: Clockwork) -> None:
    admit_one(clockwork, taken="hold")
    end = ["r", "settle", 600_000, "{}", GRACE, 0, "book", 5, 1, 12_000, 1, 0]
    assert clockwork.run("settle", ["hold", "leases", "outbox", "limit"], end)[0] == b"settled"
    assert 0.9 * (12_000 + GRACE) < clockwork.client.pttl("limit") <= 12_000 + GRACE


def test_renewing_extends_the_held_and_shortens_nothing(clockwork: Clockwork) -> None:
    admit_one(clockwork)
    clockwork.client.hset("gone", mapping={"state": "settled"})
    clockwork.client.pexpire("limit", 10**8)
    clockwork.at(START + 1_000)
    arguments = [LEASE, 10**7, 2, "r", "other"]
    assert clockwork.run("renew", ["leases", "hold", "gone", "limit"], arguments) == [1, START + 1_000]
    assert clockwork.client.zrange("leases", 0, -1, withscores=True) == [(b"r", START + 1_000 + LEASE)]
    assert clockwork.client.pttl("limit") > 10**7


def test_expired_leases_are_found_oldest_first_and_bounded(clockwork: Clockwork) -> None:
    clockwork.client.zadd("leases", {"c": START, "a": START - 9, "b": START - 5, "d": START + 1})
    assert clockwork.run("expired", ["leases"], [2]) == [b"a", b"b"]
    assert clockwork.run("expired", ["leases"], [9]) == [b"a", b"b", b"c"]
