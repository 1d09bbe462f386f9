"""Connections to upstreams: one that was kept and is gone costs one more attempt, and a client that left costs none."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import head, json_reply, sse_head
from gateway import Gateway, bearer, settings
from harness import Raw, call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_upstream import FakeUpstream

PATH = "/v1/completions"
ASKED = {"model": "m", "prompt": "x", "temperature": 1}
KINDS = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "a stream"])
CANCEL_SECONDS = 1.0


@pytest.fixture(scope="module")
def gateway(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), settings(f"{_upstream.url}/v1", users={"alice": {}})) as running:
        yield running


def asked(*, is_stream: bool) -> bytes:
    return json.dumps({**ASKED, "stream": is_stream}).encode()


def keep_one_connection(gateway: Gateway, upstream: FakeUpstream) -> int:
    """Have the gateway keep a connection, and return its number."""
    upstream.script([*json_reply({"keep": 1}), ("close",)])  # none of an earlier test's is left
    call(gateway.base_url, "POST", PATH, bearer("alice"), asked(is_stream=False))
    upstream.wait(lambda: upstream.log[0].done)
    assert call(gateway.base_url, "POST", PATH, bearer("alice"), asked(is_stream=False)).status == 200
    kept = upstream.log[-1].conn_id
    upstream.log.clear()
    return kept


@KINDS
@pytest.mark.parametrize("end", [("rst",), ("close",)], ids=["reset", "closed"])
def test_a_kept_connection_that_is_gone_is_tried_once_more(
    gateway: Gateway, upstream: FakeUpstream, end: tuple[str], *, is_stream: bool
) -> None:
    kept = keep_one_connection(gateway, upstream)
    upstream.script([end])
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), asked(is_stream=is_stream))
    assert (answer.status, answer.complete) == (200, True)
    assert [request.conn_id == kept for request in upstream.log] == [True, False]


@KINDS
@pytest.mark.parametrize("end", [("rst",), ("close",)], ids=["reset", "closed"])
def test_a_new_connection_that_breaks_as_well_is_an_error(
    gateway: Gateway, upstream: FakeUpstream, end: tuple[str], *, is_stream: bool
) -> None:
    keep_one_connection(gateway, upstream)
    upstream.script([end], [end])
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), asked(is_stream=is_stream))
    assert answer.status == 502
    assert answer.json()["error"]["code"] == "upstream_broken"
    assert len(upstream.log) == 2


@KINDS
@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([("sleep", 0.8), ("rst",)], id="it worked, then was reset"),
        pytest.param([("sleep", 0.8), ("close",)], id="it worked, then closed"),
        pytest.param([("send", b"HTTP/1.1 2"), ("rst",)], id="it began to answer"),
    ],
)
def test_a_request_that_was_read_is_not_sent_again(
    gateway: Gateway, upstream: FakeUpstream, ops: list[Any], *, is_stream: bool
) -> None:
    kept = keep_one_connection(gateway, upstream)
    upstream.script(ops)
    answer = call(gateway.base_url, "POST", PATH, bearer("alice"), asked(is_stream=is_stream))
    assert answer.status == 502
    assert answer.json()["error"]["code"] == "upstream_broken"
    assert [request.conn_id for request in upstream.log] == [kept]


# ---------------------------------------------------------------- the client leaves before the first byte
JSON_HEAD = head(200, [("Content-Type", "application/json"), ("Content-Length", 1000)])


@pytest.mark.parametrize("rst", [False, True], ids=["it closes", "it resets"])
@pytest.mark.parametrize(
    ("ops", "is_stream"),
    [
        pytest.param([("hold", 20)], False, id="nothing has come of a whole answer"),
        pytest.param([("hold", 20)], True, id="nothing has come of a stream"),
        pytest.param([("send", JSON_HEAD), ("hold", 20)], False, id="the head of a whole answer"),
        pytest.param([("send", JSON_HEAD + b'{"id": "x"'), ("hold", 20)], False, id="half of a whole answer"),
        pytest.param([("send", head(400, [("Content-Length", 9)])), ("hold", 20)], True, id="the head of an error"),
        pytest.param([("send", head(401, [("Content-Length", 9)])), ("hold", 20)], True, id="one that nobody may see"),
        pytest.param([("send", sse_head()), ("hold", 20)], True, id="the head of a stream"),
    ],
)
def test_a_client_that_leaves_cancels_the_upstream(
    gateway: Gateway, upstream: FakeUpstream, ops: list[Any], *, is_stream: bool, rst: bool
) -> None:
    upstream.script(ops)
    client = Raw(gateway.base_url)
    client.request("POST", PATH, bearer("alice"), asked(is_stream=is_stream))
    assert upstream.wait(lambda: upstream.log)
    time.sleep(0.1)  # until what is sent has been read
    left = time.monotonic()
    client.close(rst=rst)
    assert upstream.wait(lambda: upstream.log[0].aborted_at)
    assert upstream.log[0].aborted_at - left < CANCEL_SECONDS  # SPEC §7 promises it
    assert len(upstream.log) == 1


def test_a_client_that_leaves_during_a_wait_is_not_sent_for_again(gateway: Gateway, upstream: FakeUpstream) -> None:
    busy = json_reply({"error": {"message": "busy"}}, 429, [("Retry-After", "1")])
    upstream.default = lambda _: busy
    client = Raw(gateway.base_url)
    client.request("POST", PATH, bearer("alice"), asked(is_stream=False))
    assert upstream.wait(lambda: upstream.log and upstream.log[0].done)
    client.close()
    records = gateway.wait_for_records(len(gateway.records()) + 1)
    assert records[-1]["outcome"] == "client_left"
    time.sleep(1.2)  # past the wait: an attempt that was not cancelled would be made by now
    assert len(upstream.log) == 1
