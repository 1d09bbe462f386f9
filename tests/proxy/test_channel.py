"""The conversation between supervisor and worker, over a real socket pair."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from proxy.channel import Begin, Channel, Count, Counted, Done, Drain, Message, Prepare, Ready, Switch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SPOKEN: list[Message] = [
    Begin(2, b'{"listen": "127.0.0.1:0"}', "unix:///state", "unix:///cache"),
    Drain(),
    Prepare(6, b'{"listen": "127.0.0.1:0"}'),
    Switch(7),
    Count(7),
    Ready(),
    Done(6),
    Done(7, "there is nothing to switch to"),
    Counted({"open_streams": [([], 1.0)], "store_duration_seconds": [(["state"], [0.5, 1.0, 0.0])]}),
    Counted({"requests_total": [([str(number), "m"], float(number)) for number in range(20_000)]}),
]


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    ends = await Channel.over(one), await Channel.over(other)
    yield ends
    for end in ends:
        await end.close()


@pytest.mark.parametrize("message", SPOKEN, ids=lambda message: type(message).__name__)
async def test_a_message_arrives_as_it_was_sent(ends: tuple[Channel, Channel], message: Message) -> None:
    one, other = ends
    received, _ = await asyncio.gather(other.receive(), one.send(message))
    assert received == message


async def test_messages_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    for message in (Ready(), Drain(), Count(7)):
        await one.send(message)
    assert [await other.receive() for _ in range(3)] == [Ready(), Drain(), Count(7)]


async def test_the_end_of_one_side_is_the_end_of_the_conversation(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    await one.close()
    assert await other.receive() is None


async def test_a_message_to_a_side_that_has_ended_goes_nowhere(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    await one.close()
    for _ in range(3):
        await other.send(Count(7))
    assert await other.receive() is None
