"""The whole grammar of event streams through a whole gateway: what goes out is what came in (SPEC §7).

Each row of the corpus is read from a scripted upstream's socket and written to a client's, in four ways: in one piece,
event by event with the upstream waiting for the client, in crumbs, and fetched for the cache and then from it. Each
exchange is measured in its own bytes and in its own usage record.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import time
import zlib
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from fake_upstream import DONE, chunk, ev, head, sse_head, tchunk, usage
from gateway import Gateway, bearer, eventually, settings
from grammar import BOM, promised, read
from harness import Resp, call
from hypothesis import given
from hypothesis import strategies as st
from responses import delta
from responses import stream as response_stream
from served_gateway import ChunkClient, Got, ServedGateway, served_gateway
from stores import StoreServer
from whole import configuration

from proxy.exchange import Observed
from proxy.wire.chunks import CHUNKS, without_usage_event
from proxy.wire.sse import EventSplitter, data_of
from proxy.wire.streams import StreamObserver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fake_upstream import FakeUpstream, Op


MEBIBYTE = 1024 * 1024
MAX_EVENT_BYTES = 11 * MEBIBYTE
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
REPORTED, COUNTED, NOTHING = "reported", "counted", "none"


@dataclass(frozen=True)
class Row:
    """One stream, and what has to become of it.

    `removed` are the events that the gateway asked for and takes out again; `tokens` input and output, and how they are
    `known`; `is_stored`: the same request is served from the cache afterwards. `held` is where the end begins that
    waits for the settlement: behind the last piece of the stream that holds anything else. `added` is written after it.
    """

    stream: bytes
    removed: tuple[bytes, ...] = ()
    path: str = COMPLETIONS
    asked: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[int, int] = (7, 13)
    known: str = REPORTED
    outcome: str = "completed"
    is_stored: bool = True
    held: bytes = b"[DONE]"
    is_unaligned: bool = False
    replayed: bytes | None = None

    @property
    def expected(self) -> bytes:
        """The bytes that the client gets."""
        left = self.stream
        for each in self.removed:
            assert left.count(each) == 1, "the row does not say which event it means"
            left = left.replace(each, b"")
        return left

    def owed(self, sent: int) -> int:
        """Return how much of `expected` the client has once so many bytes of the stream have come."""
        whole = promised(self.stream[:sent])
        if self.held and self.held in self.stream:
            before = self.stream.index(self.held)
            whole = min(whole, max(read(self.stream[:before]).ends, default=0))
        begins = [self.stream.index(each) for each in self.removed]
        taken_out = sum(len(each) for each, begin in zip(self.removed, begins, strict=True) if begin < whole)
        return whole - taken_out


# ---------------------------------------------------------------- what streams are made of
ONE, TWO, STOP = ev(tchunk("one ")), ev(tchunk("two ")), ev(tchunk("", finish="stop"))
USAGE = ev({"id": "cmpl-x", "object": "text_completion", "created": 1, "model": "m", "choices": [], "usage": usage(20)})
"""7 tokens of input, 13 of output."""
WANTS_USAGE = {"stream_options": {"include_usage": True}}
UNREPORTED = {"tokens": (3, 2), "known": COUNTED}
"""Of a prompt of 12 bytes and of `one ` and `two `: at four bytes a token, and one for each event at least."""
UNREPORTED_CHAT = {**UNREPORTED, "path": CHAT, "tokens": (7, 2)}
"""The same of a message: the names and values of `role` and `content` are 4, 4, 7 and 12 bytes."""
UNFINISHED = {"outcome": "incomplete", "is_stored": False}


def crlf(*events: bytes) -> bytes:
    return b"".join(events).replace(b"\n", b"\r\n")


def cr(*events: bytes) -> bytes:
    return b"".join(events).replace(b"\n", b"\r")


def lines(event: bytes, indent: int | None = 1) -> bytes:
    """Write an event's JSON over several data lines, broken wherever JSON may be."""
    plain = json.dumps(json.loads(event.removeprefix(b"data: ")), indent=indent)
    broken = plain.replace('": ', '":\n').replace("[]", "[\n]")
    return b"".join(b"data: " + line.encode() + b"\n" for line in broken.split("\n")) + b"\n"


