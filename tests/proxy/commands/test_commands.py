"""The command line as a whole: help with an example everywhere, and errors of one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.commands import COMMANDS, main

ROOT = Path(__file__).parents[3]
CACHE = [["cache", verb] for verb in ("purge", "get", "status", "warm")]
NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]


@pytest.mark.parametrize("words", [[], *([name] for name in NAMES), ["keys", "create"], ["keys", "hash"], *CACHE])
def test_every_command_has_help_with_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert re.search(r"\nexamples?:\n  ", told)
    assert "%%" not in told


def test_help_lists_what_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out
    assert [name for name in NAMES if f"    {name} " not in listed] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param([], "the following arguments are required: COMMAND; see tidegate --help", id="no command"),
        pytest.param(["chek"], 'unknown command "chek"; did you mean "check"?', id="a typing error"),
        pytest.param(["fly"], 'unknown command "fly"; there is cache, check, demo', id="an unknown command"),
        pytest.param(["\x1b[2J\n"], 'unknown command "\\x1b[2J\\n"', id="a command that steers the terminal"),
        pytest.param(["check"], "tidegate check: the following arguments are required: FILE", id="no file"),
        pytest.param(["schema", "x"], "unrecognized arguments: x", id="too much"),
    ],
)
def test_misuse_is_one_line_and_status_2(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert expected in told
    assert told.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m proxy schema | head -n 1"
    done = subprocess.run(command, cwd=ROOT, shell=True, capture_output=True, text=True, check=True)  # noqa: S602  a pipe of our own
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.parametrize("words", ["schema", "usage --json --data-dir {data_dir}"])
def test_output_that_cannot_be_written_is_one_line_and_status_1(words: str, tmp_path: Path) -> None:
    (tmp_path / "usage.jsonl").write_text('{"request_id": "r", "started_milliseconds": 1}\n')
    command = [sys.executable, "-m", "proxy", *words.format(data_dir=tmp_path).split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = "tidegate: cannot write: no space left on device; make room or write elsewhere\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_a_terminal_without_the_character_still_shows_the_rest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "schema"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert b"\\u2026" in done.stdout
