from __future__ import annotations

import json
from dataclasses import replace

import pytest
from responses import response

from policies.usage import Usage
from proxy.exchange import Observed
from proxy.wire.choice_texts import ChoiceTexts
from proxy.wire.envelopes import (
    UnreadableAnswer,
    are_choices_whole,
    may_be_completion,
    observe_answer,
    observe_edges,
)

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def observe(answer: object) -> Observed:
    observed = Observed()
    observe_answer(json.dumps(answer).encode(), observed)
    return observed


def test_a_completion_tells_its_facts() -> None:
    choices = [
        {"index": 0, "text": "abc", "finish_reason": "stop"},
        {"index": 1, "text": "é", "finish_reason": "length"},
    ]
    observed = observe({"model": "m", "system_fingerprint": "fp", "choices": choices, "usage": USAGE})
    assert observed.model == "m"
    assert observed.fingerprint == "fp"
    assert observed.usage == Usage(7, 3)
    assert observed.finish_reasons == {0: "stop", 1: "length"}
    assert observed.content_bytes == 5


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"role": "assistant", "content": "four"}, 4, id="text"),
        pytest.param({"content": None, "tool_calls": [1]}, 3, id="tool calls by their bytes"),
        pytest.param({"content": [{"type": "text"}]}, 0, id="parts are not counted"),
        pytest.param({"content": "x", "tool_calls": []}, 1, id="none of them"),
        pytest.param({"content": "x", "tool_calls": None}, 1, id="nor where they are null"),
        pytest.param({"content": None, "refusal": "no"}, 2, id="a refusal"),
        pytest.param({"content": "x", "reasoning_content": "hm"}, 3, id="reasoning"),
        pytest.param({"content": "x", "reasoning": "hm", "reasoning_content": "hm"}, 3, id="once, though said twice"),
        pytest.param({}, 0, id="an empty message"),
    ],
)
def test_chat_messages_are_counted(message: dict[str, object], expected: int) -> None:
    observed = observe({"choices": [{"index": 0, "message": message}]})
    assert (observed.content_bytes, observed.choices_with_text) == (expected, bool(expected))


def kept(answer: object, candidates: int = 1) -> ChoiceTexts:
    texts = ChoiceTexts(candidates)
    observe_answer(json.dumps(answer).encode(), Observed(texts=texts))
    return texts


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}


@pytest.mark.parametrize(
    ("answer", "candidates", "texts"),
    [
        pytest.param({"choices": [{"text": "ab"}, {"text": ""}, {"text": "é"}]}, 3, ("ab", "é"), id="completions"),
        pytest.param({"choices": [{"message": {"content": "ab"}}]}, 1, ("ab",), id="a chat"),
        pytest.param(
            {"choices": [{"message": {"content": None, "tool_calls": [CALL, CALL]}}]},
            1,
            ('{"a": "é"}{"a": "é"}',),
            id="the arguments of its calls",
        ),
        pytest.param(
            {"choices": [{"message": {"reasoning_content": "hm", "content": "ab"}}]}, 1, ("hmab",), id="its reasoning"
        ),
        pytest.param(response("abcé"), 1, ("abcé",), id="a response"),
    ],
)
def test_texts_are_kept_by_choice(answer: object, candidates: int, texts: tuple[str, ...]) -> None:
    found = kept(answer, candidates)
    assert (found.joined(), found.left_out_bytes) == (texts, 0)


def test_more_choices_than_can_be_are_left_out() -> None:
    found = kept({"choices": [{"text": "ab"}, {"text": "cde"}]})
    assert (found.joined(), found.left_out_bytes) == (("ab",), 3)


@pytest.mark.parametrize(
    ("answer", "is_error", "embeddings"),
    [
        pytest.param({"choices": []}, False, 0, id="a result"),
        pytest.param({"error": {"message": "x"}}, True, 0, id="an error object"),
        pytest.param({"error": None, "data": [{"embedding": [0.1]}, {"embedding": "AAA="}]}, False, 2, id="embeddings"),
        pytest.param({"error": "x", "model": 3, "data": [1, 2, 3]}, True, 3, id="members of other types"),
        pytest.param(response("a"), False, 0, id="a response"),
        pytest.param(response(status="failed", error={"code": "x"}), True, 0, id="a response with an error"),
        pytest.param(response(status="failed"), True, 0, id="a failed response without one"),
    ],
)
def test_what_an_answer_is(answer: dict[str, object], *, is_error: bool, embeddings: int) -> None:
    contents = observe_answer(json.dumps(answer).encode(), Observed())
    assert (contents.is_error, contents.embeddings) == (is_error, embeddings)


