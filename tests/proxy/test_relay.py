from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import (
    DONE,
    FakeUpstream,
    body_reply,
    chunk,
    ev,
    head,
    json_reply,
    sse_head,
    sse_reply,
    tchunk,
    usage,
)
from responses import response, stream
from sending import (
    BOUNDS,
    BYPASS,
    KEYED,
    MemoryWriter,
    PlainRequest,
    Settlement,
    dispatching,
    fake_upstream,
    first_answer,
    make_decision,
    make_exchange,
    make_upstream,
    series,
    up,
)

from policies.cacheability import Keyed
from policies.requests.asked import Endpoint
from policies.usage import Usage
from proxy.errors import DRAINING, ClientLeft, UpstreamBroken, UpstreamError, UpstreamTooSlow, UpstreamUnusable
from proxy.exchange import Exchange, Outcome
from proxy.relay import DEFAULT_BOUNDS, RelayBounds, relay, replay
from proxy.store.entries import StoredAnswer
from proxy.upstreams.client import ClientBounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from policies.cacheability import CachePlan
    from policies.decision import Decision
    from proxy.metrics import Metrics

__all__ = ["fake_upstream", "up"]

STREAM: dict[str, Any] = {"prompt": "x", "stream": True}
WITH_USAGE = {**STREAM, "stream_options": {"include_usage": True}}
ONE, TWO, STOP = ev(tchunk("one ")), ev(tchunk("two ")), ev(tchunk("", finish="stop"))
USAGE_EVENT = ev({"id": "x", "model": "m", "choices": [], "usage": usage(20)})
ERROR = b'data: {"error":{'
CLOSE_DELIMITED = head(200, [("Content-Type", "text/event-stream")])
ERROR_EVENT = ev({"error": {"message": "no"}})
NO_OBJECT, TOO_LONG = " with a body that is no JSON object.", " with a body of more than 1000 bytes."
OWN = [("x-own", "1")]
QUICK = ClientBounds(connect_seconds=2, first_byte_seconds=2, silence_seconds=0.3)


@dataclass
class Relayed:
    """One exchange that is over."""

    writer: MemoryWriter
    exchange: Exchange
    settlement: Settlement
    metrics: Metrics
    error: BaseException | None = None


async def pass_on(
    up: FakeUpstream,
    decision: Decision,
    *,
    reply: list[Any] | None = None,
    writer: MemoryWriter | None = None,
    settlement: Settlement | None = None,
    bounds: RelayBounds = DEFAULT_BOUNDS,
    client: ClientBounds = BOUNDS,
    complete: Callable[[bytes], bytes | None] | None = None,
) -> Relayed:
    """Send a decision to the scripted upstream over a real socket and relay what it answers."""
    if reply is not None:
        up.script(reply)
    settlement = settlement or Settlement(writer or MemoryWriter(), make_exchange(decision))
    writer, exchange = settlement.writer, settlement.exchange
    async with dispatching({"llama": make_upstream(up.url + "/v1")}, bounds=client) as (dispatcher, metrics):
        relayed = Relayed(writer, exchange, settlement, metrics)
        answer = await first_answer(dispatcher, decision, exchange, PlainRequest())
        try:
            await relay(
                answer,
                writer,
                decision=decision,
                exchange=exchange,
                settle=settlement,
                headers=lambda: OWN,
                bounds=bounds,
                complete=complete,
            )
        except (UpstreamError, ClientLeft) as error:
            relayed.error = error
    return relayed


def stream_reply(*pieces: bytes | float, end: str = "ok", gap: float = 0.01) -> list[Any]:
    return sse_reply(list(pieces), end=end, gap=gap)


# Every kind of end that SPEC §7 names --------------------------------------------------------------------------------

