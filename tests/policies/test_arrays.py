from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.arrays import as_whole, items, subset
from policies.cache_keys import cache_key
from policies.catalog import Model, ModelSettings
from policies.charges import Seen, charge, worst_case
from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.dialects import view_of
from policies.requests.input_size import InputSize
from policies.usage import Usage

TEXT, CHAT, VECTOR, RESPONSE = Endpoint.COMPLETIONS, Endpoint.CHAT, Endpoint.EMBEDDINGS, Endpoint.RESPONSES
MODEL = Model("m", ModelSettings(deployments=[{"upstream": "u"}]))


def effective(endpoint: Endpoint = TEXT, **fields: Any) -> EffectiveRequest:  # noqa: ANN401  JSON values
    return EffectiveRequest(endpoint, fields, view_of(endpoint, fields))


def key(request: EffectiveRequest) -> str:
    return cache_key(request, "m", scope=("organization", "org"))


def keys(endpoint: Endpoint, **fields: Any) -> list[str] | None:  # noqa: ANN401  JSON values
    found = items(effective(endpoint, **fields))
    return None if found is None else [key(each) for each in found]


@pytest.mark.parametrize(
    ("endpoint", "name", "array", "alone"),
    [
        pytest.param(TEXT, "prompt", ["a", "b"], ["a", "b"], id="prompts as text"),
        pytest.param(TEXT, "prompt", ["a", ""], ["a", ""], id="an empty prompt"),
        pytest.param(TEXT, "prompt", ["b", "a", "b"], ["b", "a", "b"], id="a prompt twice"),
        pytest.param(TEXT, "prompt", ["a", "b"], [["a"], ["b"]], id="prompts that came in arrays of one"),
        pytest.param(TEXT, "prompt", [[1, 2], [3]], [[1, 2], [3]], id="prompts as token ids"),
        pytest.param(TEXT, "prompt", [[1, 2], [3]], [[[1, 2]], [[3]]], id="token ids that came in arrays of one"),
        pytest.param(TEXT, "prompt", [[1.0, 2], [3]], [[1, 2], [3.0]], id="token ids with a point"),
        pytest.param(TEXT, "prompt", ["[1, 2]", "x"], ["[1, 2]", "x"], id="a prompt that looks like token ids"),
        pytest.param(TEXT, "prompt", ["p" * 5000, "q"], ["p" * 5000, "q"], id="a long prompt"),
        pytest.param(VECTOR, "input", ["a", "b"], ["a", ["b"]], id="inputs as text"),
        pytest.param(VECTOR, "input", [[1, 2], [3]], [[1, 2], [[3]]], id="inputs as token ids"),
    ],
)
def test_an_item_shares_its_key_with_the_request_for_it_alone(
    endpoint: Endpoint, name: str, array: list[Any], alone: list[Any]
) -> None:
    others = {} if endpoint is VECTOR else {"temperature": 0}
    expected = [key(effective(endpoint, **others, **{name: each})) for each in alone]
    assert keys(endpoint, **others, **{name: array}) == expected


OTHERS: dict[str, dict[str, Any]] = {
    "max_tokens 0": {"max_tokens": 0, "echo": True, "logprobs": 1},
    "several choices": {"temperature": 0, "n": 2, "best_of": 3},
    "an echo": {"temperature": 0, "echo": True},
    "a suffix": {"temperature": 0, "suffix": "s"},
    "stops, as many as prompts": {"temperature": 0, "stop": ["x", "y"]},
    "biases": {"temperature": 0, "logit_bias": {"5": 1}},
    "a seed beside temperature 0": {"temperature": 0, "seed": 7},
    "temperature 0.0": {"temperature": 0.0},
    "a stream": {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}},
    "a user": {"temperature": 0, "user": "alice"},
    "an unknown number": {"temperature": 0, "top_k": 2},
    "an unknown text as long as there are prompts": {"temperature": 0, "lora": "ab"},
    "an unknown object as large": {"temperature": 0, "guided_json": {"a": 1, "b": 2}},
    "an unknown array of another length": {"temperature": 0, "guided_choice": ["x", "y", "z"]},
    "an unknown null": {"temperature": 0, "prompt_embeds": None, "n_cmpl": None},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_whatever_else_is_asked_for_is_asked_of_each_item(others: dict[str, Any]) -> None:
    expected = [key(effective(prompt=each, **others)) for each in ("a", "b")]
    assert keys(TEXT, prompt=["a", "b"], **others) == expected
    found = items(effective(prompt=["a", "b"], **others))
    assert found is not None
    assert [each.fields for each in found] == [{"prompt": "a", **others}, {"prompt": "b", **others}]
    assert [each.view for each in found] == [effective(prompt=each, **others).view for each in ("a", "b")]


