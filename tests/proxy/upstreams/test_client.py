from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import traceback
import zlib
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from fake_upstream import FakeUpstream, body_reply, chunk, head, json_reply, sse_head
from forward_proxy import ForwardProxy
from sending import BOUNDS, busy_port, fake_upstream, make_upstream, up
from tls_files import server_tls, tls_file

from proxy.errors import UpstreamBroken, UpstreamTooSlow
from proxy.upstreams.client import AttemptFailed, ClientBounds, Failure, UpstreamAnswer, UpstreamClient
from proxy.upstreams.connections import DIRECT, way_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    Read = Callable[[UpstreamAnswer, bytearray], Awaitable[None]]

__all__ = ["fake_upstream", "up"]

packed_with: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=4),
    "zstd": zstandard.compress,
}

QUICK = ClientBounds(connect_seconds=0.3, first_byte_seconds=0.3, silence_seconds=0.3)


async def post(client: UpstreamClient, up: FakeUpstream, body: bytes = b"{}", bounds: ClientBounds = BOUNDS) -> bytes:
    answer = await client.post(up.url + "/v1/completions", [("X-One", "1")], body, bounds=bounds)
    try:
        read, is_all = await answer.read_whole(1_000_000)
    finally:
        answer.close()
    assert is_all
    assert answer.is_whole
    return read


async def test_connections_are_kept_and_no_cookie_is(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({}, headers=[("Set-Cookie", "who=alice; Path=/")])
    async with UpstreamClient() as client:
        for _ in range(3):
            await post(client, up)
    assert {request.conn_id for request in up.log} == {up.log[0].conn_id}
    assert not any(request.header("Cookie") for request in up.log)
    assert up.log[0].header("X-One") == "1"


async def test_a_stale_connection_is_told_and_left_out_when_asked(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({"ok": 1})
    async with UpstreamClient() as client:
        await asyncio.gather(*(post(client, up) for _ in range(3)))
        up.kill_reused = True
        with pytest.raises(AttemptFailed) as raised:
            await post(client, up)
        assert raised.value.failure is Failure.STALE
        answer = await client.post(up.url + "/v1/completions", [], b"{}", reuses_connection=False)
        assert await answer.read_whole(100) == (b'{"ok": 1}', True)
        answer.close()
    assert [request.dropped for request in up.log] == [False] * 3 + [True, False]


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param([("sleep", 0.8), ("rst",)], id="it worked for a while, then was reset"),
        pytest.param([("sleep", 0.8), ("close",)], id="it worked for a while, then ended"),
        pytest.param([("send", b"HTTP/1.1 2"), ("close",)], id="it began to answer"),
        pytest.param([("send", b"HTTP/1.1 2"), ("rst",)], id="it began to answer, then was reset"),
    ],
)
async def test_a_connection_over_which_the_request_was_read_is_not_stale(up: FakeUpstream, reply: list[Any]) -> None:
    up.script(json_reply({}), reply)
    async with UpstreamClient() as client:
        await post(client, up)
        with pytest.raises(AttemptFailed) as raised:
            await post(client, up)
    assert raised.value.failure is Failure.NO_ANSWER
    assert up.log[0].conn_id == up.log[1].conn_id


@pytest.mark.parametrize(
    "unasked",
    [
        pytest.param(head(200, [("Content-Length", 6)]) + b"others", id="a whole answer"),
        pytest.param(head(408, [("Content-Length", 0)]), id="that nobody asked in time"),
        pytest.param(head(200, [("Content-Length", 6)]), id="a head alone"),
        pytest.param(b"HTTP/1.1 200", id="a piece of a head"),
        pytest.param(b"\r\n", id="an empty line"),
        pytest.param(b"no HTTP", id="no HTTP at all"),
    ],
)
async def test_what_comes_unasked_is_nobodys_answer(up: FakeUpstream, unasked: bytes) -> None:
    is_sent = asyncio.Event()
    loop = asyncio.get_running_loop()
    up.script(
        [
            *body_reply(b"first"),
            ("sleep", 0.05),
            ("send", unasked),
            ("do", lambda: loop.call_soon_threadsafe(is_sent.set)),
        ],
        body_reply(b"second"),
    )
    async with UpstreamClient() as client:
        assert await post(client, up) == b"first"
        await is_sent.wait()
        await asyncio.sleep(0.05)  # until it has arrived
        assert await post(client, up) == b"second"
    assert len({request.conn_id for request in up.log}) == 2


