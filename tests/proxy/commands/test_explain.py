"""`tidegate explain`: the layout for people, JSON, misuse, and the exit status."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from policies.room import Room
from policies.windows import Level
from proxy.commands import main
from proxy.commands.explain import as_lines
from proxy.commands.table import WIDTH, width_of
from proxy.config import Configuration
from proxy.explanation import Question, describe, explain

ROOT = Path(__file__).parents[3]
KEY = "sk-alice-and-nobody-else"
SETTINGS: dict[str, Any] = {
    "organization": {"id": "org_acme", "policy": "base"},
    "upstreams": {
        "llama": {"kind": "openai", "base_url": "http://llama.internal/v1", "api_key": "hidden"},
        "azure": {"kind": "azure", "base_url": "https://acme.example", "api_key": "hidden"},
    },
    "models": {
        "m": {
            "deployments": [{"upstream": "llama"}, {"upstream": "azure", "name": "prod", "weight": 3}],
            "aliases": ["old"],
            "price": {"input": 1, "output": 2},
        }
    },
    "policies": {
        "base": {"parameters": {"top_p": {"max": 0.5, "mode": "observe"}, "best_of": {"max": 20}}},
        "default": {
            "parameters": {
                "n": {"max": 4, "on_violation": "clamp"},
                "max_tokens": {"default": 16, "max": 64, "on_violation": "clamp"},
            },
            "limits": [
                {"of": "requests", "limit": 5, "per": "minute", "by": ["user"]},
                {"of": "tokens", "limit": 1000, "per": "hour", "by": ["user"]},
                {"of": "usd", "limit": 0.5, "per": "90d", "by": ["project"], "name": "budget"},
            ],
            "cache": {"scope": "project", "ttl": "90m"},
        },
    },
    "projects": [{"id": "proj", "policy": "default"}],
    "keys": [
        {"id": "key_a", "project": "proj", "user": "alice", "sha256": sha256(KEY.encode()).hexdigest()},
        {"id": "key_b", "project": "proj", "service_account": "batch", "sha256": "cd" * 32},
    ],
}
REQUEST = {"model": "old", "prompt": "Once upon é ", "n": 9, "top_p": 0.75, "seed": 1}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return the words of a command that names a configuration and a request."""
    (tmp_path / "t.yaml").write_text(json.dumps(SETTINGS))
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    return [str(tmp_path / "request.json"), "--config", str(tmp_path / "t.yaml")]


