from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sending import make_decision, make_exchange

from policies.usage import Provider
from proxy.errors import DRAINING, UpstreamBroken
from proxy.flights import Flight, Flights, LeftBehind
from proxy.store.cache_state import Origin

if TYPE_CHECKING:
    from collections.abc import Coroutine

KEY = "k" * 64
ORIGIN = Origin(generation=1, model="m", project="proj", key="key", cache_key=KEY, deployment="")
PROVIDER = Provider("proj", "alice", is_service_account=False, key="key")
HEAD = (200, [("Content-Type", "text/event-stream")])
KIBIBYTE = 1024
WINDOW = 256 * KIBIBYTE
MEBIBYTE = b"m" * (1024 * KIBIBYTE)


def flights(*, max_bytes: int = 10 * len(MEBIBYTE), max_flight_bytes: int = 64 * KIBIBYTE) -> Flights:
    return Flights(max_bytes=max_bytes, max_flight_bytes=max_flight_bytes)


def begin(at: Flights, *, is_finished_alone: bool = False) -> Flight:
    exchange = make_exchange(make_decision())
    return at.begin(KEY, exchange, ORIGIN, provider=PROVIDER, is_stream=True, is_finished_alone=is_finished_alone)


async def read_all(flight: Flight) -> bytes:
    with flight.reader() as reader:
        return b"".join([piece async for piece, _ in flight.pieces(reader)])


async def run_to_rest(task: asyncio.Task[object] | None = None, *, turns: int = 20) -> None:
    """Let everybody do what can be done without anything further happening, or until a task is done."""
    for _ in range(turns):
        if task is not None and task.done():
            return
        await asyncio.sleep(0)