@pytest.mark.parametrize("body", [b"{}", b"x" * 3_000_000], ids=["small", "in several writes"])
async def test_it_is_told_once_when_a_request_has_left(up: FakeUpstream, body: bytes) -> None:
    up.default = lambda _: json_reply({})
    told: list[int] = []
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], body, on_sent=lambda: told.append(1))
        answer.close()
    assert told == [1]


async def test_a_fresh_connection_that_breaks_is_not_tried_again(up: FakeUpstream) -> None:
    up.default = lambda _: [("rst",)]
    async with UpstreamClient() as client:
        with pytest.raises(AttemptFailed) as raised:
            await post(client, up)
    assert raised.value.failure is Failure.NO_ANSWER
    assert len(up.log) == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param([("close",)], id="closed without a byte"),
        pytest.param([("send", b"HTTP/1.1 2"), ("close",)], id="closed within the head"),
        pytest.param([("send", b"HTTP/1.1 200 OK\r\nX-One: secret\r\n"), ("close",)], id="closed between fields"),
    ],
)
async def test_no_answer(up: FakeUpstream, reply: list[Any]) -> None:
    failed = await fail(up, reply)
    assert failed.failure is Failure.NO_ANSWER


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param([("send", b"secret\r\n\r\n")], id="no HTTP at all"),
        pytest.param([("send", head(200, [("X-Big", "secret" * 20_000)]))], id="a head without bounds"),
        pytest.param([("send", b"HTTP/1.1 200 X\r\nContent-Length: secret\r\n\r\n{}")], id="a length that is none"),
        pytest.param([("send", head(200, [("Content-Length", 2)]) + b"{}secret")], id="a body above its length"),
        pytest.param([("send", head(200, [("Transfer-Encoding", "chunked")]) + b"secret\r\n")], id="a broken chunk"),
    ],
)
async def test_an_answer_that_is_no_http(up: FakeUpstream, reply: list[Any]) -> None:
    failed = await fail(up, reply)
    assert failed.failure is Failure.NOT_HTTP


async def fail(up: FakeUpstream, reply: list[Any]) -> AttemptFailed:
    """Return how an attempt fails; nothing that came from the upstream may stand in what is said about it."""
    up.script(reply)
    async with UpstreamClient() as client:
        with pytest.raises(AttemptFailed) as raised:
            await post(client, up)
    assert "secret" not in "".join(traceback.format_exception(raised.value))
    return raised.value


async def test_nobody_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    async with UpstreamClient() as client:
        with pytest.raises(AttemptFailed) as raised:
            await client.post(f"http://127.0.0.1:{port}/v1/completions", [], b"{}")
    assert raised.value.failure is Failure.UNREACHABLE


async def test_a_connection_that_is_not_taken_up_times_out() -> None:
    with busy_port() as port:
        assert await fail_to_connect(f"http://127.0.0.1:{port}") is Failure.CONNECT_TIMEOUT


async def test_a_greeting_that_is_not_answered_times_out() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        assert await fail_to_connect(f"https://127.0.0.1:{server.getsockname()[1]}") is Failure.CONNECT_TIMEOUT


async def test_a_name_that_does_not_resolve_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
    assert await fail_to_connect("http://upstream.test") is Failure.CONNECT_TIMEOUT


async def fail_to_connect(base: str) -> Failure:
    told: list[int] = []
    async with UpstreamClient() as client, asyncio.timeout(5):
        with pytest.raises(AttemptFailed) as raised:
            await client.post(f"{base}/v1/completions", [], b"{}", bounds=QUICK, on_sent=lambda: told.append(1))
    assert told == []
    return raised.value.failure


