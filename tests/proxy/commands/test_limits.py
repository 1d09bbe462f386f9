"""`tidegate limits`: the layout for people, JSON, misuse, and the exit status."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from policies.room import Room
from policies.windows import Level
from proxy.commands import main
from proxy.commands.table import WIDTH, width_of
from proxy.errors import StoreUnavailable
from proxy.store.audit import Actor
from proxy.store.resets import Reset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policies.limits import BoundLimit
    from proxy.config import Configuration
    from proxy.store.audit import Event

KEY = "sk-alice-and-nobody-else"
SETTINGS: dict[str, Any] = {
    "organization": {"id": "org_acme"},
    "upstreams": {"llama": {"kind": "openai", "base_url": "http://llama.internal/v1"}},
    "models": {"m": {"deployments": [{"upstream": "llama"}], "aliases": ["old"], "price": {"input": 1, "output": 2}}},
    "policies": {
        "default": {
            "limits": [
                {"of": "requests", "limit": 60, "per": "minute", "by": ["user"]},
                {"of": "tokens", "limit": 1000, "per": "hour", "by": ["key", "model"], "mode": "observe"},
                {"of": "usd", "limit": 0.5, "per": "90d", "by": ["project"], "name": "budget"},
            ]
        },
        "free": {},
    },
    "projects": [{"id": "proj", "policy": "default"}, {"id": "open", "policy": "free"}],
    "keys": [
        {"id": "key_a", "project": "proj", "user": "alice", "sha256": "ab" * 32},
        {"id": "key_b", "project": "proj", "service_account": "batch", "sha256": "cd" * 32},
    ],
}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Return the words of a command that names a configuration."""
    (tmp_path / "t.yaml").write_text(json.dumps({**SETTINGS, "data_dir": str(tmp_path / "data")}))
    return ["limits", "--config", str(tmp_path / "t.yaml")]


@pytest.fixture
def live() -> Iterator[None]:
    """Have the store say of every limit that 30 are spent and 20 held."""

    async def look(_: Configuration, limits: Sequence[BoundLimit]) -> Sequence[Room]:
        return [Room(bound, Level(spent=30, held=20), bound.tank) for bound in limits]

    with patch("proxy.commands.live.look_live", look):
        yield


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """Have the store reset limits of which 30 are spent and 20 held, and return what it was told of that."""
    told: list[Event] = []

    async def reset(_: Configuration, limits: Sequence[BoundLimit], event: Event) -> Reset:
        told.append(event)
        before, after = (tuple(Room(bound, Level(n, held=20), bound.tank) for bound in limits) for n in (30, 0))
        return Reset(before, after, "audit_log-5-0")

    with patch("proxy.commands.live.reset_live", reset):
        yield told


