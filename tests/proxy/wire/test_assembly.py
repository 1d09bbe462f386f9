from __future__ import annotations

import json
from itertools import chain
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.requests.asked import Endpoint
from proxy.wire.assembly import assemble, split_answer

TEXT, VECTOR = Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS


def choice(index: int, text: str = "x", **others: Any) -> dict[str, Any]:  # noqa: ANN401  JSON values
    return {"text": text, "index": index, "logprobs": None, "finish_reason": "stop", **others}


def completion(choices: list[dict[str, Any]], **others: Any) -> bytes:  # noqa: ANN401  JSON values
    return json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": choices, **others}).encode()


def vector(index: int, embedding: object = (0.5,)) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": embedding}


def usage(input_tokens: int, output_tokens: int, **others: Any) -> dict[str, Any]:  # noqa: ANN401  JSON values
    total = input_tokens + output_tokens
    return {"prompt_tokens": input_tokens, "completion_tokens": output_tokens, "total_tokens": total, **others}


def split(whole: bytes, weights: list[int], choices_each: int = 1, endpoint: Endpoint = TEXT) -> list[dict[str, Any]]:
    bodies = split_answer(endpoint, whole, weights, choices_each)
    assert bodies is not None
    return [json.loads(body) for body in bodies]


def joined(*bodies: bytes, endpoint: Endpoint = TEXT) -> dict[str, Any]:
    whole = assemble(endpoint, bodies)
    assert whole is not None
    return dict(json.loads(whole))


# Taking apart --------------------------------------------------------------------------------------------------------


def test_an_item_has_its_own_choices_numbered_anew() -> None:
    whole = completion([choice(index, f"text {index}") for index in range(4)], model="m", system_fingerprint="fp")
    first, second = split(whole, [1, 1], 2)
    assert first["choices"] == [choice(0, "text 0"), choice(1, "text 1")]
    assert second["choices"] == [choice(0, "text 2"), choice(1, "text 3")]
    others = {"id": "cmpl-1", "object": "text_completion", "model": "m", "system_fingerprint": "fp"}
    assert [{**each, "choices": None} for each in (first, second)] == [{**others, "choices": None}] * 2


def test_choices_are_told_by_their_index_and_not_by_their_place() -> None:
    texts = [each["choices"][0]["text"] for each in split(completion([choice(1, "b"), choice(0, "a")]), [1, 1])]
    assert texts == ["a", "b"]


def test_embeddings_are_taken_apart_likewise() -> None:
    whole = json.dumps({"object": "list", "data": [vector(1, "AAAA"), vector(0, [1])], "model": "m"}).encode()
    assert split(whole, [1, 1], endpoint=VECTOR) == [
        {"object": "list", "data": [vector(0, [1])], "model": "m"},
        {"object": "list", "data": [vector(0, "AAAA")], "model": "m"},
    ]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(rb'"model":"m\/\u00e9"', id="members that all embeddings have"),
        pytest.param(rb'"x":{"b":1, "a":["\ud83d\ude00" ]}', id="a member of the server's own"),
    ],
)
def test_what_is_not_touched_keeps_its_bytes(others: bytes) -> None:
    first, second = rb'"embedding":"AA\/\u00e9="', rb'"embedding":[1.0,1e-7,-0.0, 1E+2,0.10],"n":18446744073709551617'
    whole = b'{"data":[{"index":1,%b},{%b,"index":0}],%b,"usage":{"prompt_tokens":3,"cost":1.50e-3}}'
    assert split_answer(VECTOR, whole % (second, first, others), [1, 2], 1) == (
        b'{"data":[{%b,"index":0}],%b,"usage":{"prompt_tokens":1,"cost":1.50e-3}}' % (first, others),
        b'{"data":[{"index":0,%b}],%b,"usage":{"prompt_tokens":2,"cost":1.50e-3}}' % (second, others),
    )


