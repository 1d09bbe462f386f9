from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from proxy.commands import main

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURATION = """
upstreams: {only: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
models: {m: {deployments: [{upstream: only}], price: {input: 1, output: 2}, max_output_tokens: 64}}
policies:
  team:
    parameters:
      n: {max: 2, on_violation: clamp}
      suffix: {forbid: reject}
      echo: {forbid: reject, mode: observe}
      prompt: {strip_trailing_space: true}
    limits:
      - {of: requests, limit: 2, per: day, by: [user]}
      - {of: requests, limit: 1, per: day, by: [user], name: tight, mode: observe}
projects: [{id: research, policy: team}]
keys: [{id: key_a, project: research, user: alice, sha256: %s}]
""" % ("ab" * 32)


def line(number: int, **members: Any) -> bytes:  # noqa: ANN401  members of a record
    record = {
        "request_id": f"req_{number}",
        "started_milliseconds": 1_700_000_000_000 + number,
        "project": "research",
        "owner": "alice",
        "key": "key_a",
        "endpoint": "completions",
        "dialect": "openai",
        "model_asked": "m",
        "outcome": "completed",
        "input_tokens": 100,
        "output_tokens": 40,
        "completions": 4,
        "cost_microdollars": 180,
        "input_bound_tokens": 100,
        "held_tokens": 300,
        "prompts": 1,
        "parameters": {"n": 4, "max_tokens": 50},
        **members,
    }
    return json.dumps(record).encode() + b"\n"


LINES = [
    line(1),
    line(2, parameters={"suffix_count": 1}, owner="bob", key="key_x"),
    line(3, parameters={"echo": True, "prompt_count": 1, "max_tokens": 50}, completions=1, held_tokens=150),
    line(4),
    line(4),
    line(5, endpoint=None, dialect=None, model_asked=None),
    line(6)[:-1],
]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    policy, records = tmp_path / "changed.yaml", tmp_path / "usage.jsonl"
    policy.write_text(CONFIGURATION)
    records.write_bytes(b"".join(LINES))
    return ["--policy", str(policy), "--records", str(records)]


def test_what_would_have_been_is_laid_out(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *files]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "project   user   requests  refused by rules  by limits  adjusted  served again  unspent tokens  unspent USD",
        "research  alice         3                 0          1         1             0             160     0.000220",
        "research  bob           1                 1          0         0             0             140     0.000180",
        "total                   4                 1          1         1             0             300     0.000400",
        "",
        "by rule",
        "  parameter  rule    policy  requests",
        "  n          clamp   team           1",
        "  suffix     reject  team           1",
        "",
        "observed only",
        "  parameter  rule    policy  requests",
        "  echo       reject  team           1",
        "",
        "without room",
        "  limit                     policy  requests",
        "  requests-per-day-by-user  team           1",
        "",
        "without room, observed only",
        "  limit  policy  requests",
        "  tight  team           1",
        "",
        "cannot be told from records",
        "  parameter  rule                  policy  requests",
        "  prompt     strip_trailing_space  team           1",
        "",
        "not in the configuration",
        "  what  id     requests",
        "  key   key_x         1",
        "",
        "1 more could not be read when they came: nothing was decided on them",
    ]


def test_json_says_the_same_in_integers(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *files, "--by", "model,endpoint", "--json"]) == 0
    effect = {
        "requests": 4,
        "refused_by_rules": 1,
        "refused_by_limits": 1,
        "adjusted": 1,
        "served_again": 0,
        "untold": 1,
        "tokens_not_spent": 300,
        "microdollars_not_spent": 400,
    }
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "total": effect,
        "groups": [{"model": "m", "endpoint": "completions", **effect}],
        "rules": [
            {"parameter": "n", "rule": "clamp", "policy": "team", "requests": 1},
            {"parameter": "suffix", "rule": "reject", "policy": "team", "requests": 1},
        ],
        "observed": [{"parameter": "echo", "rule": "reject", "policy": "team", "requests": 1}],
        "limits": [{"limit": "requests-per-day-by-user", "policy": "team", "requests": 1}],
        "observed_limits": [{"limit": "tight", "policy": "team", "requests": 1}],
        "cannot_be_told": [
            {"parameter": "prompt", "part": "strip_trailing_space", "policy": "team", "requests": 1},
        ],
        "not_in_the_configuration": {"organizations": {}, "keys": {"key_x": 1}, "projects": {}},
        "never_decided": 1,
    }
    assert all(type(count) is int for count in told["total"].values())


def test_nothing_recorded_is_nothing_done(tmp_path: Path, capsys: pytest.CaptureFixture[str], files: list[str]) -> None:
    (tmp_path / "usage.jsonl").write_bytes(b"")
    assert main(["simulate", *files]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["total", "0", "0", "0", "0", "0", "0", "0.000000"]


def test_broken_lines_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], files: list[str]) -> None:
    (tmp_path / "usage.jsonl").write_bytes(line(1) + b"garbage\n" + line(2, output_tokens=-5) + line(3))
    assert main(["simulate", *files]) == 0
    assert "2 unreadable lines left out" in capsys.readouterr().err


def test_a_torn_last_line_is_told(capsys: pytest.CaptureFixture[str], files: list[str]) -> None:
    assert main(["simulate", *files]) == 0
    assert "1 unreadable line left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"garbage\n[]\n", id="no line is a record"),
        pytest.param(line(1)[:-1], id="no line ends"),
        pytest.param(b"\n", id="an empty line"),
    ],
)
def test_a_file_that_holds_no_record_is_one_line_and_status_2(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], files: list[str]
) -> None:
    (tmp_path / "usage.jsonl").write_bytes(content)
    assert main(["simulate", *files]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"tidegate simulate: {tmp_path / 'usage.jsonl'}: no line is a usage record; point --records at a usage.jsonl\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--records", "none.jsonl"], ("none.jsonl", "point --records at"), id="no records"),
        pytest.param(["--policy", "none.yaml"], ("none.yaml",), id="no configuration"),
        pytest.param(["--by", "colour"], ("colour",), id="an unknown group"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], words: tuple[str, ...], files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["simulate", *files, *arguments])
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    told = capsys.readouterr().err
    assert status == 2
    assert [word for word in words if word not in told] == []
    assert told.count("\n") == 1


def test_a_name_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], files: list[str]) -> None:
    (tmp_path / "usage.jsonl").write_bytes(line(1, owner="\x1b[2Jalice", key="\x1b[2J"))
    assert main(["simulate", *files]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    assert "tidegate simulate --policy changed.yaml --records data/usage.jsonl" in capsys.readouterr().out
