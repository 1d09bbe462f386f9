"""Long texts where requests have them are replaced, everything else stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from policies.requests.long_texts import LONG_CHARACTERS, replace_long_texts

LONG = "a" * LONG_CHARACTERS
PART = {"type": "text", "text": LONG}


@pytest.mark.parametrize(
    ("value", "replaced"),
    [
        pytest.param({"prompt": LONG, "n": 1}, {"prompt": "…", "n": 1}, id="a member"),
        pytest.param({"prompt": LONG[1:]}, {"prompt": LONG[1:]}, id="a text that is one character short of long"),
        pytest.param({"prompt": [LONG, "b", 1]}, {"prompt": ["…", "b", 1]}, id="one of several"),
        pytest.param(
            {"messages": [{"content": [PART, None]}]},
            {"messages": [{"content": [{"type": "text", "text": "…"}, None]}]},
            id="a part of a message",
        ),
        pytest.param({LONG: 1}, {LONG: 1}, id="a key stays"),
        pytest.param({"a": [[[[[LONG]]]]]}, {"a": [[[[[LONG]]]]]}, id="further down it stays"),
        pytest.param({"a": [LONG] * 33}, {"a": [LONG] * 33}, id="among many it stays"),
    ],
)
def test_what_is_replaced(value: dict[str, Any], replaced: dict[str, Any]) -> None:
    before = repr(value)
    assert replace_long_texts(value, lambda _text: "…") == replaced
    assert repr(value) == before
