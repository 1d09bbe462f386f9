"""YAML as plain values with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config_document import read_document


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a: 2024-10-21", {"a": "2024-10-21"}, id="a date is text"),
        pytest.param("a: yes", {"a": "yes"}, id="yes is text, as YAML 1.2 has it"),
        pytest.param(
            "3.5: x\nnull: y\n2024-01-01: z", {"3.5": "x", "null": "y", "2024-01-01": "z"}, id="keys are text"
        ),
        pytest.param("a: [1, 1.5, true, null, ~, 'x']", {"a": [1, 1.5, True, None, None, "x"]}, id="plain values"),
        pytest.param(
            "b: &b {x: 1, y: 1}\na: {<<: *b, y: 2}", {"b": {"x": 1, "y": 1}, "a": {"y": 2, "x": 1}}, id="merged"
        ),
        pytest.param(
            "a: {<<: [{x: 1}, {x: 2, y: 2}]}", {"a": {"x": 1, "y": 2}}, id="of several merged, the first is stronger"
        ),
        pytest.param('{"a": {"b": [1, "\\u00e9"]}}', {"a": {"b": [1, "é"]}}, id="JSON is YAML"),
        pytest.param("# nothing", None, id="only a comment"),
    ],
)
def test_texts_are_read(text: str, expected: object) -> None:
    document = read_document(text)
    assert document.values == expected
    assert document.problems == []


def test_every_value_knows_its_line() -> None:
    document = read_document("a:\n  b: 1\n  c:\n    - x\n    - y\n")
    lines = {path: document.line_of(path) for path in [("a",), ("a", "b"), ("a", "c", 0), ("a", "c", 1)]}
    assert list(lines.values()) == [1, 2, 4, 5]


def test_what_is_absent_has_the_line_of_what_is_around_it() -> None:
    document = read_document("a: 1\nb:\n  c: {}\n")
    assert document.line_of(("b", "c", "d", 3)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        "a: !!python/object:os.system x",
        "? [a]\n: 1",
        "a: {<<: 1}",
        "a: &a [*a]",
        "!x {a: 1}",
        "a: !!binary aGk=",
    ],
)
def test_what_reads_two_ways_is_a_problem(text: str) -> None:
    assert len(read_document(text).problems) == 1


@pytest.mark.parametrize(
    "scalar",
    [
        pytest.param("9" * 5000, id="more digits than Python reads"),
        pytest.param("0x" + "f" * 5000, id="more digits than Python writes"),
        pytest.param('!!int "abc"', id="no int"),
        pytest.param('!!int ""', id="an empty int"),
        pytest.param('!!float "x"', id="no float"),
        pytest.param('!!bool "zz"', id="no bool"),
    ],
)
def test_a_scalar_that_is_not_what_it_claims_is_a_problem_in_its_line(scalar: str) -> None:
    document = read_document(f"a: 1\nb: {scalar}\n")
    assert [problem.path for problem in document.problems] == [("b",)]
    assert document.problems[0].message.startswith("cannot be read as ")
    assert document.line_of(("b",)) == 2


@given(st.text() | st.text(alphabet="ab:-{}[],&*!'\"|>#% \n\t\\~<"))
def test_no_text_brings_it_down(text: str) -> None:
    document = read_document(text)
    assert all(problem.message for problem in document.problems)


def test_the_example_is_read_without_complaint() -> None:
    example = Path(__file__).parents[2] / "deploy" / "tidegate.example.yaml"
    assert read_document(example.read_text("utf-8")).problems == []