# our own counts, the usage as reported, the shares
INPUT_SHARES = {
    "as counted, where the report is our count": ([3, 5, 4], 12, [3, 5, 4]),
    "in proportion": ([1, 2, 1], 20, [5, 10, 5]),
    "the largest remainder is rounded up": ([2, 3, 3], 4, [1, 2, 1]),  # 1, 1.5, 1.5: the first of equals
    "the last, where its remainder is the largest": ([5, 5, 9], 2, [1, 0, 1]),  # 0.53, 0.53, 0.95
    "evenly, where nothing was counted": ([0, 0, 0], 7, [3, 2, 2]),
    "nothing for an empty prompt": ([0, 4], 9, [0, 9]),
    "less than there are items": ([1, 1, 1], 1, [1, 0, 0]),
    "nothing": ([1, 2, 3], 0, [0, 0, 0]),
    "one item": ([9], 4, [4]),
}


@pytest.mark.parametrize(("weights", "reported", "expected"), INPUT_SHARES.values(), ids=INPUT_SHARES)
def test_input_is_shared_by_our_own_count(weights: list[int], reported: int, expected: list[int]) -> None:
    data = [vector(index) for index in range(len(weights))]
    whole = json.dumps({"data": data, "usage": {"prompt_tokens": reported, "total_tokens": reported}}).encode()
    shares = [each["usage"] for each in split(whole, weights, endpoint=VECTOR)]
    assert shares == [{"prompt_tokens": share, "total_tokens": share} for share in expected]


def told(tokens: int) -> dict[str, Any]:
    return {"logprobs": {"tokens": ["t"] * tokens, "token_logprobs": [-0.1] * tokens}}


def chatted(tokens: int) -> dict[str, Any]:
    return {"logprobs": {"content": [{"token": "t"}] * tokens}}


# choices, choices for each item, input tokens of each of the two items, the report of the output, the shares
OUTPUT_SHARES = {
    "by tokens, where they are told": ([choice(0, "é" * 9, **told(1)), choice(1, **told(4))], 1, [1, 1], 5, [1, 4]),
    "by tokens as chat tells them": ([choice(0, **chatted(2)), choice(1, **chatted(4))], 1, [1, 1], 6, [2, 4]),
    "in proportion to tokens": ([choice(0, **told(1)), choice(1, **told(3))], 1, [1, 1], 8, [2, 6]),
    "by bytes of text": ([choice(0, "é"), choice(1, "abcdef")], 1, [1, 1], 4, [1, 3]),
    "by bytes, where one tells no tokens": ([choice(0, "ab", **told(9)), choice(1, "ab")], 1, [1, 1], 4, [2, 2]),
    "by all choices of an item": ([choice(i, "a" * n) for i, n in enumerate((1, 2, 3, 6))], 2, [1, 1], 4, [1, 3]),
    "evenly, where there is no text": ([choice(0, ""), choice(1, "")], 1, [1, 1], 4, [2, 2]),
    "evenly, where text is none": ([choice(0, None), choice(1, 5)], 1, [1, 1], 4, [2, 2]),
    "less what repeats the prompts": ([choice(0, **told(6)), choice(1, **told(3))], 1, [5, 2], 2, [1, 1]),
    "by all tokens, where our count of a prompt is above": (
        [choice(0, **told(1)), choice(1, **told(8))],
        1,
        [5, 2],
        2,
        [0, 2],
    ),
    "of every choice": ([choice(i, **told(n)) for i, n in enumerate((6, 7, 3, 4))], 2, [5, 2], 6, [3, 3]),
    "nothing, where prompts are only scored": ([choice(0, **told(5)), choice(1, **told(2))], 1, [5, 2], 0, [0, 0]),
}


@pytest.mark.parametrize(
    ("choices", "each", "inputs", "reported", "expected"), OUTPUT_SHARES.values(), ids=OUTPUT_SHARES
)
def test_output_is_shared_by_what_choices_hold(
    choices: list[dict[str, Any]], each: int, inputs: list[int], reported: int, expected: list[int]
) -> None:
    whole = completion(choices, usage=usage(sum(inputs), reported))
    shares = [body["usage"] for body in split(whole, inputs, each)]
    assert shares == [usage(*counts) for counts in zip(inputs, expected, strict=True)]


def test_details_are_shared_as_what_they_are_of() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 6}, "completion_tokens_details": {"reasoning_tokens": 4}}
    whole = completion([choice(0, "a"), choice(1, "abc")], usage=usage(9, 8, **details))
    assert [each["usage"] for each in split(whole, [2, 1])] == [
        usage(
            6, 2, prompt_tokens_details={"cached_tokens": 4}, completion_tokens_details={"reasoning_tokens": 1}
        ),
        usage(
            3, 6, prompt_tokens_details={"cached_tokens": 2}, completion_tokens_details={"reasoning_tokens": 3}
        ),
    ]  # fmt: skip


