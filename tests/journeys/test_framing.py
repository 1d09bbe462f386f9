"""Where a message ends, seen from both sides: nothing is smuggled past the gateway, nothing behind an answer is one.

RFC 9112 §6.3 and §11.2. Each row is what really went over the sockets.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import body_reply, chunk, head, usage
from gateway import Gateway, bearer, key_of, settings
from harness import Raw, Resp, call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_upstream import FakeUpstream

PATH = "/v1/completions"
BODY = b'{"model": "m", "prompt": "x", "temperature": 1}'
EVIL = b'{"model": "m", "prompt": "evil", "temperature": 1}'
FIELDS = f"Host: a\r\nAuthorization: Bearer {key_of('alice')}\r\nContent-Type: application/json\r\n".encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def written(framing: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    return b"POST %s HTTP/%s\r\n%s%s\r\n%s" % (PATH.encode(), version, FIELDS, framing, body)


def chunks(body: bytes, trailers: bytes = b"") -> bytes:
    return chunk(body) + b"0\r\n" + trailers + b"\r\n"


SMUGGLED = written(b"Content-Length: %d\r\n" % len(EVIL), EVIL)


@pytest.fixture(scope="module")
def gateway(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), settings(f"{_upstream.url}/v1", users={"alice": {}})) as running:
        yield running


def answers_to(gateway: Gateway, sent: bytes) -> list[Resp]:
    """Send bytes over one connection and return the answers up to its end."""
    client = Raw(gateway.base_url)
    client.send(sent)
    answers = []
    while (answer := client.response()).status:
        answers.append(answer)
    client.close()
    assert isinstance(answer.error, EOFError)  # closed, not silent
    return answers


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(written(LENGTH + CHUNKED, chunks(BODY)), id="a length and chunks"),
        pytest.param(written(CHUNKED + LENGTH, chunks(BODY)), id="chunks and a length"),
        pytest.param(
            written(b"Content-Length: %d\r\n%s" % (5 + len(SMUGGLED), CHUNKED), b"0\r\n\r\n" + SMUGGLED),
            id="a request behind the chunks, within the length",
        ),
        pytest.param(
            written(b"Content-Length: 4\r\n" + CHUNKED, chunks(SMUGGLED)),
            id="a request behind the length, within the chunks",
        ),
        pytest.param(written(LENGTH + b"Transfer-Encoding: identity\r\n"), id="a length and a coding that is none"),
        pytest.param(written(LENGTH + b"Transfer-Encoding: xchunked\r\n"), id="a length and an unknown coding"),
        pytest.param(written(LENGTH + b"Transfer-Encoding:\x0bchunked\r\n", chunks(BODY)), id="a coding in disguise"),
        pytest.param(written(LENGTH + b"Transfer-Encoding : chunked\r\n", chunks(BODY)), id="a space before the colon"),
        pytest.param(written(LENGTH + b" Transfer-Encoding: chunked\r\n", chunks(BODY)), id="a folded line"),
        pytest.param(written(b"Transfer-Encoding: chunked, gzip\r\n", chunks(BODY)), id="chunks that are not last"),
        pytest.param(written(b"Transfer-Encoding: chunked, chunked\r\n", chunks(BODY)), id="chunks twice"),
        pytest.param(written(CHUNKED + b"Transfer-Encoding: identity\r\n", chunks(BODY)), id="two codings"),
        pytest.param(written(LENGTH + LENGTH), id="the same length twice"),
        pytest.param(written(LENGTH + b"Content-Length: 3\r\n"), id="two lengths"),
        pytest.param(written(b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))), id="a list of lengths"),
        pytest.param(written(b"Content-Length: +%d\r\n" % len(BODY)), id="a length with a sign"),
        pytest.param(written(b"Content-Length: -1\r\n"), id="a length below nothing"),
        pytest.param(written(b"Content-Length: 0x2f\r\n"), id="a length in hexadecimal"),
        pytest.param(written(CHUNKED, chunks(BODY), b"1.0") + SMUGGLED, id="chunks in HTTP/1.0, and more behind"),
        pytest.param(written(CHUNKED, b"0x2f\r\n%s\r\n0\r\n\r\n" % BODY), id="a chunk's size that is none"),
        pytest.param(written(CHUNKED, b"-1\r\n%s\r\n0\r\n\r\n" % BODY), id="a chunk's size below nothing"),
        pytest.param(written(CHUNKED, b"%x\n%s\n0\n\n" % (len(BODY), BODY)), id="chunks with bare line feeds"),
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_read_in_none(
    gateway: Gateway, upstream: FakeUpstream, sent: bytes
) -> None:
    (answer,) = answers_to(gateway, sent)
    assert answer.status == 400
    assert answer.header("connection") == "close"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert upstream.log == []


@pytest.mark.parametrize(
    ("sent", "bodies"),
    [
        pytest.param(written(LENGTH) + SMUGGLED, [BODY, EVIL], id="one behind the other"),
        pytest.param(written(CHUNKED, chunks(BODY)) + SMUGGLED, [BODY, EVIL], id="chunks, and one behind"),
        pytest.param(
            written(CHUNKED, chunks(BODY, b"Authorization: Bearer evil\r\nX-Sum: 1\r\n")), [BODY], id="trailers"
        ),
        pytest.param(written(CHUNKED, b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)), [BODY], id="extensions"),
        pytest.param(written(CHUNKED, chunks(BODY), b"1.0"), [BODY], id="chunks in HTTP/1.0, which has none"),
        pytest.param(
            written(LENGTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n") + SMUGGLED,
            [BODY, EVIL],
            id="an upgrade that does not happen",
        ),
    ],
)
def test_each_request_that_can_be_read_goes_upstream_by_itself(
    gateway: Gateway, upstream: FakeUpstream, sent: bytes, bodies: list[bytes]
) -> None:
    client = Raw(gateway.base_url)
    client.send(sent)
    answers = [client.response() for _ in bodies]
    client.close()
    assert [answer.status for answer in answers] == [200] * len(bodies)
    assert [request.json()["prompt"] for request in upstream.log] == [json.loads(body)["prompt"] for body in bodies]
    for request in upstream.log:
        assert request.header("Content-Length") == str(len(request.body))
        assert request.header("Transfer-Encoding") is None
        assert request.header("X-Sum") is None


# ---------------------------------------------------------------- answers
ANSWER = json.dumps(
    {
        "id": "cmpl-x",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "text": "hi", "logprobs": None, "finish_reason": "stop"}],
        "usage": usage(9),
    }
).encode()
JSON = ("Content-Type", "application/json")
WITH_LENGTH = ("Content-Length", len(ANSWER))
IN_CHUNKS = ("Transfer-Encoding", "chunked")
ANOTHER = head(200, [JSON, ("Content-Length", 4)]) + b"evil"


def reply(*fields: tuple[str, object], body: bytes = ANSWER) -> list[Any]:
    return [("send", head(200, [JSON, *fields]) + body)]


def ask_twice(gateway: Gateway) -> tuple[Resp, Resp]:
    first = call(gateway.base_url, "POST", PATH, bearer("alice"), BODY)
    second = call(gateway.base_url, "POST", PATH, bearer("alice"), BODY)
    return first, second


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(reply(WITH_LENGTH, IN_CHUNKS, body=chunks(ANSWER)), id="a length and chunks"),
        pytest.param(reply(("Content-Length", 5), IN_CHUNKS, body=chunks(ANSWER)), id="a length within the chunks"),
        pytest.param(reply(WITH_LENGTH, WITH_LENGTH), id="the same length twice"),
        pytest.param(reply(WITH_LENGTH, ("Content-Length", 5)), id="two lengths"),
        pytest.param(reply(("Content-Length", "0x9")), id="a length that is none"),
        pytest.param(
            reply(("Transfer-Encoding", "gzip, chunked"), body=chunks(gzip.compress(ANSWER))), id="zipped in transfer"
        ),
        pytest.param([("send", head(101, [("Connection", "Upgrade"), ("Upgrade", "h2c")]))], id="an upgrade"),
    ],
)
def test_an_answer_that_cannot_be_read_is_none(gateway: Gateway, upstream: FakeUpstream, ops: list[Any]) -> None:
    upstream.script(ops, body_reply(ANSWER))
    first, second = ask_twice(gateway)
    assert first.status == 502
    assert first.json()["error"]["code"] == "upstream_unusable"
    assert (second.status, second.body) == (200, ANSWER)
    assert len(upstream.log) == 2


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(reply(WITH_LENGTH, body=ANSWER + ANOTHER), id="behind a length"),
        pytest.param(reply(IN_CHUNKS, body=chunks(ANSWER) + ANOTHER), id="behind chunks"),
        pytest.param([*reply(WITH_LENGTH), ("sleep", 0.05), ("send", ANOTHER)], id="a moment later"),
        pytest.param([*reply(WITH_LENGTH), ("sleep", 0.05), ("send", ANOTHER[:40])], id="a moment later, in part"),
        pytest.param(
            [*reply(WITH_LENGTH), ("sleep", 0.05), ("send", head(408, [("Content-Length", 0)])), ("close",)],
            id="a farewell",
        ),
    ],
)
def test_what_comes_behind_an_answer_is_nobodys(gateway: Gateway, upstream: FakeUpstream, ops: list[Any]) -> None:
    upstream.script([*ops, ("do", lambda: done.append(1))], body_reply(ANSWER))
    done: list[int] = []
    first = call(gateway.base_url, "POST", PATH, bearer("alice"), BODY)
    is_farewell = ops[-1] == ("close",)
    assert upstream.wait(lambda: upstream.log[0].done if is_farewell else done)
    second = call(gateway.base_url, "POST", PATH, bearer("alice"), BODY)
    assert [(answer.status, answer.body) for answer in (first, second)] == [(200, ANSWER)] * 2
    assert upstream.log[0].conn_id != upstream.log[1].conn_id


def test_trailers_of_an_answer_stay(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.script(reply(IN_CHUNKS, ("Trailer", "Set-Cookie"), body=chunks(ANSWER, b"Set-Cookie: a=b\r\n")))
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), BODY)
    assert (answer.status, answer.body, answer.header("trailer")) == (200, ANSWER, None)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "a stream"])
@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308])
def test_redirects_are_not_followed(gateway: Gateway, upstream: FakeUpstream, status: int, *, is_stream: bool) -> None:
    elsewhere = f"{upstream.url}/elsewhere?secret"
    body = b"" if status == 304 else json.dumps({"see": elsewhere}).encode()
    upstream.script([("send", head(status, [JSON, ("Location", elsewhere), ("Content-Length", len(body))]) + body)])
    asked = json.dumps({**json.loads(BODY), "stream": is_stream}).encode()
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), asked)
    assert answer.status == 502
    assert answer.json()["error"]["code"] == "upstream_unusable"
    assert answer.header("location") is None
    assert answer.header("x-should-retry") == "false"
    assert b"elsewhere" not in answer.body
    assert [request.path for request in upstream.log] == [PATH]
