"""The chat request: what the gateway decides on is validated, everything else is let be."""

from __future__ import annotations

from typing import Any

import pytest

from policies.catalog import Deployment, ModelSettings
from policies.errors import InvalidRequest
from policies.requests.chat import ChatRequest

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


def test_everything_that_is_read_by_the_model_counts_as_input() -> None:
    request = ChatRequest.read(
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {}}],
                },
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
            ],
            "tools": [{"type": "function", "function": {"name": "f"}}],
        }
    )
    said = "\n".join(request.input_texts())
    assert all(text in said for text in ("be brief", "what is it?", '[{"id":"c1"}]', '{"name":"f"}'))
    assert len(request.input_texts()) == 4
    assert (request.count_media(), request.input_token_ids(), request.prompt_count) == (1, 0, 1)


def test_bytes_of_an_image_are_not_taken_for_text() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
    request = ChatRequest.read({"messages": [{"role": "user", "content": [part, part, "odd"]}]})
    assert sum(map(len, request.input_texts())) < 200
    assert request.count_media() == 2