def test_other_counts_are_shared_and_what_is_no_count_is_told_to_all() -> None:
    others = {
        "prompt_cache_hit_tokens": 3,
        "num_units": 24,
        "tokens_with_point": 12.0,
        "cost": 0.5,
        "tier": "a",
        "negative": -4,
        "flag": True,
        "prompt_tokens_details": None,
        "list": [6],
    }
    first, second = (
        each["usage"] for each in split(completion([choice(0), choice(1)], usage=usage(6, 6, **others)), [2, 1])
    )
    assert first == usage(4, 3, **{**others, "prompt_cache_hit_tokens": 2, "num_units": 14, "tokens_with_point": 7})
    assert second == usage(2, 3, **{**others, "prompt_cache_hit_tokens": 1, "num_units": 10, "tokens_with_point": 5})


@pytest.mark.parametrize("reported", [{}, {"usage": None}, {"usage": "much"}, {"usage": [1]}], ids=json.dumps)
def test_a_usage_that_says_nothing_says_nothing_of_items(reported: dict[str, Any]) -> None:
    for body in split(completion([choice(0), choice(1)], **reported), [1, 1]):
        assert {name: body[name] for name in body if name == "usage"} == reported


def test_a_report_of_the_first_choice_only_stays_as_low_in_all() -> None:
    whole = completion([choice(0), choice(1)], usage=usage(5, 8))  # llama.cpp's, of two prompts with five tokens each
    assert [each["usage"] for each in split(whole, [5, 5])] == [usage(3, 4), usage(2, 4)]


def test_filters_say_of_an_item_what_they_said_of_its_prompt() -> None:
    said = [{"prompt_index": 1, "content_filter_results": {"b": 1}}, {"prompt_index": 0, "content_filter_results": {}}]
    first, second = split(completion([choice(0), choice(1)], prompt_filter_results=said), [1, 1])
    assert first["prompt_filter_results"] == [{"prompt_index": 0, "content_filter_results": {}}]
    assert second["prompt_filter_results"] == [{"prompt_index": 0, "content_filter_results": {"b": 1}}]


@pytest.mark.parametrize(
    "said", [None, {}, "x", [1], [{}], [{"prompt_index": 2}], [{"prompt_index": -1}], [{"prompt_index": "0"}]]
)
def test_filters_that_cannot_be_read_so_are_told_to_all(said: object) -> None:
    bodies = split(completion([choice(0), choice(1)], prompt_filter_results=said), [1, 1])
    assert [body["prompt_filter_results"] for body in bodies] == [said, said]


NO_PARTS = {
    "no bytes": b"",
    "no JSON": b"<html>",
    "cut off": completion([choice(0), choice(1)])[:-1],
    "more than one value": completion([choice(0), choice(1)]) * 2,
    "no UTF-8 in what is only carried": completion([choice(0), choice(1)]).replace(b'"x"', b'"\xff"'),
    "a lone surrogate": completion([choice(0), choice(1)]).replace(b'"x"', b'"\\ud800"'),
    "a list": b"[]",
    "null": b"null",
    "no choices": b"{}",
    "choices null": b'{"choices":null}',
    "choices that are numbers": b'{"choices":[1,2]}',
    "choices in an object": b'{"choices":{"0":{},"1":{}}}',
    "too few": completion([choice(0)]),
    "too many": completion([choice(0), choice(1), choice(2)]),
    "none": completion([]),
    "one index twice": completion([choice(0), choice(0)]),
    "an index beyond": completion([choice(0), choice(2)]),
    "an index below": completion([choice(-1), choice(0)]),
    "an index that is text": completion([choice(0), {**choice(1), "index": "1"}]),
    "an index that is true": completion([choice(0), {**choice(1), "index": True}]),
    "no index": completion([{"text": "a"}, {"text": "b"}]),
    "too deep": b'{"choices":' + b"[" * 100_000,
    "a usage that is too deep": completion([choice(0), choice(1)])[:-1] + b',"usage":' + b'{"a":' * 5_000,
    "embeddings": json.dumps({"data": [vector(0), vector(1)]}).encode(),
}


