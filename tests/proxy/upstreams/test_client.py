from __future__ import annotations

import asyncio
import socket
import traceback
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import body_reply, chunk, head, json_reply, sse_head
from sending import BOUNDS, busy_port, fake_upstream, up

from proxy.errors import UpstreamBroken, UpstreamTooSlow
from proxy.upstreams.client import AttemptFailed, ClientBounds, Failure, UpstreamClient

if TYPE_CHECKING:
    from fake_upstream import FakeUpstream

__all__ = ["fake_upstream", "up"]

QUICK = ClientBounds(connect_seconds=0.3, first_byte_seconds=0.3, silence_seconds=0.3)


async def post(client: UpstreamClient, up: FakeUpstream, body: bytes = b"{}") -> bytes:
    answer = await client.post(up.url + "/v1/completions", [("X-One", "1")], body)
    try:
        read, is_all = await answer.read_whole(1_000_000)
    finally:
        answer.close()
    assert is_all
    assert answer.is_whole
    return read


async def test_connections_are_kept_and_no_cookie_is(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({}, headers=[("Set-Cookie", "who=alice; Path=/")])
    async with UpstreamClient(BOUNDS) as client:
        for _ in range(3):
            await post(client, up)
    assert {request.conn_id for request in up.log} == {up.log[0].conn_id}
    assert not any(request.header("Cookie") for request in up.log)
    assert up.log[0].header("X-One") == "1"


async def test_a_stale_connection_is_told_and_left_out_when_asked(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({"ok": 1})
    async with UpstreamClient(BOUNDS) as client:
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
    async with UpstreamClient(BOUNDS) as client:
        await post(client, up)
        with pytest.raises(AttemptFailed) as raised:
            await post(client, up)
    assert raised.value.failure is Failure.NO_ANSWER
    assert up.log[0].conn_id == up.log[1].conn_id


@pytest.mark.parametrize("body", [b"{}", b"x" * 3_000_000], ids=["small", "in several writes"])
async def test_it_is_told_once_when_a_request_has_left(up: FakeUpstream, body: bytes) -> None:
    up.default = lambda _: json_reply({})
    told: list[int] = []
    async with UpstreamClient(BOUNDS) as client:
        answer = await client.post(up.url + "/v1/completions", [], body, on_sent=lambda: told.append(1))
        answer.close()
    assert told == [1]


async def test_a_fresh_connection_that_breaks_is_not_tried_again(up: FakeUpstream) -> None:
    up.default = lambda _: [("rst",)]
    async with UpstreamClient(BOUNDS) as client:
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
    async with UpstreamClient(BOUNDS) as client:
        with pytest.raises(AttemptFailed) as raised:
            await post(client, up)
    assert "secret" not in "".join(traceback.format_exception(raised.value))
    return raised.value


async def test_nobody_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    async with UpstreamClient(BOUNDS) as client:
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
    async with UpstreamClient(QUICK) as client, asyncio.timeout(5):
        with pytest.raises(AttemptFailed) as raised:
            await client.post(f"{base}/v1/completions", [], b"{}", on_sent=lambda: told.append(1))
    assert told == []
    return raised.value.failure


async def test_a_first_byte_that_does_not_come_times_out(up: FakeUpstream) -> None:
    up.script([("hold", 5)])
    async with UpstreamClient(QUICK) as client:
        with pytest.raises(AttemptFailed) as raised:
            await post(client, up)
    assert raised.value.failure is Failure.TIMEOUT


@pytest.mark.parametrize(
    ("ops", "error"),
    [
        pytest.param([("hold", 5)], UpstreamTooSlow, id="silence"),
        pytest.param([("rst",)], UpstreamBroken, id="a reset"),
        pytest.param([("close",)], UpstreamBroken, id="the last chunk missing"),
        pytest.param([("sleep", 0.05), ("send", b"zz\r\n"), ("hold", 5)], UpstreamBroken, id="a broken chunk"),
    ],
)
async def test_what_came_before_a_break_is_handed_out(up: FakeUpstream, ops: list[Any], error: type[Exception]) -> None:
    up.script([("send", sse_head() + chunk(b"one") + chunk(b"two")), *ops])
    seen = b""
    async with UpstreamClient(QUICK) as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        try:
            async for piece in answer.chunks():
                seen += piece
        except error as raised:
            assert answer.failure is raised  # noqa: PT017  what came before it matters as much
            assert "zz" not in "".join(traceback.format_exception(raised))  # noqa: PT017
        answer.close()
    assert seen == b"onetwo"
    assert isinstance(answer.failure, error)
    assert not answer.is_whole


@pytest.mark.parametrize("fields", [[], [("Connection", "close")]], ids=["kept alive", "closed"])
@pytest.mark.parametrize("wait", [0, 0.1], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("end", "error"),
    [pytest.param(("rst",), UpstreamBroken, id="a reset"), pytest.param(("close",), None, id="an end")],
)
async def test_without_a_length_a_reset_is_no_end(
    up: FakeUpstream, end: tuple[str], error: type[Exception] | None, fields: list[Any], wait: float
) -> None:
    up.script([("send", head(200, [("Content-Type", "text/event-stream"), *fields]) + b"one"), end])
    seen = b""
    raised: Exception | None = None
    async with UpstreamClient(BOUNDS) as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        await asyncio.sleep(wait)  # whether the end came before the reader or after
        try:
            async for piece in answer.chunks():
                seen += piece
        except UpstreamBroken as broken:
            raised = broken
        answer.close()
    assert seen == b"one"
    assert type(raised) is (error or type(None))
    assert answer.is_whole is (error is None)


async def test_a_reset_behind_a_whole_body_takes_nothing_away(up: FakeUpstream) -> None:
    up.script([("send", head(200, [("Content-Length", 2)]) + b"{}"), ("rst",)])
    async with UpstreamClient(BOUNDS) as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        await asyncio.sleep(0.1)
        assert await answer.read_whole(100) == (b"{}", True)
        answer.close()
    assert answer.is_whole


async def test_what_was_read_too_late_to_see_the_break_is_handed_out(up: FakeUpstream) -> None:
    up.script([("send", sse_head() + chunk(b"one")), ("rst",)])
    async with UpstreamClient(BOUNDS) as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        protocol = answer._response.connection.protocol  # noqa: SLF001  to wait for the break without reading
        await asyncio.wait([protocol.closed])
        seen = b""
        try:
            async for piece in answer.chunks():
                seen += piece
        except UpstreamBroken:
            answer.close()
    assert seen == b"one"
    assert isinstance(answer.failure, UpstreamBroken)


async def test_a_peek_takes_nothing_away(up: FakeUpstream) -> None:
    up.script(body_reply(b"x" * 1_000_000))  # more than comes in one piece
    async with UpstreamClient(BOUNDS) as client:
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
    async with UpstreamClient(BOUNDS) as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        body, is_all = await answer.read_whole(10_000)
        rest = b"".join([piece async for piece in answer.chunks()])
        answer.close()
    assert not is_all
    assert 10_000 < len(body) < 500_000
    assert len(body) + len(rest) == 1_000_000


async def test_an_unknown_coding_is_broken(up: FakeUpstream) -> None:
    up.script(body_reply(b"{}", headers=[("Content-Encoding", "snappy")]))
    async with UpstreamClient(BOUNDS) as client:
        with pytest.raises(UpstreamBroken, match="snappy"):
            await post(client, up)


async def test_large_bodies_are_sent_whole(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({})
    body = b'{"prompt": "' + b"word " * 500_000 + b'"}'
    async with UpstreamClient(BOUNDS) as client:
        await post(client, up, body)
    assert up.log[0].body == body
    assert up.log[0].header("Content-Length") == str(len(body))


async def test_an_address_is_used_as_it_stands(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({})
    async with UpstreamClient(BOUNDS) as client:
        answer = await client.post(up.url + "/openai/deployments/org%2Fmodel/completions?api-version=a%2Bb", [], b"{}")
        answer.close()
    assert up.log[0].target == "/openai/deployments/org%2Fmodel/completions?api-version=a%2Bb"


async def test_the_end_is_told_once(up: FakeUpstream) -> None:
    up.script(json_reply({}))
    told: list[int] = []
    async with UpstreamClient(BOUNDS) as client:
        answer = await client.post(up.url + "/v1/completions", [], b"{}")
        answer.when_closed = lambda: told.append(1)
        answer.close()
        answer.close()
    assert told == [1]
