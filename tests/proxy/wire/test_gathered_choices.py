from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from transcripts import SAFE, delta, named, text

from proxy.wire.gathered_choices import ChatChoice, Choice, in_order, index_of
from proxy.wire.raw_json import Inexact, Members, members_of


def members(part: dict[str, Any]) -> Members:
    return members_of(json.dumps(part).encode())


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        pytest.param({}, 0, id="a part without is the first"),
        pytest.param({"index": 12}, 12, id="a position"),
        pytest.param({"index": -1}, None, id="below 0"),
        pytest.param({"index": 1.5}, None, id="a fraction"),
        pytest.param({"index": None}, None, id="null"),
        pytest.param({"index": "1"}, None, id="a text"),
        pytest.param({"index": 10**9}, None, id="beyond all"),
    ],
)
def test_a_part_is_at_its_index(part: dict[str, Any], expected: int | None) -> None:
    try:
        found = index_of(members(part))
    except Inexact:
        found = None
    assert found == expected


def test_positions_are_in_order_and_none_is_missing() -> None:
    assert in_order({2, 0, 1}) == [0, 1, 2]
    with pytest.raises(Inexact):
        in_order({0, 2})


def test_parts_of_a_completions_choice_are_put_together() -> None:
    choice = Choice()
    for part in (text("a", logprobs={"tokens": ["a"]}), text("b", 0, "stop", logprobs={"tokens": ["b"]}, x={"y": 1})):
        part.pop("index")
        choice.take(members(part))
    assert json.loads(msgspec.json.encode(choice.whole(3))) == text(
        "ab", 3, "stop", logprobs={"tokens": ["a", "b"]}, x={"y": 1}
    )


@pytest.mark.parametrize(
    ("part", "is_one_text"),
    [
        pytest.param(delta(content="a"), True, id="content"),
        pytest.param(delta(reasoning="a"), True, id="reasoning"),
        pytest.param(delta(role="assistant", content="a", refusal=None), True, id="content beside the role and null"),
        pytest.param(delta(0, "stop", content="a"), True, id="content beside the finish reason"),
        pytest.param({**delta(content="a"), "content_filter_results": SAFE}, True, id="content beside a judgement"),
        pytest.param(delta(content="a", reasoning="b"), False, id="two texts"),
        pytest.param(delta(content=None), False, id="null"),
        pytest.param({"finish_reason": "stop"}, False, id="no delta"),
        pytest.param(delta(content="a", tool_calls=[named(0, "f")]), False, id="a call too"),
        pytest.param({**delta(content="a"), "logprobs": {"content": [1]}}, False, id="logprobs too"),
        pytest.param({**delta(content="a"), "x": "piece"}, False, id="what may be a piece too"),
    ],
)
def test_a_part_that_adds_one_text_alone_tells_which(part: dict[str, Any], *, is_one_text: bool) -> None:
    assert ChatChoice().take(members(part)) == ([b"a"] if is_one_text else None)


def test_a_part_without_new_text_does_not_tell_of_the_old() -> None:
    choice = Choice()
    assert choice.take(members(text("stop"))) == [b"stop"]
    assert choice.take(members({"text": None, "finish_reason": "stop"})) is None