@pytest.mark.parametrize("whole", NO_PARTS.values(), ids=NO_PARTS)
def test_an_answer_without_exactly_the_choices_is_not_taken_apart(whole: bytes) -> None:
    assert split_answer(TEXT, whole, [1, 1], 1) is None


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.RESPONSES, VECTOR])
def test_other_endpoints_have_no_answers_of_that_shape(endpoint: Endpoint) -> None:
    whole = completion([choice(0), choice(1)])
    assert split_answer(endpoint, whole, [1, 1], 1) is None
    assert assemble(endpoint, [whole]) is None


# Putting together ----------------------------------------------------------------------------------------------------


def test_answers_stand_in_the_order_of_the_items_and_as_often() -> None:
    first = completion([choice(0, "a"), choice(1, "b")], created=1, usage=usage(3, 2))
    second = completion([choice(1, "d"), choice(0, "c")], created=2, id="cmpl-2", usage=usage(1, 4), extra=True)
    whole = joined(second, first, second)
    assert [each["text"] for each in whole["choices"]] == ["c", "d", "a", "b", "c", "d"]
    assert [each["index"] for each in whole["choices"]] == list(range(6))
    assert whole["usage"] == usage(5, 10)
    assert (whole["id"], whole["created"], whole["extra"]) == ("cmpl-2", 2, True)


def test_embeddings_are_put_together_likewise() -> None:
    bodies = [json.dumps({"data": [vector(0, each)], "usage": {"prompt_tokens": 2}}).encode() for each in ("AA", [0.5])]
    whole = joined(bodies[1], bodies[0], bodies[1], endpoint=VECTOR)
    assert whole == {"data": [vector(0, [0.5]), vector(1, "AA"), vector(2, [0.5])], "usage": {"prompt_tokens": 6}}


# usage of each answer, of the whole; None where there is none
SUMS: dict[str, tuple[list[Any], Any]] = {
    "details": ([{"d": {"a": 1, "b": 2}}, {"d": {"b": 3}}], {"d": {"a": 1, "b": 5}}),
    "details that one has": ([{"d": None}, {"d": {"a": 1}}], {"d": {"a": 1}}),
    "details that one lacks": ([{"a": 1}, {"d": {"a": 1}}], {"a": 1, "d": {"a": 1}}),
    "a count that one lacks": ([{"prompt_tokens": 1}, {}], {"prompt_tokens": 1}),
    "null in all": ([{"d": None}, {"d": None}], {"d": None}),
    "the same text": ([{"t": "x"}, {"t": "x"}], {"t": "x"}),
    "other texts": ([{"t": "x"}, {"t": "y"}], {"t": None}),
    "the same price": ([{"cost": 0.25}, {"cost": 0.25}], {"cost": 0.25}),
    "a count and a text": ([{"a": 1}, {"a": "1"}], {"a": None}),
    "a count and an object": ([{"a": 1}, {"a": {}}], {"a": None}),
    "beyond 64 bits": ([{"a": 10**18 - 1}] * 19, {"a": 19 * (10**18 - 1)}),
    "one answer without": ([{"a": 1}, None], None),
    "the first without": ([None, {"a": 1}], None),
    "all without": ([None, None], None),
}


@pytest.mark.parametrize(("usages", "expected"), SUMS.values(), ids=SUMS)
def test_usage_is_added_up(usages: list[Any], expected: object) -> None:
    bodies = [completion([choice(0)], **({} if each is None else {"usage": each})) for each in usages]
    assert joined(*bodies).get("usage", None) == expected


def test_a_usage_that_is_null_in_all_answers_stays() -> None:
    assert joined(completion([choice(0)], usage=None), completion([choice(0)], usage=None))["usage"] is None


@pytest.mark.parametrize(
    ("fingerprints", "expected"),
    [
        pytest.param(["a", "a"], {"system_fingerprint": "a"}, id="kept where all agree"),
        pytest.param(["a", "b"], {}, id="left out where they differ"),
        pytest.param(["a", None], {}, id="left out where one says null"),
        pytest.param([None, None], {"system_fingerprint": None}, id="null in all"),
    ],
)
def test_a_fingerprint_is_that_of_all(fingerprints: list[str | None], expected: dict[str, Any]) -> None:
    whole = joined(*(completion([choice(0)], system_fingerprint=each) for each in fingerprints))
    assert {name: whole[name] for name in whole if name == "system_fingerprint"} == expected


