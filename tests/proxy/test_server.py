"""The front door on a real socket: bounds, bodies, heads, and clients that leave."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import brotli
import pytest
import uvloop
from harness import Raw, Resp, call

from policies.errors import Rejection
from proxy.config import Bounds
from proxy.errors import CLIENT_TOO_SLOW, ClientLeft, GatewayError, error_headers, error_object, status_of
from proxy.server import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from proxy.exchange import Request, Writer

    Answer = Callable[[Request, Writer], Awaitable[None]]
    NoteFault = Callable[[BaseException | None], None]

BOUNDS = Bounds(body_bytes=1000, decompressed_body_bytes=2000, head_bytes=8192, body_seconds=0.3)

CLIENT_SECONDS = 0.5
LONG_BYTES = 20_000_000


def no_fault(fault: BaseException | None) -> None:
    raise AssertionError(fault)


@asynccontextmanager
async def stopped(
    answer: Answer,
    note_fault: NoteFault = no_fault,
    *,
    drain_seconds: float = 5,
    client_seconds: float = CLIENT_SECONDS,
) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve; also return what ends it, which is set at the latest on leaving."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)  # noqa: FBT003  the standard library's own signature
    stopping = asyncio.Event()
    task = asyncio.create_task(
        serve(
            answer,
            sock,
            stopping,
            bounds=lambda: BOUNDS,
            client_seconds=lambda: client_seconds,
            drain_seconds=lambda: drain_seconds,
            note_fault=note_fault,
        )
    )
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}", stopping
    finally:
        stopping.set()
        await task


@asynccontextmanager
async def served(answer: Answer, note_fault: NoteFault = no_fault) -> AsyncIterator[str]:
    async with stopped(answer, note_fault) as (base, _):
        yield base


async def echo(request: Request, writer: Writer) -> None:
    try:
        body = await request.read()
    except (Rejection, GatewayError) as error:
        await writer.respond(status_of(error), error_headers(error), error_object(error))
        return
    seen = {"method": request.method, "path": request.path, "query": request.query, "body": body.decode()}
    await writer.respond(200, [("Content-Type", "application/json")], json.dumps(seen).encode())


async def ask(base: str, method: str = "POST", target: str = "/x", **more: object) -> Resp:
    return await asyncio.to_thread(call, base, method, target, **more)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/v1/completions", "/v1/completions", ""),
        ("/a%2Fb//../c?x=%20&y", "/a%2Fb//../c", "x=%20&y"),
        ("http://example.test/v1/models?a=b", "/v1/models", "a=b"),
    ],
    ids=["plain", "raw, nothing decoded or tidied", "the absolute form of RFC 9112"],
)
async def test_the_target_is_passed_raw(target: str, path: str, query: str) -> None:
    async with served(echo) as base:
        seen = (await ask(base, target=target)).json()
    assert (seen["path"], seen["query"]) == (path, query)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param([], b"plain", id="as it is"),
        pytest.param([("Content-Encoding", "gzip")], gzip.compress(b"plain"), id="gzip"),
        pytest.param(
            [("Content-Encoding", "identity"), ("Content-Encoding", "gzip")], gzip.compress(b"plain"), id="on two lines"
        ),
        pytest.param([("Content-Encoding", "br")], brotli.compress(b"plain"), id="brotli"),
        pytest.param([("Content-Encoding", "identity")], b"plain", id="said to be as it is"),
        pytest.param([("Transfer-Encoding", "chunked")], b"3\r\npla\r\n2\r\nin\r\n0\r\n\r\n", id="in chunks"),
    ],
)
async def test_a_body_arrives_as_it_was_meant(headers: list[tuple[str, str]], body: bytes) -> None:
    async with served(echo) as base:
        answer = await ask(base, headers=headers, body=body)
    assert answer.json()["body"] == "plain"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        pytest.param([], b"x" * 1001, 413, id="larger than the bound"),
        pytest.param([("Content-Length", "99999999999")], b"", 413, id="said to be larger"),
        pytest.param([("Content-Encoding", "gzip")], gzip.compress(b"x" * 2001), 413, id="larger once decompressed"),
        pytest.param([("Content-Encoding", "gzip")], gzip.compress(b"x" * 10**6), 413, id="a bomb"),
        pytest.param([("Content-Encoding", "gzip")], b"no gzip", 400, id="not what it is said to be"),
        pytest.param([("Content-Encoding", "gzip")], gzip.compress(b"x" * 50)[:-9], 400, id="cut"),
        pytest.param([("Content-Encoding", "rot13")], b"cynva", 415, id="a coding nobody knows"),
        pytest.param([("Transfer-Encoding", "chunked")], b"zz\r\nx\r\n0\r\n\r\n", 400, id="chunks that are none"),
        pytest.param([("Content-Length", "5")], b"x", 408, id="slower than the bound"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_in_the_apis_shape(
    headers: list[tuple[str, str]], body: bytes, status: int
) -> None:
    async with served(echo) as base:
        answer = await ask(base, headers=headers, body=body)
    assert answer.status == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        pytest.param(b"nonsense\r\n\r\n", 400, id="no request line"),
        pytest.param(b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, id="a field without a colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 9000 + b"\r\n\r\n", 431, id="one field too long"),
        pytest.param(b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, id="a request line too long"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: 0123456789\r\n" * 700 + b"\r\n",
            431,
            id="many fields, long together",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: \r\n" * 1500 + b"\r\n", 431, id="many fields, each of nothing"
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            id="two lengths, the way to smuggle",
        ),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, id="a negative length"),
    ],
)
async def test_a_head_that_cannot_be_read_is_refused_in_the_apis_shape(raw: bytes, status: int) -> None:
    def send(base: str) -> Resp:
        client = Raw(base)
        client.send(raw)
        answer = client.response()
        client.close()
        return answer

    async with served(echo) as base:
        answer = await asyncio.to_thread(send, base)
    assert answer.status == status
    assert answer.header("content-type") == "application/json"
    assert (answer.header("x-request-id") or "").startswith("req_")
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_head_that_goes_on_and_on_is_not_read_to_its_end() -> None:
    def pour(base: str) -> bytes:
        client = Raw(base)
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
        try:
            for number in range(20):  # 80 KB where 8 KiB are allowed, and no end in sight
                client.send(b"A%d: %s\r\n" % (number, b"x" * 4000))
            return client.s.recv(1)
        except ConnectionError:
            return b""
        finally:
            client.close()

    async with served(echo) as base:
        assert await asyncio.to_thread(pour, base) == b""


async def test_a_long_body_behind_a_short_head_is_no_long_head() -> None:
    async with served(echo) as base:
        answer = await ask(base, headers=[("Content-Length", "900")], body=b"x" * 900)
        again = await ask(base, headers=[("Transfer-Encoding", "chunked")], body=b"1\r\nx\r\n" * 900 + b"0\r\n\r\n")
    assert (answer.status, again.status) == (200, 200)


async def test_the_library_behind_is_not_told() -> None:
    async with served(echo) as base:
        answer = await ask(base)
    assert answer.header("server") == "tidegate"


async def test_continue_is_said_only_once_the_body_is_wanted() -> None:
    async def refuse(_request: Request, writer: Writer) -> None:
        await writer.respond(401, [], b"no")

    def expect(base: str) -> Resp:
        client = Raw(base)
        client.request("POST", "/x", [("Expect", "100-continue"), ("Content-Length", "2")])
        answer = client.response()
        client.close()
        return answer

    async with served(refuse) as base:
        answer = await asyncio.to_thread(expect, base)
    assert (answer.status, answer.informational) == (401, [])


async def test_a_client_that_leaves_cancels_its_handler_before_the_first_byte() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_request: Request, _writer: Writer) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with served(wait) as base:
        client = await asyncio.to_thread(Raw, base)
        client.request("GET", "/x")
        await started.wait()
        client.close()
        async with asyncio.timeout(5):
            await cancelled.wait()
    assert cancelled.is_set()


async def test_writing_to_a_client_that_left_says_so() -> None:
    ends: asyncio.Queue[BaseException] = asyncio.Queue()

    async def pour(_request: Request, writer: Writer) -> None:
        try:
            await writer.start(200, [])
            while True:
                await writer.write(b"x" * 100_000)
        except (ClientLeft, asyncio.CancelledError) as end:
            ends.put_nowait(end)
            raise

    async with served(pour) as base:
        client = await asyncio.to_thread(Raw, base)
        client.request("GET", "/x")
        await asyncio.to_thread(client.read_more)
        client.close(rst=True)
        async with asyncio.timeout(5):
            end = await ends.get()
    assert isinstance(end, ClientLeft | asyncio.CancelledError)


async def test_an_aborted_answer_cannot_be_taken_for_a_whole_one() -> None:
    async def break_off(_request: Request, writer: Writer) -> None:
        await writer.start(200, [])
        await writer.write(b"half")
        writer.abort()

    async with served(break_off) as base:
        answer = await ask(base)
    assert (answer.status, answer.complete) == (200, False)


async def test_stopping_finishes_the_answer_under_way() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(_request: Request, writer: Writer) -> None:
        await writer.start(200, [])
        await writer.write(b"first ")
        started.set()
        await release.wait()
        await writer.write(b"last")
        await writer.finish()

    async with stopped(slow) as (base, stopping):
        asked = asyncio.create_task(ask(base))
        await started.wait()
        stopping.set()
        await asyncio.sleep(0)
        release.set()
        answer = await asked
    assert (answer.status, answer.body, answer.complete) == (200, b"first last", True)


async def say_hello(_request: Request, writer: Writer) -> None:
    await writer.respond(200, [], b"hello")


async def test_who_is_connected_at_the_end_is_answered_once_more() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def answer(request: Request, writer: Writer) -> None:
        if request.path == "/slow":
            started.set()
            await release.wait()
        await say_hello(request, writer)

    async with stopped(answer) as (base, stopping):
        slow = asyncio.create_task(asyncio.to_thread(call, base, "GET", "/slow"))
        await started.wait()
        kept, fresh = [await asyncio.to_thread(Raw, base) for _ in range(2)]
        kept.request("GET", "/x")
        before = await asyncio.to_thread(kept.response)
        assert before.header("connection") is None
        stopping.set()
        for client in (kept, fresh):
            client.request("GET", "/x")
            answered = await asyncio.to_thread(client.response)
            assert (answered.status, answered.body, answered.header("connection")) == (200, b"hello", "close")
            with pytest.raises(EOFError):
                await asyncio.to_thread(client.read_more)
            client.close()
        release.set()
        assert (await slow).header("connection") == "close"


async def test_who_is_connected_and_asks_nothing_does_not_keep_it_from_ending() -> None:
    async with stopped(say_hello, drain_seconds=3600) as (base, stopping):
        silent, asked = [await asyncio.to_thread(Raw, base) for _ in range(2)]
        asked.request("GET", "/x")
        assert (await asyncio.to_thread(asked.response)).status == 200
        stopping.set()
        for client in (silent, asked):
            with pytest.raises(EOFError):
                await asyncio.to_thread(client.read_more)
            client.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_who_waits_to_be_accepted_at_the_end_is_answered(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def story() -> None:
        async with stopped(say_hello) as (base, stopping):
            assert (await asyncio.to_thread(call, base, "GET", "/x")).status == 200
            clients = [Raw(base) for _ in range(30)]  # the loop has no turn, so that nobody accepts them
            for client in clients[::2]:
                client.request("GET", "/x")
            stopping.set()
            await asyncio.sleep(0)
            for client in clients[1::2]:
                client.request("GET", "/x")
            for client in clients:
                answered = await asyncio.to_thread(client.response)
                assert (answered.status, answered.body, answered.header("connection")) == (200, b"hello", "close")
                client.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


async def test_an_answer_that_outlasts_the_drain_is_told_and_has_its_last_words() -> None:
    started = asyncio.Event()

    async def endless(_request: Request, writer: Writer) -> None:
        await writer.start(200, [])
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            await writer.write(str(cancelled).encode())
            await writer.finish()

    async with stopped(endless, drain_seconds=0.05) as (base, stopping):
        asked = asyncio.create_task(ask(base))
        await started.wait()
        stopping.set()
        answer = await asked
    assert (answer.body, answer.complete) == (b"draining", True)


async def test_a_fault_of_ours_is_told_in_the_apis_shape_and_to_the_operator() -> None:
    async def fail(_request: Request, _writer: Writer) -> None:
        raise ZeroDivisionError("secret detail")

    faults: list[BaseException | None] = []
    async with served(fail, faults.append) as base:
        answer = await ask(base)
    assert answer.status == 500
    assert "secret detail" not in answer.body.decode()
    assert answer.json()["error"]["code"] == "internal_error"
    assert [type(fault) for fault in faults] == [ZeroDivisionError]


def take(client: Raw, count: int) -> int:
    """Read so many bytes, some at a time."""
    taken = 0
    while taken < count:
        time.sleep(0.01)
        taken += len(client.s.recv(min(100_000, count - taken)))
    return taken


async def pour(writer: Writer, *, is_whole: bool = False) -> None:
    """Answer with more than all buffers on the way have room for."""
    if is_whole:
        await writer.respond(200, [], b"x" * LONG_BYTES)
        return
    await writer.start(200, [])
    for _ in range(LONG_BYTES // 100_000):
        await writer.write(b"x" * 100_000)
    await writer.finish()


@pytest.mark.parametrize("is_whole", [False, True], ids=["in pieces", "whole"])
async def test_a_client_that_takes_nothing_of_its_answer_is_given_up(*, is_whole: bool) -> None:
    ends: asyncio.Queue[BaseException | None] = asyncio.Queue()

    async def answer(_request: Request, writer: Writer) -> None:
        try:
            await pour(writer, is_whole=is_whole)
        except BaseException as end:
            ends.put_nowait(end)
            raise
        ends.put_nowait(None)

    async with served(answer) as base:
        client = await asyncio.to_thread(Raw, base)
        client.request("GET", "/x")
        async with asyncio.timeout(10):
            end = await ends.get()
        client.close()
    assert isinstance(end, asyncio.CancelledError)
    assert end.args == (CLIENT_TOO_SLOW,)


@pytest.mark.parametrize("days", [24, 30, 36_500])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_may_be_given_more_time_than_the_kernel_counts(
    new_loop: Callable[[], asyncio.AbstractEventLoop], days: int
) -> None:
    """It counts milliseconds in 31 bits, which are not quite 25 days."""
    broken: list[dict[str, object]] = []

    async def scenario() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        async with stopped(say_hello, client_seconds=days * 86_400) as (base, _):
            return (await ask(base)).status

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(scenario()) == 200
    assert broken == []


async def test_a_client_that_takes_nothing_is_given_up_though_nothing_waits_for_it() -> None:
    """What was written is on its way, and the handler waits for something else."""
    cancelled = asyncio.Event()

    async def answer(_request: Request, writer: Writer) -> None:
        await writer.start(200, [])
        try:
            await writer.write(b"x" * 1000)
            async with asyncio.timeout(0.01):
                await pour_on(writer)
        except TimeoutError:
            pass
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as end:
            if end.args == (CLIENT_TOO_SLOW,):
                cancelled.set()
            raise

    async def pour_on(writer: Writer) -> None:
        while True:
            await writer.write(b"x" * 100_000)

    async with served(answer) as base:
        client = await asyncio.to_thread(Raw, base)
        client.request("GET", "/x")
        async with asyncio.timeout(10):
            await cancelled.wait()
        client.close()


async def test_a_client_that_reads_slowly_has_all_of_its_answer() -> None:
    async def answer(_request: Request, writer: Writer) -> None:
        await pour(writer, is_whole=True)

    async with served(answer) as base:
        client = await asyncio.to_thread(Raw, base)
        client.request("GET", "/x")
        assert await asyncio.to_thread(take, client, LONG_BYTES) == LONG_BYTES
        client.close()


async def test_the_last_words_of_a_drain_reach_a_client_that_was_slow() -> None:
    is_full, reads = asyncio.Event(), asyncio.Event()

    async def endless(_request: Request, writer: Writer) -> None:
        await writer.start(200, [])
        try:
            while True:
                writing = asyncio.ensure_future(writer.write(b"x" * 100_000))
                done, _ = await asyncio.wait([writing], timeout=0.05)
                if not done:
                    writing.cancel()
                    is_full.set()
                    await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            reads.set()
            await writer.write(str(cancelled).encode())
            await writer.finish()

    async with stopped(endless, drain_seconds=0.05) as (base, stopping):
        client = await asyncio.to_thread(Raw, base)
        client.request("GET", "/x")
        await is_full.wait()
        stopping.set()
        await reads.wait()
        answer = await asyncio.to_thread(client.response)
        client.close()
    assert answer.body.endswith(b"xdraining")
    assert answer.complete


@pytest.mark.parametrize("is_draining", [False, True], ids=["at any time", "during a drain"])
@pytest.mark.parametrize(
    ("request_head", "is_stream", "bodies"),
    [
        pytest.param(b"GET /x HTTP/1.0\r\n\r\n", False, [b"answer"], id="HTTP/1.0, whole"),
        pytest.param(b"GET /x HTTP/1.0\r\n\r\n", True, [b"answer"], id="HTTP/1.0, a stream"),
        pytest.param(
            b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False, [b"answer"], id="HTTP/1.0, kept alive"
        ),
        pytest.param(b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n", False, [b""], id="HEAD"),
        pytest.param(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" * 3, False, [b"answer"] * 3, id="three at once"),
        pytest.param(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" * 3, True, [b"answer"] * 3, id="three streams at once"),
    ],
)
async def test_every_way_of_asking_is_answered(
    request_head: bytes, bodies: list[bytes], *, is_stream: bool, is_draining: bool
) -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(_request: Request, writer: Writer) -> None:
        asked.set()
        await goes_on.wait()
        if not is_stream:
            await writer.respond(200, [], b"answer")
            return
        await writer.start(200, [])
        await writer.write(b"ans")
        await writer.write(b"wer")
        await writer.finish()

    def read() -> list[Resp]:
        found = []
        while len(found) < len(bodies):
            found.append(client.response(head_only=request_head.startswith(b"HEAD")))
            if found[-1].header("connection") == "close" or not found[-1].complete:
                break
        client.close()
        return found

    async with stopped(answer, drain_seconds=5) as (base, stopping):
        client = await asyncio.to_thread(Raw, base)
        client.send(request_head)
        await asked.wait()
        if is_draining:
            stopping.set()
            await asyncio.sleep(0)
        goes_on.set()
        found = await asyncio.to_thread(read)
    assert all(each.complete for each in found)
    # Whoever is told that the connection closes sends what was not answered on another one.
    assert [each.body for each in found] == (bodies[:1] if is_draining else bodies)
