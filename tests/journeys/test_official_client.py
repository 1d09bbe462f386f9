"""The official `openai` SDK and raw clients against the real model: only `base_url` and `api_key` are changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import openai
import pytest
from gateway import Gateway, bearer, key_of, settings
from harness import call, joined, sse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.demo.model_process import ModelProcess

MODEL = "smollm2"
ALIAS = "davinci"
PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": "Say hello."}]
AZURE_VERSION = "2024-06-01"

COMPLETION = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
CHAT = {"model": MODEL, "messages": MESSAGES, "max_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def gateway(model: ModelProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = settings(
        model.base_url,
        users={"alice": {}},
        models={MODEL: {"aliases": [ALIAS], "context_window": 2048, "token_ceiling": "max_tokens"}},
    )
    with Gateway(tmp_path_factory.mktemp("gateway"), made) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key=key_of("alice"), max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def azure(gateway: Gateway) -> Iterator[openai.AzureOpenAI]:
    with openai.AzureOpenAI(
        azure_endpoint=gateway.base_url, api_key=key_of("alice"), api_version=AZURE_VERSION, max_retries=0
    ) as made:
        yield made


# ---------------------------------------------------------------- completions
def test_a_completion_has_text_and_usage(client: openai.OpenAI) -> None:
    answer = client.completions.create(**COMPLETION)
    assert "Paris" in answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.completion_tokens, answer.usage.prompt_tokens) == (6, 5)


def test_a_streamed_completion_has_the_same_text(client: openai.OpenAI) -> None:
    whole = client.completions.create(**COMPLETION).choices[0].text
    events = list(client.completions.create(**COMPLETION, stream=True))
    assert "".join(event.choices[0].text for event in events) == whole
    assert all(event.choices for event in events), "a usage event nobody asked for"


def test_a_streamed_completion_brings_its_usage_when_asked(client: openai.OpenAI) -> None:
    events = list(client.completions.create(**COMPLETION, stream=True, stream_options={"include_usage": True}))
    reported = [event.usage for event in events if event.usage]
    assert [usage.completion_tokens for usage in reported] == [6]


def test_several_choices_arrive_each_with_its_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, n=3, max_tokens=4, seed=1)
    assert sorted(choice.index for choice in answer.choices) == [0, 1, 2]
    assert all(choice.text for choice in answer.choices)


def test_an_array_of_prompts_gets_a_choice_for_each(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[PROMPT, "One, two,"], max_tokens=3, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_an_alias_is_answered_by_its_model(client: openai.OpenAI) -> None:
    answer = client.completions.create(**{**COMPLETION, "model": ALIAS})
    assert answer.model == MODEL


# ---------------------------------------------------------------- chat
def test_a_chat_completion_has_a_message_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content
    assert 0 < answer.usage.completion_tokens <= 6


def test_a_streamed_chat_completion_has_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT).choices[0].message.content
    events = list(client.chat.completions.create(**CHAT, stream=True))
    assert "".join(event.choices[0].delta.content or "" for event in events) == whole
    assert all(event.choices for event in events), "a usage event nobody asked for"


def test_a_streamed_chat_completion_brings_its_usage_when_asked(client: openai.OpenAI) -> None:
    events = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert [event.usage.completion_tokens for event in events if event.usage]


# ---------------------------------------------------------------- embeddings and models
@pytest.mark.parametrize("coding", ["float", "base64"])
def test_embeddings_have_a_vector_for_each_input(client: openai.OpenAI, coding: str) -> None:
    answer = client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format=coding)
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens > 0


def test_the_model_list_names_what_the_key_may_use(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


# ---------------------------------------------------------------- refusals, as the SDK sees them
def test_a_wrong_key_is_an_authentication_error(gateway: Gateway) -> None:
    with (
        openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.completions.create(**COMPLETION)
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("changes", "kind", "param"),
    [
        ({"model": "no-such-model"}, openai.NotFoundError, "model"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"n": 2, "best_of": 1}, openai.BadRequestError, "best_of"),
        ({"n": 0}, openai.BadRequestError, "n"),
    ],
    ids=["an unknown model is not found", "a high temperature", "best_of below n", "no choice at all"],
)
def test_what_cannot_be_served_is_the_sdks_own_error(
    client: openai.OpenAI, changes: dict[str, object], kind: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(kind) as caught:
        client.completions.create(**{**COMPLETION, **changes})
    assert caught.value.param == param
    assert caught.value.request_id


# ---------------------------------------------------------------- Azure's dialect
def test_the_azure_client_completes_and_chats(azure: openai.AzureOpenAI) -> None:
    assert "Paris" in azure.completions.create(**{**COMPLETION, "model": ALIAS}).choices[0].text
    assert azure.chat.completions.create(**CHAT).choices[0].message.content


def test_the_azure_client_streams(azure: openai.AzureOpenAI) -> None:
    events = list(azure.completions.create(**COMPLETION, stream=True))
    assert "Paris" in "".join(event.choices[0].text for event in events)


def test_the_azure_client_embeds_and_lists_models(azure: openai.AzureOpenAI) -> None:
    assert azure.embeddings.create(model=MODEL, input="one").data[0].index == 0
    assert MODEL in [model.id for model in azure.models.list()]


def test_azures_deployment_path_without_a_version_is_refused(gateway: Gateway) -> None:
    answer = call(
        gateway.base_url, "POST", f"/openai/deployments/{MODEL}/completions", bearer("alice"), b'{"prompt": "x"}'
    )
    assert answer.status == 400
    assert "api-version" in answer.json()["error"]["message"]


# ---------------------------------------------------------------- the engines path
def test_the_engines_path_names_the_model(gateway: Gateway) -> None:
    body = {name: value for name, value in COMPLETION.items() if name != "model"}
    answer = call(
        gateway.base_url, "POST", f"/v1/engines/{ALIAS}/completions", bearer("alice"), json.dumps(body).encode()
    )
    assert answer.status == 200
    assert "Paris" in answer.text()


def test_the_engines_path_streams(gateway: Gateway) -> None:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "stream": True}).encode()
    answer = call(gateway.base_url, "POST", f"/v1/engines/{ALIAS}/completions", bearer("alice"), body)
    assert sse(answer.body)[0][-1][1] == "[DONE]"
    assert "Paris" in joined(answer.body)[0]


def test_another_model_in_the_body_of_the_engines_path_is_refused(gateway: Gateway) -> None:
    body = b'{"model": "other", "prompt": "x"}'
    answer = call(gateway.base_url, "POST", f"/v1/engines/{ALIAS}/completions", bearer("alice"), body)
    assert (answer.status, answer.json()["error"]["param"]) == (400, "model")


def test_engines_are_listed(gateway: Gateway) -> None:
    answer = call(gateway.base_url, "GET", "/v1/engines", bearer("alice"))
    assert ALIAS in [engine["id"] for engine in answer.json()["data"]]
    assert call(gateway.base_url, "GET", f"/v1/engines/{ALIAS}", bearer("alice")).json()["id"] == ALIAS
