"""Bodies exactly as the seeds' Rust client writes them: `null` for what is unset, lists around scalars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from gateway import Gateway, bearer, settings
from harness import call, joined, sse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_upstream import FakeUpstream

    from proxy.demo.model_process import ModelProcess

MODEL = "davinci"
UNSET = (
    b'{"model":"davinci","prompt":["The capital of France is"],"stream":false,"suffix":null,"temperature":null,'
    b'"top_p":null,"n":null,"logprobs":null,"echo":null,"stop":null,"max_tokens":null,"presence_penalty":null,'
    b'"frequency_penalty":null,"best_of":null,"logit_bias":null,"user":null}'
)
FULL = (
    b'{"model":"davinci","prompt":["The capital of France is"],"stream":false,"suffix":null,"temperature":0.0,'
    b'"top_p":1.0,"n":1,"logprobs":null,"echo":[false],"stop":["\\n"],"max_tokens":6,"presence_penalty":0.5,'
    b'"frequency_penalty":-0.5,"best_of":{"best_of":3},"logit_bias":{"50256":-100.0},"user":"someone"}'
)
PAIRS = (
    b'{"model":"davinci","prompt":["The capital of France is"],"stream":false,"suffix":null,"temperature":0.0,'
    b'"top_p":null,"n":null,"logprobs":null,"echo":[true],"stop":null,"max_tokens":6,"presence_penalty":null,'
    b'"frequency_penalty":null,"best_of":[["best_of",3]],"logit_bias":[["50256",-100.0],["11",1.0]],"user":null}'
)
STREAM = (
    b'{"model":"davinci","prompt":["The capital of France is"],"stream":true,"suffix":null,"temperature":0.0,'
    b'"top_p":null,"n":1,"logprobs":null,"echo":[false],"stop":null,"max_tokens":6,"presence_penalty":null,'
    b'"frequency_penalty":null,"best_of":null,"logit_bias":null,"user":null}'
)


def _served(base_url: str) -> dict[str, Any]:
    models = {MODEL: {"context_window": 2048, "deployments": [{"upstream": "only", "name": "smollm2"}]}}
    return settings(base_url, users={"alice": {}}, models=models)


@pytest.fixture(scope="module")
def before_model(model: ModelProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), _served(model.base_url)) as running:
        yield running


@pytest.fixture(scope="module")
def before_script(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), _served(f"{_upstream.url}/v1")) as running:
        yield running


@pytest.mark.parametrize("body", [UNSET, FULL], ids=["all but the prompt unset", "every member set"])
def test_the_real_model_completes_what_the_rust_client_writes(before_model: Gateway, body: bytes) -> None:
    answer = call(before_model.base_url, "POST", "/v1/completions", bearer("alice"), body, timeout=60)
    assert answer.status == 200
    assert answer.text()


def test_the_real_model_streams_what_the_rust_client_writes(before_model: Gateway) -> None:
    answer = call(before_model.base_url, "POST", "/v1/completions", bearer("alice"), STREAM, timeout=60)
    assert sse(answer.body)[0][-1][1] == "[DONE]"
    assert "Paris" in joined(answer.body)[0]


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (UNSET, {}),
        (FULL, {"echo": False, "best_of": 3}),
        (PAIRS, {"echo": True, "best_of": 3, "logit_bias": {"50256": -100.0, "11": 1.0}}),
        (STREAM, {"echo": False, "stream_options": {"include_usage": True}}),
    ],
    ids=["nulls stay", "a list of one and a map of one", "lists of pairs", "a stream is asked for its usage"],
)
def test_lists_around_scalars_are_taken_off_and_all_else_stays(
    before_script: Gateway, upstream: FakeUpstream, body: bytes, changed: dict[str, Any]
) -> None:
    answer = call(before_script.base_url, "POST", "/v1/completions", bearer("alice"), body)
    assert answer.status == 200
    assert upstream.served[0].json() == {**json.loads(body), "model": "smollm2", **changed}
    normalised = [name for name in changed if name != "stream_options"]
    told = answer.header("x-tidegate-adjusted") or ""
    assert [name for name in ("echo", "best_of", "logit_bias") if f"{name};" in told] == normalised


@pytest.mark.parametrize(
    ("member", "param"),
    [
        (b'"echo":[true,false]', "echo"),
        (b'"echo":[]', "echo"),
        (b'"best_of":[["a",1],["b",2]]', "best_of"),
        (b'"best_of":{"a":1,"b":2}', "best_of"),
        (b'"best_of":[["a"]]', "best_of"),
        (b'"logit_bias":[["50256"]]', "logit_bias"),
        (b'"logit_bias":[["50256",-101]]', "logit_bias"),
        (b'"n":[1]', "n"),
    ],
    ids=[
        "echo with two elements",
        "echo with none",
        "best_of with two pairs",
        "best_of with two members",
        "best_of with half a pair",
        "logit_bias with half a pair",
        "a bias out of range",
        "a list around n, which no client writes",
    ],
)
def test_lists_without_a_plain_meaning_are_refused(
    before_script: Gateway, upstream: FakeUpstream, member: bytes, param: str
) -> None:
    body = b'{"model":"davinci","prompt":["x"],%s}' % member
    answer = call(before_script.base_url, "POST", "/v1/completions", bearer("alice"), body)
    error = answer.json()["error"]
    assert (answer.status, error["param"]) == (400, param)
    assert not upstream.served