def test_a_fingerprint_that_one_answer_lacks_is_left_out() -> None:
    with_it, without = completion([choice(0)], system_fingerprint="a"), completion([choice(0)])
    assert "system_fingerprint" not in joined(with_it, without)
    assert "system_fingerprint" not in joined(without, with_it)


def test_filters_say_of_each_prompt_what_its_answer_said() -> None:
    said = completion([choice(0)], prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {"a": 1}}])
    unsaid = completion([choice(0)])
    expected = [{"prompt_index": position, "content_filter_results": {"a": 1}} for position in (1, 2)]
    assert joined(unsaid, said, said)["prompt_filter_results"] == expected
    odd = completion([choice(0)], prompt_filter_results="x")
    assert joined(odd, said)["prompt_filter_results"] == "x"


NOT_TOGETHER = {
    "nothing": [],
    "no JSON": [completion([choice(0)]), b"x"],
    "no choices": [completion([choice(0)]), b"{}"],
    "empty choices": [completion([]), completion([])],
    "other numbers of choices": [completion([choice(0)]), completion([choice(0), choice(1)])],
    "an answer that begins elsewhere": [completion([choice(0)]), completion([choice(1)])],
    "an error": [completion([choice(0)]), b'{"error":{"message":"no"}}'],
    "an embedding": [completion([choice(0)]), json.dumps({"data": [vector(0)]}).encode()],
    "no UTF-8": [completion([choice(0, "é")]).replace(rb"\u00e9", b"\xe9")],
}


@pytest.mark.parametrize("bodies", NOT_TOGETHER.values(), ids=NOT_TOGETHER)
def test_what_is_no_answer_to_an_item_is_not_put_together(bodies: list[bytes]) -> None:
    assert assemble(TEXT, bodies) is None


# Both ----------------------------------------------------------------------------------------------------------------


class Spelled(NamedTuple):
    """A number as it is spelled."""

    text: str


NUMBERS = st.sampled_from(["0", "-0.0", "1.50", "1e-7", "1E400", "18446744073709551617", "0.1000000000000000055", "7"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | NUMBERS.map(Spelled),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=3,
)
COUNTS = st.integers(0, 10**9)
USAGES = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": COUNTS,
        "completion_tokens": COUNTS,
        "total_tokens": COUNTS,
        "prompt_tokens_details": st.none() | st.dictionaries(st.text(), COUNTS | JSON, max_size=3),
        "completion_tokens_details": st.none() | st.dictionaries(st.text(), COUNTS | JSON, max_size=3),
        "queue_time": JSON,
        "other": COUNTS,
    },
)
LOGPROBS = st.none() | st.integers(0, 4).map(lambda tokens: {"tokens": ["t"] * tokens})
OTHERS = st.dictionaries(st.text().filter(lambda name: name not in {"choices", "data", "usage"}), JSON, max_size=2)
MEMBERS = st.just({}) | st.fixed_dictionaries({}, optional={"id": JSON, "object": JSON, "model": JSON}) | OTHERS
FEW = st.integers(1, 3)


@st.composite
def wholes(draw: st.DrawFn) -> tuple[Endpoint, dict[str, Any], list[int], int]:
    """Answers with all their members, our own counts, and how many choices each item has."""
    endpoint = draw(st.sampled_from([TEXT, VECTOR]))
    weights = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=4))
    each = draw(FEW) if endpoint is TEXT else 1
    entries = [
        {**draw(OTHERS), "index": index, "text": draw(st.text()), "logprobs": draw(LOGPROBS)}
        for index in range(len(weights) * each)
    ]
    answer = {**draw(MEMBERS), {TEXT: "choices", VECTOR: "data"}[endpoint]: entries, **draw(MEMBERS)}
    if draw(st.booleans()):
        answer["usage"] = draw(st.none() | USAGES)
    return endpoint, answer, weights, each


