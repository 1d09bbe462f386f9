"""Warming: what of a file is sent, and what is made of the answers; the gateway is a scripted server on a socket."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import FakeUpstream, body_reply, ev, json_reply, sse_reply, tchunk
from gateway import free_port
from stores import eventually

from proxy.warming import CannotWarm, Failed, Line, Warming, is_key, is_path, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = "/v1/completions"
ANSWER = {"object": "text_completion", "choices": [{"index": 0, "text": "!", "finish_reason": "stop"}]}
DONE = b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def server() -> FakeUpstream:
    return FakeUpstream().start()


@pytest.fixture
def gateway(server: FakeUpstream) -> Iterator[FakeUpstream]:
    server.reset()
    yield server
    server.reset()


def with_status(status: str) -> list[Any]:
    return json_reply(ANSWER, headers=[("Cache-Status", status)])


def refusal(status: int, message: str, **headers: str) -> list[Any]:
    error = {"error": {"message": message, "type": "t", "param": None, "code": None}}
    return json_reply(error, status, [(name.replace("_", "-"), value) for name, value in headers.items()])


def requests(count: int) -> list[Line]:
    return [Line(number, PATH, b'{"prompt": "%d"}' % number) for number in range(1, count + 1)]


async def warmed(gateway: FakeUpstream, lines: list[Line | Failed], *, at_once: int = 1) -> dict[str, Any]:
    warming = Warming(gateway.url, "sk-warm", at_once=at_once)
    await warming.send(lines)
    return warming.tally.describe()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            b'{"model": "m", "n": 1.50}\n', Line(1, PATH, b'{"model": "m", "n": 1.50}'), id="a body, as it is spelled"
        ),
        pytest.param(
            b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"n":  1.50}}\n',
            Line(1, "/v1/chat/completions", b'{"n":  1.50}'),
            id="a line of a batch file",
        ),
        pytest.param(b'{"url": "/v1/embeddings", "body": {}}', Line(1, "/v1/embeddings", b"{}"), id="with the least"),
        pytest.param(b'{"body": {}, "model": "m"}', Line(1, PATH, b'{"body": {}, "model": "m"}'), id="a member `body`"),
        pytest.param(b'  {"a": 1} \r\n', Line(1, PATH, b'{"a": 1}'), id="space around it"),
        pytest.param(b"[1]", Failed(1, "no request: Expected `object`, got `array`"), id="no object"),
        pytest.param(b"{", Failed(1, "no request: Input data was truncated"), id="no JSON"),
        pytest.param(
            b'{"url": "/v1/files", "method": "GET", "body": {}}',
            Failed(1, "its method is 'GET'; only POST generates"),
            id="another method",
        ),
        pytest.param(
            b'{"url": "https://api.openai.com/v1/completions", "body": {}}',
            Failed(1, "its url is 'https://api.openai.com/v1/completions'; write a path such as /v1/completions"),
            id="a whole address",
        ),
        pytest.param(
            b'{"url": "/v1/x\\r\\nHost: evil", "body": {}}',
            Failed(1, "its url is '/v1/x\\r\\nHost: evil'; write a path such as /v1/completions"),
            id="a path that ends its line",
        ),
    ],
)
def test_lines_are_read(text: bytes, expected: Line | Failed) -> None:
    assert list(read_lines([text], PATH)) == [expected]


def test_empty_lines_are_none_and_lines_keep_their_numbers() -> None:
    assert [each.number for each in read_lines([b"\n", b"{}\n", b"  \n", b"{}"], PATH) if isinstance(each, Line)] == [
        2,
        4,
    ]


@pytest.mark.parametrize("text", ["", "v1/x", "http://h/v1", "/a b", "/é", "/a#b", "/\n"])
def test_what_is_no_path(text: str) -> None:
    assert not is_path(text)


@pytest.mark.parametrize("text", ["", "a b", "sk-é", "sk\r\n"])
def test_what_is_no_key(text: str) -> None:
    assert not is_key(text)


async def test_requests_are_sent_as_any_client_s_are(gateway: FakeUpstream) -> None:
    gateway.script(with_status("tidegate; fwd=miss; stored"))
    await warmed(gateway, [Line(1, "/v1/chat/completions?api-version=1", b'{"n": 1.50}')])
    [sent] = gateway.log
    assert (sent.method, sent.target, sent.body) == ("POST", "/v1/chat/completions?api-version=1", b'{"n": 1.50}')
    assert sent.header("Authorization") == "Bearer sk-warm"
    assert sent.header("Content-Type") == "application/json"


STREAM_STATUS = [("Cache-Status", "tidegate; fwd=miss")]


@pytest.mark.parametrize(
    ("reply", "counted"),
    [
        pytest.param(with_status("tidegate; fwd=miss; stored"), {"stored": 1}, id="fetched and stored"),
        pytest.param(with_status("tidegate; fwd=stale; stored"), {"stored": 1}, id="fetched anew"),
        pytest.param(with_status("tidegate; fwd=partial; stored"), {"stored": 1}, id="some items fetched"),
        pytest.param(with_status("tidegate; hit; ttl=50"), {"known": 1}, id="there before"),
        pytest.param(with_status("tidegate; fwd=miss; collapsed"), {"known": 1}, id="being fetched by another"),
        pytest.param(
            with_status("tidegate; fwd=bypass; detail=not-deterministic"),
            {"bypassed": {"not-deterministic": 1}},
            id="nothing for the cache",
        ),
        pytest.param(
            with_status('tidegate; fwd=bypass; detail="named-input"'), {"bypassed": {"named-input": 1}}, id="quoted"
        ),
        pytest.param(with_status("tidegate; fwd=bypass"), {"bypassed": {"unknown": 1}}, id="without a reason"),
        pytest.param(with_status("tidegate; fwd=miss; detail=unavailable"), {"unstored": 1}, id="not stored"),
        pytest.param(json_reply(ANSWER), {"bypassed": {"unknown": 1}}, id="an answer of another server"),
        pytest.param(with_status("edge; hit, tidegate; fwd=miss; stored"), {"stored": 1}, id="behind another cache"),
        pytest.param(
            sse_reply([ev(tchunk("a")), DONE], headers=STREAM_STATUS),
            {"streamed": 1},
            id="a stream, of which one is not told",
        ),
        pytest.param(
            sse_reply([ev(tchunk("a")), DONE], headers=[("Cache-Status", "tidegate; hit; ttl=5")]),
            {"known": 1},
            id="a stream that was there before",
        ),
    ],
)
async def test_answers_are_counted_by_what_the_cache_did(
    gateway: FakeUpstream, reply: list[Any], counted: dict[str, Any]
) -> None:
    gateway.script(reply)
    nothing = {"stored": 0, "known": 0, "streamed": 0, "unstored": 0, "bypassed": {}, "failed": 0, "errors": []}
    assert await warmed(gateway, [*requests(1)]) == {"done": 1, **nothing, **counted}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        pytest.param(refusal(400, "n must be less."), "400: n must be less.", id="a refusal"),
        pytest.param(body_reply(b"<html>", 502, ctype="text/html"), "502: <html>", id="no JSON"),
        pytest.param(refusal(429, "Never.", Retry_After="601"), "429: Never.", id="no room for too long"),
        pytest.param(refusal(429, "Never.", Retry_After="9" * 400), "429: Never.", id="no room for ever"),
        pytest.param(refusal(429, "Never."), "429: Never.", id="no room, and no time is named"),
        pytest.param(
            refusal(429, "Never.", Retry_After="1", x_should_retry="false"), "429: Never.", id="that never fits"
        ),
        pytest.param(refusal(503, "Away.", Retry_After="1"), "503: Away.", id="what is no limit"),
        pytest.param(
            sse_reply([ev(tchunk("a")), ev({"error": {"message": "It broke."}})], headers=STREAM_STATUS),
            "It broke.",
            id="a stream that ends in an error",
        ),
        pytest.param(
            sse_reply([ev(tchunk("a"))], end="rst", headers=STREAM_STATUS),
            "the answer broke off: The connection to the upstream broke within its answer.",
            id="a stream that breaks off",
        ),
        pytest.param([("close",)], "no answer came: ServerDisconnectedError", id="no answer"),
    ],
)
async def test_what_fails_is_told_with_its_line(gateway: FakeUpstream, reply: list[Any], reason: str) -> None:
    gateway.script(reply, with_status("tidegate; hit"))
    told = await warmed(gateway, [*requests(2)])
    assert (told["done"], told["failed"], told["known"]) == (2, 1, 1)
    assert told["errors"] == [{"line": 1, "reason": reason}]


async def test_the_first_failures_are_kept_and_all_counted(gateway: FakeUpstream) -> None:
    gateway.script(*[refusal(400, f"no. {number}") for number in range(8)])
    told = await warmed(gateway, [Failed(1, "no JSON"), *requests(8)[1:]])
    assert (told["failed"], len(told["errors"]), told["errors"][0]) == (8, 5, {"line": 1, "reason": "no JSON"})


async def test_who_has_no_room_waits_as_long_as_told_and_so_do_all(gateway: FakeUpstream) -> None:
    gateway.script(refusal(429, "Full.", Retry_After="1"), *[with_status("tidegate; fwd=miss; stored")] * 3)
    told = await warmed(gateway, [*requests(3)])
    assert (told["done"], told["stored"], told["failed"]) == (3, 3, 0)
    bodies = [json.loads(each.body)["prompt"] for each in gateway.log]
    assert bodies == ["1", "1", "2", "3"]
    assert gateway.log[1].t0 - gateway.log[0].t0 >= 1


async def test_so_many_are_under_way_at_once_and_given_up_with_the_whole(gateway: FakeUpstream) -> None:
    gateway.default = [("hold", 30), *with_status("tidegate; hit")]
    warming = Warming(gateway.url, "sk-warm", at_once=3)
    sending = asyncio.create_task(warming.send(requests(5)))
    await eventually(lambda: len(gateway.log) == 3)
    sending.cancel()
    await asyncio.wait({sending})
    assert sending.cancelled()
    await eventually(lambda: all(each.aborted_at is not None for each in gateway.log))
    assert (len(gateway.log), warming.tally.done) == (3, 0)


async def test_a_gateway_that_is_not_there_ends_it_at_once() -> None:
    warming = Warming(f"http://127.0.0.1:{free_port()}", "sk-warm")
    with pytest.raises(CannotWarm, match="no gateway answers at http"):
        await warming.send(requests(50))
    assert warming.tally.done == 0


async def test_a_key_that_is_not_taken_ends_it_at_once(gateway: FakeUpstream) -> None:
    gateway.script(with_status("tidegate; hit"), refusal(401, "Unknown key."))
    warming = Warming(gateway.url, "sk-warm", at_once=1)
    with pytest.raises(CannotWarm, match=r"does not take the API key \(401: Unknown key.\)"):
        await warming.send(requests(50))
    assert (warming.tally.done, len(gateway.log)) == (1, 2)


async def test_whatever_reading_lines_does_is_raised_as_it_is(gateway: FakeUpstream) -> None:
    def lines() -> Iterator[Line]:
        yield requests(1)[0]
        raise OSError(5, "input/output error")

    gateway.script(with_status("tidegate; hit"))
    with pytest.raises(OSError, match="input/output error"):
        await Warming(gateway.url, "sk-warm", at_once=1).send(lines())


async def test_a_connection_that_had_gone_stale_is_no_failure(gateway: FakeUpstream) -> None:
    gateway.default = with_status("tidegate; hit")
    gateway.kill_reused = True
    told = await warmed(gateway, [*requests(3)])
    assert (told["known"], told["failed"]) == (3, 0)
    assert [each.dropped for each in gateway.log] == [False, True, False, True, False]
