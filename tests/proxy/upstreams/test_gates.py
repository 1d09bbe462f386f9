"""Who is let in at which upstream, and in which order, when there is room for some only."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from proxy.errors import UpstreamBusy, error_headers, status_of
from proxy.metrics import Metrics
from proxy.upstreams.gates import Gate, enter_first, share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

FOREVER = 3600.0


class World:
    """Gates by name, and who waits before them."""

    def __init__(self) -> None:
        self.metrics = Metrics()

    def gate(self, room: int | None, *, line: int = 100, wait_seconds: float = FOREVER, name: str = "a") -> Gate:
        return Gate(room, line, wait_seconds, upstream=name, metrics=self.metrics)

    def told(self, name: str = "a") -> tuple[float, float]:
        """Return how many attempts are under way and how many requests wait, as the metrics tell it."""
        return (
            self.metrics.upstream_outstanding.labels(name).value,
            self.metrics.upstream_waiting.labels(name).value,
        )


@pytest.fixture
def world() -> World:
    return World()


async def arrive(*gates: Gate) -> asyncio.Task[int]:
    """Return a request that has asked for a place, and waits where it got none."""
    task = asyncio.create_task(enter_first(gates))
    await asyncio.sleep(0)
    return task


async def settled(tasks: Sequence[asyncio.Task[int]]) -> list[int | None]:
    """Return who has entered which of its gates; None: waits still."""
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.result() if task.done() else None for task in tasks]


async def end(tasks: Sequence[asyncio.Task[int]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("cap", "workers", "shares"),
    [
        pytest.param(64, 1, [64], id="one worker has the whole cap"),
        pytest.param(64, 2, [32, 32], id="two have half of it each"),
        pytest.param(10, 4, [3, 3, 2, 2], id="what does not divide goes to the first ones"),
        pytest.param(3, 4, [1, 1, 1, 1], id="each worker may do one thing at least, above the cap if need be"),
        pytest.param(1, 1, [1], id="one at a time"),
    ],
)
def test_a_cap_is_divided_over_the_workers(cap: int, workers: int, shares: list[int]) -> None:
    assert [share_of(cap, worker, workers) for worker in range(workers)] == shares


def test_a_gate_lets_in_as_many_as_it_has_room_for(world: World) -> None:
    gate = world.gate(2)
    assert [gate.try_enter(), gate.try_enter(), gate.try_enter()] == [True, True, False]
    assert (gate.outstanding, gate.has_room) == (2, False)
    gate.leave()
    assert (gate.outstanding, gate.has_room) == (1, True)


def test_a_gate_without_a_cap_counts_only(world: World) -> None:
    gate = world.gate(None)
    assert all(gate.try_enter() for _ in range(1000))
    assert (gate.outstanding, gate.has_room, world.told()) == (1000, True, (1000, 0))


async def test_the_first_gate_with_room_is_entered_in_the_given_order(world: World) -> None:
    gates = [world.gate(1, name="a"), world.gate(1, name="b"), world.gate(None, name="c")]
    assert [await enter_first(gates) for _ in range(4)] == [0, 1, 2, 2]
    assert [gate.outstanding for gate in gates] == [1, 1, 2]


async def test_places_go_to_those_in_line_in_the_order_in_which_they_came(world: World) -> None:
    gate = world.gate(1)
    gate.try_enter()
    first, second, third = [await arrive(gate) for _ in range(3)]
    assert world.told() == (1, 3)
    gate.leave()
    assert not gate.try_enter(), "who comes later does not overtake"
    assert await settled([first, second, third]) == [0, None, None]
    gate.leave()
    assert await settled([first, second, third]) == [0, 0, None]
    gate.leave()
    assert await settled([third]) == [0]
    gate.leave()
    assert world.told() == (0, 0)


async def test_who_waits_at_several_gates_takes_whichever_has_room_first(world: World) -> None:
    one, other = world.gate(1, name="a"), world.gate(1, name="b")
    one.try_enter()
    other.try_enter()
    both, second = await arrive(one, other), await arrive(one)
    other.leave()
    assert await settled([both, second]) == [1, None]
    assert (world.told("a"), world.told("b")) == ((1, 1), (1, 0)), "it left the other line"
    one.leave()
    assert await settled([second]) == [0]


async def test_gates_that_have_room_at_once_do_not_both_let_in_the_same_one(world: World) -> None:
    one, other = world.gate(1, name="a"), world.gate(1, name="b")
    one.try_enter()
    other.try_enter()
    tasks = [await arrive(one, other), await arrive(one, other)]
    one.leave()
    other.leave()
    assert await settled(tasks) == [0, 1]
    assert (one.outstanding, other.outstanding) == (1, 1)


async def test_two_deployments_at_one_upstream_are_one_place_in_its_line(world: World) -> None:
    gate = world.gate(1, line=2)
    gate.try_enter()
    tasks = [await arrive(gate, gate), await arrive(gate, gate)]
    assert world.told() == (1, 2)
    gate.leave()
    assert await settled(tasks) == [0, None]
    assert gate.outstanding == 1
    await end(tasks)
    assert world.told() == (1, 0)


async def test_a_full_line_is_not_joined(world: World) -> None:
    full, open_ = world.gate(1, line=1, name="a"), world.gate(1, line=2, name="b")
    full.try_enter()
    open_.try_enter()
    tasks = [await arrive(full, open_), await arrive(full, open_)]
    assert (world.told("a"), world.told("b")) == ((1, 1), (1, 2))
    full.leave()
    assert await settled(tasks) == [0, None]
    open_.leave()
    assert await settled(tasks) == [0, 1]


@pytest.mark.parametrize(
    "line",
    [pytest.param(0, id="there is no line"), pytest.param(1, id="the line is full")],
)
async def test_a_request_is_refused_at_once_where_it_may_not_wait(world: World, line: int) -> None:
    gate = world.gate(1, line=line)
    gate.try_enter()
    before = [await arrive(gate) for _ in range(line)]
    with pytest.raises(UpstreamBusy) as refused:
        await enter_first([gate])
    assert (status_of(refused.value), refused.value.code, refused.value.retryable) == (503, "upstream_busy", True)
    assert ("Retry-After", "1") in error_headers(refused.value)
    assert world.told() == (1, line)
    await end(before)


async def test_a_request_waits_as_long_as_the_most_patient_of_its_gates(world: World) -> None:
    hasty, patient = world.gate(1, wait_seconds=0.0, name="a"), world.gate(1, wait_seconds=FOREVER, name="b")
    hasty.try_enter()
    patient.try_enter()
    task = await arrive(hasty, patient)
    with pytest.raises(UpstreamBusy, match="within 0 s"):
        await enter_first([hasty])
    hasty.leave()
    assert await settled([task]) == [0]
    assert (world.told("a"), world.told("b")) == ((1, 0), (1, 0))


async def test_a_wait_is_counted_where_it_ended(world: World) -> None:
    one, other = world.gate(1, wait_seconds=0.0, name="a"), world.gate(1, wait_seconds=FOREVER, name="b")
    one.try_enter()
    other.try_enter()
    with pytest.raises(UpstreamBusy):
        await enter_first([one])
    task = await arrive(one, other)
    other.leave()
    assert await task == 1
    waits = {tuple(labels): cell for labels, cell in world.metrics.upstream_queue_seconds.series()}
    assert {labels: sum(cell[1:]) for labels, cell in waits.items() if isinstance(cell, list)} == {
        ("a",): 1,
        ("b",): 1,
    }


async def test_a_waiter_that_is_cancelled_leaves_no_trace(world: World) -> None:
    one, other = world.gate(1, name="a"), world.gate(1, name="b")
    one.try_enter()
    other.try_enter()
    left, stays = await arrive(one, other), await arrive(one, other)
    await end([left])
    assert (world.told("a"), world.told("b")) == ((1, 1), (1, 1))
    one.leave()
    assert await settled([stays]) == [0]
    assert (world.told("a"), world.told("b")) == ((1, 0), (1, 0))


@pytest.mark.parametrize("is_cancelled_first", [True, False])
async def test_a_place_goes_to_the_next_one_when_who_got_it_left_in_the_same_turn(
    world: World,
    is_cancelled_first: bool,  # noqa: FBT001  a row
) -> None:
    gate = world.gate(1)
    gate.try_enter()
    left, stays = await arrive(gate), await arrive(gate)
    steps = [left.cancel, gate.leave]
    for step in steps if is_cancelled_first else reversed(steps):
        step()
    assert await settled([stays]) == [0]
    assert left.cancelled()
    assert world.told() == (1, 0)


@pytest.mark.parametrize("turns", [0, 1], ids=["the timer is not due", "the timer is due as well"])
async def test_a_place_that_comes_just_before_the_time_is_over_is_taken(world: World, turns: int) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    gate = world.gate(1, wait_seconds=0.0)
    gate.try_enter()
    task = await arrive(gate)
    for _ in range(turns):
        await asyncio.sleep(0)
    gate.leave()
    assert await task == 0
    assert (world.told(), faults) == ((1, 0), [])


async def test_a_place_that_comes_just_after_the_time_is_over_is_free(world: World) -> None:
    gate = world.gate(1, wait_seconds=0.0)
    gate.try_enter()
    task = await arrive(gate)
    for _ in range(2):  # once until the timer is due, once until it has run
        await asyncio.sleep(0)
    assert (task.done(), world.told()) == (False, (1, 1)), "its time is over, and it was not told yet"
    gate.leave()
    with pytest.raises(UpstreamBusy):
        await task
    assert world.told() == (0, 0)


async def test_more_room_lets_in_who_waits_and_less_lets_those_inside_finish(world: World) -> None:
    gate = world.gate(1)
    gate.try_enter()
    tasks = [await arrive(gate) for _ in range(4)]
    gate.adopt(3, 100, FOREVER)
    assert await settled(tasks) == [0, 0, None, None]
    gate.adopt(1, 0, FOREVER)
    assert world.told() == (3, 2), "nobody is thrown out, of the line neither"
    gate.leave()
    gate.leave()
    assert await settled(tasks) == [0, 0, None, None]
    gate.leave()
    assert await settled(tasks) == [0, 0, 0, None]
    gate.adopt(None, 0, FOREVER)
    assert await settled(tasks) == [0, 0, 0, 0]
    assert world.told() == (2, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_after_any_coming_and_going_every_place_is_there_again(world: World, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311  a walk that can be repeated
    gates = [world.gate(draw.randint(1, 3), line=draw.randint(0, 4), name=name) for name in "abc"]
    rooms = [0, 0, 0]

    def most_inside() -> None:
        for index, gate in enumerate(gates):
            rooms[index] = max(rooms[index], gate.outstanding)

    async def request() -> None:
        chosen = draw.sample(gates, draw.randint(1, 3))
        entered = chosen[await enter_first(chosen)]
        most_inside()
        try:
            for _ in range(draw.randint(0, 4)):
                await asyncio.sleep(0)
        finally:
            entered.leave()

    tasks: list[asyncio.Task[None]] = []
    for _ in range(200):
        tasks.append(asyncio.create_task(request()))
        for _ in range(draw.randint(0, 2)):
            await asyncio.sleep(0)
        if draw.random() < 0.3:
            draw.choice(tasks).cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ends} <= {type(None), UpstreamBusy, asyncio.CancelledError}
    assert [world.told(name) for name in "abc"] == [(0, 0)] * 3
    assert rooms == [gate._room for gate in gates]  # noqa: SLF001  none stood empty while others waited, none too full
