"""What is said of a refused body stays short and is found quickly, whatever the body is."""

from __future__ import annotations

import pytest

from policies.requests.faults import describe


@pytest.mark.parametrize(
    ("raw", "known", "said"),
    [
        pytest.param(
            b'{"a":[' + b"1," * 60_000 + b'1],"b":1,"b":2}',
            "a key stands twice in one object",
            "The request body cannot be read: a key stands twice in one object.",
            id="a fault far behind many lexemes is told without its place",
        ),
        pytest.param(
            b'{"' + b"k" * 500 + b'":1,"' + b"k" * 500 + b'":2}',
            "",
            'The request body cannot be read: the key "' + "k" * 39 + '…" stands twice in one object '
            "at line 1, column 507.",
            id="a long key is shortened",
        ),
        pytest.param(
            b'{"a":1}', "as known", "The request body cannot be read: as known.", id="nothing found: what was known"
        ),
        pytest.param(
            b'{"a":inf}',
            "",
            "The request body cannot be read: it is not valid JSON at line 1, column 6: expecting value.",
            id="inf is no number",
        ),
        pytest.param(
            b'{"a":"\\x"}',
            "",
            "The request body cannot be read: it is not valid JSON at line 1, column 7: invalid \\escape.",
            id="an unknown escape",
        ),
        pytest.param(
            b"]",
            "",
            "The request body cannot be read: it is not valid JSON at line 1, column 1: expecting value.",
            id="a bracket that nothing opened",
        ),
        pytest.param(
            b":",
            "",
            "The request body cannot be read: it is not valid JSON at line 1, column 1: expecting value.",
            id="a separator that separates nothing",
        ),
    ],
)
def test_a_fault_is_described(raw: bytes, known: str, said: str) -> None:
    assert describe(raw, known, max_depth=64) == said
