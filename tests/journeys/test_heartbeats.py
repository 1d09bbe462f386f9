"""Comments of our own on streams in which nothing comes (`heartbeat`), through a whole gateway (SPEC §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import DONE, FakeUpstream, chunk, ev, json_reply, sse_head, tchunk, usage
from harness import has_error_event, joined, uniq
from served_gateway import Got, ServedGateway, served_gateway
from stores import StoreServer
from whole import configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fake_upstream import Ops

COMMENT = b": keep-alive\n\n"
PATH = "/v1/completions"
USAGE = ev({**tchunk(""), "choices": [], "usage": usage(20)})
STREAM = [ev(tchunk("one ")), ev(tchunk("two", finish="stop")), USAGE, DONE]
LAST = b"0\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    made = configuration(_upstream.url, tmp_path_factory.mktemp("gateway"), heartbeat="50ms")
    with StoreServer() as store, served_gateway(made, store) as serving:
        yield serving


def asked(**more: object) -> dict[str, Any]:
    options = {"include_usage": True}
    return {"model": "m", "prompt": uniq(), "max_tokens": 20, "stream": True, "stream_options": options, **more}


def comments(got: Got, count: int = 2) -> Callable[[], bool]:
    """Return what tells whether so many comments have come."""
    return lambda: got.pieces.count(COMMENT) >= count


def read_comments(got: Got, pieces: Iterator[bytes]) -> None:
    """Read on until some have come."""
    while not comments(got)():
        got.pieces.append(next(pieces))


def silent(stream: Sequence[bytes], at: int, until: Callable[[], bool]) -> Ops:
    """Answer with a stream that is silent before one of its pieces."""
    first, then = (b"".join(map(chunk, part)) for part in (stream[:at], stream[at:]))
    return [("send", sse_head() + first), ("until", until), ("send", then + LAST)]


def test_a_silent_stream_is_kept_alive_and_says_the_same(gateway: ServedGateway, upstream: FakeUpstream) -> None:
    for at in range(len(STREAM)):
        got, body = Got(), asked(temperature=0)
        upstream.script(silent(STREAM, at, comments(got)))
        with gateway.client() as client:
            client.ask(PATH, body)
            client.answer(got)
            client.ask(PATH, body)
            again = client.answer()
        assert got.complete
        assert got.body.replace(COMMENT, b"") == b"".join(STREAM)
        assert (again.header("Cache-Status") or "").startswith("tidegate;hit")
        assert again.body == b"".join(STREAM)
        record = gateway.records()[got.header("x-request-id") or ""]
        assert (record["outcome"], record["output_tokens"]) == ("completed", 13)  # as reported: 20 less 7


def test_all_who_read_the_same_are_kept_alive(gateway: ServedGateway, upstream: FakeUpstream) -> None:
    first, second = Got(), Got()
    upstream.script(silent(STREAM, 1, lambda: comments(first)() and comments(second)()))
    body = asked(temperature=0)
    with gateway.client() as one, gateway.client() as other:
        one.ask(PATH, body)
        one.read_head(first)
        other.ask(PATH, body)
        other.read_head(second)
        reading = ((first, one.chunks()), (second, other.chunks()))
        for got, pieces in reading:
            read_comments(got, pieces)
        for got, pieces in reading:
            got.pieces += pieces
    for got in (first, second):
        assert b"".join(got.pieces).replace(COMMENT, b"") == b"".join(STREAM)
    assert len(upstream.served) == 1


def test_no_comment_comes_into_an_event(gateway: ServedGateway, upstream: FakeUpstream) -> None:
    """The upstream stops within an event, and another stream shows that time passes."""
    got, other = Got(), Got()
    halves = [STREAM[0], STREAM[1][:20], STREAM[1][20:], *STREAM[2:]]
    upstream.script(silent(halves, 2, comments(other)), silent(STREAM, 1, comments(other)))
    with gateway.client() as client, gateway.client() as beside:
        client.ask(PATH, asked(temperature=1))
        assert upstream.wait(lambda: upstream.log)
        beside.ask(PATH, asked(temperature=1))
        beside.answer(other)
        client.answer(got)
    assert got.body.replace(COMMENT, b"") == b"".join(STREAM)
    assert joined(got.body) == {0: "one two"}  # so a client reads it


def test_a_stream_that_breaks_after_comments_ends_as_any_other(gateway: ServedGateway, upstream: FakeUpstream) -> None:
    got = Got()
    upstream.script([("send", sse_head() + chunk(STREAM[0])), ("until", comments(got)), ("rst",)])
    with gateway.client() as client:
        client.ask(PATH, asked(temperature=1))
        client.answer(got)
    assert got.complete
    assert has_error_event(got.body)
    assert not got.body.endswith(COMMENT)


def test_answers_before_their_head_and_whole_ones_have_none(gateway: ServedGateway, upstream: FakeUpstream) -> None:
    for stream in (True, False):
        other = Got()
        waiting: Ops = [("until", comments(other, 4)), *json_reply({"error": {"message": "no"}}, 400)]
        upstream.script(waiting, silent(STREAM, 1, comments(other, 4)))
        with gateway.client() as client, gateway.client() as beside:
            client.ask(PATH, asked(temperature=1) if stream else {"model": "m", "prompt": uniq(), "temperature": 1})
            assert upstream.wait(lambda: upstream.log)
            beside.ask(PATH, asked(temperature=1))
            beside.answer(other)
            answer = client.answer()
        assert (answer.status, answer.json()["error"]["message"]) == (400, "no")
        upstream.reset()


def test_a_client_that_leaves_in_the_silence_ends_its_request(gateway: ServedGateway, upstream: FakeUpstream) -> None:
    got = Got()
    upstream.script(silent(STREAM, 1, lambda: False))
    with gateway.client() as client:
        client.ask(PATH, asked(temperature=1))
        client.read_head(got)
        read_comments(got, client.chunks())
        client.close(rst=True)
    assert upstream.wait(lambda: upstream.log[0].aborted_at is not None)
    identity = got.header("x-request-id") or ""
    assert upstream.wait(lambda: identity in gateway.records())
    record = gateway.records()[identity]
    assert (record["outcome"], record["error_code"]) == ("client_left", None)
    assert not any(gateway.series("unhandled_errors_total").values())
