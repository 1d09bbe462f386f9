"""What goes out is what came in: bytes from the gateway beside the bytes recorded at the upstream's socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import DONE, ev, sse_reply, tchunk, usage
from gateway import Gateway, bearer, settings
from harness import Raw, Resp, call
from relay import RecordingRelay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_upstream import FakeUpstream

    from proxy.demo.model_process import ModelProcess

COMPLETIONS = ("/v1/completions", {"model": "m", "prompt": "The capital of France is", "max_tokens": 12})
CHAT = ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 12})


def _without_added_usage(body: bytes) -> bytes:
    """Take out the one event that only exists because the gateway asked: no choices, and a usage object."""
    return b"".join(event + b"\n\n" for event in body.split(b"\n\n")[:-1] if not _is_added(event))


def _is_added(event: bytes) -> bool:
    data = event.removeprefix(b"data: ")
    if data == b"[DONE]":
        return False
    told = json.loads(data)
    return not told["choices"] and bool(told.get("usage"))


# ---------------------------------------------------------------- the real model
@pytest.fixture(scope="module")
def model_relay(model: ModelProcess) -> Iterator[RecordingRelay]:
    with RecordingRelay(model.base_url) as running:
        yield running


@pytest.fixture(scope="module")
def before_model(model_relay: RecordingRelay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = settings(model_relay.base_url, users={"alice": {}}, models={"m": {"context_window": 2048}})
    with Gateway(tmp_path_factory.mktemp("gateway"), made) as running:
        yield running


@pytest.mark.parametrize("extra", [{}, {"stream_options": {"include_usage": True}}], ids=["usage not asked", "asked"])
@pytest.mark.parametrize("changes", [{"temperature": 0}, {"temperature": 1}, {"n": 2, "seed": 3}], ids=str)
@pytest.mark.parametrize(("path", "asked"), [COMPLETIONS, CHAT], ids=["completions", "chat"])
def test_a_real_stream_passes_byte_for_byte(
    before_model: Gateway,
    model_relay: RecordingRelay,
    path: str,
    asked: dict[str, Any],
    changes: dict[str, Any],
    extra: dict[str, Any],
) -> None:
    body = json.dumps({**asked, **changes, **extra, "stream": True}).encode()
    answer, recorded = _exchange(before_model, model_relay, path, body, [("Cache-Control", "no-cache")])
    assert answer.complete
    assert answer.body == (recorded.body if extra else _without_added_usage(recorded.body))
    assert answer.body.endswith(DONE)


@pytest.mark.parametrize(("path", "asked"), [COMPLETIONS, CHAT], ids=["completions", "chat"])
def test_a_real_answer_passes_byte_for_byte_and_is_a_hit_with_the_same_bytes(
    before_model: Gateway, model_relay: RecordingRelay, path: str, asked: dict[str, Any]
) -> None:
    body = json.dumps({**asked, "temperature": 0, "stop": ["never"]}).encode()
    answer, recorded = _exchange(before_model, model_relay, path, body)
    assert answer.body == recorded.body
    assert answer.header("content-type") == recorded.header("content-type")
    again = call(before_model.base_url, "POST", path, bearer("alice"), body)
    assert again.body == recorded.body
    assert "hit" in again.header("cache-status")


def test_a_real_stream_is_replayed_byte_for_byte(before_model: Gateway, model_relay: RecordingRelay) -> None:
    body = json.dumps({**COMPLETIONS[1], "temperature": 0, "stop": ["ever"], "stream": True}).encode()
    answer, recorded = _exchange(before_model, model_relay, COMPLETIONS[0], body)
    again = call(before_model.base_url, "POST", COMPLETIONS[0], bearer("alice"), body)
    assert again.body == answer.body == _without_added_usage(recorded.body)
    assert "hit" in again.header("cache-status")


def _exchange(
    gateway: Gateway, relay: RecordingRelay, path: str, body: bytes, headers: list[tuple[str, str]] | None = None
) -> tuple[Resp, Resp]:
    relay.forget()
    answer = call(gateway.base_url, "POST", path, [*bearer("alice"), *(headers or [])], body, timeout=60)
    (recorded,) = relay.answers()
    return answer, recorded


# ---------------------------------------------------------------- a scripted stream, cut everywhere
FIRST = ev(tchunk("caf\u00e9 "))
SECOND = ev(json.dumps(tchunk("\u6f22\u5b57 \U0001f600"), ensure_ascii=False).encode())
FINISH = ev(tchunk("", finish="stop"))
USAGE = ev({"id": "cmpl-x", "object": "text_completion", "created": 1, "model": "m", "choices": [], "usage": usage(9)})
ENDINGS = {"LF": (b"\n", b"\n"), "CRLF": (b"\n", b"\r\n"), "CR": (b"\n", b"\r")}


@pytest.fixture(scope="module")
def script_relay(_upstream: FakeUpstream) -> Iterator[RecordingRelay]:
    with RecordingRelay(f"{_upstream.url}/v1") as running:
        yield running


@pytest.fixture(scope="module")
def before_script(script_relay: RecordingRelay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = settings(script_relay.base_url, users={"alice": {}})
    with Gateway(tmp_path_factory.mktemp("gateway"), made) as running:
        yield running


@pytest.mark.parametrize("line_ending", ENDINGS)
@pytest.mark.parametrize("cut_event", [SECOND, USAGE], ids=["an event with content", "the event to be taken out"])
def test_a_stream_cut_at_every_position_of_one_event_passes_byte_for_byte(
    before_script: Gateway, script_relay: RecordingRelay, upstream: FakeUpstream, cut_event: bytes, line_ending: str
) -> None:
    parts = [part.replace(*ENDINGS[line_ending]) for part in (FIRST, SECOND, FINISH, USAGE, DONE)]
    whole = b"".join(parts)
    expected = b"".join(part for part in parts if part != USAGE.replace(*ENDINGS[line_ending]))
    cut_event = cut_event.replace(*ENDINGS[line_ending])
    start = whole.index(cut_event)
    body = json.dumps({"model": "m", "prompt": "x", "temperature": 1, "stream": True}).encode()
    client = Raw(before_script.base_url)
    for position in range(start, start + len(cut_event) + 1):
        upstream.script(sse_reply([whole[:position], whole[position:]], gap=0.002))
        script_relay.forget()
        client.request("POST", "/v1/completions", bearer("alice"), body)
        answer = client.response()
        (recorded,) = script_relay.answers()
        assert recorded.body == whole
        assert answer.complete
        assert answer.body == expected, f"cut at byte {position}"
    client.close()


def test_a_client_that_asked_for_usage_keeps_the_event(
    before_script: Gateway, script_relay: RecordingRelay, upstream: FakeUpstream
) -> None:
    whole = FIRST + FINISH + USAGE + DONE
    upstream.script(sse_reply([whole]))
    body = {"model": "m", "prompt": "x", "temperature": 1, "stream": True, "stream_options": {"include_usage": True}}
    answer, recorded = _exchange(before_script, script_relay, "/v1/completions", json.dumps(body).encode())
    assert answer.body == recorded.body == whole


def test_events_that_only_look_like_the_added_one_stay(
    before_script: Gateway, script_relay: RecordingRelay, upstream: FakeUpstream
) -> None:
    azures_first = ev(
        {"id": "", "object": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    )
    with_usage = ev({**tchunk("x"), "usage": usage(3)})
    empty_usage = ev({"id": "c", "object": "text_completion", "choices": [], "usage": None})
    whole = azures_first + with_usage + empty_usage + FINISH + DONE
    upstream.script(sse_reply([whole]))
    body = json.dumps({"model": "m", "prompt": "x", "temperature": 1, "stream": True}).encode()
    answer, recorded = _exchange(before_script, script_relay, "/v1/completions", body)
    assert answer.body == recorded.body == whole
