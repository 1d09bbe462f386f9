"""Upstreams that compress although they are asked not to: clients get plain bytes, at once, whatever they asked for."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from typing import TYPE_CHECKING, Any

import brotli
import pytest
import zstandard
from fake_upstream import DONE, body_reply, chunk, ev, sse_head, sse_reply, tchunk, usage
from gateway import Gateway, bearer, settings
from harness import Raw, call, has_error_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_upstream import FakeUpstream

PATH = "/v1/completions"
ASKED = {"model": "m", "prompt": "x", "temperature": 1}
BODY = json.dumps(ASKED).encode()
STREAM = json.dumps({**ASKED, "stream": True, "stream_options": {"include_usage": True}}).encode()
PLAIN = json.dumps(
    {
        "id": "cmpl-x",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "text": "z" * 3000, "logprobs": None, "finish_reason": "stop"}],
        "usage": usage(9),
    }
).encode()
EVENTS = [*(ev(tchunk(f"t{number} ")) for number in range(5)), ev(tchunk("", finish="stop"))]
EVENTS += [ev({**tchunk(""), "choices": [], "usage": usage(9)}), DONE]


def _raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data)[2:-4]


WHOLE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without its head": ("deflate", _raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstandard.compress),
    "gzip within br": ("gzip, br", lambda data: brotli.compress(gzip.compress(data))),
    "identity": ("identity", bytes),
}


def _zlib_pieces(window: int) -> tuple[list[bytes], bytes]:
    packer = zlib.compressobj(wbits=window)
    return [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in EVENTS], packer.flush()


def _brotli_pieces() -> tuple[list[bytes], bytes]:
    packer = brotli.Compressor()
    return [packer.process(event) + packer.flush() for event in EVENTS], packer.finish()


def _zstd_pieces() -> tuple[list[bytes], bytes]:
    packer = zstandard.ZstdCompressor().compressobj()
    flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    return [packer.compress(event) + packer.flush(flush) for event in EVENTS], packer.flush()


STREAMED: dict[str, tuple[str, Callable[[], tuple[list[bytes], bytes]]]] = {
    "gzip": ("gzip", lambda: _zlib_pieces(31)),
    "deflate": ("deflate", lambda: _zlib_pieces(15)),
    "deflate without its head": ("deflate", lambda: _zlib_pieces(-15)),
    "br": ("br", _brotli_pieces),
    "zstd": ("zstd", _zstd_pieces),
}
ACCEPTS = [None, "identity", "gzip, deflate, br, zstd", "*"]


@pytest.fixture(scope="module")
def gateway(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), settings(f"{_upstream.url}/v1", users={"alice": {}})) as running:
        yield running


def fields(accept: str | None) -> list[tuple[str, str]]:
    return bearer("alice") if accept is None else [*bearer("alice"), ("Accept-Encoding", accept)]


@pytest.mark.parametrize("accept", ACCEPTS, ids=lambda accept: f"client asks {accept or 'nothing'}")
@pytest.mark.parametrize("coding", WHOLE)
def test_a_whole_answer_is_plain(gateway: Gateway, upstream: FakeUpstream, coding: str, accept: str | None) -> None:
    name, compress = WHOLE[coding]
    upstream.script(body_reply(compress(PLAIN), headers=[("Content-Encoding", name), ("Vary", "Accept-Encoding")]))
    answer = call(gateway.base_url, "POST", PATH, fields(accept), BODY)
    assert (answer.status, answer.body, answer.complete) == (200, PLAIN, True)
    assert answer.header("content-encoding") is None
    assert answer.header("content-length") == str(len(PLAIN))
    assert [request.header("Accept-Encoding") for request in upstream.log] == ["identity"]


@pytest.mark.parametrize("accept", ACCEPTS[:3], ids=lambda accept: f"client asks {accept or 'nothing'}")
@pytest.mark.parametrize("coding", STREAMED)
def test_each_event_of_a_stream_comes_at_once(
    gateway: Gateway, upstream: FakeUpstream, coding: str, accept: str | None
) -> None:
    name, make = STREAMED[coding]
    pieces, end = make()
    has_come = [threading.Event() for _ in pieces]
    ops: list[Any] = [("send", sse_head([("Content-Encoding", name)]))]
    for piece, come in zip(pieces, has_come, strict=True):
        ops += [("send", chunk(piece)), ("until", come.is_set)]
    if end:
        ops.append(("send", chunk(end)))
    upstream.script([*ops, ("send", b"0\r\n\r\n")])
    awaited = iter(zip(EVENTS[:-1], has_come, strict=False))  # [DONE] waits for the settlement, and that for the end
    has_come[-1].set()
    seen = b""

    def look(answer: Any) -> bool:  # noqa: ANN401  the harness's own
        nonlocal seen, following
        while following is not None and answer.body.startswith(seen + following[0]):
            seen += following[0]
            following[1].set()
            following = next(awaited, None)
        return False

    following = next(awaited, None)
    client = Raw(gateway.base_url, timeout=10)
    client.request("POST", PATH, fields(accept), STREAM)
    answer = client.response(stop=look)
    client.close()
    assert answer.error is None
    assert (answer.status, answer.body, answer.complete) == (200, b"".join(EVENTS), True)
    assert answer.header("content-encoding") is None
    assert not upstream.log[0].aborted_at


def _damaged(data: bytes) -> bytes:
    return data[:12] + b"\xff\xff\xff\xff" + data[16:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-6],
    "damaged": _damaged,
    "none at all": lambda _: b"no compressed data",
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_broken_whole_answer_is_none(gateway: Gateway, upstream: FakeUpstream, coding: str, damage: str) -> None:
    name, compress = WHOLE[coding]
    upstream.script(body_reply(DAMAGES[damage](compress(PLAIN)), headers=[("Content-Encoding", name)]))
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), BODY)
    assert answer.status == 502
    assert answer.header("content-encoding") is None
    assert answer.json()["error"]["code"] in {"upstream_broken", "upstream_unusable"}
    assert len(upstream.log) == 1


@pytest.mark.parametrize("coding", STREAMED)
def test_a_broken_stream_ends_with_an_error(gateway: Gateway, upstream: FakeUpstream, coding: str) -> None:
    name, make = STREAMED[coding]
    pieces, _ = make()
    upstream.script(
        sse_reply([*pieces[:2], b"\xff\xfe\xfd no compressed data \x00\x01"], headers=[("Content-Encoding", name)])
    )
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), STREAM)
    assert answer.status == 200
    assert answer.complete
    assert answer.body.startswith(b"".join(EVENTS[:2]))
    assert has_error_event(answer.body)
    assert b"[DONE]" not in answer.body


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "a stream"])
@pytest.mark.parametrize("coding", ["snappy", "gzip, gzip, gzip", "gzip, snappy"])
def test_a_coding_that_is_not_read_makes_no_answer(
    gateway: Gateway, upstream: FakeUpstream, coding: str, body: bytes
) -> None:
    upstream.script(body_reply(PLAIN, headers=[("Content-Encoding", coding)]))
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), body)
    assert answer.status == 502
    assert answer.json()["error"]["code"] == "upstream_unusable"
    assert answer.header("content-encoding") is None