async def test_a_first_byte_that_does_not_come_times_out(up: FakeUpstream) -> None:
    up.script([("hold", 5)])
    async with UpstreamClient() as client:
        with pytest.raises(AttemptFailed) as raised:
            await post(client, up, bounds=QUICK)
    assert raised.value.failure is Failure.TIMEOUT


async def by_chunks(answer: UpstreamAnswer, seen: bytearray) -> None:
    async for piece in answer.chunks():
        seen += piece


async def by_flow(answer: UpstreamAnswer, seen: bytearray) -> None:
    async def take(piece: bytes) -> bool:
        seen.extend(piece)
        return False

    assert not await answer.flow(take)


async def by_flow_that_waits(answer: UpstreamAnswer, seen: bytearray) -> None:
    async def take(piece: bytes) -> bool:
        seen.extend(piece)
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        return False

    assert not await answer.flow(take)


EVERY_READING = pytest.mark.parametrize("read", [by_chunks, by_flow, by_flow_that_waits])


@EVERY_READING
@pytest.mark.parametrize(
    ("ops", "error"),
    [
        pytest.param([("hold", 5)], UpstreamTooSlow, id="silence"),
        pytest.param([("rst",)], UpstreamBroken, id="a reset"),
        pytest.param([("close",)], UpstreamBroken, id="the last chunk missing"),
        pytest.param([("sleep", 0.05), ("send", b"zz\r\n"), ("hold", 5)], UpstreamBroken, id="a broken chunk"),
    ],
)
async def test_what_came_before_a_break_is_handed_out(
    up: FakeUpstream, ops: list[Any], error: type[Exception], read: Read
) -> None:
    first = [("send", sse_head() + chunk(b"one")), ("sleep", 0.05), ("send", chunk(b"tw")), ("send", chunk(b"o"))]
    up.script([*first, *ops])
    seen = bytearray()
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}", bounds=QUICK)
        try:
            await read(answer, seen)
        except error as raised:
            assert answer.failure is raised  # noqa: PT017  what came before it matters as much
            assert "zz" not in "".join(traceback.format_exception(raised))  # noqa: PT017
        answer.close()
    assert seen == b"onetwo"
    assert isinstance(answer.failure, error)
    assert not answer.is_whole


@EVERY_READING
@pytest.mark.parametrize("fields", [[], [("Connection", "close")]], ids=["kept alive", "closed"])
@pytest.mark.parametrize("wait", [0, 0.1], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("end", "error"),
    [pytest.param(("rst",), UpstreamBroken, id="a reset"), pytest.param(("close",), None, id="an end")],
)
async def test_without_a_length_a_reset_is_no_end(
    up: FakeUpstream, end: tuple[str], error: type[Exception] | None, fields: list[Any], wait: float, read: Read
) -> None:
    up.script([("send", head(200, [("Content-Type", "text/event-stream"), *fields]) + b"one"), end])
    seen = bytearray()
    raised: Exception | None = None
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        await asyncio.sleep(wait)  # whether the end came before the reader or after
        try:
            await read(answer, seen)
        except UpstreamBroken as broken:
            raised = broken
        answer.close()
    assert seen == b"one"
    assert type(raised) is (error or type(None))
    assert answer.is_whole is (error is None)


async def test_a_reset_behind_a_whole_body_takes_nothing_away(up: FakeUpstream) -> None:
    up.script([("send", head(200, [("Content-Length", 2)]) + b"{}"), ("rst",)])
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        await asyncio.sleep(0.1)
        assert await answer.read_whole(100) == (b"{}", True)
        answer.close()
    assert answer.is_whole


@EVERY_READING
async def test_what_was_read_too_late_to_see_the_break_is_handed_out(up: FakeUpstream, read: Read) -> None:
    up.script([("send", sse_head() + chunk(b"one")), ("rst",)])
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        protocol = answer._response.connection.protocol  # noqa: SLF001  to wait for the break without reading
        await asyncio.wait([protocol.closed])
        seen = bytearray()
        try:
            await read(answer, seen)
        except UpstreamBroken:
            answer.close()
    assert seen == b"one"
    assert isinstance(answer.failure, UpstreamBroken)