@pytest.mark.usefixtures("live")
def test_limits_are_laid_out_for_people(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--as", "key_a"]) == 0
    # 30 requests come back in 30 s, 30 tokens in 108 s; a budget in 90 d: 30 of 500,000 micro-dollars in 467 s.
    assert capsys.readouterr().out == (
        """\
whose        key key_a of user alice, project proj, organization org_acme
models       m, old

limits
  limit                         quota                                models  policy   level
  requests-per-minute-by-user   60 requests per minute               m       default  project
  tokens-per-hour-by-key-model  1000 tokens per hour, observed only  m       default  project
  budget                        0.5 USD per 90d                      m       default  project

limits now
  limit                         for                        used      held      left  resets in
  requests-per-minute-by-user   user alice                   30        20        10  30 s
  tokens-per-hour-by-key-model  key key_a and model m        30        20       950  1 min 48 s
  budget                        project proj           0.000030  0.000020  0.499950  7 min 47 s
"""
    )


@pytest.mark.usefixtures("live")
def test_json_is_what_the_gateway_tells(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--project", "proj", "--user", "alice", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["principal", "models", "limits"]
    assert [each["name"] for each in told["limits"]] == ["requests-per-minute-by-user", "budget"]
    assert [told["limits"][1][name] for name in ("used", "held", "left")] == [0.00003, 0.00002, 0.49995]


@pytest.mark.usefixtures("live")
def test_who_has_no_limits_is_told_so(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--project", "open"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["", "limits       none"]


LONG_NAMES = [{"of": "tokens", "limit": 9, "per": "hour", "by": ["user"], "name": name * 60} for name in "abc"]


@pytest.mark.usefixtures("live")
def test_nothing_is_wider_than_a_terminal(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(words[-1])
    policies = {**SETTINGS["policies"], "default": {"limits": LONG_NAMES}}
    path.write_text(json.dumps({**SETTINGS, "policies": policies}))
    assert main([*words, "--as", "key_a"]) == 0
    assert max(map(width_of, capsys.readouterr().out.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param([], "--as: say which key, or name a project", id="nobody"),
        pytest.param(["--as", "key_c"], "--as: no key has this id, and none is this one; did you mean", id="no key"),
        pytest.param(["--as", "key_a", "--project", "proj"], "--project: names somebody beside the key", id="two"),
        pytest.param(["--project", "prj"], '--project: no project has this id; did you mean "proj"?', id="no project"),
        pytest.param(["--user", "alice"], "--user: needs the project that the user is in", id="a user only"),
        pytest.param(["--as", "key_a"], "no gateway runs on data_dir /", id="no gateway that could be asked"),
    ],
)
def test_misuse_is_one_line_and_status_2(
    words: list[str], more: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *more]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"tidegate limits: {expected}")
    assert (told.err.count("\n"), told.out) == (1, "")


def test_a_store_that_is_away_is_one_line_and_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with patch("proxy.commands.live.look_live", side_effect=StoreUnavailable("the store\nis away")):
        assert main([*words, "--as", "key_a"]) == 2
    assert capsys.readouterr().err == "tidegate limits: the store\\nis away\n"


def test_without_a_configuration_one_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["limits", "--as", "key_a"]) == 2
    assert capsys.readouterr().err.startswith("tidegate limits: there is no ./tidegate.yaml; name the configuration")


def test_an_end_user_who_is_no_text_is_one_line_and_status_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--as", "key_a", "--end-user", "\udcff"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("tidegate limits: argument --end-user: it must be text in UTF-8; see tidegate limits --help")
    assert told.count("\n") == 1


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["limits", "--help"])
    assert ended.value.code == 0
    assert "tidegate limits --project proj_research --user alice --json" in capsys.readouterr().out


def test_a_reset_says_what_was_reset(words: list[str], events: list[Event], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "reset", "--as", "key_a", "--reason", "billed twice"]) == 0
    assert capsys.readouterr().out == (
        """\
whose        key key_a of user alice, project proj, organization org_acme
reason       billed twice
audit log    audit_log-5-0

reset
  limit                         for                    used before      used      held      left
  requests-per-minute-by-user   user alice                      30         0        20        40
  tokens-per-hour-by-key-model  key key_a and model m           30         0        20       980
  budget                        project proj              0.000030  0.000000  0.000020  0.499980
"""
    )
    [event] = events
    assert (event.type, event.actor) == ("limits.reset", Actor("session", pwd.getpwuid(os.getuid()).pw_name))
    assert (event.project, event.details["reason"]) == ("proj", "billed twice")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(["--as", "key_a", "--json"], [], id="before the verb"),
        pytest.param([], ["--as", "key_a", "--json"], id="after it"),
        pytest.param(["--as", "key_b"], ["--as", "key_a", "--json"], id="on both sides, of which the last one counts"),
    ],
)
def test_whose_limits_may_be_said_on_either_side_of_the_verb(
    words: list[str], before: list[str], after: list[str], events: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["--limit", "budget", "--limit", "requests-per-minute-by-user"]
    assert main([*words, *before, "reset", *after, *names, "--end-user", "eve"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["principal"]["key"], told["audit_log"], told["end_user"]) == ("key_a", "audit_log-5-0", "eve")
    assert [each["name"] for each in told["limits"]] == ["requests-per-minute-by-user", "budget"]
    assert [each["after"]["left"] for each in told["limits"]] == [40, 0.49998]
    assert len(events) == 1


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param([], "--as: say which key, or name a project", id="nobody"),
        pytest.param(
            ["--as", "key_a", "--limit", "budgt"], "--limit: no limit of this name binds them; did", id="none"
        ),
        pytest.param(["--project", "open"], "--limit: no limit binds them: there is nothing to reset", id="no limits"),
        pytest.param(["--as", "key_a", "--reason", "x" * 1_001], "--reason: must be at most 1,000", id="a long reason"),
        pytest.param(["--as", "key_a"], "no gateway runs on data_dir /", id="no gateway that could be asked"),
    ],
)
def test_misuse_of_the_verb_is_one_line_and_status_2(
    words: list[str], more: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "reset", *more]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"tidegate limits reset: {expected}")
    assert (told.err.count("\n"), told.out) == (1, "")


def test_who_has_no_name_is_recorded_by_number(words: list[str], events: list[Event]) -> None:
    with patch("pwd.getpwuid", side_effect=KeyError):
        assert main([*words, "reset", "--as", "key_a"]) == 0
    assert events[0].actor == Actor("session", str(os.getuid()))


def test_the_verb_s_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["limits", "reset", "--help"])
    assert ended.value.code == 0
    assert 'tidegate limits reset --as key_alice --reason "billed twice"' in capsys.readouterr().out
