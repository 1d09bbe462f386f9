"""`response_model: asked`: every answer bears the name that its client asked for, whatever upstreams call the model."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import openai
import pytest
from fake_upstream import DONE, FakeUpstream, Req, ev, json_reply, sse_reply, tchunk, usage
from gateway import Gateway, bearer, eventually, key_of, settings
from harness import Raw, call, sse_json, uniq
from meeting import Gate
from responses import answer as response_answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_upstream import Ops
    from harness import Resp

THEIRS = "theirs-2026"
SAID = f'say "model":"{THEIRS}"'
"""A text that looks like what is replaced."""
LONG_BYTES = 300_000
"""More than is read whole: the gateway is told to read 100 kB."""


def choice(*, is_chat: bool) -> dict[str, Any]:
    """Return the choice of a whole answer; of a chat's it has a member that is called `model`, too."""
    if is_chat:
        return {"index": 0, "message": {"role": "assistant", "content": SAID}, "finish_reason": "stop", "model": THEIRS}
    return {"index": 0, "text": SAID, "logprobs": None, "finish_reason": "stop"}


def generated(req: Req) -> Ops:
    """Answer whatever was asked as an upstream that has another name for the model."""
    body = req.json()
    if "responses" in req.path:
        return response_answer(req)
    if "embeddings" in req.path:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        counted = {"prompt_tokens": 1, "total_tokens": 1}
        return json_reply({"object": "list", "data": data, "model": THEIRS, "usage": counted})
    if body.get("stream"):
        pieces = [ev(tchunk(SAID, model=THEIRS)), ev(tchunk("", model=THEIRS, finish="stop"))]
        return sse_reply([*pieces, ev({**tchunk("", model=THEIRS), "choices": [], "usage": usage(20)}), DONE], gap=0)
    choices = [choice(is_chat="chat" in req.path)]
    answer = {"id": "x", "object": "text_completion", "created": 1, "model": THEIRS, "choices": choices}
    return json_reply({**answer, "usage": usage(20)})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, FakeUpstream]]:
    upstream = FakeUpstream().start()
    asked = {"deployments": [{"upstream": "only", "name": THEIRS}], "response_model": "asked", "aliases": ["a", "b"]}
    untouched = {"deployments": [{"upstream": "only", "name": THEIRS}]}
    made = settings(
        f"{upstream.url}/v1",
        users={"alice": {}},
        models={"ours": asked, "plain": untouched},
        max_entry_bytes=100_000,
        workers=1,
    )
    with ExitStack() as opened:
        yield opened.enter_context(Gateway(tmp_path_factory.mktemp("renamed"), made)), upstream


@pytest.fixture
def gateway(running: tuple[Gateway, FakeUpstream]) -> Gateway:
    running[1].reset()
    running[1].default = generated
    return running[0]


@pytest.fixture
def upstream(running: tuple[Gateway, FakeUpstream]) -> FakeUpstream:
    return running[1]


def ask(gateway: Gateway, model: str, endpoint: str = "completions", **more: Any) -> Resp:  # noqa: ANN401  any member
    inputs: dict[str, dict[str, Any]] = {
        "completions": {"prompt": uniq()},
        "chat/completions": {"messages": [{"role": "user", "content": uniq()}]},
        "embeddings": {"input": uniq()},
        "responses": {"input": uniq(), "store": False},
    }
    body = {"model": model, **inputs[endpoint], **more}
    return call(gateway.base_url, "POST", f"/v1/{endpoint}", bearer("alice"), json.dumps(body).encode())


def names(value: object) -> list[str]:
    """Return every `model` that is said anywhere in a JSON value, in order."""
    if isinstance(value, list):
        return [name for each in value for name in names(each)]
    if not isinstance(value, dict):
        return []
    found = [value["model"]] if isinstance(value.get("model"), str) else []
    return found + [name for key, each in value.items() if key != "model" for name in names(each)]


@pytest.mark.parametrize("model", ["ours", "a"], ids=["by its name", "by an alias"])
@pytest.mark.parametrize("endpoint", ["completions", "chat/completions", "embeddings", "responses"])
def test_a_whole_answer_bears_the_name_that_was_asked_for(gateway: Gateway, endpoint: str, model: str) -> None:
    answer = ask(gateway, model, endpoint)
    assert answer.complete
    assert int(answer.header("content-length") or 0) == len(answer.body)
    assert answer.json()["model"] == model
    if "completions" in endpoint:
        assert answer.json()["choices"] == [choice(is_chat="chat" in endpoint)]


