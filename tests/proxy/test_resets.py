from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from policies.room import Room
from policies.windows import Level
from proxy.config import Configuration
from proxy.named_principal import CannotAnswer, UnknownName, find_principal
from proxy.resets import describe_details, describe_reset, event_of, order_reset
from proxy.standings import Standings, standings_of
from proxy.store.audit import Actor, Event
from proxy.store.resets import Reset

MODEL: dict[str, Any] = {"deployments": [{"upstream": "u"}], "price": {"input": 1, "output": 2}}
CONFIGURATION = Configuration.model_validate(
    {
        "organization": {"id": "org_acme"},
        "upstreams": {"u": {"kind": "openai", "base_url": "http://u"}},
        "models": {"m": MODEL, "o": MODEL},
        "policies": {
            "default": {
                "limits": [
                    {"of": "tokens", "limit": 100, "per": "hour", "by": ["end_user", "model"], "name": "tokens"},
                    {"of": "usd", "limit": 0.5, "per": "month", "by": ["user"], "name": "budget"},
                ]
            },
            "free": {},
        },
        "projects": [{"id": "proj", "policy": "default"}, {"id": "open", "policy": "free"}],
        "keys": [{"id": "key_a", "project": "proj", "user": "alice", "sha256": "ab" * 32}],
    }
)
OPS = Actor("api_key", "ops")


def standings(project: str | None = None) -> Standings:
    key = None if project else "key_a"
    return standings_of(find_principal(CONFIGURATION, key=key, project=project), CONFIGURATION.rulebook(), "eve")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        pytest.param(None, [("tokens", "m"), ("tokens", "o"), ("budget", "alice")], id="all that bind them"),
        pytest.param(["tokens"], [("tokens", "m"), ("tokens", "o")], id="every count of a limit"),
        pytest.param(["budget", "budget"], [("budget", "alice")], id="one, named twice"),
    ],
)
def test_limits_are_chosen_by_their_names(names: list[str] | None, chosen: list[tuple[str, str]]) -> None:
    order = order_reset(standings(), names, end_user="eve", reason=None)
    assert [(bound.name, bound.scope[-1]) for bound in order.standings.limits] == chosen


@pytest.mark.parametrize(
    ("who", "names", "reason", "kind", "member"),
    [
        pytest.param(None, ["budgt"], None, UnknownName, "limits", id="a limit that there is not"),
        pytest.param(None, ["budget", "budgt"], None, UnknownName, "limits", id="and one that there is"),
        pytest.param("proj", ["budget"], None, UnknownName, "limits", id="a limit of other people"),
        pytest.param("open", None, None, UnknownName, "limits", id="nobody's limits"),
        pytest.param(None, [], None, CannotAnswer, "limits", id="an empty list"),
        pytest.param(None, None, "x" * 1_001, CannotAnswer, "reason", id="a long reason"),
    ],
)
def test_what_cannot_be_ordered(
    who: str | None, names: list[str] | None, reason: str | None, kind: type[CannotAnswer], member: str
) -> None:
    with pytest.raises(CannotAnswer) as caught:
        order_reset(standings(who), names, end_user="eve", reason=reason)
    assert (type(caught.value), caught.value.member) == (kind, member)


def test_the_record_says_who_had_which_limits_of_whom_reset_and_how_much_was_used() -> None:
    order = order_reset(standings(), ["budget"], end_user="eve", reason="billed twice")
    event = event_of(order, OPS)
    assert (event.type, event.actor, event.project) == ("limits.reset", OPS, "proj")
    kept = msgspec.structs.replace(event, before=((120_000, 5_000),))  # micro-dollars
    read = msgspec.json.decode(msgspec.json.encode(kept), type=Event)
    told = describe_details(read)
    assert (told["principal"]["key"], told["end_user"], told["reason"]) == ("key_a", "eve", "billed twice")
    [limit] = told["limits"]
    assert (limit["name"], limit["policy"], limit["whose"]) == ("budget", "default", "user alice")
    assert (limit["used"], limit["held"]) == (0.12, 0.005)


def test_a_record_of_something_else_is_told_as_it_is() -> None:
    assert describe_details(Event("key.made", OPS, "proj", {"id": "key_a"})) == {"id": "key_a"}


def test_a_reset_is_told_with_how_limits_stood_and_stand() -> None:
    order = order_reset(standings(), ["tokens"], end_user="eve", reason=None)
    levels = (Level(40, held=30), Level(), Level(held=30), Level())
    rooms = [Room(bound, level, bound.tank) for bound, level in zip(order.standings.limits * 2, levels, strict=True)]
    told = describe_reset(order, Reset(tuple(rooms[:2]), tuple(rooms[2:]), "audit_log-5-0"))
    assert (told["audit_log"], told["end_user"], told["reason"]) == ("audit_log-5-0", "eve", None)
    first, second = told["limits"]
    # 40 of 100 an hour come back in 1,440 s.
    assert first["before"] == {"used": 40, "held": 30, "left": 30, "reset_seconds": 1_440}
    assert first["after"] == {"used": 0, "held": 30, "left": 70, "reset_seconds": 0}
    assert second["before"] == second["after"] == {"used": 0, "held": 0, "left": 100, "reset_seconds": 0}
    assert (first["models"], second["models"]) == (["m"], ["o"])
    assert json.loads(json.dumps(told)) == told
