"""The Responses API through a whole gateway: the official SDK's clients, a scripted upstream and the real model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from fake_upstream import FakeUpstream, sse_reply
from gateway import Gateway, bearer, key_of, settings
from harness import call
from responses import answer, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proxy.demo.model_process import ModelProcess

MODEL = "smollm2"
AZURE_VERSION = "2025-04-01-preview"
ASKED: dict[str, Any] = {"model": "m", "input": "Say hello.", "max_output_tokens": 50}
COLD: dict[str, Any] = {**ASKED, "temperature": 0, "store": False}
DAILY = {"of": "tokens", "limit": 400, "per": "day", "by": ["user"]}
NO_OVERHEAD = {"request_overhead_tokens": 0, "message_overhead_tokens": 0}
HELD = len("Say hello.") + 50
"""Tokens held for `ASKED` by a model without overheads: its bytes and its ceiling."""


@pytest.fixture
def gateway(upstream: FakeUpstream, start_gateway: Callable[[Any], Gateway]) -> Gateway:
    upstream.default = answer
    azure = {"kind": "azure", "base_url": upstream.url, "api_version": AZURE_VERSION}
    made = settings(
        f"{upstream.url}/v1",
        users={"alice": {"limits": [DAILY]}, "bob": {}},
        models={
            "m": NO_OVERHEAD,
            "named": {"deployments": [{"upstream": "azure", "name": "prod"}]},
            "twofold": {"deployments": [{"upstream": "only"}, {"upstream": "only", "name": "other"}]},
        },
    )
    made["upstreams"]["azure"] = azure
    return start_gateway(made)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key=key_of("alice"), max_retries=0) as made:
        yield made


@pytest.fixture
def azure(gateway: Gateway) -> Iterator[openai.AzureOpenAI]:
    with openai.AzureOpenAI(
        azure_endpoint=gateway.base_url, api_key=key_of("bob"), api_version=AZURE_VERSION, max_retries=0
    ) as made:
        yield made


def test_a_plain_response_is_answered_counted_and_recorded(
    client: openai.OpenAI, gateway: Gateway, upstream: FakeUpstream
) -> None:
    answered = client.responses.create(**ASKED)
    assert answered.output_text == "Hello there"
    assert answered.usage is not None
    assert answered.usage.total_tokens == 18
    assert upstream.log[0].target == "/v1/responses"
    assert upstream.log[0].json() == ASKED
    (record,) = gateway.wait_for_records(1)
    told = {name: record[name] for name in ("endpoint", "route", "dialect", "outcome", "known", "held_tokens")}
    assert told == {
        "endpoint": "responses",
        "route": "/v1/responses",
        "dialect": "openai",
        "outcome": "completed",
        "known": "reported",
        "held_tokens": HELD,
    }
    tokens = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
    assert [record[name] for name in tokens] == [11, 7, 4, 2]


def test_tokens_are_held_and_settled_by_the_responses_usage(client: openai.OpenAI, gateway: Gateway) -> None:
    for _ in range(3):
        client.responses.create(**ASKED)
    bodies = [json.dumps({**ASKED, "stream": is_stream}).encode() for is_stream in (False, True)]
    whole, streamed = (call(gateway.base_url, "POST", "/v1/responses", bearer("alice"), body) for body in bodies)
    assert whole.header("x-ratelimit-remaining-tokens") == str(400 - 4 * 18)
    assert streamed.header("x-ratelimit-remaining-tokens") == str(400 - 4 * 18 - HELD)


def test_a_streamed_response_comes_event_by_event_and_is_settled_before_its_last(
    client: openai.OpenAI, gateway: Gateway, upstream: FakeUpstream
) -> None:
    events = list(client.responses.create(**ASKED, stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello there"
    assert events[-1].response.usage.output_tokens == 7
    assert upstream.log[0].json() == {**ASKED, "stream": True}
    (record,) = gateway.wait_for_records(1)
    assert (record["known"], record["output_tokens"], record["reasoning_tokens"]) == ("reported", 7, 2)
    assert record["time_to_first_token_seconds"] is not None


def test_the_sdks_own_stream_helper_ends_with_the_whole_response(client: openai.OpenAI) -> None:
    with client.responses.stream(**ASKED) as streamed:
        assert streamed.get_final_response().output_text == "Hello there"


def test_a_stream_that_breaks_is_an_error_for_the_sdk(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.script(sse_reply(stream(["Hello", " there"])[:4], end="rst"))
    seen = []
    with pytest.raises(openai.APIError, match="broke") as caught:
        seen.extend(event.type for event in client.responses.create(**ASKED, stream=True))
    assert caught.value.code == "upstream_broken"
    assert seen[-1] == "response.output_text.delta"


def test_the_azure_client_is_answered_where_it_calls(
    azure: openai.AzureOpenAI, gateway: Gateway, upstream: FakeUpstream
) -> None:
    assert azure.responses.create(**ASKED).output_text == "Hello there"
    events = list(azure.responses.create(**ASKED, stream=True))
    assert events[-1].type == "response.completed"
    assert [req.target for req in upstream.log] == ["/v1/responses"] * 2
    records = gateway.wait_for_records(2)
    assert {(record["route"], record["dialect"]) for record in records} == {("/openai/responses", "azure")}


def test_an_azure_upstream_gets_its_deployments_name(azure: openai.AzureOpenAI, upstream: FakeUpstream) -> None:
    azure.responses.create(**{**ASKED, "model": "named"})
    assert upstream.log[0].target == f"/openai/responses?api-version={AZURE_VERSION}"
    assert upstream.log[0].json()["model"] == "prod"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        pytest.param("/openai/responses", ASKED, 400, "api-version", id="Azure's path without a version"),
        pytest.param("/openai/deployments/m/responses?api-version=1", ASKED, 404, None, id="below a deployment"),
        pytest.param("/v1/responses", {**ASKED, "background": True}, 400, "background", id="in the background"),
        pytest.param("/v1/responses", {"input": "x"}, 400, "model", id="without a model"),
        pytest.param(
            "/v1/responses",
            {**ASKED, "model": "twofold", "previous_response_id": "resp_1"},
            400,
            "previous_response_id",
            id="continued where another deployment may be asked",
        ),
    ],
)
def test_what_cannot_be_served_goes_nowhere(
    gateway: Gateway, upstream: FakeUpstream, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answered = call(gateway.base_url, "POST", path, bearer("bob"), json.dumps(body).encode())
    assert (answered.status, answered.json()["error"]["param"]) == (status, param)
    assert not upstream.log


def test_a_continued_response_holds_all_that_its_model_can_read(gateway: Gateway, upstream: FakeUpstream) -> None:
    body = json.dumps({**ASKED, "previous_response_id": "resp_1"}).encode()
    assert call(gateway.base_url, "POST", "/v1/responses", bearer("bob"), body).status == 200
    refused = call(gateway.base_url, "POST", "/v1/responses", bearer("alice"), body)
    assert refused.status == 429
    assert "1000050" in refused.json()["error"]["message"].replace(",", "")
    assert len(upstream.log) == 1


# ---------------------------------------------------------------- the real model
@pytest.fixture(scope="module")
def real(model: ModelProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    made = settings(model.base_url, users={"alice": {}}, models={MODEL: {"context_window": 2048}})
    with (
        Gateway(tmp_path_factory.mktemp("gateway"), made) as running,
        openai.OpenAI(base_url=f"{running.base_url}/v1", api_key=key_of("alice"), max_retries=0) as client,
    ):
        yield client


def test_the_real_model_answers_whole_and_streamed_alike(real: openai.OpenAI) -> None:
    asked = {**COLD, "model": MODEL, "max_output_tokens": 6}
    whole = real.responses.create(**asked)
    assert whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens == 6
    events = list(real.responses.create(**asked, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.output_tokens == 6
