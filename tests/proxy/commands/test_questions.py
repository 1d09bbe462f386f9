"""A question read from a command's arguments, its body from a file or from standard input."""

from __future__ import annotations

from argparse import ArgumentParser
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING

import pytest

from proxy.commands.questions import CannotRead, add_question, read_question
from proxy.explanation import Question

if TYPE_CHECKING:
    from pathlib import Path


def question(*words: str, most_bytes: int = 100) -> Question:
    parser = ArgumentParser()
    add_question(parser)
    return read_question(parser.parse_args(words), most_bytes)


@pytest.fixture
def body(tmp_path: Path) -> str:
    (tmp_path / "b.json").write_bytes(b'{"n": 1}')
    return str(tmp_path / "b.json")


def test_what_is_not_said_is_left_to_the_gateway(body: str) -> None:
    assert question(body) == Question(b'{"n": 1}', path="/v1/completions")


def test_all_of_it_may_be_said(body: str) -> None:
    words = ["--as", "key", "--project", "p", "--user", "u", "--path", "/v1/embeddings", "--cache-control", "no-cache"]
    expected = Question(b'{"n": 1}', "/v1/embeddings", "key", "p", "u", "no-cache")
    assert question(body, *words) == expected


def test_a_body_comes_from_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"{}")))
    assert question("-").body == b"{}"


def test_of_a_body_that_is_too_large_just_enough_is_read_to_tell(body: str) -> None:
    assert question(body, most_bytes=3).body == b'{"n"'


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("/nowhere", "/nowhere cannot be read: no such file or directory; give a file with", id="no file"),
        pytest.param("/", "/ cannot be read: is a directory; give a file with a JSON body, or -", id="a folder"),
        pytest.param("-", "- cannot be read: standard input is closed; give", id="standard input that is closed"),
    ],
)
def test_what_cannot_be_read(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(CannotRead) as caught:
        question(name)
    assert str(caught.value).startswith(said)