def large_body() -> bytes:
    return b"".join(b"%07d\n" % number for number in range(125_000))


@EVERY_READING
async def test_a_large_body_comes_in_order(up: FakeUpstream, read: Read) -> None:
    up.script([("send", sse_head() + chunk(large_body()) + b"0\r\n\r\n")])
    seen = bytearray()
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        await read(answer, seen)
        answer.close()
    assert seen == large_body()
    assert answer.is_whole


@EVERY_READING
@pytest.mark.parametrize("fields", [[("Content-Length", 0)], [("Transfer-Encoding", "chunked")]])
async def test_an_empty_body_is_whole(up: FakeUpstream, read: Read, fields: list[Any]) -> None:
    up.script([("send", head(200, fields) + (b"" if fields[0][0] == "Content-Length" else b"0\r\n\r\n"))])
    seen = bytearray()
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        await read(answer, seen)
        answer.close()
    assert (seen, answer.is_whole) == (b"", True)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_a_flow_ends_when_it_was_enough_and_goes_on_where_it_ended(up: FakeUpstream, coding: str) -> None:
    body = large_body()
    packed, fields = (body, []) if coding == "identity" else (gzip.compress(body), [("Content-Encoding", "gzip")])
    pieces = [packed[begin : begin + 50_000] for begin in range(0, len(packed), 50_000)]
    up.script([("send", sse_head(fields)), *(("send", chunk(piece)) for piece in pieces), ("send", b"0\r\n\r\n")])
    seen: list[bytes] = []

    async def take_one(piece: bytes) -> bool:
        seen.append(piece)
        return True

    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        calls = 0
        while await answer.flow(take_one):
            calls += 1
            assert len(seen) == calls
        answer.close()
    assert b"".join(seen) == body
    assert answer.is_whole


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after it waited"])
async def test_what_goes_wrong_in_a_flow_is_raised_to_who_lets_it_flow(up: FakeUpstream, *, waits: bool) -> None:
    up.script([("send", sse_head()), ("sleep", 0.05), ("send", chunk(b"one")), ("hold", 5)])

    async def take(_: bytes) -> bool:
        if waits:
            await asyncio.sleep(0)
        raise LookupError("wrong")

    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        with pytest.raises(LookupError, match="wrong"):
            await answer.flow(take)
        answer.close()
    assert up.wait(lambda: up.log[0].aborted_at is not None)


async def test_an_upstream_waits_for_a_flow_that_waits(up: FakeUpstream) -> None:
    sent = []
    more = [("do", lambda: sent.append(1)), ("send", chunk(b"x" * 1_000_000))] * 60
    up.script([("send", sse_head()), *more, ("send", b"0\r\n\r\n")])
    may_go_on = asyncio.Event()
    seen = 0

    async def take(piece: bytes) -> bool:
        nonlocal seen
        seen += len(piece)
        await may_go_on.wait()
        return False

    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        flowing = asyncio.ensure_future(answer.flow(take))
        before = -1
        while len(sent) != before:  # until the kernel's buffers are full, and the upstream stands
            before = len(sent)
            await asyncio.sleep(0.3)
        assert before < 60
        assert seen < 1_000_000
        may_go_on.set()
        assert not await flowing
        answer.close()
    assert seen == 60_000_000


async def test_a_flow_that_is_cancelled_while_a_piece_waits_cancels_that(up: FakeUpstream) -> None:
    up.script([("send", sse_head() + chunk(b"one")), ("hold", 5)])
    fared: list[str] = []
    waiting = asyncio.Event()

    async def take(_: bytes) -> bool:
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            fared.append("cancelled")
            raise
        return False

    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        flowing = asyncio.ensure_future(answer.flow(take))
        await waiting.wait()
        flowing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flowing
        answer.close()
    assert fared == ["cancelled"]


async def test_an_upstream_that_goes_on_is_not_silent(up: FakeUpstream) -> None:
    up.script([("send", sse_head()), *([("send", chunk(b"x")), ("sleep", 0.2)] * 5), ("hold", 5)])
    seen = bytearray()
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}", bounds=QUICK)
        with pytest.raises(UpstreamTooSlow):
            await by_flow(answer, seen)
        answer.close()
    assert seen == b"xxxxx"


