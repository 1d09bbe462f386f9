from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from fake_upstream import DONE, ev, tchunk, usage
from harness import joined, sse, sse_json
from sending import KEYED, MemoryWriter, make_decision, make_exchange

from policies.errors import LimitExceeded
from policies.requests.asked import Endpoint
from proxy.early_streams import EarlyStream, repeated
from proxy.errors import DRAINING, ClientLeft, NoUpstreamLeft, UpstreamUnusable
from proxy.exchange import CacheResult, Exchange, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

STREAM = [("Content-Type", "text/event-stream; charset=utf-8"), ("X-Theirs", "1")]
JSON = [("Content-Type", "application/json")]
ERROR = {"error": {"message": "no", "type": "some_error", "param": None, "code": "some"}}
WHOLE = {**tchunk("hi", finish="stop"), "usage": usage(20)}
WAITING = b": waiting\n\n"


def early(
    fields: Mapping[str, object] | None = None, *, endpoint: Endpoint = Endpoint.COMPLETIONS
) -> tuple[EarlyStream, MemoryWriter, Exchange]:
    asked = {"prompt": "x"} if endpoint is Endpoint.COMPLETIONS else {"input": "x"}
    decision = make_decision({**asked, "stream": True, **(fields or {})}, endpoint=endpoint, cache=KEYED)
    exchange, writer = make_exchange(decision), MemoryWriter()
    exchange.cache = CacheResult.MISS
    return EarlyStream(writer, exchange, decision.effective), writer, exchange


async def test_one_that_did_not_begin_early_is_as_the_writer_it_stands_before() -> None:
    stream, writer, _ = early()
    async with stream:
        await stream.start(200, STREAM)
        assert stream.is_started
        await stream.write(DONE)
        await stream.finish()
    assert (writer.fields, writer.body, writer.is_finished) == (STREAM, DONE, True)
    stream, writer, _ = early()
    async with stream:
        await stream.respond(404, JSON, b"{}")
    assert (writer.status, writer.fields, writer.body) == (404, JSON, b"{}")
    stream, writer, _ = early()
    stream.abort()
    assert writer.is_aborted


async def test_a_comment_begins_the_stream_and_more_of_them_keep_it_alive() -> None:
    stream, writer, _ = early()
    assert not stream.is_started
    await stream.comment([("x-ratelimit-remaining-requests", "4")])
    await stream.comment([("x-ratelimit-remaining-requests", "3")])
    assert stream.is_started
    assert writer.status == 200
    assert writer.fields == [
        ("Content-Type", "text/event-stream"),
        ("Cache-Control", "no-cache, no-store"),
        ("X-Accel-Buffering", "no"),
        ("Cache-Status", "tidegate;fwd=miss"),
        ("x-ratelimit-remaining-requests", "4"),
    ]
    assert writer.writes == [WAITING, WAITING]


async def test_a_stream_goes_on_where_it_has_begun() -> None:
    stream, writer, _ = early()
    async with stream:
        await stream.comment([])
        await stream.start(200, STREAM)
        await stream.write(ev(tchunk("hi")))
        await stream.write(DONE)
        await stream.finish()
    assert writer.header("x-theirs") is None
    assert writer.body == WAITING + ev(tchunk("hi")) + DONE
    assert writer.is_finished


@pytest.mark.parametrize("is_whole", [True, False], ids=["stored", "live"])
async def test_a_mark_of_the_byte_order_behind_comments_is_left_out(*, is_whole: bool) -> None:
    marked = b"\xef\xbb\xbf" + DONE
    stream, writer, _ = early()
    async with stream:
        await stream.comment([])
        if is_whole:
            await stream.respond(200, STREAM, marked)
        else:
            await stream.start(200, STREAM)
            await stream.write(marked)
            await stream.write(marked)
            await stream.finish()
    assert writer.body == WAITING + DONE + (b"" if is_whole else marked)


async def test_a_stored_stream_follows_the_comments() -> None:
    stream, writer, _ = early()
    async with stream:
        await stream.comment([])
        await stream.respond(200, STREAM, ev(tchunk("hi")) + DONE)
    assert writer.body == WAITING + ev(tchunk("hi")) + DONE
    assert writer.is_finished


async def test_an_upstreams_error_becomes_an_event() -> None:
    stream, writer, _ = early()
    async with stream:
        await stream.comment([])
        await stream.respond(429, JSON, json.dumps(ERROR).encode())
    assert sse_json(writer.body) == [ERROR]
    assert writer.is_finished


