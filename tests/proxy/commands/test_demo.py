"""The demo's command line; the demo itself is a journey."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.commands import demo, main
from proxy.demo import model_process
from proxy.supervisor import Listening

if TYPE_CHECKING:
    from collections.abc import Callable

UP = Listening("http://127.0.0.1:8080", "http://127.0.0.1:8081", None)


def test_the_lines_to_paste_are_shell_commands_with_json_bodies() -> None:
    told = demo.how_to_try(UP, key="tg-demo-x", data_dir=Path("/d"), log=Path("/d/model-server.log"))
    lines = [shlex.split(line) for line in re.findall(r"^ *(curl .+)$", told, re.MULTILINE)]
    assert [line[2] for line in lines] == ["http://127.0.0.1:8080/v1/completions"] * 2
    assert all("Authorization: Bearer tg-demo-x" in line for line in lines)
    bodies = [json.loads(line[-1]) for line in lines]
    assert [body.get("temperature") for body in bodies] == [None, 0]
    assert "i" in lines[1][1], "the head with Cache-Status is not shown"
    assert "/d/model-server.log" in told


def test_the_way_to_what_was_used_holds_for_the_command_and_for_a_checkout() -> None:
    told = demo.how_to_try(UP, key="tg-demo-x", data_dir=Path("/a folder"), log=Path("/d/model-server.log"))
    [line] = re.findall(r"^ *(tidegate usage .+)$", told, re.MULTILINE)
    assert shlex.split(line) == ["tidegate", "usage", "--data-dir", "/a folder"]
    assert "./run" in told


@pytest.mark.parametrize("option", ["--listen", "--admin-listen"])
def test_an_address_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", option, "nowhere"])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def _without_model(monkeypatch: pytest.MonkeyPatch, _: Path) -> list[str]:
    monkeypatch.setattr(model_process, "find_model_file", lambda: None)
    return []


def _with_a_file_for_a_folder(_: pytest.MonkeyPatch, folder: Path) -> list[str]:
    (folder / "taken").write_text("")
    return ["--data-dir", str(folder / "taken")]


@pytest.mark.parametrize(
    ("prepare", "words"),
    [(_without_model, "pip install"), (_with_a_file_for_a_folder, "cannot be used")],
    ids=["the model is not installed", "the data folder is a file"],
)
def test_what_keeps_the_demo_from_starting_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    prepare: Callable[[pytest.MonkeyPatch, Path], list[str]],
    words: str,
) -> None:
    assert main(["demo", *prepare(monkeypatch, tmp_path)]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1
