"""The completions request: types, ranges, what contradicts, and what it amounts to."""

from __future__ import annotations

from typing import Any

import pytest

from policies.catalog import Deployment, Model, ModelSettings
from policies.errors import InvalidRequest
from policies.requests.asked import AskedRequest, Dialect, Endpoint
from policies.requests.completions import CompletionRequest, check_model_bounds
from policies.requests.input_size import InputSize

INTEGER_128 = "an integer from 1 to 128"


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        pytest.param({"n": 1.0}, {"n": 1}, id="1.0 is 1"),
        pytest.param({"max_tokens": 1e2}, {"max_tokens": 100}, id="1e2 is 100"),
        pytest.param({"max_tokens": int("9" * 40)}, {"max_tokens": int("9" * 40)}, id="a ceiling has no largest value"),
        pytest.param({"max_tokens": 0}, {"max_tokens": 0}, id="a ceiling of nothing"),
        pytest.param({"temperature": 0}, {"temperature": 0.0}, id="an integer temperature"),
        pytest.param({"temperature": 2}, {"temperature": 2.0}, id="the hottest temperature"),
        pytest.param({"seed": 2**63 - 1}, {"seed": 2**63 - 1}, id="the largest seed"),
        pytest.param({"seed": -(2**63)}, {"seed": -(2**63)}, id="the smallest seed"),
        pytest.param({"logprobs": 0}, {"logprobs": 0}, id="logprobs of the chosen tokens only"),
        pytest.param({"stop": "x"}, {"stop": "x"}, id="stop as a string"),
        pytest.param({"stop": ["a", "b", "c", "d"]}, {"stop": ["a", "b", "c", "d"]}, id="four stops"),
        pytest.param({"stop": []}, {"stop": []}, id="no stops"),
        pytest.param({"logit_bias": {"50256": -100}}, {"logit_bias": {"50256": -100}}, id="a bias at its bound"),
        pytest.param({"n": None, "best_of": None, "prompt": None}, {"n": None, "prompt": None}, id="null is absent"),
        pytest.param({"n": 3, "best_of": 3, "stream": True}, {"best_of": 3}, id="best_of equal to n on a stream"),
        pytest.param({"n": 2, "best_of": 5}, {"best_of": 5}, id="best_of above n"),
        pytest.param({"cache_level": 2, "completion_config": "c"}, {"cache_level": 2}, id="S1's own parameters"),
        pytest.param({"stream": True, "stream_options": {"include_obfuscation": 3}}, {}, id="unknown stream options"),
        pytest.param({"guided_json": {"a": 1}}, {}, id="unknown members are not looked at"),
    ],
)
def test_valid_members_are_read(fields: dict[str, Any], read: dict[str, Any]) -> None:
    request = CompletionRequest.read(fields)
    assert {name: getattr(request, name) for name in read} == read


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        pytest.param({"n": True}, "n", f"n is true; it must be {INTEGER_128}.", id="true is no 1"),
        pytest.param({"n": "99"}, "n", f'n is "99"; it must be {INTEGER_128}.', id="a quoted number is no number"),
        pytest.param({"n": 1.5}, "n", f"n is 1.5; it must be {INTEGER_128}.", id="half a choice"),
        pytest.param({"n": 0}, "n", f"n is 0; it must be {INTEGER_128}.", id="no choice"),
        pytest.param({"n": 129}, "n", f"n is 129; it must be {INTEGER_128}.", id="too many choices"),
        pytest.param({"n": [3]}, "n", f"n is an array of 1 items; it must be {INTEGER_128}.", id="a list of choices"),
        pytest.param({"best_of": 1000}, "best_of", f"best_of is 1000; it must be {INTEGER_128}.", id="best of a crowd"),
        pytest.param(
            {"best_of": 2, "n": 3}, "best_of", "best_of is 2; it must be at least n, which is 3.", id="below n"
        ),
        pytest.param(
            {"best_of": 2, "stream": True},
            "best_of",
            "best_of is 2 and n is 1; with stream: true, best_of must equal n or be left out.",
            id="best_of above n cannot be streamed",
        ),
        pytest.param({"max_tokens": -1}, "max_tokens", "max_tokens is -1; it must be an integer, 0 or more.", id="-1"),
        pytest.param(
            {"temperature": 2.01}, "temperature", "temperature is 2.01; it must be a number from 0 to 2.", id="too hot"
        ),
        pytest.param(
            {"temperature": False},
            "temperature",
            "temperature is false; it must be a number from 0 to 2.",
            id="false is no 0",
        ),
        pytest.param(
            {"temperature": 10**400},
            "temperature",
            f"temperature is 1{'0' * 58}…; it must be a number from 0 to 2.",
            id="an integer that no double holds",
        ),
        pytest.param({"top_p": 1.1}, "top_p", "top_p is 1.1; it must be a number from 0 to 1.", id="more than all"),
        pytest.param(
            {"presence_penalty": -3},
            "presence_penalty",
            "presence_penalty is -3; it must be a number from -2 to 2.",
            id="a penalty out of range",
        ),
        pytest.param(
            {"frequency_penalty": "0"},
            "frequency_penalty",
            'frequency_penalty is "0"; it must be a number from -2 to 2.',
            id="a quoted penalty",
        ),
        pytest.param(
            {"seed": 2**63},
            "seed",
            f"seed is {2**63}; it must be an integer from {-(2**63)} to {2**63 - 1}.",
            id="a seed of 65 bits",
        ),
        pytest.param({"stream": 1}, "stream", "stream is 1; it must be true or false.", id="1 is no true"),
        pytest.param({"echo": "yes"}, "echo", 'echo is "yes"; it must be true or false.', id="yes is no true"),
        pytest.param({"suffix": 1}, "suffix", "suffix is 1; it must be a string.", id="a suffix that is no text"),
        pytest.param(
            {"user": {}}, "user", "user is an object of 0 members; it must be a string.", id="user: an object"
        ),
        pytest.param(
            {"cache_level": 3},
            "cache_level",
            "cache_level is 3; it must be an integer from 0 to 2.",
            id="an unknown cache level",
        ),
        pytest.param(
            {"completion_config": 1},
            "completion_config",
            "completion_config is 1; it must be a string.",
            id="a config that is no text",
        ),
        pytest.param(
            {"stop": ["a"] * 5},
            "stop",
            "stop is an array of 5 items; it must be a string, or an array of at most 4 strings.",
            id="five stops",
        ),
        pytest.param(
            {"stop": [1]},
            "stop",
            "stop[0] is 1; stop must be a string, or an array of at most 4 strings.",
            id="a stop that is no text",
        ),
        pytest.param({"logit_bias": {"a": 1}}, "logit_bias", None, id="a bias on a word"),
        pytest.param({"logit_bias": {"1": 101}}, "logit_bias", None, id="too strong a bias"),
        pytest.param({"logit_bias": {"1": True}}, "logit_bias", None, id="a bias that is no number"),
        pytest.param({"logit_bias": 1}, "logit_bias", None, id="a bias on nothing"),
        pytest.param(
            {"logprobs": -1}, "logprobs", "logprobs is -1; it must be an integer, 0 or more.", id="logprobs -1"
        ),
        pytest.param(
            {"stream_options": {}},
            "stream_options",
            "stream_options may only be given with stream: true; leave it out.",
            id="stream options without a stream",
        ),
        pytest.param(
            {"stream": True, "stream_options": []},
            "stream_options",
            "stream_options is an array of 0 items; it must be an object.",
            id="stream options that are no object",
        ),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "stream_options.include_usage is 1; it must be true or false.",
            id="a nested value",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(fields: dict[str, Any], param: str, said: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        CompletionRequest.read(fields)
    assert refused.value.param == param
    assert said is None or refused.value.message == said


@pytest.mark.parametrize(
    ("fields", "prompts", "choices", "candidates"),
    [
        pytest.param({}, 1, 1, 1, id="nothing said is one of everything"),
        pytest.param({"prompt": "a", "n": 3}, 1, 3, 3, id="n choices of one prompt"),
        pytest.param({"prompt": ["a", "b"], "n": 3, "best_of": 5}, 2, 6, 10, id="best_of candidates of each prompt"),
        pytest.param({"prompt": [1, 2, 3]}, 1, 1, 1, id="token ids are one prompt"),
        pytest.param({"prompt": [[1], [2, 3]], "best_of": 2}, 2, 2, 4, id="lists of token ids are several"),
    ],
)
def test_what_is_generated_is_counted(fields: dict[str, Any], prompts: int, choices: int, candidates: int) -> None:
    request = CompletionRequest.read(fields)
    assert (request.prompt_count, request.choices, request.candidates) == (prompts, choices, candidates)


@pytest.mark.parametrize(
    ("fields", "texts", "token_ids"),
    [
        pytest.param({}, ["<|endoftext|>"], 0, id="an absent prompt is the end of text"),
        pytest.param({"prompt": "", "suffix": "end"}, ["", "end"], 0, id="the suffix counts"),
        pytest.param({"prompt": ["a", "b"]}, ["a", "b"], 0, id="every prompt counts"),
        pytest.param({"prompt": [1, 2, 3]}, [], 3, id="token ids are no text"),
        pytest.param({"prompt": [[1], [2, 3]]}, [], 3, id="token ids of all prompts count"),
    ],
)
def test_what_goes_in_is_told(fields: dict[str, Any], texts: list[str], token_ids: int) -> None:
    size = CompletionRequest.read(fields).input_size(fields)
    assert size == InputSize(token_ids, sum(map(len, texts)), len(texts), verbatim=tuple(texts))


@pytest.mark.parametrize(
    ("fields", "echoed"),
    [
        pytest.param({"prompt": "abc"}, InputSize(), id="nothing unless asked for"),
        pytest.param({"prompt": "é", "echo": True}, InputSize(text_bytes=2, verbatim=("é",)), id="the prompt"),
        pytest.param(
            {"prompt": ["ab", "c"], "echo": True, "n": 3},
            InputSize(text_bytes=9, verbatim=3 * ("ab", "c")),
            id="each one n times",
        ),
        pytest.param(
            {"prompt": "ab", "echo": True, "best_of": 3},
            InputSize(text_bytes=2, verbatim=("ab",)),
            id="in what is returned",
        ),
        pytest.param({"prompt": [1, 2], "echo": True, "n": 2}, InputSize(token_ids=4), id="of token ids too"),
        pytest.param(
            {"prompt": "ab", "suffix": "c", "echo": True},
            InputSize(text_bytes=2, verbatim=("ab",)),
            id="not the suffix",
        ),
        pytest.param({"echo": True}, InputSize(), id="no prompt, no echo"),
    ],
)
def test_what_the_answer_repeats_is_told(fields: dict[str, Any], echoed: InputSize) -> None:
    assert CompletionRequest.read(fields).echo_size() == echoed


def test_what_else_is_asked_of_a_request() -> None:
    request = CompletionRequest.read({"stream": True, "stream_options": {"include_usage": True}, "user": "u"})
    assert (request.is_stream, request.wants_usage, request.end_user, request.token_ceiling) == (True, True, "u", 16)
    plain = CompletionRequest.read({"stream": False, "max_tokens": 7})
    assert (plain.is_stream, plain.wants_usage, plain.end_user, plain.token_ceiling) == (False, False, None, 7)


@pytest.mark.parametrize(("logprobs", "is_refused"), [(None, False), (3, False), (4, True)])
def test_logprobs_are_bound_by_the_model(logprobs: int | None, *, is_refused: bool) -> None:
    model = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),), max_logprobs=3))
    fields = {"logprobs": logprobs}
    asked = AskedRequest(Endpoint.COMPLETIONS, Dialect.OPENAI, "m", fields, CompletionRequest.read(fields))
    if not is_refused:
        assert check_model_bounds(asked, model) is None  # type: ignore[func-returns-value]  it returns at all
        return
    with pytest.raises(InvalidRequest, match="logprobs is 4; it must be an integer from 0 to 3") as refused:
        check_model_bounds(asked, model)
    assert refused.value.param == "logprobs"


def test_a_number_of_many_digits_is_not_told_in_full() -> None:
    model = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),)))
    fields = {"logprobs": 10**4299}
    asked = AskedRequest(Endpoint.COMPLETIONS, Dialect.OPENAI, "m", fields, CompletionRequest.read(fields))
    with pytest.raises(InvalidRequest, match="logprobs is 10000") as refused:
        check_model_bounds(asked, model)
    assert len(refused.value.message) < 200