@pytest.mark.parametrize("wants_usage", [False, True])
async def test_a_whole_answer_becomes_events(*, wants_usage: bool) -> None:
    stream, writer, _ = early({"stream_options": {"include_usage": wants_usage}})
    async with stream:
        await stream.comment([])
        await stream.respond(200, JSON, json.dumps(WHOLE).encode())
    assert joined(writer.body) == {0: "hi"}
    assert writer.body.endswith(DONE)
    assert any(event.get("usage") for event in sse_json(writer.body)) is wants_usage


async def test_a_whole_answer_that_cannot_be_converted_is_an_error_event() -> None:
    stream, writer, _ = early()
    async with stream:
        await stream.comment([])
        await stream.respond(200, JSON, b'{"choices": 1}')
    assert sse_json(writer.body)[-1]["error"]["code"] == "upstream_unusable"


async def test_an_answer_that_flows_and_is_no_stream_is_an_error_event() -> None:
    stream, writer, exchange = early()
    async with stream:
        await stream.comment([])
        await stream.start(200, JSON)
        pytest.fail("bytes that are no events follow the comments")
    assert sse_json(writer.body)[-1]["error"]["code"] == "upstream_unusable"
    assert exchange.error_code == "upstream_unusable"


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (NoUpstreamLeft("Nobody."), "no_upstream_left", Outcome.UPSTREAM_ERROR),
        (LimitExceeded("No.", code="rate_limit_exceeded", retry_after_seconds=1), "rate_limit_exceeded", "rejected"),
        (asyncio.CancelledError(DRAINING), "draining", Outcome.FAILED),
    ],
    ids=["an upstream's", "a refusal", "the end of a drain"],
)
async def test_an_error_that_is_raised_is_the_last_event(error: BaseException, code: str, outcome: str) -> None:
    stream, writer, exchange = early()
    exchange.status = 200
    async with stream:
        await stream.comment([])
        raise error
    assert sse_json(writer.body)[-1]["error"]["code"] == code
    assert DONE not in writer.body
    assert writer.is_finished
    assert (exchange.status, exchange.error_code, exchange.outcome) == (200, code, outcome)


async def test_errors_of_responses_are_told_in_their_own_way() -> None:
    stream, writer, _ = early(endpoint=Endpoint.RESPONSES)
    async with stream:
        await stream.comment([])
        raise NoUpstreamLeft("Nobody.")
    [(name, data)], [comment] = sse(writer.body)
    assert (name, json.loads(data)["code"], comment) == ("error", "no_upstream_left", " waiting")


@pytest.mark.parametrize("error", [ClientLeft(), asyncio.CancelledError(), ZeroDivisionError()])
async def test_what_nobody_can_be_told_travels_on(error: BaseException) -> None:
    stream, writer, _ = early()

    async def answer() -> None:
        async with stream:
            await stream.comment([])
            raise error

    with pytest.raises(type(error)):
        await answer()
    assert writer.body == WAITING


@pytest.mark.parametrize("begins_early", [False, True])
async def test_an_error_within_an_answer_travels_on(*, begins_early: bool) -> None:
    stream, writer, _ = early()

    async def answer() -> None:
        async with stream:
            if begins_early:
                await stream.comment([])
            await stream.start(200, STREAM)
            raise UpstreamUnusable("It broke.")

    with pytest.raises(UpstreamUnusable):
        await answer()
    assert not writer.is_finished


# What is repeated


async def test_steps_are_taken_until_the_block_ends() -> None:
    taken, third = [], asyncio.Event()

    async def step() -> None:
        taken.append(len(taken))
        if len(taken) == 3:
            third.set()

    async with asyncio.timeout(10), repeated(step, 0.001):
        await third.wait()
    count = len(taken)
    await asyncio.sleep(0)
    assert len(taken) == count >= 3


async def test_a_step_under_way_is_not_broken_off() -> None:
    begun, ended = asyncio.Event(), []

    async def step() -> None:
        begun.set()
        await asyncio.sleep(0)
        ended.append(True)

    async with asyncio.timeout(10), repeated(step, 0.001):
        await begun.wait()
    assert ended == [True]


async def test_a_client_that_leaves_ends_them_and_a_fault_is_told() -> None:
    begun = asyncio.Event()

    async def leave() -> None:
        begun.set()
        raise ClientLeft

    async def fail() -> None:
        begun.set()
        raise ZeroDivisionError

    async with asyncio.timeout(10):
        async with repeated(leave, 0):
            await begun.wait()
        begun.clear()
        with pytest.raises(ZeroDivisionError):
            async with repeated(fail, 0):
                await begun.wait()
