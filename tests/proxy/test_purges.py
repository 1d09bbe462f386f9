from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from proxy.config import Configuration
from proxy.named_principal import CannotAnswer, UnknownName
from proxy.purges import describe_purge, event_of, order_purge
from proxy.resets import describe_details
from proxy.store.audit import Actor
from proxy.store.purges import Purged, Scope

MODEL: dict[str, Any] = {"deployments": [{"upstream": "u"}]}
CONFIGURATION = Configuration.model_validate(
    {
        "organization": {"id": "org_acme"},
        "upstreams": {"u": {"kind": "openai", "base_url": "http://u"}},
        "models": {"m": {**MODEL, "aliases": ["old", "davinci"]}, "o": MODEL},
        "policies": {"default": {}},
        "projects": [{"id": "proj"}, {"id": "open"}],
        "keys": [
            {"id": "key_a", "project": "proj", "user": "alice", "sha256": sha256(b"sk-alice").hexdigest()},
            {"id": "key_b", "project": "proj", "user": "bob", "sha256": "cd" * 32},
            {"id": "key_c", "project": "open", "user": "bob", "sha256": "ef" * 32},
        ],
    }
)
OPS = Actor("api_key", "ops")
ENTRY = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("named", "scopes"),
    [
        pytest.param({"models": ["m"]}, [("model", "m")], id="a model"),
        pytest.param({"models": ["old", "m", "davinci"]}, [("model", "m")], id="a model by its aliases: once"),
        pytest.param({"projects": ["open"]}, [("project", "open")], id="a project"),
        pytest.param({"keys": ["key_b", "key_a"]}, [("key", "key_b"), ("key", "key_a")], id="two keys"),
        pytest.param({"keys": ["sk-alice"]}, [("key", "key_a")], id="a key by itself, which is told by its id"),
        pytest.param({"entries": [ENTRY.upper()]}, [("entry", ENTRY)], id="an entry, in any case"),
        pytest.param({"everything": True}, [("all", "")], id="everything"),
        pytest.param(
            {"everything": True, "models": ["o"], "projects": ["proj"], "keys": ["key_a"], "entries": [ENTRY]},
            [("all", ""), ("model", "o"), ("project", "proj"), ("key", "key_a"), ("entry", ENTRY)],
            id="all of it",
        ),
    ],
)
def test_what_is_named_is_ordered(named: dict[str, Any], scopes: list[tuple[str, str]]) -> None:
    assert list(order_purge(CONFIGURATION, **named).selection.scopes) == [Scope(*each) for each in scopes]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("named", "kind", "member", "said"),
    [
        pytest.param({}, CannotAnswer, "all", "name models, projects", id="nothing"),
        pytest.param({"models": [], "keys": []}, CannotAnswer, "all", "nothing is named", id="empty lists"),
        pytest.param({"models": ["davnci"]}, UnknownName, "models", 'did you mean "davinci"?', id="a wrong model"),
        pytest.param({"models": ["m", "x y"]}, UnknownName, "models", "there is davinci, m, o", id="one of two"),
        pytest.param({"projects": ["prj"]}, UnknownName, "projects", 'did you mean "proj"?', id="a wrong project"),
        pytest.param({"keys": ["key_d"]}, UnknownName, "keys", 'did you mean "key_', id="a wrong key"),
        pytest.param({"keys": [ENTRY]}, UnknownName, "keys", "say --entry", id="a cache key for an API key"),
        pytest.param({"entries": ["key_a"]}, CannotAnswer, "entries", "say --key", id="an API key for a cache key"),
        pytest.param({"entries": [ENTRY[1:]]}, CannotAnswer, "entries", "64 hexadecimal digits", id="63 digits"),
        pytest.param({"entries": ["g" + ENTRY[1:]]}, CannotAnswer, "entries", "64 hexadecimal", id="other digits"),
        pytest.param({"all": True, "reason": "x" * 1_001}, CannotAnswer, "reason", "at most 1,000", id="a long reason"),
    ],
)
def test_what_cannot_be_ordered(named: dict[str, Any], kind: type[CannotAnswer], member: str, said: str) -> None:
    everything = named.pop("all", False)
    with pytest.raises(CannotAnswer) as caught:
        order_purge(CONFIGURATION, everything=everything, **named)
    assert (type(caught.value), caught.value.member) == (kind, member)
    assert said in caught.value.reason


def test_a_key_that_is_unknown_is_not_repeated() -> None:
    with pytest.raises(UnknownName) as caught:
        order_purge(CONFIGURATION, keys=["sk-mistyped"])
    assert "sk-mistyped" not in str(caught.value)


@pytest.mark.parametrize(
    ("named", "project"),
    [
        pytest.param({"projects": ["proj"]}, "proj", id="a project"),
        pytest.param({"keys": ["key_a", "key_b"]}, "proj", id="keys of one project"),
        pytest.param({"projects": ["open"], "keys": ["key_c"]}, "open", id="a project and a key of it"),
        pytest.param({"keys": ["key_a", "key_c"]}, "", id="keys of two projects"),
        pytest.param({"projects": ["proj"], "models": ["m"]}, "", id="a project, and a model of all projects"),
        pytest.param({"projects": ["proj"], "entries": [ENTRY]}, "", id="a project and an entry of anybody"),
        pytest.param({"everything": True}, "", id="everything"),
    ],
)
def test_the_record_stands_in_the_project_that_all_of_it_belongs_to(named: dict[str, Any], project: str) -> None:
    order = order_purge(CONFIGURATION, **named, reason="new weights")
    event = event_of(order, OPS)
    assert (event.type, event.actor, event.project) == ("cache.purged", OPS, project)


def test_record_and_answer_say_what_was_purged_and_why() -> None:
    order = order_purge(CONFIGURATION, models=["old"], keys=["sk-alice"], reason="new weights")
    expected = {
        "all": False,
        "models": ["m"],
        "projects": [],
        "keys": ["key_a"],
        "entries": [],
        "reason": "new weights",
    }
    assert json.loads(json.dumps(describe_details(event_of(order, OPS)))) == expected
    told = describe_purge(order, Purged(1_700_000_000_123, "audit_log-5-0"))
    assert json.loads(json.dumps(told)) == {**expected, "generation": 1_700_000_000_123, "audit_log": "audit_log-5-0"}
