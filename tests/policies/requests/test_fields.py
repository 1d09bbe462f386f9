"""Types that endpoints share: inputs in all their shapes, and how values are named in messages."""

from __future__ import annotations

import pytest

from policies.errors import InvalidRequest
from policies.requests.chat import ChatRequest
from policies.requests.completions import CompletionRequest
from policies.requests.embeddings import EmbeddingRequest
from policies.requests.fields import EndpointRequest, NumberType, expectation, number_type, shown


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param("text", id="a text"),
        pytest.param("", id="an empty text"),
        pytest.param(["a", "b"], id="texts"),
        pytest.param([""], id="an empty text in an array"),
        pytest.param([1, 2, 3], id="token ids"),
        pytest.param([1.0, 2], id="a token id written as 1.0"),
        pytest.param([2**70], id="a token id of 71 bits"),
        pytest.param([[1, 2], [3]], id="lists of token ids"),
        pytest.param(["x"] * 20, id="many texts"),
    ],
)
def test_every_prompt_shape_is_taken_as_it_is(prompt: object) -> None:
    assert CompletionRequest.read({"prompt": prompt}).prompt is prompt


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(1, id="a number"),
        pytest.param({}, id="an object"),
        pytest.param(True, id="a boolean"),
        pytest.param([], id="an empty array"),
        pytest.param([[]], id="an empty list of token ids"),
        pytest.param([None], id="a null in an array"),
        pytest.param(["a", 1], id="a text and a token id"),
        pytest.param([1, "a"], id="a token id and a text"),
        pytest.param([[1], "a"], id="token ids and a text"),
        pytest.param([["a"]], id="a list of texts in an array"),
        pytest.param([True], id="a boolean for a token id"),
        pytest.param([1.5], id="half a token id"),
        pytest.param([-1], id="a negative token id"),
        pytest.param([[[1]]], id="token ids too deep"),
    ],
)
def test_no_other_shape_is(prompt: object) -> None:
    with pytest.raises(InvalidRequest, match=r"prompt.* is .* must be a string, an array of strings") as refused:
        CompletionRequest.read({"prompt": prompt})
    assert refused.value.param == "prompt"


TOKENS: dict[str, object] = {"1": 2, "50256": -100}


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        pytest.param(CompletionRequest, {"prompt": ["a", 1]}, "prompt[1] is 1; prompt must be", id="a prompt"),
        pytest.param(CompletionRequest, {"prompt": [1, True]}, "prompt[1] is true; prompt must be", id="a token id"),
        pytest.param(CompletionRequest, {"prompt": [1.0, "x"]}, 'prompt[1] is "x"; prompt', id="text among token ids"),
        pytest.param(CompletionRequest, {"prompt": [[1], [2, -1]]}, "prompt[1][1] is -1; prompt", id="a nested id"),
        pytest.param(CompletionRequest, {"prompt": [[1], []]}, "prompt[1] is an array of 0 items; prompt", id="no ids"),
        pytest.param(CompletionRequest, {"prompt": [[1], "b"]}, 'prompt[1] is "b"; prompt', id="text among lists"),
        pytest.param(CompletionRequest, {"prompt": []}, "prompt is an array of 0 items; it must be", id="no prompt"),
        pytest.param(CompletionRequest, {"stop": ["a", None]}, "stop[1] is null; stop must be a string", id="a stop"),
        pytest.param(
            CompletionRequest,
            {"logit_bias": {**TOKENS, "7": 101}},
            'logit_bias["7"] is 101; logit_bias must be an object',
            id="a bias",
        ),
        pytest.param(
            CompletionRequest,
            {"logit_bias": {**TOKENS, "word": 1}},
            'logit_bias has the key "word"; logit_bias must be an object',
            id="a token",
        ),
        pytest.param(EmbeddingRequest, {"input": ["a", {}]}, "input[1] is an object of 0 members;", id="an input"),
        pytest.param(
            ChatRequest, {"messages": [{}, "hello"]}, 'messages[1] is "hello"; messages must be', id="a message"
        ),
    ],
)
def test_the_element_that_is_wrong_is_named(kind: type[EndpointRequest], fields: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        kind.read(fields)
    assert refused.value.message.startswith(said)
    assert refused.value.param == next(iter(fields))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        ("a", '"a"'),
        ("a" * 100, '"' + "a" * 59 + '…"'),
        (10**100, "1" + "0" * 58 + "…"),
        ([1, 2], "an array of 2 items"),
        ({"a": 1}, "an object of 1 members"),
    ],
)
def test_values_are_named_shortly(value: object, said: str) -> None:
    assert shown(value) == said


@pytest.mark.parametrize(
    ("kind", "name", "value", "is_taken"),
    [
        pytest.param(CompletionRequest, "n", 3, True, id="a value in range"),
        pytest.param(CompletionRequest, "n", 300, False, id="a value out of range"),
        pytest.param(CompletionRequest, "logprobs", 3, True, id="completions count logprobs"),
        pytest.param(ChatRequest, "logprobs", 3, False, id="chats switch logprobs on"),
        pytest.param(ChatRequest, "stop", 3, True, id="what is not read is taken as it is"),
        pytest.param(EmbeddingRequest, "n", 3, False, id="embeddings have no choices"),
        pytest.param(EmbeddingRequest, "dimensions", 3, True, id="embeddings have dimensions"),
    ],
)
def test_an_endpoint_knows_what_it_takes(
    kind: type[EndpointRequest], name: str, value: object, *, is_taken: bool
) -> None:
    assert kind.takes(name, value) is is_taken


def test_what_a_parameter_may_be_is_said_in_words() -> None:
    assert expectation(CompletionRequest, "n") == "an integer from 1 to 128"
    assert expectation(CompletionRequest, "stream_options.include_usage") == "true or false"
    assert number_type(CompletionRequest, "top_p") == NumberType(is_integer=False, minimum=0, maximum=1)
    assert number_type(CompletionRequest, "stop") is None
    assert number_type(CompletionRequest, "unknown") is None


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        pytest.param(ChatRequest, "logprobs", True, id="a boolean"),
        pytest.param(CompletionRequest, "logprobs", False, id="a number of the same name"),
        pytest.param(ChatRequest, "service_tier", False, id="what is not read"),
        pytest.param(ChatRequest, "top_k", False, id="what the endpoint does not have"),
    ],
)
def test_a_boolean_is_known(kind: type[EndpointRequest], name: str, *, expected: bool) -> None:
    assert kind.reads_boolean(name) is expected


def test_a_number_that_is_not_read_has_no_range() -> None:
    assert number_type(EmbeddingRequest, "dimensions") == NumberType(is_integer=False, minimum=None, maximum=None)
    assert number_type(EmbeddingRequest, "encoding_format") is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"prompt": "x", "top_k": 40, "min_p": 0.1, "ignore_eos": True, "y": None}, 0, id="numbers are not"
        ),
        pytest.param({"guided_json": {"a": 1}}, len('{"guided_json": {"a": 1}}'), id="what may be text is"),
    ],
)
def test_unknown_members_are_input_where_they_may_be_text(fields: dict[str, object], expected: int) -> None:
    assert CompletionRequest.other_input_bytes(fields) == expected
