"""`tidegate explain`: the layout for people, JSON, and the exit status."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from policies.advisories import ADVICE
from proxy.commands import main

ROOT = Path(__file__).parents[3]
SETTINGS = {
    "upstreams": {"u": {"kind": "openai", "base_url": "http://u", "api_key": "hidden"}},
    "models": {"m": {"deployments": [{"upstream": "u"}], "aliases": ["old"]}},
    "policies": {
        "default": {
            "parameters": {"n": {"max": 4, "on_violation": "clamp"}},
            "limits": [{"of": "tokens", "limit": 50, "per": "minute", "by": ["user"]}],
        }
    },
    "projects": [{"id": "proj", "policy": "default"}],
    "keys": [{"id": "key", "project": "proj", "user": "alice", "sha256": "ab" * 32}],
}
REQUEST = {"model": "old", "prompt": "é", "n": 9, "max_tokens": 16}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "t.yaml").write_text(json.dumps(SETTINGS))
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    return [str(tmp_path / "t.yaml"), str(tmp_path / "request.json")]


def test_a_decision_is_laid_out_for_people(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *files]) == 0
    told = capsys.readouterr().out
    assert told.splitlines() == [
        "request     POST /v1/completions",
        "principal   key key of alice in proj; policies: default",
        "model       m (asked for as old)",
        "adjusted    n: 9 → 4 (clamp, policy default)",
        "advised     nothing",
        'effective   {"prompt": "é", "n": 4, "max_tokens": 16}',
        "worst case  26 input + 64 output tokens, 0.000000 USD",
        (
            "limits      tokens-per-minute-by-user: 50 tokens per minute by user alice; asks 90 (policy default); "
            "this can never fit"
        ),
        "cache       bypass: not-deterministic",
        "deployments 1. m at u (weight 1)",
    ]


def test_advice_is_laid_out_for_people(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[1]).write_text('{"model": "m", "prompt": "Once "}')
    assert main(["explain", *files]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("advised")] == [
        "advised     prompt-ends-in-space: " + ADVICE["prompt-ends-in-space"],
    ]


def test_a_refusal_is_told_and_is_status_1(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[1]).write_text('{"model": "x"}')
    assert main(["explain", *files]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("refused     404 model_not_found: ")


def test_json_holds_the_same(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["effective_request"]["n"] == 4


def test_the_request_may_come_from_standard_input(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps({**REQUEST, "n": 1}).encode())))
    assert main(["explain", files[0], "-"]) == 0
    assert "adjusted    nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(
            ["absent.json"], "absent.json cannot be read: no such file or directory; give a file", id="no file"
        ),
        pytest.param(["-", "--key", "kez"], 'no key has the id "kez"; did you mean "key"?', id="an unknown key"),
        pytest.param(["-", "--path", "http://[::1/v1"], "--path cannot be read; give a path such as", id="no URL"),
        pytest.param(["-", "--path", "//[x/v1"], "--path cannot be read; give a path such as", id="no host"),
    ],
)
def test_misuse_is_one_line_and_status_2(
    files: list[str],
    words: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"{}")))
    assert main(["explain", files[0], *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"tidegate explain: {expected}")
    assert told.count("\n") == 1


def test_a_configuration_that_cannot_be_read_is_status_2(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[0]).write_text('workers: !!int "abc"')
    assert main(["explain", *files]) == 2
    assert capsys.readouterr().err.startswith(f"{files[0]}:1: workers: cannot be read as int")


def test_a_decision_needs_neither_store_nor_event_loop(files: list[str]) -> None:
    program = (
        "import sys, asyncio, socket\n"
        "def refuse(*_, **__): raise AssertionError('a decision has slipped into the shell')\n"
        "asyncio.new_event_loop = asyncio.run = socket.socket.connect = refuse\n"
        "from proxy.commands import main\n"
        "sys.exit(main(['explain', *sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
