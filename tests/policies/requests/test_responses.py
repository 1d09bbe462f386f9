"""The Responses request: what the gateway decides on is validated, everything else is let be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from policies.catalog import Deployment, Model, ModelSettings
from policies.errors import InvalidRequest
from policies.requests.asked import Dialect, Endpoint
from policies.requests.dialects import check_model_bounds, read_request
from policies.requests.responses import ResponsesRequest, check_model_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from policies.requests.asked import AskedRequest


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        pytest.param(
            {"input": 7}, "input", "it must be a string, or an array of items", id="an input that is a number"
        ),
        pytest.param({"input": ["x"]}, "input", r'input\[0\] is "x"', id="an item that is a text"),
        pytest.param({"input": "x", "instructions": ["x"]}, "instructions", "must be a string", id="instructions"),
        pytest.param({"input": "x", "max_output_tokens": -1}, "max_output_tokens", "0 or more", id="below no token"),
        pytest.param(
            {"input": "x", "max_output_tokens": "9"}, "max_output_tokens", "an integer", id="a ceiling as text"
        ),
        pytest.param({"input": "x", "temperature": 3}, "temperature", "from 0", id="a high temperature"),
        pytest.param({"input": "x", "top_p": 2}, "top_p", "from 0", id="a share above 1"),
        pytest.param({"input": "x", "top_logprobs": 21}, "top_logprobs", "from 0 to 20", id="too many logprobs"),
        pytest.param({"input": "x", "store": "false"}, "store", "true or false", id="store as text"),
        pytest.param({"input": "x", "user": 7}, "user", "a string", id="a user that is a number"),
        pytest.param({"input": "x", "previous_response_id": 7}, "previous_response_id", "a string", id="an id"),
        pytest.param({"input": "x", "background": True}, "background", "false or left out", id="in the background"),
        pytest.param({"input": "x", "background": "no"}, "background", "true or false", id="background as text"),
        pytest.param({"input": "x", "stream_options": {}}, "stream_options", "stream: true", id="stream options alone"),
    ],
)
def test_a_wrong_value_is_named(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        ResponsesRequest.read(fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"input": "x"}, id="a text"),
        pytest.param({"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "i"}]}, id="items"),
        pytest.param({"input": []}, id="no items"),
        pytest.param({"prompt": {"id": "p"}}, id="a template in place of an input"),
        pytest.param({"previous_response_id": "resp_1"}, id="an earlier response in place of an input"),
        pytest.param({"input": "x", "background": False}, id="not in the background"),
        pytest.param({"input": "x", "max_output_tokens": 1}, id="a ceiling below the 16 that the API's document names"),
        pytest.param({"input": "x", "max_output_tokens": 20.0}, id="a whole number with a point"),
        pytest.param(
            {"input": "x", "tools": "odd", "text": 3, "reasoning": [], "x": None}, id="what is not decided on"
        ),
        pytest.param({"input": "x", "stream": True, "stream_options": {"include_obfuscation": False}}, id="a stream"),
    ],
)
def test_what_is_valid_is_one_prompt_and_one_choice(fields: dict[str, Any]) -> None:
    request = ResponsesRequest.read(fields)
    assert (request.prompt_count, request.choices, request.candidates) == (1, 1, 1)
    assert (request.seed, request.wants_usage) == (None, True)


@pytest.mark.parametrize(
    ("fields", "ceiling"),
    [({}, None), ({"max_output_tokens": None}, None), ({"max_output_tokens": 5}, 5)],
    ids=["open", "null is open", "given"],
)
def test_the_ceiling_has_one_name(fields: dict[str, Any], ceiling: int | None) -> None:
    assert ResponsesRequest.read({"input": "x", **fields}).token_ceiling == ceiling
    assert ResponsesRequest.ceiling_to_write(ModelSettings(deployments=[{"upstream": "u"}])) == "max_output_tokens"


def size_of(**fields: object) -> tuple[int, bool]:
    members = {"input": "x", **fields}
    size = ResponsesRequest.read(members).input_size(members)
    return size.text_bytes, size.is_open


@pytest.mark.parametrize("name", ["tools", "tool_choice", "text", "reasoning", "prompt", "documents"])
def test_what_the_model_reads_besides_its_input_counts(name: str) -> None:
    assert 1_000 < size_of(**{name: {"inside": "x" * 1_000}})[0] - size_of()[0] < 1_100


@pytest.mark.parametrize(
    ("fields", "is_open"),
    [
        pytest.param({}, False, id="all is there"),
        pytest.param({"tools": [{"type": "function", "name": "f"}]}, False, id="a function of the client"),
        pytest.param({"previous_response_id": "r"}, True, id="an earlier response"),
        pytest.param({"conversation": {"id": "c"}}, True, id="a conversation"),
        pytest.param({"prompt": {"id": "p"}}, True, id="a template"),
        pytest.param({"tools": [{"type": "web_search"}]}, True, id="a tool whose results are read too"),
        pytest.param({"input": [{"type": "item_reference", "id": "i"}]}, True, id="an item that is only named"),
    ],
)
def test_an_input_of_which_some_is_only_named_is_open(fields: dict[str, Any], *, is_open: bool) -> None:
    assert size_of(**fields)[1] is is_open


def model(deployments: int) -> Model:
    return Model("m", ModelSettings(deployments=[Deployment(upstream=f"u{n}") for n in range(deployments)]))


@pytest.mark.parametrize("check", [check_model_state, check_model_bounds])
@pytest.mark.parametrize(
    ("fields", "name"),
    [({"previous_response_id": "r"}, "previous_response_id"), ({"conversation": "c"}, "conversation")],
)
def test_what_one_deployment_keeps_is_refused_where_there_are_two(
    check: Callable[[AskedRequest, Model], None], fields: dict[str, Any], name: str
) -> None:
    asked = read_request(
        endpoint=Endpoint.RESPONSES,
        dialect=Dialect.OPENAI,
        fields={"model": "m", "input": "x", **fields},
        path_model=None,
        api_version=None,
    )
    check(asked, model(1))
    with pytest.raises(
        InvalidRequest, match=f"{name} cannot be used with the model 'm': it has 2 deployments"
    ) as refused:
        check(asked, model(2))
    assert refused.value.param == name