def test_a_decision_is_laid_out_for_people(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *files, "--as", "key_a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [key] = [line.split()[-1] for line in lines if line.startswith("             key ")]
    assert len(key) == 64
    # The prompt is 13 bytes, a prompt counts 16 and a request 8 more; 4 candidates of 16 tokens.
    assert "\n".join(lines).replace(key, "KEY") == (
        """\
request      POST /v1/completions
sender       key key_a of user alice, project proj, organization org_acme
policies     base (organization), default (project)
verdict      served
model        m (asked for as old)

effective request
  prompt      "Once upon é "
  n           4
  top_p       0.75
  seed        1
  max_tokens  16

adjustments
  parameter   from  to  rule     policy   level
  n           9     4   clamp    default  project
  max_tokens  –     16  default  default  project

observed: what rules in mode observe would have done
  parameter  from  to  rule    policy  level
  top_p      0.75  –   reject  base    organization

advice
  prompt-ends-in-space: leave out the space at the end: models know most words with their space in
  front of them

worst case
  prompts  candidates  ceiling  input tokens  output tokens  total tokens       usd
        1           4       16            37             64           101  0.000165

limits
  limit                        quota                  for               asks  fits  policy
  requests-per-minute-by-user  5 requests per minute  user alice           1  yes   default
  tokens-per-hour-by-user      1000 tokens per hour   user alice         101  yes   default
  budget                       0.5 USD per 90d        project proj  0.000165  yes   default

cache        keyed: deterministic, kept for 1 h 30 min; scope project, policy default (project)
             key KEY

route
  try  deployment  upstream  kind    weight  share
    1  m           llama     openai       1    25%
    2  prod        azure     azure        3    75%
  The first is drawn by its share for each request; the others are tried when it fails."""
    )


def test_what_upstreams_are_sent_besides_is_a_line_each(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[0]).write_text('{"model": "m", "stream": true, "cache_level": 2}')
    assert main(["explain", *files, "--as", "key_a"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "  The first is drawn by its share for each request; the others are tried when it fails.",
        "  Added, and kept from the client: stream_options.include_usage, for llama, azure.",
        "  Left out: cache_level, for llama.",
    ]


ROUTE = {
    **SETTINGS["models"]["m"],
    "deployments": [{"upstream": "llama", "context_window": 30}, {"upstream": "azure", "name": "prod", "weight": 3}],
    "hedge_after": "500ms",
    "shadow": {"upstream": "llama", "name": "next", "share": 0.01},
    "response_model": "asked",
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(
            ROUTE,
            """\
  try  deployment  upstream  kind    weight  share  fits
    1  prod        azure     azure        3   100%  –
    2  m           llama     openai       1      –  perhaps not
  The first is drawn by its share for each request; the others are tried when it fails.
  Those that the request may not fit come after those that it fits, the largest window first.
  A second one is asked too when no answer began within 0.5 s.
  A copy of 1% of such requests goes to next at llama, and what it generates is compared.
  Answers name the model as it was asked for: old.""",
            id="windows, hedges, a shadow and names",
        ),
        pytest.param(
            {**SETTINGS["models"]["m"], "routing": "least_outstanding", "auth": "passthrough"},
            """\
  try  deployment  upstream  kind    weight  share
    1  m           llama     openai       1      –
    2  prod        azure     azure        3      –
  The first has the fewest requests under way for its weight; the others are tried when it fails.
  The client's own credential goes upstream.""",
            id="the fewest under way, and the client's credential",
        ),
        pytest.param(
            {**SETTINGS["models"]["m"], "routing": "latency", "context_window": 1000},
            """\
  try  deployment  upstream  kind    weight  share  fits
    1  m           llama     openai       1      –  yes
    2  prod        azure     azure        3      –  yes
  The first is the faster of two that are drawn by weight; the others are tried when it fails.""",
            id="the faster of two, in the model's window",
        ),
    ],
)
def test_the_way_a_request_goes_is_laid_out_for_people(settings: dict[str, Any], expected: str) -> None:
    # 2 bytes, 16 for a prompt and 8 for a request, and a ceiling of 16: 42 tokens
    body = b'{"model": "old", "prompt": "Hi", "temperature": 0}'
    configuration = Configuration.model_validate({**SETTINGS, "models": {"m": settings}})
    lines = list(as_lines(describe(explain(configuration, Question(body, key="key_a")))))
    assert "\n".join(lines[lines.index("route") + 1 :]) == expected


def test_where_nothing_is_to_be_told_that_is_said(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bare = {**SETTINGS, "organization": {}, "projects": [{"id": "proj"}], "keys": SETTINGS["keys"][:1]}
    bare["models"] = {"m": {"deployments": [{"upstream": "llama"}]}}
    Path(files[2]).write_text(json.dumps(bare))
    Path(files[0]).write_text('{"model": "m", "prompt": "Hi"}')
    assert main(["explain", *files]) == 0
    assert capsys.readouterr().out == (
        """\
request      POST /v1/completions
sender       key key_a of user alice, project proj, organization org_default
policies     none
verdict      served
model        m

effective request
  prompt  "Hi"

adjustments  none

worst case
  prompts  candidates  ceiling  input tokens  output tokens  total tokens       usd
        1           1       16            26             16            42  0.000000

limits       none

cache        bypass: not-deterministic; scope organization, policy built-in

route
  try  deployment  upstream  kind    weight  share
    1  m           llama     openai       1   100%
"""
    )


def test_how_limits_stand_is_laid_out_for_people() -> None:
    explained = explain(Configuration.model_validate(SETTINGS), Question(json.dumps(REQUEST).encode(), key="key_a"))
    levels = [Level(spent=5), Level(spent=100, held=200), Level(spent=123_456)]
    rooms = [Room(bound, level, bound.tank) for bound, level in zip(explained.limits, levels, strict=True)]
    lines = list(as_lines(describe(explained, rooms)))
    # One request of five comes back in 12 s; 100 of 1000 tokens in 6 min; 123456 of 500000 micro-dollars in 22.22208 d.
    assert lines[lines.index("limits now") :][:5] == [
        "limits now",
        "  limit                            used      held      left  resets in  fits",
        "  requests-per-minute-by-user         5         0         0      1 min  in 12 s",
        "  tokens-per-hour-by-user           100       200       700      6 min  now",
        "  budget                       0.123456  0.000000  0.376544   22 d 5 h  now",
    ]
    assert "verdict      refused: 429 rate_limit_exceeded" in lines
    assert "             by the limit requests-per-minute-by-user of policy default (project)" in lines


def test_a_limit_that_is_observed_is_marked() -> None:
    observed = [{"of": "tokens", "limit": 30, "per": "hour", "by": ["user"], "mode": "observe"}]
    settings = {**SETTINGS, "policies": {**SETTINGS["policies"], "default": {"limits": observed}}}
    explained = explain(Configuration.model_validate(settings), Question(json.dumps(REQUEST).encode(), key="key_a"))
    rooms = [Room(bound, Level(), bound.tank) for bound in explained.limits]
    lines = list(as_lines(describe(explained, rooms)))
    assert [line for line in lines if "never, observed" in line and "tokens-per-hour-by-user" in line][1:] == [
        "  tokens-per-hour-by-user     0     0    30        0 s  never, observed"
    ]
    assert "verdict      served" in lines


def test_a_rule_that_refuses_is_named_with_its_level(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[0]).write_text('{"model": "m", "best_of": 21}')
    assert main(["explain", *files, "--project", "proj", "--user", "alice"]) == 1
    assert capsys.readouterr().out == (
        """\
request      POST /v1/completions
sender       user alice without a key, project proj, organization org_acme
policies     base (organization), default (project)
verdict      refused: 400 policy_violation
             best_of is 21; policy 'base' allows at most 20.
             by the rule on best_of of policy base (organization)
"""
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["no-cache"], "not looked up: the request says no-cache", id="no look-up"),
        pytest.param(["no-store"], "not stored: the request says no-store", id="no store"),
        pytest.param(["max-age=61"], "nothing older than 1 min 1 s: the request says max-age", id="an age"),
        pytest.param(["only-if-cached"], "never upstream: the request says only-if-cached", id="only"),
    ],
)
def test_the_requests_cache_control_is_told(
    files: list[str], words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *files, "--as", "key_a", "--cache-control", *words]) == 0
    assert f"             {expected}" in capsys.readouterr().out.splitlines()


