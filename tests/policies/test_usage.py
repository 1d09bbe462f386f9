from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from policies.principals import Principal
from policies.requests.asked import Action, Adjustment
from policies.requests.chat import ChatRequest
from policies.requests.completions import CompletionRequest
from policies.requests.embeddings import EmbeddingRequest
from policies.usage import (
    MAX_FIELD_NAME_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    MAX_UNKNOWN_FIELDS,
    Provider,
    RecordedAdjustment,
    Usage,
    bounded,
    read_usage,
    recorded_adjustments,
    recorded_parameters,
    unknown_fields,
)

if TYPE_CHECKING:
    from policies.requests.fields import EndpointRequest

CHAT = {
    "prompt_tokens": 10,
    "completion_tokens": 20,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
RESPONSES = {
    "input_tokens": 10,
    "output_tokens": 20,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens_details": {"reasoning_tokens": 5},
}


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        pytest.param({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, Usage(1, 2), id="completions"),
        pytest.param(CHAT, Usage(10, 20, 4, 5), id="chat, with details"),
        pytest.param(RESPONSES, Usage(10, 20, 4, 5), id="responses, with details"),
        pytest.param({"prompt_tokens": 8, "total_tokens": 8}, Usage(8, 0), id="embeddings"),
        pytest.param({"prompt_tokens": 8}, Usage(8, 0), id="input alone"),
        pytest.param({"prompt_tokens": 8, "total_tokens": 20}, Usage(8, 12), id="output from the total"),
        pytest.param({"completion_tokens": 8, "total_tokens": 20}, Usage(12, 8), id="input from the total"),
        pytest.param({"prompt_tokens": 0, "completion_tokens": 0}, Usage(0, 0), id="zeros are a report"),
        pytest.param({"prompt_tokens": 8.0, "completion_tokens": 2.0}, Usage(8, 2), id="whole floats"),
        pytest.param({"prompt_tokens": 8, "total_tokens": 3}, Usage(8, 0), id="a total below the input"),
        pytest.param(
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(3, 1, 3),
            id="more cached than sent",
        ),
        pytest.param(
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}, Usage(3, 1), id="details null"
        ),
        pytest.param(
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": [1]}, Usage(3, 1), id="details a list"
        ),
        pytest.param(
            {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": "4"}, Usage(3, 1), id="a total nobody needs"
        ),
        pytest.param(
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": "2"}},
            Usage(3, 1),
            id="a detail that is no count",
        ),
        pytest.param({"prompt_tokens": 3, "completion_tokens": None, "total_tokens": 5}, Usage(3, 2), id="a null"),
        pytest.param(None, None, id="null"),
        pytest.param([], None, id="a list"),
        pytest.param("5", None, id="a string"),
        pytest.param(5, None, id="a number"),
        pytest.param({}, None, id="empty"),
        pytest.param({"prompt_tokens": None}, None, id="all null"),
        pytest.param({"total_tokens": 5}, None, id="a total alone"),
        pytest.param({"prompt_tokens": 3, "total_tokens": "8"}, None, id="a total that is needed and no count"),
        pytest.param({"completion_tokens": 8, "total_tokens": 3}, None, id="a total below the output"),
    ],
)
def test_usage_is_read(reported: object, expected: Usage | None) -> None:
    assert read_usage(reported) == expected


@pytest.mark.parametrize("names", [("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")])
@pytest.mark.parametrize("wrong", [0, 1], ids=["input", "output"])
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(True, id="true"),
        pytest.param("5", id="a string"),
        pytest.param(-1, id="below zero"),
        pytest.param(5.5, id="half a token"),
        pytest.param(2**53, id="more than stores keep exactly"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param([5], id="a list"),
    ],
)
def test_a_report_with_a_count_that_is_none_is_no_report(names: tuple[str, str], wrong: int, count: object) -> None:
    reported = {names[0]: 3, names[1]: 4, "total_tokens": 7}
    assert read_usage({**reported, names[wrong]: count}) is None