def written(answer: object) -> bytes:
    """Write JSON with white space, and numbers as they are spelled."""
    match answer:
        case Spelled(text):
            return text.encode()
        case dict():
            members = (json.dumps(name).encode() + b" :" + written(each) for name, each in answer.items())
            return b"{" + b", ".join(members) + b"}"
        case list():
            return b"[" + b",".join(map(written, answer)) + b"]"
        case _:
            return json.dumps(answer, ensure_ascii=False).encode()


def exact(body: bytes) -> Any:  # noqa: ANN401  any JSON value
    """Read JSON with all numbers as they are spelled."""
    return json.loads(body, parse_int=Spelled, parse_float=Spelled)


@given(wholes())
def test_what_was_taken_apart_is_the_same_when_put_together(
    drawn: tuple[Endpoint, dict[str, Any], list[int], int],
) -> None:
    endpoint, answer, weights, each = drawn
    whole = written(answer)
    bodies = split_answer(endpoint, whole, weights, each)
    assert bodies is not None
    assert len(bodies) == len(weights)
    again = assemble(endpoint, bodies)
    assert again is not None
    assert exact(again) == exact(whole)


@given(wholes(), st.data())
def test_any_choice_of_items_stands_in_its_order(
    drawn: tuple[Endpoint, dict[str, Any], list[int], int], data: st.DataObject
) -> None:
    endpoint, answer, weights, each = drawn
    name = {TEXT: "choices", VECTOR: "data"}[endpoint]
    bodies = split_answer(endpoint, written(answer), weights, each)
    assert bodies is not None
    picked = data.draw(st.lists(st.integers(0, len(weights) - 1), min_size=1, max_size=8))
    again = assemble(endpoint, [bodies[position] for position in picked])
    assert again is not None
    entries = exact(written(answer))[name]
    expected = chain.from_iterable(entries[position * each : (position + 1) * each] for position in picked)
    numbered = [{**entry, "index": Spelled(str(index))} for index, entry in enumerate(expected)]
    assert exact(again)[name] == numbered


@given(
    weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    texts=st.lists(st.text(), min_size=20, max_size=20),
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    data=st.data(),
)
@example(weights=[1, 1], texts=["a"] * 20, input_tokens=1, output_tokens=1, data=None)
def test_shares_are_counts_that_add_up(
    weights: list[int], texts: list[str], input_tokens: int, output_tokens: int, data: st.DataObject | None
) -> None:
    cached = 0 if data is None else data.draw(st.integers(0, input_tokens))
    reported = usage(input_tokens, output_tokens, prompt_tokens_details={"cached_tokens": cached})
    choices = [choice(index, texts[index]) for index in range(len(weights))]
    shares = [each["usage"] for each in split(completion(choices, usage=reported), weights)]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert min(share[name] for share in shares) >= 0
        assert sum(share[name] for share in shares) == reported[name]
    assert sum(share["prompt_tokens_details"]["cached_tokens"] for share in shares) == cached
    for share in shares:
        assert share["total_tokens"] == share["prompt_tokens"] + share["completion_tokens"]
        assert 0 <= share["prompt_tokens_details"]["cached_tokens"] <= share["prompt_tokens"]


WHOLE = completion(
    [choice(0, "é", **told(2)), choice(1, "b", **told(1))],
    usage=usage(5, 3, prompt_tokens_details={"cached_tokens": 1}),
    prompt_filter_results=[{"prompt_index": 0}, {"prompt_index": 1}],
)


@given(st.binary())
def test_any_bytes_are_an_answer_or_none(body: bytes) -> None:
    for endpoint in Endpoint:
        assert split_answer(endpoint, body, [1, 1], 1) is None
        assert assemble(endpoint, [body, body]) is None


@given(position=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255), length=st.integers(0, 3))
def test_no_damage_makes_them_raise(position: int, byte: int, length: int) -> None:
    damaged = WHOLE[:position] + bytes([byte]) * length + WHOLE[position + 1 :]
    bodies = split_answer(TEXT, damaged, [1, 1], 1)
    assert bodies is None or assemble(TEXT, bodies) is not None
    assemble(TEXT, [damaged, WHOLE])


def test_an_answer_that_was_cut_is_none() -> None:
    for end in range(len(WHOLE)):
        assert split_answer(TEXT, WHOLE[:end], [1, 1], 1) is None
        assert assemble(TEXT, [WHOLE, WHOLE[:end]]) is None