def test_an_array_is_told_to_be_looked_up_item_by_item(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = tmp_path / "array.json"
    array.write_text('{"model": "m", "prompt": ["a", "b", "a"], "temperature": 0}')
    [_, *configuration] = files
    assert main(["explain", str(array), *configuration, "--as", "key_a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "             its 3 items each under a key of their own (--json names them)" in lines
    assert main(["explain", str(array), *configuration, "--as", "key_a", "--json"]) == 0
    first, second, third = json.loads(capsys.readouterr().out)["cache"]["items"]
    assert (first == third, first == second) == (True, False)


def test_whatever_is_sent_fits_a_terminal_and_does_not_steer_it(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    long, steering = "x" * 5_000, "\x1b[2J\u202e"
    body = {"model": "m", "prompt": [long, "日本" * 500], "n": 9, long: steering, "suffix": steering + " " + long}
    Path(files[0]).write_text(json.dumps(body))
    assert main(["explain", *files, "--as", "key_a", "--path", f"/v1/completions?{steering}{long}"]) == 1
    told = capsys.readouterr().out
    assert [line for line in told.splitlines() if width_of(line) > WIDTH] == []
    assert "\x1b" not in told
    assert "\u202e" not in told


def test_json_holds_the_same(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *files, "--as", "key_a", "--json"]) == 0
    question = Question(json.dumps(REQUEST).encode(), key="key_a")
    expected = describe(explain(Configuration.model_validate(SETTINGS), question))
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))


@pytest.mark.parametrize("number", ["1e-7", "123456789012345678901234567890", "0.1", "-0.0", "1.0"])
def test_numbers_in_json_look_as_they_are_forwarded(
    files: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(files[0]).write_text(f'{{"model": "m", "x": {number}}}')
    assert main(["explain", *files, "--as", "key_a", "--json"]) == 0
    assert f'    "x": {number},\n' in capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["for people", "as JSON"])
def test_no_secret_is_printed(files: list[str], form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--as", KEY], ["--as", KEY + "x"]):
        main(["explain", *files, *words, *form])
        told = "".join(capsys.readouterr())
        assert [secret for secret in (KEY, "hidden", "internal", SETTINGS["keys"][0]["sha256"]) if secret in told] == []


def test_the_request_may_come_from_standard_input(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"model": "m", "max_tokens": 1}')))
    assert main(["explain", "-", *files[1:], "--as", "key_b"]) == 0
    assert "adjustments  none" in capsys.readouterr().out


def test_the_configuration_is_looked_for_where_run_does(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(files[2]).parent)
    assert main(["explain", "request.json", "--as", "key_a"]) == 2
    assert capsys.readouterr().err == (
        "tidegate explain: there is no ./tidegate.yaml; name the configuration with --config FILE\n"
    )
    Path("t.yaml").rename("tidegate.yaml")
    assert main(["explain", "request.json", "--as", "key_a"]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param([], "--as: say which key, or name a project", id="nobody sends it"),
        pytest.param(["--as", "key_c"], "--as: no key has this id, and none is this one; did you mean", id="no key"),
        pytest.param(["--as", "key_a", "--project", "proj"], "--project: names somebody beside the key", id="two"),
        pytest.param(["--project", "prj"], '--project: no project has this id; did you mean "proj"?', id="no project"),
        pytest.param(["--project", "proj", "--user", "al"], "--user: no user has this id; there is al", id="no user"),
        pytest.param(["--user", "alice"], "--user: needs the project that the user is in", id="a user only"),
        pytest.param(["--as", "key_a", "--path", "/v1#x"], "--path: cannot be read; give a path", id="no path"),
        pytest.param(["--as", "key_a", "--path", ""], "--path: cannot be read; give a path", id="an empty path"),
        pytest.param(
            ["--as", "key_a", "--live"], "--live: no gateway runs on data_dir /", id="no gateway that could be asked"
        ),
    ],
)
def test_misuse_is_one_line_and_status_2(
    files: list[str], words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *files, *words]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"tidegate explain: {expected}")
    assert (told.err.count("\n"), told.out) == (1, "")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent.json", "no such file or directory"), (".", "is a directory")],
    ids=["none", "a folder"],
)
def test_a_request_that_is_no_file_is_one_line_and_status_2(
    files: list[str], name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", name, *files[1:], "--as", "key_a"]) == 2
    assert capsys.readouterr().err == (
        f"tidegate explain: {name} cannot be read: {reason}; give a file with a JSON body, or - for standard input\n"
    )


def test_standard_input_that_is_closed_is_one_line_and_status_2(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["explain", "-", *files[1:], "--as", "key_a"]) == 2
    assert capsys.readouterr().err.startswith("tidegate explain: - cannot be read: standard input is closed; give")


def test_a_configuration_that_cannot_be_read_is_status_2(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[2]).write_text('workers: !!int "abc"')
    assert main(["explain", *files]) == 2
    assert capsys.readouterr().err.startswith(f"{files[2]}:1: workers: cannot be read as int")


def test_a_store_that_is_away_is_one_line_and_status_2(files: list[str]) -> None:
    Path(files[2]).write_text(json.dumps({**SETTINGS, "state": "unix:///nowhere/store.sock"}))
    command = [sys.executable, "-m", "proxy", "explain", *files, "--as", "key_a", "--live"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tidegate explain: --live: ")
    assert done.stderr.count("\n") == 1


def test_a_store_whose_address_is_no_use_is_one_line_and_status_2(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path(files[2]).write_text(json.dumps({**SETTINGS, "state": "redis://127.0.0.1:1/0?colour=red"}))
    with patch("proxy.logs.silence"):
        assert main(["explain", *files, "--as", "key_a", "--live"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("tidegate explain: --live: `state`: the address of a store has an option that is not known")
    assert told.count("\n") == 1


def test_a_decision_needs_neither_store_nor_event_loop(files: list[str]) -> None:
    program = (
        "import sys, asyncio, socket\n"
        "def refuse(*_, **__): raise AssertionError('a decision has slipped into the shell')\n"
        "asyncio.new_event_loop = asyncio.run = socket.socket.connect = refuse\n"
        "from proxy.commands import main\n"
        "sys.exit(main(['explain', *sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *files, "--as", "key_a"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
