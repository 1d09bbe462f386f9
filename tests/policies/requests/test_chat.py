"""The chat request: what the gateway decides on is validated, everything else is let be."""

from __future__ import annotations

from typing import Any

import pytest

from policies.catalog import Deployment, ModelSettings
from policies.errors import InvalidRequest
from policies.requests.chat import ChatRequest
from policies.requests.input_size import InputSize

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param({}, "messages", id="no messages"),
        pytest.param({"messages": []}, "messages", id="empty messages"),
        pytest.param({"messages": "hello"}, "messages", id="messages that are a text"),
        pytest.param({"messages": ["hello"]}, "messages", id="a message that is a text"),
        pytest.param({"messages": MESSAGES, "n": 0}, "n", id="no choice"),
        pytest.param(
            {"messages": MESSAGES, "max_completion_tokens": True}, "max_completion_tokens", id="a true ceiling"
        ),
        pytest.param({"messages": MESSAGES, "max_tokens": 1.5}, "max_tokens", id="half a token"),
        pytest.param({"messages": MESSAGES, "logprobs": 1}, "logprobs", id="logprobs as a number"),
        pytest.param({"messages": MESSAGES, "top_logprobs": 21}, "top_logprobs", id="too many logprobs"),
        pytest.param({"messages": MESSAGES, "stream_options": {}}, "stream_options", id="stream options alone"),
    ],
)
def test_a_wrong_value_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ChatRequest.read(fields)
    assert refused.value.param == param


def test_what_the_gateway_does_not_decide_on_is_let_be() -> None:
    request = ChatRequest.read({"messages": MESSAGES, "presence_penalty": "odd", "stop": 3, "tools": "odd", "x": None})
    assert request.choices == 1


@pytest.mark.parametrize(
    ("fields", "ceiling"),
    [
        pytest.param({}, None, id="open"),
        pytest.param({"max_tokens": None}, None, id="null is open"),
        pytest.param({"max_tokens": 5}, 5, id="the old name"),
        pytest.param({"max_completion_tokens": 6}, 6, id="the new name"),
        pytest.param({"max_tokens": 9, "max_completion_tokens": 6}, 9, id="the larger of two"),
    ],
)
def test_the_ceiling_is_known_under_both_names(fields: dict[str, Any], ceiling: int | None) -> None:
    assert ChatRequest.read({"messages": MESSAGES, **fields}).token_ceiling == ceiling


def test_an_open_ceiling_is_written_under_the_models_name() -> None:
    settings = ModelSettings(deployments=(Deployment(upstream="u"),), token_ceiling="max_tokens")  # noqa: S106  a name
    assert ChatRequest.ceiling_to_write(settings) == "max_tokens"


def chat_bytes(**fields: Any) -> int:  # noqa: ANN401  JSON values
    fields = {"messages": MESSAGES, **fields}
    return ChatRequest.read(fields).input_size(fields).text_bytes


@pytest.mark.parametrize(
    "name",
    [
        "tools",
        "functions",
        "tool_choice",
        "function_call",
        "response_format",
        "prediction",
        "web_search_options",
        "data_sources",
    ],
)
def test_what_the_model_reads_besides_messages_counts(name: str) -> None:
    text = "x" * 1_000
    assert 1_000 < chat_bytes(**{name: {"inside": text}}) - chat_bytes() < 1_100


def test_what_no_api_names_may_be_read_by_some_server_and_counts() -> None:
    assert chat_bytes(documents=["x" * 1_000]) - chat_bytes() >= 1_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metadata", {"a": "x" * 500}),
        ("user", "x" * 500),
        ("stop", ["x" * 500]),
        ("logit_bias", {"1": 5}),
        ("prompt_cache_key", "x" * 500),
        ("tools", None),
    ],
)
def test_what_the_model_does_not_read_does_not_count(name: str, value: Any) -> None:  # noqa: ANN401  JSON values
    assert chat_bytes(**{name: value}) == chat_bytes()


FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "is_open"),
    [
        pytest.param({}, False, id="all is there"),
        pytest.param({"tools": [FUNCTION, {"type": "custom", "custom": {"name": "c"}}]}, False, id="client's tools"),
        pytest.param({"functions": [{"name": "f"}], "prediction": {"content": "x"}}, False, id="what is sent along"),
        pytest.param({"web_search_options": None, "data_sources": None}, False, id="null names nothing"),
        pytest.param({"web_search_options": {}}, True, id="what a search finds"),
        pytest.param({"data_sources": [{"type": "azure_search"}]}, True, id="data that the upstream looks up"),
        pytest.param({"tools": [FUNCTION, {"type": "web_search"}]}, True, id="a tool whose results are read too"),
        pytest.param({"tools": [{"google_search": {}}]}, True, id="one without a type that is no function"),
        pytest.param({"prediction": {"content": [{"type": "file"}]}}, True, id="a prediction that is only named"),
        pytest.param({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, True, id="a message that is"),
    ],
)
def test_an_input_of_which_some_lives_elsewhere_is_open(fields: dict[str, Any], *, is_open: bool) -> None:
    fields = {"messages": MESSAGES, **fields}
    assert ChatRequest.read(fields).input_size(fields).is_open is is_open


def test_a_chat_is_one_prompt() -> None:
    request = ChatRequest.read({"messages": MESSAGES})
    assert (request.prompt_count, request.echo_size()) == (1, InputSize())