WHOLE: dict[str, EffectiveRequest] = {
    "one prompt": effective(prompt="a", temperature=0),
    "an array of one prompt": effective(prompt=["a"], temperature=0),
    "one prompt as token ids": effective(prompt=[1, 2], temperature=0),
    "an array of one with token ids": effective(prompt=[[1, 2]], temperature=0),
    "no prompt": effective(temperature=0),
    "no temperature": effective(prompt=["a", "b"]),
    "temperature null": effective(prompt=["a", "b"], temperature=None),
    "temperature 1": effective(prompt=["a", "b"], temperature=1),
    "a small temperature": effective(prompt=["a", "b"], temperature=1e-9),
    "a seed": effective(prompt=["a", "b"], seed=7),
    "a seed and temperature 1": effective(prompt=["a", "b"], seed=7, temperature=1),
    "max_tokens 1": effective(prompt=["a", "b"], max_tokens=1),
    "max_tokens 0, and more under another name": effective(prompt=["a", "b"], max_tokens=0, n_predict=5),
    "an adapter for each prompt": effective(prompt=["a", "b"], temperature=0, lora_path=["x", "y"]),
    "something for each choice": effective(prompt=["a", "b"], temperature=0, n=2, rid=["1", "2", "3", "4"]),
    "prompts as vectors beside them": effective(prompt=["a", "b"], temperature=0, prompt_embeds="gASV"),
    "choices under llama.cpp's name": effective(prompt=["a", "b"], temperature=0, n_cmpl=2),
    "one input": effective(VECTOR, input="a"),
    "one input as token ids": effective(VECTOR, input=[1, 2]),
    "a task for each input": effective(VECTOR, input=["a", "b"], task=["query", "passage"]),
    "chat": effective(CHAT, messages=[{"role": "user", "content": "a"}] * 2, temperature=0),
    "chat with unknown members of a prompt's and an input's name": effective(
        CHAT, messages=[{"role": "user", "content": "a"}], temperature=0, prompt=["a", "b"], input=["a", "b"]
    ),
    "responses": effective(RESPONSE, input=[{"role": "user", "content": "a"}] * 2, temperature=0, store=False),
}


@pytest.mark.parametrize("request_", WHOLE.values(), ids=WHOLE)
def test_what_is_answered_as_a_whole(request_: EffectiveRequest) -> None:
    assert items(request_) is None


@pytest.mark.parametrize(
    ("request_", "positions", "expected"),
    [
        pytest.param(effective(prompt=["a", "b", "c"], temperature=0), [2, 0], ["c", "a"], id="in the order asked for"),
        pytest.param(effective(prompt=["a", "b"], temperature=0), [1], ["b"], id="one item is an array still"),
        pytest.param(effective(prompt=[[1], [2, 3]], temperature=0), [1], [[2, 3]], id="of token ids likewise"),
        pytest.param(effective(prompt=["a", "b"], temperature=0), [1, 1], ["b", "b"], id="an item twice"),
        pytest.param(effective(prompt=["a", "b"], temperature=0), range(2), ["a", "b"], id="all items"),
    ],
)
def test_a_subset_is_the_request_for_some_items(
    request_: EffectiveRequest, positions: list[int], expected: list[Any]
) -> None:
    part = subset(request_, positions)
    assert part.fields == {"prompt": expected, "temperature": 0}
    assert list(part.fields) == list(request_.fields)
    assert part.view == view_of(TEXT, part.fields)
    assert (part.view.prompt_count, part.view.choices) == (len(expected), len(expected))