async def test_a_peek_takes_nothing_away(up: FakeUpstream) -> None:
    up.script(body_reply(b"x" * 1_000_000))  # more than comes in one piece
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        peeked = await answer.peek(10)
        assert set(peeked) == {ord("x")}
        assert len(await answer.peek(600_000)) >= 600_000
        await answer.peek(10)
        body, is_all = await answer.read_whole(1_000_000)
        answer.close()
    assert (len(body), is_all) == (1_000_000, True)


async def test_a_body_above_the_bound_is_read_no_further(up: FakeUpstream) -> None:
    up.script(body_reply(b"x" * 1_000_000))
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        body, is_all = await answer.read_whole(10_000)
        rest = b"".join([piece async for piece in answer.chunks()])
        answer.close()
    assert not is_all
    assert 10_000 < len(body) < 500_000
    assert len(body) + len(rest) == 1_000_000


async def test_an_answer_in_an_unknown_coding_is_of_no_use(up: FakeUpstream) -> None:
    up.script(body_reply(b"{}", headers=[("Content-Encoding", "snappy")]))
    async with UpstreamClient() as client:
        with pytest.raises(AttemptFailed, match="snappy") as raised:
            await post(client, up)
    assert raised.value.failure is Failure.NOT_HTTP


async def test_large_bodies_are_sent_whole(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({})
    body = b'{"prompt": "' + b"word " * 500_000 + b'"}'
    async with UpstreamClient() as client:
        await post(client, up, body)
    assert up.log[0].body == body
    assert up.log[0].header("Content-Length") == str(len(body))


async def test_an_address_is_used_as_it_stands(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({})
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/openai/deployments/org%2Fmodel/completions?api-version=a%2Bb", [], b"{}")
        answer.close()
    assert up.log[0].target == "/openai/deployments/org%2Fmodel/completions?api-version=a%2Bb"


async def test_the_end_is_told_once(up: FakeUpstream) -> None:
    up.script(json_reply({}))
    told: list[int] = []
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        answer.when_closed = lambda: told.append(1)
        answer.close()
        answer.close()
    assert told == [1]


# ---------------------------------------------------------------- to ask how it is
@pytest.mark.parametrize("status", [200, 204, 307, 404, 429, 503])
async def test_a_status_is_all_that_is_asked_for(up: FakeUpstream, status: int) -> None:
    up.default = lambda _: body_reply(b"x" * 10_000_000 if status == 200 else b"", status)
    async with UpstreamClient() as client:
        for _ in range(2):
            answered = await client.get(up.url + "/v1/models", [("X-One", "1")], timeout_seconds=5)
            assert answered == status
    seen = [(request.method, request.target, *map(request.header, ("X-One", "Connection"))) for request in up.log]
    assert seen == [("GET", "/v1/models", "1", "close")] * 2
    assert len({request.conn_id for request in up.log}) == 2


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        pytest.param([("send", head(200, [("Content-Length", 9)]) + b"cut"), ("rst",)], 200, id="the body breaks"),
        pytest.param([("send", head(503, [("Content-Encoding", "snappy")])), ("close",)], 503, id="an odd coding"),
        pytest.param(
            [("send", head(200, [("Content-Length", 10**9)]) + b"x" * 1_000_000), ("hold", 20)], 200, id="no end of it"
        ),
    ],
)
async def test_a_body_that_is_thrown_away_may_be_anything(up: FakeUpstream, reply: list[Any], status: int) -> None:
    up.default = lambda _: reply
    async with UpstreamClient() as client:
        assert await client.get(up.url + "/v1/models", [], timeout_seconds=5) == status


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        pytest.param([("hold", 5)], Failure.TIMEOUT, id="no answer"),
        pytest.param([("send", head(200, [("Content-Length", 9)])), ("hold", 5)], Failure.TIMEOUT, id="no end of it"),
        pytest.param([("close",)], Failure.NO_ANSWER, id="a closed connection"),
        pytest.param([("send", b"secret\r\n\r\n")], Failure.NOT_HTTP, id="no HTTP"),
    ],
)
async def test_no_status(up: FakeUpstream, reply: list[Any], failure: Failure) -> None:
    up.default = lambda _: reply
    async with UpstreamClient() as client:
        with pytest.raises(AttemptFailed) as raised:
            await client.get(up.url + "/v1/models", [], timeout_seconds=0.5)
    assert raised.value.failure is failure
    assert "secret" not in raised.value.reason