def fly(flight: Flight, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    """Fetch as the path does: whatever ends the work ends the flight."""

    async def landing() -> None:
        try:
            await work
        except BaseException as error:  # noqa: BLE001  whoever reads the flight raises it
            flight.land(error)
        else:
            flight.land()

    flight.task = asyncio.create_task(landing())
    return flight.task


# What readers get


async def test_all_get_the_same_and_late_ones_begin_at_the_beginning() -> None:
    flight = begin(flights())
    early = asyncio.create_task(read_all(flight))
    await flight.start(*HEAD)
    await flight.write(b"one ")
    await run_to_rest()
    late = asyncio.create_task(read_all(flight))
    await flight.write(b"two ")
    flight.land()
    last = asyncio.create_task(read_all(flight))
    assert await asyncio.gather(early, late, last) == [b"one two "] * 3


async def test_a_piece_is_handed_out_as_soon_as_it_is_there() -> None:
    flight = begin(flights())
    with flight.reader() as reader:
        pieces = flight.pieces(reader)
        for data in (b"one", b"two"):
            await flight.write(data)
            assert await anext(pieces) == (data, False)
        flight.is_settled = True
        await flight.write(b"end")
        assert await anext(pieces) == (b"end", True)


async def test_the_head_is_waited_for() -> None:
    flight = begin(flights())
    waiting = asyncio.create_task(flight.begun())
    await run_to_rest()
    assert not waiting.done()
    await flight.start(*HEAD)
    assert await waiting == HEAD
    assert flight.is_started


async def test_a_whole_answer_is_there_at_once_with_its_head() -> None:
    flight = begin(flights())
    await flight.respond(200, HEAD[1], b"{}")
    assert (await flight.begun(), flight.whole) == (HEAD, b"{}")


async def test_what_went_wrong_before_the_head_is_raised_for_all() -> None:
    flight = begin(flights())
    waiting = [asyncio.create_task(each) for each in (flight.begun(), flight.over(), read_all(flight))]
    await run_to_rest()
    broken = UpstreamBroken("It broke.")
    flight.land(broken)
    assert await asyncio.gather(*waiting, return_exceptions=True) == [broken] * 3


async def test_what_went_wrong_later_comes_after_what_had_come() -> None:
    flight = begin(flights())
    await flight.write(b"one")
    flight.land(UpstreamBroken("It broke."))
    with flight.reader() as reader:
        pieces = flight.pieces(reader)
        assert await anext(pieces) == (b"one", False)
        with pytest.raises(UpstreamBroken):
            await anext(pieces)


# Who can join


async def test_a_flight_is_found_by_its_key_until_it_lands() -> None:
    at = flights()
    assert at.find(KEY) is None
    flight = begin(at)
    assert (at.find(KEY), at.find("another")) == (flight, None)
    flight.land()
    assert at.find(KEY) is None


async def test_a_flight_that_lands_late_does_not_hide_the_one_after_it() -> None:
    at = flights()
    first, second = begin(at), begin(at)
    first.land()
    assert at.find(KEY) is second


async def test_past_its_bound_a_flight_is_joined_no_more_and_those_who_read_get_all() -> None:
    flight = begin(at := flights(max_flight_bytes=10))
    reading = asyncio.create_task(read_all(flight))
    await run_to_rest()
    await flight.write(b"0123456789")
    assert flight.is_joinable
    await flight.write(b"a")
    assert not flight.is_joinable
    await flight.write(b"b")
    flight.land()
    assert not flight.has_beginning
    assert await reading == b"0123456789ab"
    assert at.taken_bytes == 0


async def test_flights_that_keep_too_much_together_are_joined_no_more() -> None:
    at = flights(max_bytes=100 * KIBIBYTE)
    first, second = begin(at), begin(at)
    with second.reader():
        await first.write(bytes(60 * KIBIBYTE))
        assert (at.is_full, first.is_joinable) == (False, True)
        await second.write(bytes(60 * KIBIBYTE))
        assert (at.is_full, second.is_joinable) == (True, False)
        second.land()
    assert at.taken_bytes == 60 * KIBIBYTE
    first.land()
    assert at.taken_bytes == 0


@pytest.mark.parametrize("bound", [5, 20], ids=["smaller", "larger"])
async def test_another_bound_of_each_holds_for_those_that_begin_from_then_on(bound: int) -> None:
    under_way = begin(at := flights(max_flight_bytes=10))
    at.adopt(max_bytes=len(MEBIBYTE), max_flight_bytes=bound)
    for flight, most in ((under_way, 10), (begin(at), bound)):
        await flight.write(bytes(most))
        assert flight.is_joinable
        await flight.write(b"a")
        assert not flight.is_joinable
        flight.land()


async def test_another_bound_of_all_together_holds_for_those_under_way_too() -> None:
    flight = begin(at := flights())
    at.adopt(max_bytes=15, max_flight_bytes=64 * KIBIBYTE)
    await flight.write(bytes(15))
    assert (at.is_full, flight.is_joinable) == (False, True)
    await flight.write(b"a")
    assert not flight.is_joinable
    flight.land()


async def test_nobody_is_left_behind_for_a_bound_that_came_later() -> None:
    flight = begin(at := flights(max_flight_bytes=2 * WINDOW))
    with flight.reader() as slow:
        fast = asyncio.create_task(read_all(flight))
        await run_to_rest()
        await flight.write(bytes(2 * WINDOW - KIBIBYTE))
        at.adopt(max_bytes=10 * len(MEBIBYTE), max_flight_bytes=KIBIBYTE)
        await flight.write(bytes(KIBIBYTE))
        flight.land()
        assert len(await fast) == 2 * WINDOW
        assert len(b"".join([data async for data, _ in flight.pieces(slow)])) == 2 * WINDOW


async def test_bytes_count_until_the_last_has_read_them() -> None:
    flight = begin(at := flights())
    await flight.write(b"0123456789")
    with flight.reader() as slow, flight.reader() as fast:
        flight.land()
        assert [data async for data, _ in flight.pieces(fast)] == [b"0123456789"]
        assert at.taken_bytes == 10
        assert [data async for data, _ in flight.pieces(slow)] == [b"0123456789"]
    assert at.taken_bytes == 0


# Readers of unequal speed


async def test_one_slow_reader_slows_a_flight_of_its_own() -> None:
    flight = begin(flights())
    with flight.reader() as reader:
        pieces = flight.pieces(reader)
        await flight.write(bytes(WINDOW))
        writing = asyncio.create_task(flight.write(b"more"))
        await run_to_rest()
        assert not writing.done()
        await anext(pieces)
        assert not writing.done(), "the piece has been handed out, and not taken yet"
        reading = asyncio.create_task(anext(pieces))
        await writing
        assert await reading == (b"more", False)


async def test_memory_stays_bounded_however_long_the_answer_is() -> None:
    flight = begin(at := flights(max_bytes=len(MEBIBYTE)))
    most = 0

    async def write() -> None:
        nonlocal most
        for _ in range(64):
            await flight.write(MEBIBYTE[: 64 * KIBIBYTE])
            most = max(most, at.taken_bytes)

    fly(flight, write())
    assert len(await read_all(flight)) == 4 * len(MEBIBYTE)
    assert most <= WINDOW + 64 * KIBIBYTE


async def test_a_laggard_is_left_behind_and_the_others_get_all() -> None:
    flight = begin(at := flights())

    async def write() -> None:
        for _ in range(40):
            await flight.write(bytes(16 * KIBIBYTE))

    with flight.reader() as laggard:
        late = flight.pieces(laggard)
        fast = [asyncio.create_task(read_all(flight)) for _ in range(3)]
        await run_to_rest()
        fly(flight, write())
        assert len((await anext(late))[0]) == 16 * KIBIBYTE
        assert {len(body) for body in await asyncio.gather(*fast)} == {640 * KIBIBYTE}
        with pytest.raises(LeftBehind):
            await anext(late)
    assert at.taken_bytes == 0


@pytest.mark.parametrize("max_flight_bytes", [0, 10, 2 * WINDOW])
async def test_nobody_is_left_behind_for_what_lies_within_the_window(max_flight_bytes: int) -> None:
    flight = begin(flights(max_flight_bytes=max_flight_bytes))

    async def write() -> None:
        for _ in range(WINDOW // KIBIBYTE):
            await flight.write(bytes(KIBIBYTE))

    with flight.reader() as slow:
        fast = asyncio.create_task(read_all(flight))
        await run_to_rest()
        fly(flight, write())
        assert len(await fast) == WINDOW
        assert len(b"".join([data async for data, _ in flight.pieces(slow)])) == WINDOW


async def test_where_all_flights_keep_too_much_laggards_are_left_behind_earlier() -> None:
    at = flights(max_bytes=len(MEBIBYTE), max_flight_bytes=len(MEBIBYTE))
    other = begin(at)
    await other.write(MEBIBYTE[: -16 * KIBIBYTE])
    flight = begin(at)

    async def write() -> None:
        for _ in range(24):
            await flight.write(bytes(16 * KIBIBYTE))

    with flight.reader() as laggard:
        fast = asyncio.create_task(read_all(flight))
        await run_to_rest()
        fly(flight, write())
        assert len(await fast) == 384 * KIBIBYTE
        with pytest.raises(LeftBehind):
            await anext(flight.pieces(laggard))


async def test_who_only_waits_for_the_end_holds_nobody_up() -> None:
    flight = begin(at := flights())
    with flight.reader(reads=False):
        for _ in range(40):
            await flight.write(bytes(16 * KIBIBYTE))
        assert at.taken_bytes == 0
        flight.land()
        await flight.over()


# Who leaves


async def fetch(begun: asyncio.Event) -> None:
    begun.set()
    await asyncio.get_running_loop().create_future()


async def test_who_leaves_last_ends_the_fetch() -> None:
    flight, begun = begin(flights()), asyncio.Event()
    task = fly(flight, fetch(begun))
    readers = [asyncio.create_task(read_all(flight)) for _ in range(2)]
    await begun.wait()
    readers[0].cancel()
    await run_to_rest()
    assert not task.done()
    readers[1].cancel()
    await task
    assert isinstance(flight.error, asyncio.CancelledError)


async def test_a_fetch_that_nobody_needed_any_more_cannot_be_joined() -> None:
    flight, begun = begin(flights()), asyncio.Event()
    task = fly(flight, fetch(begun))
    with flight.reader():
        await begun.wait()
    assert not flight.is_joinable, "whoever joined now would be ended with it"
    assert not flight.has_beginning
    await task


async def test_a_fetch_that_is_to_be_finished_goes_on_alone() -> None:
    flight, begun = begin(at := flights(), is_finished_alone=True), asyncio.Event()

    async def write() -> None:
        await begun.wait()
        for _ in range(40):
            await flight.write(bytes(16 * KIBIBYTE))

    task = fly(flight, write())
    with flight.reader():
        pass
    assert at.find(KEY) is flight
    begun.set()
    await task
    assert (flight.error, at.taken_bytes) == (None, 0)


async def test_a_slow_reader_that_leaves_lets_the_fetch_go_on() -> None:
    flight = begin(flights(), is_finished_alone=True)
    with flight.reader():
        await flight.write(bytes(WINDOW))
        writing = asyncio.create_task(flight.write(b"more"))
        await run_to_rest()
        assert not writing.done()
    await writing


# The end of a drain


async def test_the_end_of_a_drain_is_told_to_the_fetch_once_and_readers_get_its_last_words() -> None:
    flight, begun, told = begin(flights()), asyncio.Event(), []

    async def work() -> None:
        try:
            await fetch(begun)
        except asyncio.CancelledError as cancelled:
            told.append(cancelled.args)
        await run_to_rest()  # a settlement, say: nothing may interrupt it any more
        await flight.write(b"last words")

    task = fly(flight, work())
    readers = [asyncio.create_task(read_all(flight)) for _ in range(3)]
    await begun.wait()
    for reader in readers:
        reader.cancel(DRAINING)
        await run_to_rest(turns=3)
    assert await asyncio.gather(*readers) == [b"last words"] * 3
    assert told == [(DRAINING,)]
    assert task.done()
    assert flight.error is None


async def test_a_landing_can_be_waited_for_which_is_no_reading() -> None:
    flight, begun = begin(flights()), asyncio.Event()
    task = fly(flight, fetch(begun))
    waiting = asyncio.create_task(flight.landed())
    await begun.wait()
    waiting.cancel(DRAINING)
    await waiting
    assert task.done()
    assert isinstance(flight.error, asyncio.CancelledError)