def test_a_subset_of_inputs() -> None:
    part = subset(effective(VECTOR, input=["a", "bc", "d"], dimensions=8), [1])
    assert part == effective(VECTOR, input=["bc"], dimensions=8)
    assert part.view.choices == 1


def test_a_member_as_long_as_what_is_left_says_nothing_of_it() -> None:
    whole = effective(prompt=["a", "b", "c"], temperature=0, guided_choice=["yes", "no"])
    assert len(items(whole) or ()) == 3
    assert items(subset(whole, [0, 1])) is None  # so the items of a part are those of the whole


def test_the_whole_request_is_left_as_it_was() -> None:
    whole = effective(prompt=["a", "b"], temperature=0)
    subset(whole, [0])
    items(whole)
    assert whole == effective(prompt=["a", "b"], temperature=0)


def test_a_subset_is_measured_and_held_for_itself() -> None:
    whole = effective(prompt=[[1, 2, 3], [4, 5]], temperature=0, max_tokens=10, n=2, best_of=3)
    assert whole.input_size == InputSize(token_ids=5)
    part = subset(whole, [1])
    assert part.input_size == InputSize(token_ids=2)
    worst = worst_case(part, MODEL)
    assert (worst.input_tokens, worst.output_tokens, worst.candidates) == (2, 30, 3)  # one prompt × best_of 3 × 10


def test_what_stands_beside_the_prompts_is_measured_with_every_item() -> None:
    whole = effective(prompt=["abcd", "ef"], suffix="xyz", temperature=0)
    assert subset(whole, [1]).input_size == InputSize(text_bytes=5, texts=2, verbatim=("ef", "xyz"))


@pytest.mark.parametrize(
    ("positions", "reported", "charged"),
    [
        pytest.param([0], Usage(3, 10), (3, 10), id="of one prompt the report is believed"),
        pytest.param([0, 1], Usage(3, 10), (6, 10), id="of two it is checked against their token ids"),
    ],
)
def test_a_subset_is_charged_by_its_own_prompts(
    positions: list[int], reported: Usage, charged: tuple[int, int]
) -> None:
    part = subset(effective(prompt=[[1, 2, 3]] * 50, temperature=0, max_tokens=10), positions)
    seen = Seen(usage=reported, is_served=True, is_ended=True, content_events=10, choices=len(positions))
    booked = charge(part, MODEL, worst_case(part, MODEL), seen)
    assert (booked.input_tokens, booked.output_tokens, booked.completions) == (*charged, len(positions))


PROMPTS = st.one_of(
    st.lists(st.text(), min_size=2, max_size=6),
    st.lists(st.lists(st.integers(0, 100_000), min_size=1, max_size=5), min_size=2, max_size=6),
)
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 4),
        "max_tokens": st.integers(0, 20),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 5),
        "suffix": st.text(),
        "stop": st.lists(st.text(), max_size=4),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "top_k": st.integers(),
        "guided_json": st.dictionaries(st.text(), st.integers()),
    },
)


@given(prompts=PROMPTS, members=MEMBERS)
def test_items_and_single_requests_always_share_their_keys(
    prompts: list[str | list[int]], members: dict[str, Any]
) -> None:
    asked = {"temperature": 0, **members}
    expected = [key(effective(prompt=each, **asked)) for each in prompts]
    assert keys(TEXT, prompt=prompts, **asked) == expected
    again = subset(effective(prompt=prompts, **asked), range(len(prompts)))
    assert key(again) == key(effective(prompt=prompts, **asked))
    assert keys(TEXT, **again.fields) == expected


def test_the_same_answer_in_one_piece_is_asked_for_without_what_is_said_of_streams() -> None:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    whole = as_whole(effective(prompt=["a", "b"], temperature=0, **stream))
    assert whole.fields == {"prompt": ["a", "b"], "temperature": 0}
    assert not whole.view.is_stream