# ---------------------------------------------------------------- TLS
CA = {"ca_file": "ca.pem"}


@cache
def started(name: str) -> FakeUpstream:
    return FakeUpstream(tls=server_tls(name)).start()


def secure(name: str = "server") -> FakeUpstream:
    """Return the upstream that shows the certificate of this name, its log empty."""
    up = started(name)
    up.reset()
    return up


async def ask(
    url: str, tls: Mapping[str, str], environment: Mapping[str, str] | None = None, *, times: int = 1
) -> None:
    settings = make_upstream(f"{url}/v1", tls={name: tls_file(file) for name, file in tls.items()})
    way = way_to(settings, environment or {})
    async with UpstreamClient() as client:
        for _ in range(times):
            answer = await client.post(f"{url}/v1/completions", [], b"{}", way=way, bounds=BOUNDS)
            assert answer.status == 200
            assert (await answer.read_whole(10_000))[1]
            answer.close()
        assert await client.get(f"{url}/v1/models", [], way=way, timeout_seconds=2) == 200


async def fail_to_ask(url: str, tls: Mapping[str, str], environment: Mapping[str, str] | None = None) -> AttemptFailed:
    """Return how both kinds of requests fail."""
    settings = make_upstream(f"{url}/v1", tls={name: tls_file(file) for name, file in tls.items()})
    way = way_to(settings, environment or {})
    async with UpstreamClient() as client:
        with pytest.raises(AttemptFailed) as first:
            await client.post(f"{url}/v1/completions", [], b"{}", way=way, bounds=BOUNDS)
        with pytest.raises(AttemptFailed) as second:
            await client.get(f"{url}/v1/models", [], way=way, timeout_seconds=2)
    assert (first.value.failure, first.value.reason) == (second.value.failure, second.value.reason)
    return first.value


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("trusted", ["ca.pem", "server-with-key.pem"], ids=["its authority's", "itself"])
async def test_a_certificate_is_trusted_by_one_that_is_named(host: str, trusted: str) -> None:
    up = secure()
    await ask(f"https://{host}:{up.port}", {"ca_file": trusted}, times=2)
    assert [request.conn_id for request in up.log[:2]] == [up.log[0].conn_id] * 2


@pytest.mark.parametrize(
    ("name", "tls", "reason"),
    [
        pytest.param("server", {}, "unable to get local issuer certificate; tls.ca_file names", id="not the system's"),
        pytest.param(
            "server",
            {"ca_file": "other-ca.pem"},
            "unable to get local issuer certificate; tls.ca_file names",
            id="of another authority",
        ),
        pytest.param("expired", CA, "certificate has expired; the upstream needs a new one", id="too old"),
        pytest.param("elsewhere", CA, "is not valid for '127.0.0.1'; base_url must name", id="for another host"),
    ],
)
async def test_a_certificate_that_is_not_trusted(name: str, tls: dict[str, str], reason: str) -> None:
    up = secure(name)
    failed = await fail_to_ask(up.url, tls)
    assert failed.failure is Failure.UNREACHABLE
    assert failed.reason.startswith("certificate verify failed: ")
    assert reason in failed.reason
    assert up.log == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
@pytest.mark.parametrize(
    ("tls", "reason"),
    [
        pytest.param(CA, "asks for a client certificate: tls.certificate_file and tls.key_file", id="none is shown"),
        pytest.param(
            {**CA, "certificate_file": "stranger-with-key.pem"},
            "it refuses the client certificate of tls.certificate_file",
            id="a stranger's is shown",
        ),
    ],
)
async def test_a_client_certificate_that_is_missed_or_refused(
    version: ssl.TLSVersion, tls: dict[str, str], reason: str
) -> None:
    with refusing_server(version) as port:
        failed = await fail_to_ask(f"https://127.0.0.1:{port}", tls)
    assert failed.failure is Failure.UNREACHABLE
    assert reason in failed.reason


