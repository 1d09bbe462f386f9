from __future__ import annotations

from typing import Any

import pytest

from policies.catalog import Model, ModelSettings
from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.dialects import view_of
from policies.tokens import bound_input_tokens, estimate_input_tokens

MODEL = Model("m", ModelSettings(deployments=[{"upstream": "u"}]))
BARE = Model("m", ModelSettings(deployments=[{"upstream": "u"}], request_overhead_tokens=0, message_overhead_tokens=0))


def effective(endpoint: Endpoint, **fields: Any) -> EffectiveRequest:  # noqa: ANN401  members of a request
    return EffectiveRequest(endpoint, fields, view_of(endpoint, fields))


@pytest.mark.parametrize(
    ("request_", "bound", "estimate"),
    [
        pytest.param(effective(Endpoint.COMPLETIONS, prompt="hi"), 2 + 24, 1, id="text by its bytes and the overheads"),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt="é漢😀"), 9 + 24, 3, id="of UTF-8"),
        pytest.param(
            effective(Endpoint.COMPLETIONS, prompt=["ab", "c"]), 3 + 8 + 32, 1, id="every prompt has its overhead"
        ),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt=[5, 6, 7]), 3, 3, id="token ids exactly"),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt=[[5], [6, 7]]), 3, 3, id="those of several prompts too"),
        pytest.param(
            effective(Endpoint.COMPLETIONS, prompt=[5, 6], suffix="end"), 2 + 3 + 24, 3, id="a suffix is text"
        ),
        pytest.param(effective(Endpoint.EMBEDDINGS, input=["abcd", "efgh"]), 8 + 8 + 32, 2, id="inputs of embeddings"),
    ],
)
def test_input_is_bounded_and_estimated(request_: EffectiveRequest, bound: int, estimate: int) -> None:
    assert (bound_input_tokens(request_, MODEL), estimate_input_tokens(request_)) == (bound, estimate)


def message(content: Any, **more: Any) -> dict[str, Any]:  # noqa: ANN401  JSON values
    return {"role": "user", "content": content, **more}


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        pytest.param({"messages": [message("hello")]}, 5, id="text"),
        pytest.param({"messages": [message([{"type": "text", "text": "x" * 90}])]}, 90, id="text in parts"),
        pytest.param({"messages": [message("x")], "tools": [TOOL]}, 40, id="tool definitions"),
        pytest.param(
            {"messages": [message(None, tool_calls=[{"function": {"arguments": "y" * 80}}])]}, 80, id="tool calls"
        ),
        pytest.param(
            {"messages": [message("x")], "response_format": {"json_schema": {"name": "z" * 70}}}, 70, id="schemas"
        ),
    ],
)
def test_everything_in_a_chat_that_becomes_tokens_counts(fields: dict[str, Any], least: int) -> None:
    bound = bound_input_tokens(effective(Endpoint.CHAT, **fields), BARE)
    assert least <= bound <= 3 * least + 40


def test_an_image_counts_as_an_image_and_not_by_its_bytes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    bound = bound_input_tokens(effective(Endpoint.CHAT, messages=[message([image])]), MODEL)
    assert 1_000 < bound < 10_000