def said(finish: str | None = None, index: int = 0, **fields: object) -> bytes:
    """Write one event of a chat."""
    choice = {"index": index, "delta": fields, "logprobs": None, "finish_reason": finish}
    return ev({"id": "chat-x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def reads(*events: bytes) -> bytes:
    return b"".join(events)


CHAT_USAGE = ev({"id": "chat-x", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage(20)})
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
LOGPROBS = {"content": [{"token": "one", "logprob": -0.1, "bytes": [111], "top_logprobs": []}], "refusal": None}
WITH_LOGPROBS = ev(
    {"model": "m", "choices": [{"index": 0, "delta": {"content": "one "}, "logprobs": LOGPROBS, "finish_reason": None}]}
)
BIG = ev(tchunk("x" * (10 * MEBIBYTE)))
LONG_LINE = ev(tchunk("x" * (600 * 1024)))
ABOVE = ev(tchunk("x" * (12 * MEBIBYTE)))
RESPONSE = response_stream(["Hello", " there"])
RESPONSE_TOKENS = {"path": RESPONSES, "tokens": (11, 7)}
ENDED = {"held": b"response.completed"}

CORPUS: dict[str, Row] = {
    # ------------------------------------------------ line ends
    "LF": Row(reads(ONE, TWO, STOP, USAGE, DONE), (USAGE,)),
    "CRLF": Row(crlf(ONE, TWO, STOP, USAGE, DONE), (crlf(USAGE),)),
    "CR alone": Row(cr(ONE, TWO, STOP, USAGE, DONE), (cr(USAGE),)),
    "an event in each of the three": Row(reads(ONE, crlf(TWO), cr(STOP), crlf(USAGE), DONE), (crlf(USAGE),)),
    "CR, then CRLF": Row(reads(cr(ONE), crlf(TWO), cr(STOP), USAGE, crlf(DONE)), (USAGE,)),
    "mixed within events": Row(
        reads(ONE[:-2] + b"\r\n\n", TWO[:-2] + b"\n\r\n", STOP[:-2] + b"\r\r\n", USAGE[:-2] + b"\n\r", DONE),
        (USAGE[:-2] + b"\n\r",),
    ),
    "a blank line of CR below a line of CRLF": Row(
        reads(ONE[:-2] + b"\r\n\r", TWO, STOP, USAGE[:-2] + b"\r\n\r", DONE), (USAGE[:-2] + b"\r\n\r",)
    ),
    "usage that was asked for, LF": Row(reads(ONE, TWO, STOP, USAGE, DONE), asked=WANTS_USAGE),
    "usage that was asked for, CRLF": Row(crlf(ONE, TWO, STOP, USAGE, DONE), asked=WANTS_USAGE),
    "usage that was asked for, CR": Row(cr(ONE, TWO, STOP, USAGE, DONE), asked=WANTS_USAGE),
    # ------------------------------------------------ lines and fields
    "no space after the colon": Row(
        reads(ONE, TWO, STOP, USAGE, DONE).replace(b"data: ", b"data:"), (USAGE.replace(b"data: ", b"data:"),)
    ),
    "two spaces after the colon": Row(
        reads(ONE, TWO, STOP, USAGE).replace(b"data: ", b"data:  ") + DONE, (USAGE.replace(b"data: ", b"data:  "),)
    ),
    "other fields before and behind the data": Row(
        reads(
            b"event: completion\nid: 7\nretry: 3000\n" + ONE,
            TWO[:-1] + b"id: 8\n\n",
            STOP,
            b"id: 9\n" + USAGE[:-1] + b"event: last\n\n",
            DONE,
        ),
        (b"id: 9\n" + USAGE[:-1] + b"event: last\n\n",),
    ),
    "fields without data": Row(
        reads(b"retry: 10\n\n", ONE, b"id: 1\n\n", b"event\n\n", TWO, STOP, USAGE, DONE), (USAGE,)
    ),
    "fields that nobody knows": Row(
        reads(b"database: x\n" + ONE, b"foo\n" + TWO, b" data: y\n" + STOP, USAGE, DONE), (USAGE,)
    ),
    "a data field without colon": Row(reads(ONE, b"data\n\n", TWO, STOP, USAGE, DONE), (USAGE,), is_stored=False),
    "empty data": Row(reads(ONE, b"data:\n\n", b"data: \n\n", TWO, STOP, USAGE, DONE), (USAGE,), is_stored=False),
    "blank lines between events": Row(reads(b"\n", ONE, b"\n\n\n", TWO, b"\n", STOP, USAGE, b"\n", DONE), (USAGE,)),
    "blank lines of CRLF between events": Row(
        crlf(b"\n\n", ONE, b"\n", TWO, STOP, USAGE, b"\n\n", DONE), (crlf(USAGE),)
    ),
    "JSON over several data lines": Row(
        reads(lines(ONE), lines(TWO), lines(STOP), lines(USAGE), DONE), (lines(USAGE),)
    ),
    "JSON over several data lines, CRLF": Row(
        crlf(lines(ONE), lines(TWO), lines(STOP), lines(USAGE), DONE), (crlf(lines(USAGE)),)
    ),
    "JSON over several data lines, CR, not reported": Row(cr(lines(ONE), lines(TWO), lines(STOP), DONE), **UNREPORTED),
    "JSON over data lines with comments between": Row(
        reads(lines(ONE), TWO, lines(STOP).replace(b"\ndata: {", b"\n: hm\ndata: {"), lines(USAGE), DONE),
        (lines(USAGE),),
    ),
    "JSON with spaces everywhere": Row(
        reads(ONE, TWO, STOP, USAGE, DONE).replace(b": ", b" \t:  ").replace(b"data \t:  ", b"data: "),
        (USAGE.replace(b": ", b" \t:  ").replace(b"data \t:  ", b"data: "),),
    ),
    "JSON without a space": Row(
        reads(ONE, TWO, STOP, USAGE, DONE).replace(b": ", b":").replace(b", ", b","),
        (USAGE.replace(b": ", b":").replace(b", ", b","),),
    ),
    # ------------------------------------------------ comments
    "comments before, between and behind events": Row(
        reads(b": PROCESSING\n\n", b":\n\n", ONE, b": ping\n\n", TWO, STOP, USAGE, DONE, b": bye\n\n"), (USAGE,)
    ),
    "comments within events": Row(
        reads(b": a\n" + ONE, TWO[:-1] + b": b\n\n", STOP, b": c\n" + USAGE, b": d\n" + DONE), (b": c\n" + USAGE,)
    ),
    "a comment line by itself, and a pause": Row(reads(b": ping\n", ONE, TWO, STOP, USAGE, DONE), (USAGE,)),
    "comments with CRLF": Row(crlf(b": ping\n\n", ONE, b":\n\n", TWO, STOP, USAGE, DONE), (crlf(USAGE),)),
    "comments that look like events": Row(
        reads(b": data: [DONE] \n\n", ONE, b": " + USAGE.replace(b"-x", b"-y"), TWO, STOP, USAGE, DONE),
        (USAGE,),
        held=DONE,
    ),
    "nothing but comments": Row(
        b": one\n\n: two\n\n", tokens=(3, 0), known=COUNTED, outcome="incomplete", is_stored=False
    ),
    # ------------------------------------------------ bytes
    "a byte order mark": Row(BOM + reads(ONE, TWO, STOP, USAGE, DONE), (USAGE,)),
    "a byte order mark before the event to be taken out": Row(BOM + reads(USAGE, ONE, TWO, STOP, DONE), (BOM + USAGE,)),
    "characters of several bytes": Row(
        reads(ev(json.dumps(tchunk("café 漢字 😀"), ensure_ascii=False).encode()), STOP, USAGE, DONE), (USAGE,)
    ),
    "characters of several bytes, not reported": Row(
        # 5 + 1 + 6 + 1 + 4 bytes
        reads(ev(json.dumps(tchunk("café 漢字 😀"), ensure_ascii=False).encode()), STOP, DONE),
        tokens=(3, 5),
        known=COUNTED,
    ),
    "bytes that are no UTF-8": Row(
        reads(ONE, TWO.replace(b"two", b"t\xff\xc3"), STOP, USAGE, DONE), (USAGE,), is_stored=False
    ),
    "NUL and control bytes": Row(
        reads(ONE, TWO.replace(b"two", b"\x00\x01\x1f"), b"\x00\n\n", STOP, USAGE, DONE), (USAGE,), is_stored=False
    ),
    "line separators that are none here": Row(
        reads(ev(json.dumps(tchunk("a\u2028b\u0085c"), ensure_ascii=False).encode() + b"\x0b\x0c"), STOP, USAGE, DONE),
        (USAGE,),
        is_stored=False,
    ),
    "what looks like usage and an end within the text": Row(
        reads(ev(tchunk('"usage": {"total_tokens": 1} [DONE] "choices": []')), TWO, STOP, USAGE, DONE), (USAGE,)
    ),
    # ------------------------------------------------ size
    "an event of 10 MB": Row(reads(ONE, BIG, STOP, USAGE, DONE), (USAGE,), is_stored=False),
    "a line beyond 512 KiB": Row(reads(ONE, LONG_LINE, STOP, USAGE, DONE), (USAGE,)),
    "a line beyond 512 KiB in CRLF": Row(crlf(ONE, LONG_LINE, STOP, USAGE, DONE), (crlf(USAGE),)),
    "an event above the bound": Row(
        reads(ONE, ABOVE, TWO, STOP, USAGE, DONE), (USAGE,), is_stored=False, is_unaligned=True
    ),
    "an event above the bound, not reported": Row(
        # all of its bytes count as text, of which the ceiling leaves 64 tokens
        reads(ABOVE, STOP, DONE),
        tokens=(3, 64),
        known=COUNTED,
        is_stored=False,
        is_unaligned=True,
    ),
    "a comment above the bound": Row(
        reads(ONE, TWO, b": " + b"x" * (12 * MEBIBYTE) + b"\n\n", STOP, USAGE, DONE),
        (USAGE,),
        is_stored=False,
        is_unaligned=True,
    ),
    "very many events": Row(reads(*[ONE] * 3000, STOP, USAGE, DONE), (USAGE,)),
    # ------------------------------------------------ ends
    "the last line end is missing": Row(reads(ONE, TWO, STOP, USAGE, DONE[:-1]), (USAGE,)),
    "both line ends are missing": Row(reads(ONE, TWO, STOP, USAGE, DONE[:-2]), (USAGE,)),
    "the last half of a CRLF is missing": Row(crlf(ONE, TWO, STOP, USAGE, DONE)[:-1], (crlf(USAGE),)),
    "no [DONE]": Row(reads(ONE, TWO, STOP, USAGE), (USAGE,), **UNFINISHED),
    "no [DONE], and the event to be taken out has no line ends": Row(
        reads(ONE, TWO, STOP, USAGE[:-2]), (USAGE[:-2],), **UNFINISHED
    ),
    "no [DONE], and the last event has no line ends": Row(reads(ONE, TWO, STOP[:-2]), **UNREPORTED, **UNFINISHED),
    "no [DONE], half an event at the end": Row(reads(ONE, TWO, STOP[:40]), **UNREPORTED, **UNFINISHED),
    "no finish reason": Row(reads(ONE, TWO, USAGE, DONE), (USAGE,), **UNFINISHED),
    "[DONE] with spaces": Row(reads(ONE, TWO, STOP, USAGE, b"data:   [DONE]  \n\n"), (USAGE,)),
    "[DONE] without a space": Row(reads(ONE, TWO, STOP, USAGE, b"data:[DONE]\n\n"), (USAGE,)),
    "[DONE] twice": Row(reads(ONE, TWO, STOP, USAGE, DONE, DONE), (USAGE,)),
    "data behind [DONE]": Row(reads(ONE, STOP, USAGE, DONE, TWO, b": end\n\n"), (USAGE,)),
    "usage behind [DONE]": Row(reads(ONE, TWO, STOP, DONE, USAGE), (USAGE,)),
    "usage behind [DONE], asked for": Row(reads(ONE, TWO, STOP, DONE, USAGE), asked=WANTS_USAGE),
    "an empty stream": Row(b"", tokens=(3, 0), known=COUNTED, **UNFINISHED),
    # ------------------------------------------------ usage
    "usage with the finish reason": Row(reads(ONE, TWO, ev({**tchunk("", finish="stop"), "usage": usage(20)}), DONE)),
    "usage in every event, and once alone": Row(
        reads(
            ev({**tchunk("one "), "usage": usage(8)}),
            ev({**tchunk("two ", finish="stop"), "usage": usage(9)}),
            USAGE,
            DONE,
        ),
        (USAGE,),
    ),
    "usage null in every event": Row(
        reads(
            ev({**tchunk("one "), "usage": None}),
            ev({**tchunk("", finish="stop"), "usage": None}),
            ev({"choices": [], "usage": None}),
            USAGE,
            DONE,
        ),
        (USAGE,),
    ),
    "usage alone in the middle, and again": Row(
        reads(ONE, USAGE.replace(b": 20", b": 19").replace(b": 13", b": 12"), TWO, STOP, USAGE, DONE),
        (USAGE.replace(b": 20", b": 19").replace(b": 13", b": 12"), USAGE),
    ),
    "Azure's first event": Row(
        reads(
            ev({"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [{}]}),
            *(ONE, TWO, STOP, USAGE, DONE),
        ),
        (USAGE,),
    ),
    "no choices and usage that is no object": Row(
        reads(ONE, ev({"choices": [], "usage": 3}), ev({"choices": [], "usage": []}), TWO, STOP, USAGE, DONE), (USAGE,)
    ),
    "choices null beside usage": Row(reads(ONE, TWO, STOP, ev({"choices": None, "usage": usage(20)}), DONE)),
    "a report that is garbage": Row(
        reads(ONE, TWO, STOP, ev({"choices": [], "usage": {"prompt_tokens": "x"}}), DONE),
        (ev({"choices": [], "usage": {"prompt_tokens": "x"}}),),
        **UNREPORTED,
    ),
    "no report": Row(reads(ONE, TWO, STOP, DONE), **UNREPORTED),
    "an error beside usage and no choices": Row(
        reads(ONE, ev({"choices": [], "usage": usage(20), "error": {"message": "no"}})),
        outcome="upstream_error",
        is_stored=False,
    ),
    # ------------------------------------------------ choices
    "two choices": Row(
        reads(
            ONE,
            ev(tchunk("uno ", index=1)),
            ev(tchunk("", index=1, finish="stop")),
            *(TWO, STOP, USAGE, DONE),
        ),
        (USAGE,),
        asked={"n": 2},
    ),
    "two choices in one event": Row(
        reads(
            ev({"model": "m", "choices": [{"index": 0, "text": "one "}, {"index": 1, "text": "two "}]}),
            ev({"choices": [{"index": i, "text": "", "finish_reason": "length"} for i in (1, 0)]}),
            DONE,
        ),
        asked={"n": 2},
        **UNREPORTED,
    ),
    "two choices, one of them unfinished": Row(
        reads(ONE, ev(tchunk("two ", index=1)), STOP, USAGE, DONE), (USAGE,), asked={"n": 2}, **UNFINISHED
    ),
    # ------------------------------------------------ chat
    "chat": Row(
        reads(
            said(role="assistant", content=""),
            said(content="one "),
            said(content="two "),
            said(finish="stop"),
            CHAT_USAGE,
            DONE,
        ),
        (CHAT_USAGE,),
        path=CHAT,
    ),
    "chat with tools": Row(
        # `{"a": ` and `1}` are 6 and 2 bytes
        reads(
            said(role="assistant", content=None, tool_calls=[CALL]),
            said(tool_calls=[{"index": 0, "function": {"arguments": '{"a": '}}]),
            said(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
            said(finish="tool_calls"),
            DONE,
        ),
        **UNREPORTED_CHAT,
    ),
    "chat with logprobs": Row(reads(WITH_LOGPROBS, said(content="two "), said(finish="stop"), DONE), **UNREPORTED_CHAT),
    "chat with reasoning under two names": Row(
        reads(said(reasoning="one ", reasoning_content="one "), said(content="two "), said(finish="stop"), DONE),
        **UNREPORTED_CHAT,
    ),
    "chat, refused by the model": Row(
        reads(said(refusal="one "), said(refusal="two "), said(finish="stop"), DONE), **UNREPORTED_CHAT
    ),
    "chat with obfuscation": Row(
        reads(
            ev({"choices": [{"index": 0, "delta": {"content": "one "}}], "obfuscation": "aZ9", "model": "m"}),
            ev({"obfuscation": "Q", "choices": [{"index": 0, "delta": {"content": "two "}, "finish_reason": "stop"}]}),
            DONE,
        ),
        replayed=reads(
            ev({"choices": [{"index": 0, "delta": {"content": "one "}}], "model": "m"}),
            ev({"choices": [{"index": 0, "delta": {"content": "two "}, "finish_reason": "stop"}]}),
            DONE,
        ),
        **UNREPORTED_CHAT,
    ),
    # ------------------------------------------------ errors in the stream
    "an error event": Row(
        reads(ONE, TWO, ev({"error": {"message": "no", "code": 500}})),
        outcome="upstream_error",
        is_stored=False,
        **UNREPORTED,
    ),
    "an error event, then [DONE]": Row(
        reads(ONE, TWO, STOP, ev({"error": "no"}), DONE), outcome="upstream_error", is_stored=False, **UNREPORTED
    ),
    "an event that is called error": Row(
        reads(ONE, TWO, b"event: error\ndata: no\n\n"), outcome="upstream_error", is_stored=False, **UNREPORTED
    ),
    # ------------------------------------------------ responses
    "a response": Row(reads(*RESPONSE), **RESPONSE_TOKENS, **ENDED),
    "a response in CRLF": Row(crlf(*RESPONSE), **RESPONSE_TOKENS, **ENDED),
    "a response in CR": Row(cr(*RESPONSE), **RESPONSE_TOKENS, **ENDED),
    "a response over several data lines": Row(
        reads(*[each.partition(b"\n")[0] + b"\n" + lines(each.partition(b"\n")[2]) for each in RESPONSE]),
        **RESPONSE_TOKENS,
        **ENDED,
    ),
    "a response, then [DONE]": Row(reads(*RESPONSE, DONE), **RESPONSE_TOKENS, **ENDED),
    "a response cut by its ceiling": Row(
        reads(*response_stream(["Hello"], end="incomplete", incomplete_details={"reason": "max_output_tokens"})),
        held=b"response.incomplete",
        **RESPONSE_TOKENS,
    ),
    "a response that failed": Row(
        reads(*response_stream(["Hello"], end="failed", error={"code": "server_error", "message": "no"})),
        held=b"response.failed",
        outcome="upstream_error",
        is_stored=False,
        **RESPONSE_TOKENS,
    ),
    "a response's own error event": Row(
        # `Hello` is 5 bytes
        reads(*RESPONSE[:4], b'event: error\ndata: {"type": "error", "code": "x", "message": "no", "param": null}\n\n'),
        path=RESPONSES,
        held=b"event: error",
        tokens=(3, 2),
        known=COUNTED,
        outcome="upstream_error",
        is_stored=False,
    ),
    "a response with obfuscation": Row(
        reads(*RESPONSE[:3], delta(3, "Hello", obfuscation="x1"), *RESPONSE[4:]),
        replayed=reads(*RESPONSE),
        **RESPONSE_TOKENS,
        **ENDED,
    ),
    "a response without its end": Row(
        # `Hello` and ` there` are 11 bytes
        reads(*RESPONSE[:-1]),
        path=RESPONSES,
        tokens=(3, 3),
        known=COUNTED,
        **UNFINISHED,
    ),
}


# ---------------------------------------------------------------- a whole gateway
@pytest.fixture(scope="module")
def gateway(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    made = configuration(
        _upstream.url,
        tmp_path_factory.mktemp("gateway"),
        max_event_bytes=MAX_EVENT_BYTES,
        policies={"default": {"cache": {"mode": "deterministic"}}},
    )
    with StoreServer() as store, served_gateway(made, store) as serving:
        yield serving


_numbers = itertools.count(100_000_000_000)


def body_of(row: Row, *, is_cacheable: bool) -> dict[str, Any]:
    """Return a request with a prompt of 12 bytes that was never sent before."""
    asked = f"{next(_numbers)}"
    ceiling = {"max_output_tokens": 64, "store": False} if row.path == RESPONSES else {"max_tokens": 64}
    prompt: dict[str, Any] = {
        COMPLETIONS: {"prompt": asked},
        CHAT: {"messages": [{"role": "user", "content": asked}]},
        RESPONSES: {"input": asked},
    }[row.path]
    return {"model": "m", **prompt, **ceiling, "stream": True, "temperature": 0 if is_cacheable else 1, **row.asked}


def check(row: Row, got: Got, gateway: ServedGateway) -> None:
    """Compare what one exchange brought with what its row says."""
    assert got.error is None
    assert got.complete
    assert got.body == row.expected
    if not row.is_unaligned:
        reached = list(itertools.accumulate(map(len, got.pieces)))
        ends = may_end(row.expected)
        assert [each for each in reached if each not in ends] == [], "a piece ends within an event"
    record = gateway.records()[got.header("x-request-id") or ""]
    tokens = (record["input_tokens"], record["output_tokens"])
    assert (tokens, record["known"], record["outcome"]) == (row.tokens, row.known, row.outcome)
    assert (record["status"], record["attempts"]) == (200, 1)


def may_end(stream: bytes) -> set[int]:
    """Return where a piece may end: behind an event, and where a blank line ended in CR before its LF came.

    That is not so below a line that ended in CRLF, where a reader looks for all of CRLF, CRLF.
    """
    ends = {0, *read(stream).ends}
    halves = [end - 1 for end in ends if stream[:end].endswith(b"\r\n")]
    return {*ends, len(stream), *[at for at in halves if at - 1 in ends or not stream[: at - 1].endswith(b"\r\n")]}


def written(pieces: Sequence[bytes], pause: float = 0) -> list[Op]:
    """Return a reply of pieces that are each written by itself."""
    ops: list[Op] = [("send", sse_head())]
    for piece in pieces:
        ops += [("send", chunk(piece)), ("sleep", pause)]
    return [*ops, ("send", b"0\r\n\r\n")]


@pytest.mark.parametrize("row", CORPUS.values(), ids=CORPUS.keys())
def test_in_one_piece(row: Row, gateway: ServedGateway, upstream: FakeUpstream) -> None:
    upstream.script(written([row.stream] if row.stream else []))
    with gateway.client() as client:
        client.ask(row.path, body_of(row, is_cacheable=False))
        check(row, client.answer(), gateway)


STEP_BY_STEP = {name: row for name, row in CORPUS.items() if len(row.stream) < MEBIBYTE // 4}
"""The others are of so many events, or of so large ones, that the other ways have to do."""


@pytest.mark.parametrize("is_cacheable", [False, True], ids=["for one", "for all who ask"])
@pytest.mark.parametrize("row", STEP_BY_STEP.values(), ids=STEP_BY_STEP.keys())
def test_each_event_leaves_as_it_comes(
    row: Row, gateway: ServedGateway, upstream: FakeUpstream, *, is_cacheable: bool
) -> None:
    """The upstream writes the next event once the client has the last."""
    answer = Got()
    ends = [*read(row.stream).ends, len(row.stream)]
    ops: list[Op] = [("send", sse_head())]
    had: list[tuple[int, int]] = []
    for begin, end in itertools.pairwise(dict.fromkeys([0, *ends])):
        owed = row.owed(end)
        ops += [
            ("send", chunk(row.stream[begin:end])),
            ("until", lambda owed=owed: len(answer.body) >= owed),
            ("do", lambda owed=owed: had.append((len(answer.body), owed))),
        ]
    upstream.script([*ops, ("send", b"0\r\n\r\n")])
    with gateway.client(timeout=5) as client:
        client.ask(row.path, body_of(row, is_cacheable=is_cacheable))
        client.answer(answer)
    assert [told for told in had if told[0] != told[1]] == [], "had, and should have had"
    check(row, answer, gateway)


@pytest.mark.parametrize("row", CORPUS.values(), ids=CORPUS.keys())
def test_in_crumbs(row: Row, gateway: ServedGateway, upstream: FakeUpstream) -> None:
    crumbs = random.Random(row.stream[:400])  # noqa: S311  the same each time
    largest = max(3, len(row.stream) // 100)
    pieces, begin = [], 0
    while begin < len(row.stream):
        end = begin + crumbs.randint(1, largest)
        pieces.append(row.stream[begin:end])
        begin = end
    upstream.script(written(pieces, 0.0005))
    with gateway.client() as client:
        client.ask(row.path, body_of(row, is_cacheable=False))
        check(row, client.answer(), gateway)


@pytest.mark.parametrize("row", CORPUS.values(), ids=CORPUS.keys())
def test_for_the_cache_and_from_it(row: Row, gateway: ServedGateway, upstream: FakeUpstream) -> None:
    upstream.script(written([row.stream] if row.stream else []))
    body = body_of(row, is_cacheable=True)
    with gateway.client() as client:
        client.ask(row.path, body)
        check(row, client.answer(), gateway)
        client.ask(row.path, body)
        again = client.answer()
    assert (again.header("Cache-Status") or "").startswith("tidegate;hit") is row.is_stored
    assert len(upstream.log) == (1 if row.is_stored else 2)
    if row.is_stored:
        assert again.body == (row.expected if row.replayed is None else row.replayed)
        record = gateway.records()[again.header("x-request-id") or ""]
        assert (record["known"], record["cache"], record["outcome"]) == (NOTHING, "hit", "completed")


CUT = {
    "LF": CORPUS["LF"],
    "CRLF": CORPUS["CRLF"],
    "CR alone": CORPUS["CR alone"],
    "mixed": CORPUS["mixed within events"],
    "several data lines, CRLF": CORPUS["JSON over several data lines, CRLF"],
    "characters of several bytes": CORPUS["characters of several bytes"],
    "comments": CORPUS["comments within events"],
    "byte order mark": CORPUS["a byte order mark before the event to be taken out"],
}


@pytest.mark.parametrize("row", CUT.values(), ids=CUT.keys())
def test_cut_at_every_byte(row: Row, gateway: ServedGateway, upstream: FakeUpstream) -> None:
    answers = []
    with gateway.client() as client:
        for cut in range(1, len(row.stream)):
            upstream.script(written([row.stream[:cut], row.stream[cut:]], 0.001))
            client.ask(row.path, body_of(row, is_cacheable=False))
            answers.append(client.answer())
    assert {answer.body for answer in answers} == {row.expected}
    records = gateway.records()
    told = [records[answer.header("x-request-id") or ""] for answer in answers]
    assert {(each["input_tokens"], each["output_tokens"], each["known"], each["outcome"]) for each in told} == {
        (*row.tokens, row.known, row.outcome)
    }


# ---------------------------------------------------------------- transports
PLAIN = reads(ONE, TWO, STOP, USAGE, DONE)
SSE_TYPE = ("Content-Type", "text/event-stream; charset=utf-8")


def squeezed(pieces: Sequence[bytes], wbits: int) -> list[bytes]:
    """Compress pieces so that each can be read when it has come."""
    squeezer = zlib.compressobj(wbits=wbits)
    flushed = [squeezer.compress(piece) + squeezer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*flushed, squeezer.flush()]


EVENTS = [ONE, TWO, STOP, USAGE, DONE]
TRANSPORTS = {
    "gzip, flushed at each event": (
        [("Content-Encoding", "gzip")],
        squeezed(EVENTS, 31),
    ),
    "gzip, flushed anywhere and cut anywhere": (
        [("Content-Encoding", "gzip")],
        [bytes([byte]) for byte in b"".join(squeezed([PLAIN[at : at + 50] for at in range(0, len(PLAIN), 50)], 31))],
    ),
    "gzip in two members": (
        [("Content-Encoding", "gzip")],
        [gzip.compress(PLAIN[:300]), gzip.compress(PLAIN[300:])],
    ),
    "deflate": ([("Content-Encoding", "deflate")], squeezed(EVENTS, 15)),
}


@pytest.mark.parametrize(("fields", "pieces"), TRANSPORTS.values(), ids=TRANSPORTS.keys())
def test_compressed_streams_flow(
    fields: list[tuple[str, str]], pieces: list[bytes], gateway: ServedGateway, upstream: FakeUpstream
) -> None:
    ops: list[Op] = [("send", sse_head(fields))]
    for piece in pieces:
        ops += [("send", chunk(piece)), ("sleep", 0.001)]
    upstream.script([*ops, ("send", b"0\r\n\r\n")])
    with gateway.client() as client:
        client.ask(COMPLETIONS, body_of(CORPUS["LF"], is_cacheable=False))
        answer = client.answer()
    check(CORPUS["LF"], answer, gateway)
    assert answer.header("Content-Encoding") is None


@pytest.mark.parametrize(
    ("fields", "body", "end"),
    [
        pytest.param([("Content-Length", len(PLAIN))], PLAIN, (), id="with its length"),
        pytest.param([("Connection", "close")], PLAIN, (("close",),), id="up to the connection's end"),
        pytest.param(
            [("Transfer-Encoding", "chunked")],
            b"".join(b"%X;x=y\r\n%b\r\n" % (1, bytes([byte])) for byte in PLAIN) + b"0\r\nX-Trailer: t\r\n\r\n",
            (),
            id="chunks of a byte each, with extensions and a trailer",
        ),
    ],
)
def test_framings(
    fields: list[tuple[str, object]], body: bytes, end: tuple[Op, ...], gateway: ServedGateway, upstream: FakeUpstream
) -> None:
    upstream.script([("send", head(200, [SSE_TYPE, *fields]) + body), *end])
    with gateway.client() as client:
        client.ask(COMPLETIONS, body_of(CORPUS["LF"], is_cacheable=False))
        answer = client.answer()
    check(CORPUS["LF"], answer, gateway)
    assert answer.header("Content-Type") == SSE_TYPE[1]


# ---------------------------------------------------------------- memory
BLOCK = ONE * 400
MANY_EVENTS = [BLOCK] * (200_000_000 // len(BLOCK))
ENDLESS_EVENT = [b"data: ", *[b"x" * 65_536] * (200_000_000 // 65_536), b"\n\n"]
MOST_GROWTH = 16 * MEBIBYTE
"""What a stream of 200 MB may add to a worker that bounds an event by 1 MiB.

An event that is cut is held five times for a moment (as it grows, with an eighth to spare, twice as it is cut, and on
its way to the socket), a read and the buffers of both sockets are 64 KiB each, up to four times: together 7 MiB. The
rest is for what the allocator keeps.
"""


@pytest.fixture(scope="module")
def small(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = settings(f"{_upstream.url}/v1", users={"alice": {}}, max_event_bytes=MEBIBYTE)
    with Gateway(tmp_path_factory.mktemp("small"), made) as running:
        yield running


def resident_bytes(pid: int, name: str) -> int:
    """Return what a process has in memory (`VmRSS`), or has had at most (`VmHWM`)."""
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith(name)]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("pauses", [False, True], ids=["read at once", "read when all waits"])
@pytest.mark.parametrize(
    "pieces", [pytest.param(MANY_EVENTS, id="many events"), pytest.param(ENDLESS_EVENT, id="one event without end")]
)
def test_memory_is_bounded_however_long_a_stream_is(
    pieces: list[bytes], small: Gateway, upstream: FakeUpstream, *, pauses: bool
) -> None:
    body = json.dumps({"model": "m", "prompt": "x", "stream": True, "temperature": 1}).encode()
    call(small.base_url, "POST", COMPLETIONS, bearer("alice"), body)  # so that all that is made once is there
    (pid,) = small.worker_pids
    before = resident_bytes(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets the most that there was
    last = reads(STOP, USAGE, DONE)
    sent: list[int] = []
    ops: list[Op] = [("send", sse_head())]
    for number, piece in enumerate([*pieces, last]):
        ops += [("send", chunk(piece)), ("do", lambda number=number: sent.append(number))]
    upstream.script([*ops, ("send", b"0\r\n\r\n")])
    with closing(ChunkClient(small.base_url)) as client:
        client.request("POST", COMPLETIONS, bearer("alice"), body)
        if pauses:
            stands_still(sent)
        digest, size, tail = zlib.crc32(b""), 0, b""
        client.read_head(Resp())
        for piece in client.chunks():
            digest, size, tail = zlib.crc32(piece, digest), size + len(piece), (tail + piece)[-len(last) :]
    expected = zlib.crc32(b"")
    for piece in [*pieces, STOP, DONE]:
        expected = zlib.crc32(piece, expected)
    assert (digest, tail.endswith(STOP + DONE)) == (expected, True)
    assert size > 199_000_000
    assert resident_bytes(pid, "VmHWM") - before < MOST_GROWTH


def stands_still(sent: list[int]) -> None:
    """Wait until the upstream can write no more, since nobody reads."""
    assert eventually(lambda: sent)
    seen, since = 0, time.monotonic()
    while time.monotonic() - since < 0.5:
        if len(sent) != seen:
            seen, since = len(sent), time.monotonic()
        time.sleep(0.02)
    assert seen * 40_000 < 100_000_000


# ---------------------------------------------------------------- any stream, however cut
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
FIELDS = st.sampled_from(
    [
        *(each[:-2] for each in (ONE, TWO, STOP, USAGE, DONE)),
        ev(tchunk("é", finish="length"))[:-2],
        b"data: x",
        b"data:",
        b"data",
        b'data: {"choices":[],"usage":',
        b'data: {"prompt_tokens":7,"completion_tokens":13}}',
        b": comment",
        b":",
        b"event: e",
        b"id: 1",
        b"database: x",
        b"\x00",
        "data: 漢".encode(),
    ]
)
LINE = st.tuples(st.one_of(FIELDS, st.just(b"")), LINE_ENDS).map(b"".join)
STREAMS = st.tuples(
    st.sampled_from([b"", BOM + b":\n"]), st.lists(LINE, max_size=24).map(b"".join), st.sampled_from([b"", ONE[:30]])
)


PLAINLY = hypothesis.settings(deadline=None, max_examples=300)


@st.composite
def cut_streams(draw: st.DrawFn) -> list[bytes]:
    stream = b"".join(draw(STREAMS))
    cuts = sorted(draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    return [stream[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(stream)])]


@PLAINLY
@given(cut_streams(), st.booleans())
def test_any_composition_passes_whole_and_is_read_as_clients_read_it(pieces: list[bytes], drops: bool) -> None:  # noqa: FBT001  drawn
    stream, observed = b"".join(pieces), Observed()
    splitter, observer = EventSplitter(), StreamObserver(observed, CHUNKS, drops_usage=drops)
    events: list[bytes] = []
    passed, come = b"", b""
    for piece in pieces:
        come += piece
        found = splitter.feed(piece)
        events += found
        # A blank line of CR below one of CRLF may wait for its LF or not: it ends no event.
        assert len(b"".join(events)) in {promised(come), max(read(come).ends, default=0)}
        passed += observer.observe(found)
    rest = splitter.rest()
    passed += observer.observe([rest]) if rest else b""
    assert b"".join(events) + rest == stream
    told = [data for each in events if (data := data_of(each)) is not None]
    assert told == read(stream).datas[: len(told)]
    assert len(read(stream).datas) - len(told) in (0, 1)  # of a CR that may be half of a CRLF
    taken_out = [each for each in [*events, rest] if drops and is_usage_alone(data_of(each))]
    left = [each for each in [*events, rest] if each not in taken_out]
    assert passed + observer.held == b"".join(left)


def is_usage_alone(data: bytes | None) -> bool:
    """Tell what SPEC §7 takes out, in as many words."""
    try:
        found = json.loads(data or b"")
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("choices") == [] and isinstance(found.get("usage"), dict)


@PLAINLY
@given(cut_streams())
def test_what_is_taken_out_of_a_stream_is_taken_out_of_a_stored_one(pieces: list[bytes]) -> None:
    stream, splitter = b"".join(pieces), EventSplitter()
    observer = StreamObserver(Observed(), CHUNKS, drops_usage=True)
    passed = b"".join([observer.observe(splitter.feed(piece)) for piece in pieces])
    rest = splitter.rest()
    passed += observer.observe([rest]) if rest else b""
    live, stored = passed + observer.held, without_usage_event(stream)
    assert read(live).datas == read(stored).datas
    # Of a CRLF that was cut behind its CR the LF may be left, which says nothing.
    assert live.translate(None, b"\n") == stored.translate(None, b"\n")