async def test_a_client_certificate_is_shown() -> None:
    up = FakeUpstream(tls=server_tls(asks_certificate=True)).start()
    await ask(up.url, {**CA, "certificate_file": "client.pem", "key_file": "client.key"}, times=2)
    assert len(up.log) == 3


@contextmanager
def refusing_server(version: ssl.TLSVersion) -> Iterator[int]:
    """Greet clients of whom no certificate is right, and let each read why it is refused."""
    context = server_tls(asks_certificate=True)
    context.minimum_version = context.maximum_version = version

    def refuse(plain: socket.socket) -> None:
        with closing(context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)) as connection:
            with pytest.raises(ssl.SSLError):
                connection.do_handshake()
            connection.shutdown(socket.SHUT_WR)
            while socket.socket.recv(connection, 65536):
                pass

    def serve() -> None:
        with suppress(OSError):  # shut down
            while True:
                refuse(server.accept()[0])

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_what_speaks_no_tls_is_told() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        failed = await fail_to_ask(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
    assert failed.failure is Failure.UNREACHABLE
    assert failed.reason.endswith("what answers speaks no TLS: base_url may have to begin with http://")


# ---------------------------------------------------------------- proxies
async def test_https_goes_through_a_tunnel(up: FakeUpstream) -> None:
    elsewhere = secure("elsewhere")
    proxy = ForwardProxy(elsewhere.port).start()
    with_credentials = proxy.url.replace("//", "//user:secret@")
    await ask("https://elsewhere.test", CA, {"https_proxy": with_credentials}, times=2)
    assert proxy.lines == ["CONNECT elsewhere.test:443 HTTP/1.1"] * 2  # one of them to ask how it is
    assert [fields["proxy-authorization"] for fields in proxy.fields] == ["Basic dXNlcjpzZWNyZXQ="] * 2
    assert [(request.method, request.target) for request in elsewhere.log] == [
        ("POST", "/v1/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
    ]
    assert [request.header("Proxy-Authorization") for request in elsewhere.log] == [None] * 3
    assert up.log == []


async def test_what_comes_through_a_tunnel_is_the_upstreams_own() -> None:
    elsewhere = secure("elsewhere")
    elsewhere.default = lambda _: json_reply({}, 407)
    proxy = ForwardProxy(elsewhere.port).start()
    way = way_to(make_upstream("https://elsewhere.test", tls={"ca_file": tls_file("ca.pem")}), {"all_proxy": proxy.url})
    async with UpstreamClient() as client:
        answer = await client.post("https://elsewhere.test/v1/completions", [], b"{}", way=way, bounds=BOUNDS)
        answer.close()
    assert answer.status == 407


async def test_http_goes_to_the_proxy_as_it_is(up: FakeUpstream) -> None:
    proxy = ForwardProxy(up.port).start()
    await ask("http://elsewhere.test:8000", {}, {"http_proxy": proxy.url.replace("//", "//user:secret@")})
    assert proxy.lines == [
        "POST http://elsewhere.test:8000/v1/completions HTTP/1.1",
        "GET http://elsewhere.test:8000/v1/models HTTP/1.1",
    ]
    assert [fields["proxy-authorization"] for fields in proxy.fields] == ["Basic dXNlcjpzZWNyZXQ="] * 2
    assert [request.header("Host") for request in up.log] == ["elsewhere.test:8000"] * 2


async def test_a_proxys_credentials_do_not_stay_in_the_fields_of_a_request(up: FakeUpstream) -> None:
    proxy = ForwardProxy(up.port).start()
    settings = make_upstream("http://elsewhere.test/v1")
    way = way_to(settings, {"http_proxy": proxy.url.replace("//", "//user:secret@")})
    fields = [("Content-Type", "application/json")]
    async with UpstreamClient() as client:
        for address, through in (("http://elsewhere.test/v1/completions", way), (f"{up.url}/v1/completions", DIRECT)):
            (await client.post(address, fields, b"{}", way=through, bounds=BOUNDS)).close()
    assert fields == [("Content-Type", "application/json")]
    assert [fields.get("proxy-authorization") for fields in proxy.fields] == ["Basic dXNlcjpzZWNyZXQ="]
    assert up.log[-1].header("Proxy-Authorization") is None


REFUSAL = b"HTTP/1.1 %d secret\r\nContent-Length: 6\r\nProxy-Authenticate: Basic realm=secret\r\n\r\nsecret"


@pytest.mark.parametrize(
    ("scheme", "refusal", "reason"),
    [
        # What else a proxy says of a plain request passes for the upstream's own answer: nobody can tell.
        pytest.param(
            "http", REFUSAL % 407, "it refused with 407; its credentials belong in", id="it asks who is there"
        ),
        pytest.param(
            "https", REFUSAL % 407, "it refused with 407; its credentials belong in", id="before a tunnel, too"
        ),
        pytest.param("https", REFUSAL % 403, "it refused with 403", id="it forbids"),
        pytest.param("https", REFUSAL % 502, "it refused with 502", id="it finds nobody"),
        pytest.param("https", b"secret\r\n\r\n", "BadStatusLine", id="it speaks no HTTP"),
        pytest.param("https", b"", "ServerDisconnectedError", id="it says nothing"),
    ],
)
async def test_a_proxy_that_refuses_is_no_answer(scheme: str, refusal: bytes, reason: str) -> None:
    proxy = ForwardProxy(1).start()
    proxy.refusal = refusal
    failed = await fail_to_ask(f"{scheme}://elsewhere.test", {}, {"all_proxy": proxy.url.replace("//", "//user:word@")})
    assert failed.failure is Failure.UNREACHABLE
    assert failed.reason.startswith(f"through proxy {proxy.url}: {reason}")
    assert "secret" not in failed.reason
    assert "user:word" not in failed.reason


async def test_a_proxy_that_is_not_there_is_told() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    failed = await fail_to_ask("https://elsewhere.test", {}, {"all_proxy": f"http://127.0.0.1:{port}"})
    assert failed.failure is Failure.UNREACHABLE
    assert failed.reason.startswith(f"through proxy http://127.0.0.1:{port}: ")


async def test_the_upstreams_authority_does_not_speak_for_the_proxy() -> None:
    proxy = ForwardProxy(secure("elsewhere").port, tls=server_tls()).start()
    failed = await fail_to_ask("https://elsewhere.test", CA, {"all_proxy": proxy.url})
    assert failed.failure is Failure.UNREACHABLE
    assert failed.reason.startswith(f"through proxy {proxy.url}: certificate verify failed: ")


async def by_chunks_at_once(answer: UpstreamAnswer) -> bytes:
    return b"".join([piece async for piece in answer.chunks()])


async def by_flow_at_once(answer: UpstreamAnswer) -> bytes:
    seen = bytearray()
    await by_flow(answer, seen)
    return bytes(seen)


@pytest.mark.parametrize("rest_of", [by_chunks_at_once, by_flow_at_once])
@pytest.mark.parametrize("first", ["read_whole", "peek"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
async def test_nothing_of_a_compressed_body_is_lost_where_reading_stops_in_the_middle_of_a_piece(
    up: FakeUpstream, coding: str, first: str, rest_of: Callable[[UpstreamAnswer], Awaitable[bytes]]
) -> None:
    body = Random(0).randbytes(200_000) * 15  # noqa: S311  one packet holds many pieces once it is undone
    up.script(body_reply(packed_with[coding](body), headers=[("Content-Encoding", coding)]))
    async with UpstreamClient() as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        if first == "read_whole":
            begun, is_all = await answer.read_whole(1_000_000)
            assert not is_all
        else:
            begun = b""
            assert len(await answer.peek(1_000_000)) < len(body)
        rest = await rest_of(answer)
        answer.close()
    assert begun + rest == body
    assert answer.is_whole
