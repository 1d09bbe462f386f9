"""What stands between a command and its answer, told in one line."""

from __future__ import annotations

import json
import os
import pwd
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from proxy.commands.asking import add_config, add_json, ask_configured, operator, tell, text
from proxy.commands.questions import CannotRead
from proxy.errors import StoreUnavailable
from proxy.named_principal import CannotAnswer

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.config import Configuration

TOLD = {"answer": 42}


@pytest.fixture
def arguments(tmp_path: Path) -> Namespace:
    (tmp_path / "t.yaml").write_text('{"workers": 3}')
    return Namespace(config=tmp_path / "t.yaml", json=False)


@pytest.mark.parametrize(
    ("is_json", "expected"),
    [(False, "answer\n42\n"), (True, json.dumps(TOLD, indent=2) + "\n")],
    ids=["people", "JSON"],
)
def test_an_answer_is_printed(
    arguments: Namespace, expected: str, capsys: pytest.CaptureFixture[str], *, is_json: bool
) -> None:
    arguments.json = is_json
    asked: list[int] = []

    def ask(configuration: Configuration) -> dict[str, Any]:
        asked.append(configuration.workers)
        return TOLD

    assert tell(arguments, "tidegate x", ask, lambda told: ["answer", str(told["answer"])], {}) == 0
    assert (asked, capsys.readouterr().out) == ([3], expected)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(CannotAnswer("user", "must be one"), "--user: must be one", id="a member"),
        pytest.param(CannotAnswer("limits", "must be one"), "--limit: must be one", id="one of another spelling"),
        pytest.param(StoreUnavailable("it is\naway"), "it is\\naway", id="a store that is away"),
        pytest.param(
            CannotRead("a.json", FileNotFoundError(2, "No such file"), "a file"),
            "a.json cannot be read: no such file; give a file, or - for standard input",
            id="a file that is not there",
        ),
    ],
)
def test_what_is_in_the_way_is_one_line(
    arguments: Namespace, error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(_: Configuration) -> dict[str, Any]:
        raise error

    assert ask_configured(arguments, "tidegate x", ask, {"limits": "--limit"}) is None
    assert tell(arguments, "tidegate x", ask, lambda _: [], {"limits": "--limit"}) == 2
    assert capsys.readouterr() == ("", f"tidegate x: {said}\n" * 2)


def test_without_a_configuration_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = Namespace(config=None, json=False)
    assert tell(arguments, "tidegate x", lambda _: TOLD, lambda _: [], {}) == 2
    expected = "tidegate x: there is no ./tidegate.yaml; name the configuration with --config FILE\n"
    assert capsys.readouterr().err == expected


def test_an_option_that_is_not_given_has_the_value_that_it_had_before() -> None:
    parser = ArgumentParser()
    add_config(parser)
    add_json(parser)
    assert vars(parser.parse_args([])) == {}
    assert vars(parser.parse_args(["--config", "x", "--json"])).keys() == {"config", "json"}


def test_what_is_no_text_is_no_argument() -> None:
    assert text("é") == "é"
    with pytest.raises(ArgumentTypeError, match="text in UTF-8"):
        text("\udcff")


def test_the_operator_has_a_name_or_a_number() -> None:
    assert operator() == pwd.getpwuid(os.getuid()).pw_name
    with patch("pwd.getpwuid", side_effect=KeyError):
        assert operator() == str(os.getuid())