@pytest.mark.parametrize("model", ["ours", "a"], ids=["by its name", "by an alias"])
@pytest.mark.parametrize("endpoint", ["completions", "chat/completions", "responses"])
def test_each_event_of_a_stream_bears_it(gateway: Gateway, endpoint: str, model: str) -> None:
    answer = ask(gateway, model, endpoint, stream=True)
    assert answer.complete
    told = [name for each in sse_json(answer.body) for name in names(each)]
    assert told
    assert set(told) == {model}
    if "completions" in endpoint:
        assert SAID.replace('"', '\\"').encode() in answer.body


def test_nothing_else_of_a_stream_is_changed(gateway: Gateway) -> None:
    theirs, ours = (ask(gateway, name, stream=True, temperature=1).body for name in ("plain", "ours"))
    assert theirs.count(THEIRS.encode()) == 3  # two events, and a text that says so
    assert theirs.replace(f'"model": "{THEIRS}"'.encode(), b'"model": "ours"') == ours


@pytest.mark.parametrize("streamed", [(True, True), (False, False), (True, False), (False, True)], ids=str)
def test_a_stored_answer_bears_the_name_of_who_asks_for_it(gateway: Gateway, streamed: tuple[bool, bool]) -> None:
    asked = {"prompt": uniq(), "temperature": 0}
    first, second = (
        ask(gateway, name, **asked, stream=stream) for name, stream in zip(("a", "b"), streamed, strict=True)
    )
    assert "hit" in (second.header("cache-status") or "")
    for answer, name, stream in zip((first, second), ("a", "b"), streamed, strict=True):
        told = [each["model"] for each in (sse_json(answer.body) if stream else [answer.json()])]
        assert set(told) == {name}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_who_joins_the_fetch_of_another_is_told_its_own_name(
    gateway: Gateway, upstream: FakeUpstream, *, stream: bool
) -> None:
    asked: dict[str, Any] = {"prompt": uniq(), "temperature": 0, "max_tokens": 20, "stream": stream}
    gate = Gate()
    upstream.default = lambda req: [gate.op, *generated(req)]
    clients = {}
    for name in ("a", "b"):
        clients[name] = Raw(gateway.base_url)
        clients[name].request("POST", "/v1/completions", bearer("alice"), json.dumps({"model": name, **asked}).encode())
        assert upstream.wait(lambda: upstream.log)
    gate.open()
    for name, client in clients.items():
        answer = client.response()
        client.close()
        told = [each["model"] for each in (sse_json(answer.body) if stream else [answer.json()])]
        assert set(told) == {name}
    assert len(upstream.served) == 1


def test_an_answer_too_long_to_be_read_whole_is_renamed_as_it_flows(gateway: Gateway, upstream: FakeUpstream) -> None:
    long = {"choices": [{"index": 0, "text": "x" * LONG_BYTES, "model": THEIRS}], "model": THEIRS, "usage": usage(9)}
    upstream.script(json_reply(long))
    answer = ask(gateway, "a")
    assert answer.header("transfer-encoding") == "chunked"
    assert answer.json() == {**long, "model": "a"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_error_stays_as_the_upstream_wrote_it(gateway: Gateway, upstream: FakeUpstream, *, stream: bool) -> None:
    error = {"error": {"message": "no", "type": "t", "param": None, "code": None}, "model": THEIRS}
    upstream.script(json_reply(error, 400))
    answer = ask(gateway, "a", stream=stream)
    assert (answer.status, answer.json()) == (400, error)


def test_records_tell_what_the_upstream_calls_it(gateway: Gateway) -> None:
    answer = ask(gateway, "a")
    identity = answer.header("x-request-id")
    [record] = eventually(lambda: [each for each in gateway.records() if each["request_id"] == identity])
    assert record["model_served"] == THEIRS


def test_the_official_client_is_told_the_name_it_asked_for(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key=key_of("alice"), max_retries=0) as client:
        messages: Any = [{"role": "user", "content": uniq()}]
        assert client.completions.create(model="a", prompt=uniq()).model == "a"
        chunks = list(client.completions.create(model="b", prompt=uniq(), stream=True))
        assert {chunk.model for chunk in chunks} == {"b"}
        assert client.chat.completions.create(model="a", messages=messages).model == "a"
        with client.responses.stream(model="b", input=uniq(), store=False) as stream:
            assert stream.get_final_response().model == "b"