ENDS = {
    "clean end, finished": (
        stream_reply(ONE, TWO, STOP, DONE),
        ONE + TWO + STOP + DONE,
        Outcome.COMPLETED,
        None,
        True,
    ),
    "clean end, finished, all in one packet": (
        [("send", sse_head() + chunk(ONE + TWO + STOP + DONE) + b"0\r\n\r\n")],
        ONE + TWO + STOP + DONE,
        Outcome.COMPLETED,
        None,
        True,
    ),
    "clean end without [DONE]: nothing is added": (
        stream_reply(ONE, STOP),
        ONE + STOP,
        Outcome.INCOMPLETE,
        None,
        False,
    ),
    "clean end with [DONE] and a choice unfinished": (
        stream_reply(ONE, DONE),
        ONE + DONE,
        Outcome.INCOMPLETE,
        None,
        False,
    ),
    "clean end in the middle of an event: it passes as it is": (
        stream_reply(ONE, TWO[:25]),
        ONE + TWO[:25],
        Outcome.INCOMPLETE,
        None,
        False,
    ),
    "clean end, the last blank line missing": (
        stream_reply(ONE, STOP, DONE[:-1]),
        ONE + STOP + DONE[:-1],
        Outcome.COMPLETED,
        None,
        True,
    ),
    "clean end, filtered": (
        stream_reply(ONE, ev(tchunk("", finish="content_filter")), DONE),
        ONE + ev(tchunk("", finish="content_filter")) + DONE,
        Outcome.COMPLETED,
        None,
        False,
    ),
    "reset between events": (
        stream_reply(ONE, TWO, end="rst"),
        ONE + TWO,
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "reset within an event: it is dropped": (
        stream_reply(ONE, TWO[:25], end="rst"),
        ONE,
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "last chunk missing between events": (
        stream_reply(ONE, TWO, end="fin"),
        ONE + TWO,
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "last chunk missing within an event": (
        stream_reply(ONE, TWO[:25], end="fin"),
        ONE,
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "an end with events in the same packet: they pass": (
        [("send", sse_head() + chunk(ONE) + chunk(TWO)), ("close",)],
        ONE + TWO,
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "no length and a reset within an event: it is dropped": (
        [("send", CLOSE_DELIMITED + ONE + TWO[:25]), ("rst",)],
        ONE,
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "no length and a clean end": (
        [("send", CLOSE_DELIMITED + ONE + STOP + DONE), ("close",)],
        ONE + STOP + DONE,
        Outcome.COMPLETED,
        None,
        True,
    ),
    "no length and a reset behind [DONE]": (
        [("send", CLOSE_DELIMITED + ONE + STOP + DONE), ("rst",)],
        ONE + STOP + DONE,
        Outcome.COMPLETED,
        None,
        False,
    ),
    "reset behind an event whose last line end is half a CRLF: it is whole": (
        stream_reply(ONE, TWO.replace(b"\n", b"\r\n")[:-1], end="rst"),
        ONE + TWO.replace(b"\n", b"\r\n")[:-1],
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "reset before the first event": (stream_reply(end="rst"), b"", Outcome.UPSTREAM_ERROR, "upstream_broken", False),
    "chunks that cannot be told apart": (
        [("send", sse_head() + chunk(ONE)), ("sleep", 0.05), ("send", b"zz\r\n")],
        ONE,
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "silence": (
        stream_reply(ONE, TWO[:25], 3.0, TWO[25:], STOP, DONE),
        ONE,
        Outcome.UPSTREAM_ERROR,
        "upstream_timeout",
        False,
    ),
    "an error event from the upstream passes": (
        stream_reply(ONE, ev({"error": {"message": "no"}})),
        ONE + ev({"error": {"message": "no"}}),
        Outcome.UPSTREAM_ERROR,
        None,
        False,
    ),
    "[DONE], then a reset: the client has it all, the cache trusts it not": (
        stream_reply(ONE, STOP, DONE, end="rst"),
        ONE + STOP + DONE,
        Outcome.COMPLETED,
        None,
        False,
    ),
    "[DONE], then nothing: the client is not kept waiting": (
        stream_reply(ONE, STOP, DONE, 5.0),
        ONE + STOP + DONE,
        Outcome.COMPLETED,
        None,
        False,
    ),
    "[DONE], then a comment": (
        stream_reply(ONE, STOP, DONE, b": bye\n\n"),
        ONE + STOP + DONE + b": bye\n\n",
        Outcome.COMPLETED,
        None,
        True,
    ),
    "[DONE], then half a comment": (
        stream_reply(ONE, STOP, DONE, b": b"),
        ONE + STOP + DONE + b": b",
        Outcome.COMPLETED,
        None,
        True,
    ),
    "[DONE], then a reset within an event: it is dropped": (
        stream_reply(ONE, STOP, DONE, b": b", end="rst"),
        ONE + STOP + DONE,
        Outcome.COMPLETED,
        None,
        False,
    ),
    "[DONE], then an error": (
        stream_reply(ONE, STOP, DONE, ev({"error": {"message": "no"}})),
        ONE + STOP + DONE + ev({"error": {"message": "no"}}),
        Outcome.UPSTREAM_ERROR,
        None,
        False,
    ),
    "an empty stream": (stream_reply(), b"", Outcome.INCOMPLETE, None, False),
}


@pytest.mark.parametrize(("reply", "passed", "outcome", "code", "complete"), ENDS.values(), ids=ENDS.keys())
async def test_ends_of_a_stream(
    up: FakeUpstream, reply: list[Any], passed: bytes, outcome: Outcome, code: str | None, *, complete: bool
) -> None:
    relayed = await pass_on(up, make_decision(STREAM, cache=KEYED), reply=reply, client=QUICK)
    body, exchange = relayed.writer.body, relayed.exchange
    if code is None:
        assert body == passed
    else:
        assert body.startswith(passed + ERROR)
        error = json.loads(body[len(passed) + 6 :])["error"]
        assert error["code"] == code
        assert set(error) == {"message", "type", "param", "code"}
        assert b"[DONE]" not in body
    assert relayed.writer.is_finished
    assert relayed.writer.status == 200
    assert (exchange.outcome, exchange.error_code) == (outcome, code)
    assert exchange.answer.is_complete is complete
    assert len(relayed.settlement.entries) == 1
    assert (relayed.settlement.entries[0] is not None) is complete
    assert (relayed.settlement.outcome, relayed.settlement.status) == (outcome.value, 200)
    assert exchange.answer.content_events == passed.count(b"one ") + passed.count(b"two ")
    kinds = {"upstream_broken": "broken", "upstream_timeout": "timeout"}
    counted = series(relayed.metrics, "upstream_errors_total")
    if code is not None:
        assert counted == {("llama", kinds[code]): 1.0}
    elif complete:
        assert counted == {}
    assert relayed.metrics.open_streams.value == 0


# The ends of a stream of responses -----------------------------------------------------------------------------------

RESPONSE: dict[str, Any] = {"input": "x", "store": False}
RESPONSE_STREAM = {**RESPONSE, "stream": True}
WHOLE = stream(["Hello", " there"])
CUT = stream(["Hello"], end="incomplete", incomplete_details={"reason": "max_output_tokens"})
FILTERED = stream(["Hello"], end="incomplete", incomplete_details={"reason": "content_filter"})
FAILED = stream([], end="failed", error={"code": "server_error", "message": "no"})

RESPONSE_ENDS = {
    "completed": (stream_reply(*WHOLE), b"".join(WHOLE), Outcome.COMPLETED, None, True),
    "completed, all in one packet": (stream_reply(b"".join(WHOLE)), b"".join(WHOLE), Outcome.COMPLETED, None, True),
    "completed, then [DONE] as some servers write": (
        stream_reply(*WHOLE, DONE),
        b"".join(WHOLE) + DONE,
        Outcome.COMPLETED,
        None,
        True,
    ),
    "completed, then a reset: the client has it all, the cache trusts it not": (
        stream_reply(*WHOLE, end="rst"),
        b"".join(WHOLE),
        Outcome.COMPLETED,
        None,
        False,
    ),
    "cut by its own ceiling, which is complete": (
        stream_reply(*CUT),
        b"".join(CUT),
        Outcome.COMPLETED,
        None,
        True,
    ),
    "filtered": (stream_reply(*FILTERED), b"".join(FILTERED), Outcome.COMPLETED, None, False),
    "failed": (stream_reply(*FAILED), b"".join(FAILED), Outcome.UPSTREAM_ERROR, None, False),
    "clean end without the last event: nothing is added": (
        stream_reply(*WHOLE[:-1]),
        b"".join(WHOLE[:-1]),
        Outcome.INCOMPLETE,
        None,
        False,
    ),
    "reset between events": (
        stream_reply(*WHOLE[:4], end="rst"),
        b"".join(WHOLE[:4]),
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "reset within the last event: it is dropped": (
        stream_reply(*WHOLE[:4], WHOLE[-1][:60], end="rst"),
        b"".join(WHOLE[:4]),
        Outcome.UPSTREAM_ERROR,
        "upstream_broken",
        False,
    ),
    "silence": (
        stream_reply(*WHOLE[:4], 3.0),
        b"".join(WHOLE[:4]),
        Outcome.UPSTREAM_ERROR,
        "upstream_timeout",
        False,
    ),
}


@pytest.mark.parametrize(
    ("reply", "passed", "outcome", "code", "complete"), RESPONSE_ENDS.values(), ids=RESPONSE_ENDS.keys()
)
async def test_ends_of_a_stream_of_responses(
    up: FakeUpstream, reply: list[Any], passed: bytes, outcome: Outcome, code: str | None, *, complete: bool
) -> None:
    decision = make_decision(RESPONSE_STREAM, endpoint=Endpoint.RESPONSES, cache=KEYED)
    relayed = await pass_on(up, decision, reply=reply, client=QUICK)
    body, exchange = relayed.writer.body, relayed.exchange
    assert body.startswith(passed)
    error = body[len(passed) :]
    if code is None:
        assert error == b""
    else:
        assert error.startswith(b"event: error\ndata: {")
        told = json.loads(error.partition(b"data: ")[2])
        assert (told["type"], told["code"], told["sequence_number"]) == ("error", code, 4)
    assert relayed.writer.is_finished
    assert (exchange.outcome, exchange.error_code) == (outcome, code)
    assert exchange.answer.is_complete is complete
    assert [entry is not None for entry in relayed.settlement.entries] == [complete]
    assert exchange.answer.content_events == passed.count(b"output_text.delta") // 2


async def test_the_last_event_of_a_response_waits_for_the_settlement_and_tells_its_usage(up: FakeUpstream) -> None:
    decision = make_decision(RESPONSE_STREAM, endpoint=Endpoint.RESPONSES)
    relayed = await pass_on(up, decision, reply=stream_reply(*WHOLE))
    assert relayed.settlement.written_before == b"".join(WHOLE[:-1])
    assert relayed.exchange.answer.usage == Usage(11, 7, 4, 2)


@pytest.mark.parametrize(
    ("answer", "outcome", "stored"),
    [
        pytest.param(response("Hello"), Outcome.COMPLETED, True, id="completed"),
        pytest.param(
            response("Hello", status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            Outcome.COMPLETED,
            True,
            id="cut by its ceiling",
        ),
        pytest.param(
            response("Hello", status="incomplete", incomplete_details={"reason": "content_filter"}),
            Outcome.COMPLETED,
            False,
            id="filtered",
        ),
        pytest.param(response(status="in_progress"), Outcome.COMPLETED, False, id="in progress"),
        pytest.param(
            response(status="failed", error={"code": "server_error"}), Outcome.UPSTREAM_ERROR, False, id="failed"
        ),
    ],
)
async def test_whole_responses_are_stored_when_they_are_finished(
    up: FakeUpstream, answer: dict[str, Any], outcome: Outcome, *, stored: bool
) -> None:
    decision = make_decision(RESPONSE, endpoint=Endpoint.RESPONSES, cache=KEYED)
    relayed = await pass_on(up, decision, reply=json_reply(answer))
    assert json.loads(relayed.writer.body) == answer
    assert relayed.exchange.outcome is outcome
    assert [entry is not None for entry in relayed.settlement.entries] == [stored]
    assert relayed.exchange.answer.usage == Usage(11, 7, 4, 2)


async def test_an_obfuscated_stream_of_responses_is_stored_without(up: FakeUpstream) -> None:
    hidden = [piece.replace(b', "delta"', b', "obfuscation": "zz", "delta"') for piece in WHOLE]
    decision = make_decision(RESPONSE_STREAM, endpoint=Endpoint.RESPONSES, cache=KEYED)
    relayed = await pass_on(up, decision, reply=stream_reply(*hidden))
    assert relayed.writer.body == b"".join(hidden) != b"".join(WHOLE)
    assert relayed.settlement.entries[0] is not None
    assert relayed.settlement.entries[0].body == b"".join(WHOLE)


async def test_the_end_of_a_drain_is_told_to_a_client_of_responses_in_its_own_words(up: FakeUpstream) -> None:
    decision = make_decision(RESPONSE_STREAM, endpoint=Endpoint.RESPONSES)
    settlement = Settlement(MemoryWriter(), make_exchange(decision))
    reply = stream_reply(*WHOLE[:4], 30.0)
    task = asyncio.create_task(pass_on(up, decision, reply=reply, settlement=settlement))
    await settlement.writer.has_written.wait()
    task.cancel(DRAINING)
    await task
    last = settlement.writer.writes[-1]
    assert last.startswith(b"event: error\ndata: ")
    assert json.loads(last.partition(b"data: ")[2])["code"] == "draining"


# Bytes and boundaries ------------------------------------------------------------------------------------------------


async def test_bytes_cut_anywhere_arrive_whole_and_on_event_boundaries(up: FakeUpstream) -> None:
    whole = ev(json.dumps(tchunk("café 漢字 😀"), ensure_ascii=False).encode()) + STOP + DONE
    cuts = [whole[start : start + 3] for start in range(0, len(whole), 3)]
    relayed = await pass_on(up, make_decision(STREAM), reply=sse_reply(cuts, gap=0))
    assert relayed.writer.body == whole
    assert all(piece.endswith(b"\n\n") for piece in relayed.writer.writes)


async def test_keep_alive_comments_flow_before_the_first_event(up: FakeUpstream) -> None:
    pieces = [b": PROCESSING\n\n", ONE, b":\n\n", b": ping\n", STOP, DONE]
    relayed = await pass_on(up, make_decision(STREAM), reply=sse_reply(pieces, gap=0.03))
    assert relayed.writer.writes == [b": PROCESSING\n\n", ONE, b":\n\n", b": ping\n" + STOP, DONE]


async def test_all_events_of_one_read_leave_in_one_write(up: FakeUpstream) -> None:
    reply = [("send", sse_head() + chunk(ONE + TWO)), ("sleep", 0.1), ("send", chunk(STOP + DONE) + b"0\r\n\r\n")]
    relayed = await pass_on(up, make_decision(STREAM), reply=reply)
    assert relayed.writer.writes == [ONE + TWO, STOP, DONE]


async def test_the_head_of_a_stream_keeps_caches_and_buffers_away(up: FakeUpstream) -> None:
    relayed = await pass_on(
        up, make_decision(STREAM), reply=sse_reply([STOP, DONE], headers=[("Set-Cookie", "a=b"), ("x-request-id", "r")])
    )
    assert relayed.writer.fields == [
        ("Content-Type", "text/event-stream"),
        ("Cache-Control", "no-cache, no-store"),
        ("X-Accel-Buffering", "no"),
        ("x-upstream-request-id", "r"),
        *OWN,
    ]


async def test_the_end_waits_for_the_settlement(up: FakeUpstream) -> None:
    relayed = await pass_on(up, make_decision(STREAM), reply=stream_reply(ONE, STOP, DONE))
    assert relayed.settlement.written_before == ONE + STOP
    assert relayed.writer.writes[-1] == DONE


async def test_a_compressed_stream_is_decoded_and_flows(up: FakeUpstream) -> None:
    plain = ONE + TWO + STOP + DONE
    squeezer = zlib.compressobj(wbits=31)
    pieces = [
        squeezer.compress(plain[start : start + 40]) + squeezer.flush(zlib.Z_SYNC_FLUSH)
        for start in range(0, len(plain), 40)
    ]
    pieces.append(squeezer.flush())
    relayed = await pass_on(up, make_decision(STREAM), reply=sse_reply(pieces, headers=[("Content-Encoding", "gzip")]))
    assert relayed.writer.body == plain
    assert len(relayed.writer.writes) > 2
    assert relayed.writer.header("Content-Encoding") is None


async def test_an_event_above_the_bound_flows_and_an_error_after_it_stands_alone(up: FakeUpstream) -> None:
    big = ev(tchunk("y" * 4000))
    reply = stream_reply(ONE, big[:3000], end="rst")
    relayed = await pass_on(up, make_decision(STREAM), reply=reply, bounds=RelayBounds(1000, 1000))
    passed, _, error = relayed.writer.body.partition(b"\n\n" + ERROR)
    assert error
    assert (ONE + big[:3000]).startswith(passed)
    assert len(passed) > len(ONE) + 2900
    assert relayed.exchange.answer.content_bytes == len("one ") + len(passed) - len(ONE)


@pytest.mark.parametrize("gap", [0, 0.03], ids=["in one read", "apart"])
async def test_what_stands_beside_an_event_above_the_bound_is_observed(up: FakeUpstream, gap: float) -> None:
    big = ev(tchunk("y" * 4000))
    pieces = [ONE, big[:3000], big[3000:-1], big[-1:] + STOP, USAGE_EVENT, DONE]
    reply = sse_reply(pieces if gap else [b"".join(pieces)], gap=gap)
    relayed = await pass_on(up, make_decision(STREAM), reply=reply, bounds=RelayBounds(1000, 1000))
    assert relayed.writer.body == ONE + big + STOP + DONE
    observed = relayed.exchange.answer
    assert (observed.usage, observed.finish_reasons) == (Usage(7, 13), {0: "stop"})
    assert observed.content_bytes in (len("one ") + len(big), len("one ") + 4000)
    assert relayed.exchange.outcome is Outcome.COMPLETED


# Usage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(STREAM, ONE + STOP + DONE, id="not asked: the added event is taken out"),
        pytest.param(WITH_USAGE, ONE + STOP + USAGE_EVENT + DONE, id="asked: it passes"),
        pytest.param(
            {**STREAM, "stream_options": {"include_usage": False}}, ONE + STOP + DONE, id="asked not: it is taken out"
        ),
    ],
)
async def test_usage_is_always_known_and_sent_to_those_who_asked(
    up: FakeUpstream, fields: dict[str, Any], expected: bytes
) -> None:
    decision = make_decision(fields, cache=KEYED)
    relayed = await pass_on(up, decision, reply=stream_reply(ONE, STOP, USAGE_EVENT, DONE))
    assert relayed.writer.body == expected
    assert relayed.exchange.answer.usage == Usage(7, 13)
    assert up.log[0].json()["stream_options"]["include_usage"] is True
    entry = relayed.settlement.entries[0]
    assert entry is not None
    assert entry.body == ONE + STOP + USAGE_EVENT + DONE
    assert (entry.is_stream, entry.content_type, entry.usage) == (True, "text/event-stream", Usage(7, 13))


@pytest.mark.parametrize("gap", [0, 0.05], ids=["in one read", "later"])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(STREAM, ONE + STOP + DONE, id="not asked"),
        pytest.param(WITH_USAGE, ONE + STOP + DONE + USAGE_EVENT, id="asked"),
    ],
)
async def test_usage_that_comes_after_done_is_usage(
    up: FakeUpstream, fields: dict[str, Any], expected: bytes, gap: float
) -> None:
    cut = USAGE_EVENT[:40], USAGE_EVENT[40:]
    pieces = [ONE, STOP, DONE, *cut] if gap else [ONE + STOP + DONE + USAGE_EVENT]
    relayed = await pass_on(up, make_decision(fields, cache=KEYED), reply=sse_reply(pieces, gap=gap))
    assert relayed.writer.body == expected
    assert relayed.exchange.answer.usage == Usage(7, 13)
    assert relayed.settlement.entries[0] is not None


async def test_what_comes_after_done_is_bounded(up: FakeUpstream) -> None:
    late = [b": " + b"x" * 4000 + b"\n\n"] * 500
    relayed = await pass_on(up, make_decision(STREAM), reply=sse_reply([ONE, STOP, DONE, *late], gap=0))
    assert relayed.writer.body.startswith(ONE + STOP + DONE)
    assert len(relayed.writer.body) < 1_000_000
    assert relayed.exchange.outcome is Outcome.COMPLETED
    assert not relayed.exchange.answer.is_complete


# What is stored ------------------------------------------------------------------------------------------------------

JSON_ANSWER = {"model": "m", "choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}], "usage": usage(20)}


@pytest.mark.parametrize(
    ("fields", "cache", "reply", "bounds", "stored"),
    [
        pytest.param(STREAM, KEYED, stream_reply(ONE, STOP, DONE), DEFAULT_BOUNDS, True, id="a complete stream"),
        pytest.param(STREAM, BYPASS, stream_reply(ONE, STOP, DONE), DEFAULT_BOUNDS, False, id="a bypass"),
        pytest.param(
            STREAM, Keyed("k", 1, store=False), stream_reply(ONE, STOP, DONE), DEFAULT_BOUNDS, False, id="no-store"
        ),
        pytest.param(
            STREAM, KEYED, stream_reply(ONE, STOP, DONE), RelayBounds(99), False, id="a stream above the bound"
        ),
        pytest.param(
            {**STREAM, "n": 2}, KEYED, stream_reply(ONE, STOP, DONE), DEFAULT_BOUNDS, False, id="a choice lacks"
        ),
        pytest.param({"prompt": "x"}, KEYED, json_reply(JSON_ANSWER), DEFAULT_BOUNDS, True, id="a whole answer"),
        pytest.param({"prompt": "x", "n": 2}, KEYED, json_reply(JSON_ANSWER), DEFAULT_BOUNDS, False, id="one of two"),
        pytest.param(
            {"prompt": "x"}, BYPASS, json_reply(JSON_ANSWER), DEFAULT_BOUNDS, False, id="a whole one bypassed"
        ),
        pytest.param({"prompt": "x"}, KEYED, json_reply(JSON_ANSWER), RelayBounds(99), False, id="above the bound"),
        pytest.param(
            {"prompt": "x"}, KEYED, json_reply({"error": {}, "choices": []}), DEFAULT_BOUNDS, False, id="empty"
        ),
        pytest.param({"prompt": "x"}, KEYED, json_reply(JSON_ANSWER, 429), DEFAULT_BOUNDS, False, id="an error status"),
        pytest.param(STREAM, KEYED, json_reply(JSON_ANSWER), DEFAULT_BOUNDS, False, id="JSON where a stream was asked"),
        pytest.param(
            STREAM,
            KEYED,
            stream_reply(ONE, ev(b"hello"), STOP, DONE),
            DEFAULT_BOUNDS,
            False,
            id="an event without JSON",
        ),
        pytest.param(
            STREAM,
            KEYED,
            stream_reply(ONE, ev(b'{"choices": [{"text": "\xff"}]}'), STOP, DONE),
            DEFAULT_BOUNDS,
            False,
            id="an event that is no UTF-8",
        ),
    ],
)
async def test_only_complete_answers_in_the_asked_form_are_stored(
    up: FakeUpstream, fields: dict[str, Any], cache: CachePlan, reply: list[Any], bounds: RelayBounds, *, stored: bool
) -> None:
    up.default = lambda _: reply
    relayed = await pass_on(up, make_decision(fields, cache=cache), bounds=bounds)
    assert [entry is not None for entry in relayed.settlement.entries] == [stored]
    for entry in relayed.settlement.entries:
        if entry is not None:
            assert entry.body == relayed.writer.body
            assert entry.created_milliseconds > 1_700_000_000_000


async def test_obfuscation_is_sent_and_not_stored(up: FakeUpstream) -> None:
    hidden = ev({**tchunk("a"), "obfuscation": "zzz"})
    relayed = await pass_on(up, make_decision(STREAM, cache=KEYED), reply=stream_reply(hidden, STOP, DONE))
    entry = relayed.settlement.entries[0]
    assert entry is not None
    assert relayed.writer.body == hidden + STOP + DONE
    assert entry.body == ev(tchunk("a")) + STOP + DONE


async def test_events_that_nobody_can_read_pass(up: FakeUpstream) -> None:
    odd = ev(b"hello") + ev(b"\xff\xfe") + b"x\n\n"
    relayed = await pass_on(up, make_decision(STREAM, cache=KEYED), reply=stream_reply(ONE, odd, STOP, DONE))
    assert relayed.writer.body == ONE + odd + STOP + DONE
    assert relayed.exchange.outcome is Outcome.COMPLETED
    assert relayed.settlement.entries == [None]


async def test_a_whole_answer_to_a_stream_is_what_the_upstream_said(up: FakeUpstream) -> None:
    relayed = await pass_on(up, make_decision(STREAM, cache=KEYED), reply=json_reply(JSON_ANSWER))
    assert relayed.writer.header("Content-Type") == "application/json"
    assert json.loads(relayed.writer.body) == JSON_ANSWER
    assert (relayed.exchange.outcome, relayed.exchange.answer.usage) == (Outcome.COMPLETED, Usage(7, 13))


# Whole answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate", None])
async def test_a_whole_answer_passes_byte_for_byte(up: FakeUpstream, coding: str | None) -> None:
    plain = json.dumps(JSON_ANSWER, indent=2).encode()
    encoded = {"gzip": gzip.compress, "deflate": zlib.compress, None: bytes}[coding](plain)
    fields = [("Content-Encoding", coding)] if coding else []
    relayed = await pass_on(up, make_decision(), reply=body_reply(encoded, headers=fields))
    assert relayed.writer.body == plain
    assert relayed.writer.fields == [("Content-Type", "application/json"), ("Cache-Control", "no-store"), *OWN]
    assert relayed.exchange.answer.usage == Usage(7, 13)
    assert relayed.exchange.outcome is Outcome.COMPLETED
    assert relayed.settlement.written_before == b""
    assert relayed.settlement.status == 200


async def test_embeddings_are_complete_without_finish_reasons(up: FakeUpstream) -> None:
    fields = {"input": ["a", "b"]}
    relayed = await pass_on(up, make_decision(fields, endpoint=Endpoint.EMBEDDINGS, cache=KEYED))
    assert relayed.exchange.answer.is_complete
    assert relayed.settlement.entries[0] is not None


async def test_an_answer_too_long_to_keep_flows_and_tells_its_usage(up: FakeUpstream) -> None:
    long = json.dumps({"data": [[0.25] * 60_000] * 4, "usage": usage(20)}).encode()
    relayed = await pass_on(up, make_decision(), reply=body_reply(long), bounds=RelayBounds(10_000))
    assert relayed.writer.body == long
    assert len(relayed.writer.writes) > 2
    assert relayed.writer.is_finished
    assert relayed.exchange.answer.usage == Usage(7, 13)
    assert relayed.exchange.outcome is Outcome.COMPLETED
    assert len(relayed.settlement.written_before) < len(long)


BROKEN = {
    "HTML with status 200": (body_reply(b"<html>hi</html>", ctype="text/html"), UpstreamUnusable),
    "no JSON": (body_reply(b"hello", ctype="application/json"), UpstreamUnusable),
    "an empty body": (body_reply(b""), UpstreamUnusable),
    "JSON that is cut": (body_reply(b'{"choices": ['), UpstreamUnusable),
    "no UTF-8": (body_reply(b'{"id": "\xff"}'), UpstreamUnusable),
    "a JSON array": (body_reply(b"[]"), UpstreamUnusable),
    "no content": ([("send", head(204))], UpstreamUnusable),
    "a body shorter than its length": (
        [("send", head(200, [("Content-Length", 99)]) + b"{}"), ("close",)],
        UpstreamBroken,
    ),
    "no length and a reset": (
        [("send", head(200, [("Content-Type", "application/json")]) + json.dumps(JSON_ANSWER).encode()), ("rst",)],
        UpstreamBroken,
    ),
    "a reset in the body": ([("send", head(200, [("Content-Length", 99)]) + b"{}"), ("rst",)], UpstreamBroken),
    "silence in the body": ([("send", head(200, [("Content-Length", 99)]) + b"{}"), ("hold", 3)], UpstreamTooSlow),
    "broken compression": (body_reply(b"xx", headers=[("Content-Encoding", "gzip")]), UpstreamBroken),
    "compression that is cut": (
        body_reply(gzip.compress(b"{}")[:-4], headers=[("Content-Encoding", "gzip")]),
        UpstreamBroken,
    ),
}


@pytest.mark.parametrize(("reply", "error"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_whole_answer_that_cannot_be_passed_on_sends_nothing(
    up: FakeUpstream, reply: list[Any], error: type[UpstreamError]
) -> None:
    with pytest.raises(error):
        raise (await pass_on_raising(up, reply)) from None


async def pass_on_raising(up: FakeUpstream, reply: list[Any]) -> BaseException:
    try:
        relayed = await pass_on(up, make_decision(cache=KEYED), reply=reply, client=QUICK)
    except UpstreamError as error:
        return error
    assert relayed.error is not None
    assert not relayed.writer.is_started
    assert relayed.settlement.entries == []
    assert sum(series(relayed.metrics, "upstream_errors_total").values()) == 1
    return relayed.error


@pytest.mark.parametrize(
    ("body", "is_shown"),
    [
        pytest.param(b'{"choices": [{"text": "secret', False, id="a completion that is cut"),
        pytest.param(b' \xef\xbb\xbf[{"text": "secret"}]', False, id="JSON of another kind"),
        pytest.param(b'data: {"text": "secret"}\n\n', False, id="events by another name"),
        pytest.param(b"the model secret is loading", True, id="a sentence"),
    ],
)
async def test_the_log_shows_unreadable_bodies_but_no_completions(
    up: FakeUpstream, body: bytes, caplog: pytest.LogCaptureFixture, *, is_shown: bool
) -> None:
    await pass_on_raising(up, body_reply(body))
    assert "answered 200 with an unreadable body" in caplog.text
    assert ("secret" in caplog.text) is is_shown


async def test_a_long_answer_that_breaks_is_told_by_breaking_too(up: FakeUpstream) -> None:
    reply = [
        ("send", head(200, [("Content-Type", "application/json"), ("Content-Length", 9999)]) + b"{" * 5000),
        ("rst",),
    ]
    relayed = await pass_on(up, make_decision(), reply=reply, bounds=RelayBounds(100))
    assert isinstance(relayed.error, UpstreamBroken)
    assert relayed.writer.is_started
    assert not relayed.writer.is_finished
    assert relayed.settlement.entries == [None]


# Errors --------------------------------------------------------------------------------------------------------------

API_ERROR = {"error": {"message": "no", "type": "x", "param": None, "code": 429}}


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("fields", [STREAM, {"prompt": "x"}], ids=["stream", "whole"])
async def test_an_upstreams_own_error_passes(up: FakeUpstream, fields: dict[str, Any], status: int) -> None:
    own = [
        ("Retry-After", "7"),
        ("retry-after-ms", "6500"),
        ("x-should-retry", "false"),
        ("x-ratelimit-limit-tokens", "9"),
    ]
    up.default = lambda _: json_reply(API_ERROR, status, headers=own)
    relayed = await pass_on(up, make_decision(fields))
    assert relayed.writer.status == status
    assert relayed.writer.body == json.dumps(API_ERROR).encode()
    assert relayed.writer.header("Content-Type") == "application/json"
    assert relayed.writer.header("Retry-After") == "7"
    assert relayed.writer.header("retry-after-ms") == "6500"
    assert relayed.writer.header("x-should-retry") == "false"
    assert relayed.writer.header("x-upstream-ratelimit-limit-tokens") == "9"
    assert relayed.exchange.outcome is Outcome.UPSTREAM_ERROR
    assert relayed.exchange.upstream_status == status
    assert relayed.settlement.entries == [None]
    assert relayed.settlement.status == status
    assert len(up.served) == 1


@pytest.mark.parametrize(
    ("body", "content_type", "said"),
    [
        pytest.param(b" bad thing\n", "text/plain; charset=utf-8", ": bad thing", id="plain text"),
        pytest.param("漢".encode() * 700, "text/plain", f": {'漢' * 500}", id="much text"),
        pytest.param(b"x" * 2000, "text/plain", f": {'x' * 500}", id="more text than is read"),
        pytest.param(b"bad \xff", "text/plain", ": bad \ufffd", id="text that is no UTF-8"),
        pytest.param(b" <html>no</html>", "text/plain", NO_OBJECT, id="HTML that calls itself text"),
        pytest.param(b"", "text/plain", " without saying why.", id="no text"),
        pytest.param(b"", "application/json", " without saying why.", id="nothing"),
        pytest.param(b'"no"', "application/json", NO_OBJECT, id="JSON that is no object"),
        pytest.param(b"<e>no</e>", "application/xml", NO_OBJECT, id="something else"),
        pytest.param(ERROR_EVENT, "text/event-stream", NO_OBJECT, id="an event stream"),
        pytest.param(json.dumps({"error": "x" * 2000}).encode(), "application/json", TOO_LONG, id="far too much"),
    ],
)
@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (500, "server_error")])
async def test_an_error_without_an_object_gets_one(
    up: FakeUpstream, body: bytes, content_type: str, said: str, status: int, kind: str
) -> None:
    up.default = lambda _: body_reply(body, status, [("x-should-retry", "false")], content_type)
    relayed = await pass_on(up, make_decision(STREAM), bounds=RelayBounds(1000))
    assert relayed.writer.status == status
    assert relayed.writer.header("Content-Type") == "application/json"
    message = f"The upstream answered {status}{said}"
    expected = {"message": message, "type": kind, "param": None, "code": "upstream_error"}
    assert json.loads(relayed.writer.body) == {"error": expected}


@pytest.mark.parametrize(
    ("step", "why"),
    [
        pytest.param(("close",), "The connection to the upstream broke within its answer.", id="cut"),
        pytest.param(("rst",), "The connection to the upstream broke within its answer.", id="reset"),
        pytest.param(("sleep", 2), "The upstream was silent for 0.3 s within its answer.", id="silent"),
    ],
)
async def test_an_error_that_breaks_off_gets_an_object_too(up: FakeUpstream, step: tuple[Any, ...], why: str) -> None:
    fields = [("Content-Type", "application/json"), ("Content-Length", 99)]
    reply = [("send", head(404, fields) + b'{"error":'), step]
    relayed = await pass_on(up, make_decision(), reply=reply, client=QUICK)
    assert relayed.writer.status == 404
    error = json.loads(relayed.writer.body)["error"]
    assert (error["message"], error["code"]) == (f"The upstream answered 404. {why}", "upstream_error")


# Clients that leave --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("leaves_after", "events"), [(0, 1), (1, 2)], ids=["at the first event", "after one"])
async def test_a_client_that_left_cancels_the_upstream(up: FakeUpstream, leaves_after: int, events: int) -> None:
    pieces = [piece for number in range(60) for piece in (ev(tchunk(f"{number} ")), 0.05)]
    relayed = await pass_on(
        up, make_decision(STREAM, cache=KEYED), reply=sse_reply(pieces), writer=MemoryWriter(leaves_after=leaves_after)
    )
    assert isinstance(relayed.error, ClientLeft)
    assert relayed.exchange.outcome is Outcome.CLIENT_LEFT
    assert relayed.exchange.answer.content_events == events
    assert not relayed.exchange.answer.is_complete
    assert relayed.settlement.entries == []
    assert await asyncio.to_thread(up.wait, lambda: up.log[0].aborted_at, 3)


async def test_a_cancelled_relay_cancels_the_upstream(up: FakeUpstream) -> None:
    writer = MemoryWriter()
    task = asyncio.create_task(pass_on(up, make_decision(STREAM), reply=stream_reply(ONE, 30.0, DONE), writer=writer))
    await writer.has_written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(up.wait, lambda: up.log[0].aborted_at, 3)


@dataclass
class SlowSettlement(Settlement):
    """Takes until it is told to be over, whoever waits for it."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, entry: StoredAnswer | None) -> None:
        await super().__call__(entry)
        self.begun.set()
        await asyncio.Event().wait()


class StuckWriter(MemoryWriter):
    """Takes bytes, and waits for a client who reads none."""

    async def write(self, data: bytes) -> None:
        await super().write(data)
        await asyncio.Event().wait()


@dataclass
class Drained:
    """A relay under way that is cancelled as at the end of a drain."""

    settlement: Settlement
    task: asyncio.Task[Relayed]

    @property
    def facts(self) -> tuple[Outcome, str | None, int]:
        exchange = self.settlement.exchange
        return exchange.outcome, exchange.error_code, exchange.answer.content_events


def drain_soon(
    up: FakeUpstream, reply: list[Any], writer: MemoryWriter | None = None, *, fields: dict[str, Any] = STREAM
) -> Drained:
    """Begin to pass an answer on."""
    decision = make_decision(fields, cache=KEYED)
    settlement = Settlement(writer or MemoryWriter(), make_exchange(decision))
    return Drained(settlement, asyncio.create_task(pass_on(up, decision, reply=reply, settlement=settlement)))


def assert_drained(body: bytes, passed: bytes) -> None:
    assert body.startswith(passed + ERROR)
    assert json.loads(body[len(passed) + 6 :])["error"]["code"] == "draining"
    assert b"[DONE]" not in body


@pytest.mark.parametrize(
    ("reply", "passed"),
    [
        pytest.param(stream_reply(ONE, 30.0, DONE), ONE, id="between events"),
        pytest.param([("send", sse_head() + chunk(ONE + TWO[:25])), ("hold", 30)], ONE, id="within one: it is dropped"),
        pytest.param([("send", sse_head() + chunk(b": wait\n\n")), ("hold", 30)], b": wait\n\n", id="before the first"),
    ],
)
async def test_the_end_of_a_drain_is_told_as_an_event_and_booked(
    up: FakeUpstream, reply: list[Any], passed: bytes
) -> None:
    drained = drain_soon(up, reply)
    writer = drained.settlement.writer
    await writer.has_written.wait()
    drained.task.cancel(DRAINING)
    relayed = await drained.task
    assert_drained(writer.body, passed)
    assert writer.is_finished
    assert drained.facts == (Outcome.FAILED, "draining", passed.count(b"one"))
    assert (relayed.settlement.entries, relayed.settlement.outcome) == ([None], "failed")
    assert relayed.settlement.written_before == passed
    assert drained.task.cancelling() == 0
    assert series(relayed.metrics, "upstream_errors_total") == {}
    assert relayed.metrics.open_streams.value == 0
    assert await asyncio.to_thread(up.wait, lambda: up.log[0].aborted_at, 3)


async def test_the_end_of_a_drain_takes_no_done_from_a_client(up: FakeUpstream) -> None:
    drained = drain_soon(up, [("send", sse_head() + chunk(ONE + STOP + DONE)), ("hold", 30)])
    writer = drained.settlement.writer
    await writer.has_written.wait()
    drained.task.cancel(DRAINING)
    await drained.task
    assert writer.body == ONE + STOP + DONE
    assert writer.is_finished
    assert drained.facts == (Outcome.COMPLETED, None, 1)
    assert drained.settlement.entries == [None]


async def test_the_end_of_a_drain_is_booked_before_a_client_who_reads_nothing(up: FakeUpstream) -> None:
    drained = drain_soon(up, stream_reply(ONE, 30.0), StuckWriter())
    settlement = drained.settlement
    await settlement.writer.has_written.wait()
    drained.task.cancel(DRAINING)
    assert await asyncio.to_thread(up.wait, lambda: settlement.writer.body.startswith(ONE + ERROR), 3)
    assert settlement.outcome == "failed"
    drained.task.cancel()  # as the server does when the time for last words is over
    with pytest.raises(asyncio.CancelledError):
        await drained.task
    assert drained.facts == (Outcome.FAILED, "draining", 1)


async def test_the_end_of_a_drain_does_not_interrupt_the_end_of_a_stream(up: FakeUpstream) -> None:
    decision = make_decision(STREAM)
    settlement = SlowSettlement(MemoryWriter(), make_exchange(decision))
    task = asyncio.create_task(pass_on(up, decision, reply=stream_reply(ONE, STOP, DONE), settlement=settlement))
    await settlement.begun.wait()
    task.cancel(DRAINING)
    await task
    assert settlement.writer.body == ONE + STOP + DONE
    assert settlement.writer.is_finished
    assert settlement.exchange.outcome is Outcome.COMPLETED


async def test_the_end_of_a_drain_travels_on_from_a_whole_answer(up: FakeUpstream) -> None:
    reply = [("send", head(200, [("Content-Type", "application/json"), ("Content-Length", 99)]) + b"{"), ("hold", 30)]
    drained = drain_soon(up, reply, fields={"prompt": "x"})
    exchange = drained.settlement.exchange
    assert await asyncio.to_thread(up.wait, lambda: exchange.upstream_status == 200, 3)
    drained.task.cancel(DRAINING)
    with pytest.raises(asyncio.CancelledError, match=DRAINING):
        await drained.task
    assert not drained.settlement.writer.is_started
    assert exchange.outcome is Outcome.FAILED
    assert await asyncio.to_thread(up.wait, lambda: up.log[0].aborted_at, 3)


async def test_a_client_that_closes_at_done_has_left_nothing_early(up: FakeUpstream) -> None:
    reply = [("send", sse_head() + chunk(ONE + STOP + DONE) + b"0\r\n\r\n")]
    relayed = await pass_on(up, make_decision(STREAM), reply=reply, writer=MemoryWriter(leaves_after=1))
    assert isinstance(relayed.error, ClientLeft)
    assert relayed.exchange.outcome is Outcome.COMPLETED
    assert relayed.settlement.entries == [None]


async def test_times_are_noted(up: FakeUpstream) -> None:
    relayed = await pass_on(up, make_decision(STREAM), reply=sse_reply([ONE, TWO, ONE, STOP, DONE], gap=0.03))
    exchange = relayed.exchange
    assert exchange.first_byte is not None
    assert exchange.answer.token_gaps is not None
    assert sum(exchange.answer.token_gaps.counts) == 2


# Replay --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "is_stream", "body", "expected"),
    [
        pytest.param({"prompt": "x"}, False, b'{"a": 1}', b'{"a": 1}', id="a whole answer as it was"),
        pytest.param(
            WITH_USAGE, True, ONE + USAGE_EVENT + DONE, ONE + USAGE_EVENT + DONE, id="usage that was asked for"
        ),
        pytest.param(STREAM, True, ONE + USAGE_EVENT + DONE, ONE + DONE, id="usage that was not"),
        pytest.param(STREAM, True, ONE + STOP + DONE, ONE + STOP + DONE, id="a stream without usage"),
    ],
)
async def test_a_stored_answer_is_replayed(
    fields: dict[str, Any], body: bytes, expected: bytes, *, is_stream: bool
) -> None:
    exchange = make_exchange(make_decision(fields, cache=KEYED))
    writer = MemoryWriter()
    settlement = Settlement(writer, exchange)
    content_type = "text/event-stream" if is_stream else "application/json"
    stored = StoredAnswer(is_stream, content_type, body, 1_700_000_000_000, Usage(7, 13), "fp", "m")
    await replay(stored, writer, exchange=exchange, settle=settlement, headers=lambda: OWN)
    assert writer.body == expected
    assert writer.header("Content-Type") == content_type
    assert writer.header("Cache-Control") == ("no-cache, no-store" if is_stream else "no-store")
    assert settlement.entries == [None]
    assert settlement.outcome == "completed"
    assert (exchange.answer.usage, exchange.answer.fingerprint) == (Usage(7, 13), "fp")


async def test_an_answer_that_does_not_hold_what_was_asked_for_has_told_nothing(up: FakeUpstream) -> None:
    relayed = await pass_on(up, make_decision(), reply=json_reply({"choices": []}), complete=lambda _: None)
    assert isinstance(relayed.error, UpstreamUnusable)
    assert (relayed.exchange.outcome, relayed.exchange.status) == (Outcome.FAILED, 0)
    assert relayed.settlement.entries == []