PROMPT = "the secret prompt"


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        pytest.param(
            CompletionRequest,
            {"temperature": 0.5, "n": 2, "stream": True, "seed": -1, "echo": False},
            {"temperature": 0.5, "n": 2, "stream": True, "seed": -1, "echo": False},
            id="numbers and booleans as asked",
        ),
        pytest.param(
            CompletionRequest,
            {"stop": ["a", "b"], "logit_bias": {"5": 1}},
            {"stop_count": 2, "logit_bias_count": 1},
            id="lists and maps by what they hold",
        ),
        pytest.param(
            CompletionRequest,
            {"stop": PROMPT, "prompt": PROMPT, "suffix": PROMPT, "user": PROMPT},
            {"stop_count": 1, "prompt_count": 1, "suffix_count": 1, "user_count": 1},
            id="a text counts as one",
        ),
        pytest.param(CompletionRequest, {"prompt": [1, 2, 3]}, {"prompt_count": 3}, id="token ids count as they hold"),
        pytest.param(
            ChatRequest,
            {"messages": [{"content": PROMPT}], "tools": [], "metadata": {"a": PROMPT}},
            {"messages_count": 1, "tools_count": 0, "metadata_count": 1},
            id="a chat",
        ),
        pytest.param(CompletionRequest, {"n": None, "stop": None}, {}, id="null is absent"),
        pytest.param(
            EmbeddingRequest, {"dimensions": [PROMPT]}, {"dimensions_count": 1}, id="text where a number belongs counts"
        ),
        pytest.param(EmbeddingRequest, {"dimensions": 2**70}, {"dimensions": 2.0**70}, id="beyond 64 bits: a float"),
        pytest.param(
            EmbeddingRequest, {"dimensions": -(10**400)}, {"dimensions": -1e308}, id="beyond floats: the last"
        ),
        pytest.param(
            CompletionRequest, {"x": 1, "messages": []}, {}, id="what the endpoint's API does not name is not"
        ),
        pytest.param(
            CompletionRequest,
            {"n_predict": -1, "max_output_tokens": "many"},
            {"n_predict": -1, "max_output_tokens_count": 1},
            id="but the token ceiling under another's name is",
        ),
        pytest.param(
            ChatRequest,
            {"n_cmpl": 9, "best_of": [3]},
            {"n_cmpl": 9, "best_of_count": 1},
            id="and so is how many candidates there are",
        ),
    ],
)
def test_parameters_are_recorded_without_text(
    kind: type[EndpointRequest], fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert recorded_parameters(kind, fields) == expected


def test_unknown_fields_are_recorded_by_name() -> None:
    fields = {"prompt": "p", "num_ctx": 5, "user": "alice", "guided_json": {"a": PROMPT}, "n": 1, "top_k": None}
    assert unknown_fields(CompletionRequest, fields) == ("num_ctx", "guided_json")


def test_unknown_fields_are_bounded() -> None:
    names = unknown_fields(CompletionRequest, {f"{i:03d}" + "x" * 500: 1 for i in range(500)})
    assert len(names) == MAX_UNKNOWN_FIELDS
    assert {len(name) for name in names} == {MAX_FIELD_NAME_CHARACTERS}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(8, 4, (8, 4), id="numbers"),
        pytest.param(None, 16, (None, 16), id="nothing before"),
        pytest.param(True, None, (True, None), id="booleans"),
        pytest.param(PROMPT, "short", (None, None), id="text is left out"),
        pytest.param([PROMPT, PROMPT], {"a": 1}, (2, 1), id="lists and maps by their size"),
    ],
)
def test_adjustments_are_recorded_without_text(before: object, after: object, expected: tuple[object, object]) -> None:
    adjustment = Adjustment("n", before, after, Action.CLAMP, "default")
    assert recorded_adjustments((adjustment,)) == (RecordedAdjustment("n", "clamp", "default", *expected),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, None, id="none"),
        pytest.param("alice", "alice", id="short"),
        pytest.param("x" * MAX_TEXT_CHARACTERS, "x" * MAX_TEXT_CHARACTERS, id="as long as may be"),
        pytest.param("x" * 300, "x" * (MAX_TEXT_CHARACTERS - 1) + "…", id="longer is cut"),
        pytest.param("zoë", "zoë", id="beyond ASCII"),
        pytest.param("a\udcffb", "a\\udcffb", id="a byte that is no UTF-8"),
    ],
)
def test_identifiers_are_bounded(text: str | None, expected: str | None) -> None:
    assert bounded(text) == expected


@pytest.mark.parametrize("is_service_account", [pytest.param(False, id="a user"), pytest.param(True, id="a service")])
def test_who_pays_is_told_without_policies(*, is_service_account: bool) -> None:
    principal = Principal("org", "research", "alice", "key_1", ("m",), is_service_account=is_service_account)
    assert Provider.of(principal) == Provider("research", "alice", is_service_account, "key_1")