def test_a_response_tells_its_facts() -> None:
    observed = observe(response("abcé"))
    expected = Observed(Usage(11, 7, 4, 2), "m", None, {0: "completed"}, content_bytes=5, choices_with_text=1)
    assert observed == expected
    assert observe({**response("abcé"), "model": 3}) == replace(expected, model=None)


def test_members_of_other_types_are_as_if_absent() -> None:
    observed = observe(
        {"model": 3, "usage": "many", "system_fingerprint": [], "choices": [7, {"index": 1, "finish_reason": "stop"}]}
    )
    assert observed == Observed(finish_reasons={1: "stop"})
    assert observe({"choices": {"a": 1}, "usage": USAGE}).usage == Usage(7, 3)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"<html></html>", id="HTML"),
        pytest.param(b'{"choices": [', id="cut"),
        pytest.param(b"[1]", id="an array"),
        pytest.param(b'"text"', id="a string"),
        pytest.param(b'{"model": "\xff"}', id="no UTF-8"),
        pytest.param(b'{"id": "\xff"}', id="no UTF-8 where nobody looks"),
        pytest.param(b'{"x": ' + b"[" * 100_000, id="too deep"),
        pytest.param(b"404 page not found", id="a text that begins with a number"),
        pytest.param(b'"x" y', id="one that begins with a string"),
        pytest.param(b"null pointer", id="one that begins with null"),
        pytest.param(b"[] x", id="an array and more"),
        pytest.param(b'{"choices": 5} x', id="an object with an odd member, and more"),
        pytest.param(b'{"choices": 5, "x": nope}', id="an odd member before what is no JSON"),
        pytest.param(b'{"usage": [1], "x": "\\ud800"}', id="or before half a character"),
        pytest.param(b'{"choices": 5, "x": 1e999}', id="or before a number that is too large"),
        pytest.param(b'{"choices": 5, "x": 1' + b"0" * 5_000 + b"}", id="or one with 5,000 digits"),
        pytest.param(b'{"choices": 5, "x": ' + b"[" * 3_000 + b"]" * 3_000 + b"}", id="or what is too deep"),
    ],
)
def test_what_is_no_object_is_unreadable(body: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        observe_answer(body, Observed())


@pytest.mark.parametrize(
    ("reasons", "choices", "expected"),
    [
        pytest.param({0: "stop"}, 1, True, id="stopped"),
        pytest.param({0: "length"}, 1, True, id="length is complete"),
        pytest.param({0: "stop"}, 2, False, id="one is missing"),
        pytest.param({0: "content_filter"}, 1, False, id="filtered"),
        pytest.param({0: "stop", 1: "stop"}, 2, True, id="both"),
    ],
)
def test_choices_are_whole_when_all_are_finished(reasons: dict[int, str], choices: int, *, expected: bool) -> None:
    assert are_choices_whole(Observed(finish_reasons=reasons), choices) is expected


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        pytest.param(b'{"usage": %s, "data": [[0.1', b"0.2]]}", id="at the beginning"),
        pytest.param(b'{"data": [[0.1', b'0.2]], "usage":%s}', id="at the end"),
        pytest.param(b'{"data": [[0.1', b'0.2]], "usage":%s, "x": {"usage": {"cut', id="before one that is cut"),
    ],
)
def test_the_edges_of_a_long_answer_tell_its_usage(head: bytes, tail: bytes) -> None:
    usage = json.dumps(USAGE).encode()
    observed = Observed()
    observe_edges(head.replace(b"%s", usage), tail.replace(b"%s", usage), observed)
    assert observed.usage == Usage(7, 3)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b'{"choices": [', True, id="an object"),
        pytest.param(b"\xef\xbb\xbf\r\n [1", True, id="an array behind a mark and space"),
        pytest.param(b'"text', True, id="a string"),
        pytest.param(b"data: x", True, id="an event"),
        pytest.param(b": ping\n\ndata: x", True, id="a comment"),
        pytest.param(b"<html>", False, id="HTML"),
        pytest.param(b"database is away", False, id="a sentence"),
        pytest.param(b"", False, id="nothing"),
    ],
)
def test_what_may_be_a_completion(body: bytes, *, expected: bool) -> None:
    assert may_be_completion(body) is expected


def test_edges_without_usage_tell_nothing() -> None:
    observed = Observed()
    observe_edges(b'{"data": [', b'], "usage": null}', observed)
    assert observed.usage is None
