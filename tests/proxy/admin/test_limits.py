"""`/v1/tidegate/limits` over a real socket: whose limits are told and reset, a strict query and a strict body."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from quiet_gateway import QuietGateway, plane

from policies.room import Room
from policies.windows import Level
from proxy.admin.limits import PATH, RESET_PATH
from proxy.config import Configuration
from proxy.store.audit import Actor
from proxy.store.resets import Reset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.limits import BoundLimit
    from proxy.store.audit import Event

CONFIGURATION = Configuration.model_validate(
    {
        "upstreams": {"u": {"kind": "openai", "base_url": "http://u"}},
        "models": {"m": {"deployments": [{"upstream": "u"}]}},
        "policies": {
            "default": {
                "limits": [
                    {"of": "tokens", "limit": 100, "per": "minute", "by": [level], "name": level}
                    for level in ("project", "user", "key", "end_user")
                ]
            }
        },
        "projects": [{"id": "proj", "policy": "default"}],
        "keys": [
            {"id": "key_a", "project": "proj", "user": "alice", "sha256": sha256(b"sk-alice").hexdigest()},
            {"id": "key_b", "project": "proj", "user": "bob", "sha256": "cd" * 32},
        ],
    }
)


@dataclass
class StandIn(QuietGateway):
    """A gateway of whose limits 60 is spent and 20 held, or whose store is away."""

    is_store_away: bool = False
    configuration: Configuration = CONFIGURATION
    events: list[Event] = field(default_factory=list)

    async def rooms(self, limits: Sequence[BoundLimit]) -> Sequence[Room]:
        if self.is_store_away:
            return await super().rooms(limits)
        return rooms(limits, Level(spent=60, held=20))

    async def reset(self, limits: Sequence[BoundLimit], event: Event) -> Reset:
        if self.is_store_away:
            return await super().reset(limits, event)
        self.events.append(event)
        before, after = Level(spent=60, held=20), Level(held=20)
        return Reset(rooms(limits, before), rooms(limits, after), "audit_log-5-0")


def rooms(limits: Sequence[BoundLimit], level: Level) -> tuple[Room, ...]:
    return tuple(Room(bound, level, bound.tank) for bound in limits)


async def answered(query: str, gateway: StandIn | None = None) -> tuple[int, dict[str, Any]]:
    async with plane(gateway or StandIn()) as session, session.get(f"{PATH}?{query}") as answer:
        return answer.status, json.loads(await answer.read())


@pytest.mark.parametrize(
    ("query", "scopes"),
    [
        pytest.param("project=proj", {"project": "proj", "end_user": ""}, id="what binds everybody in a project"),
        pytest.param(
            "project=proj&user=bob&end_user=eve",
            {"project": "proj", "user": "bob", "end_user": "eve"},
            id="and a user, with an end user",
        ),
        pytest.param(
            "key=key_a", {"project": "proj", "user": "alice", "key": "key_a", "end_user": ""}, id="and a key's owner"
        ),
    ],
)
async def test_every_limit_that_binds_somebody_is_told(query: str, scopes: dict[str, str]) -> None:
    status, told = await answered(query)
    assert (status, told["models"]) == (200, ["m"])
    assert {each["name"]: each["scope"][each["name"]] for each in told["limits"]} == scopes
    # 60 come back in a minute of which each second gives 100/60: 60 in 36 s.
    for each in told["limits"]:
        assert [each[name] for name in ("used", "held", "left", "reset_seconds")] == [60, 20, 20, 36]


@pytest.mark.parametrize(
    ("query", "status", "param", "said"),
    [
        pytest.param("", 400, "project", "Say whose limits", id="nobody"),
        pytest.param("end_user=eve", 400, "project", "Say whose limits", id="an end user alone"),
        pytest.param("user=alice", 400, "project", "Say whose limits", id="a user of no project"),
        pytest.param("key=key_a&project=proj", 400, "project", "one of both", id="a key and a project"),
        pytest.param("key=key_a&user=alice", 400, "user", "needs the project", id="a key and a user"),
        pytest.param("project=proj&project=proj", 400, "project", "more than once", id="twice"),
        pytest.param("key=key_a&end_user=%ff", 400, "end_user", "text in UTF-8", id="an end user that is no text"),
        pytest.param("projekt=proj", 400, "projekt", 'did you mean "project"?', id="an unknown parameter"),
        pytest.param("project=prj", 404, "project", 'did you mean "proj"?', id="an unknown project"),
        pytest.param("project=", 404, "project", "no project has this id", id="an empty project"),
        pytest.param("project=proj&user=alise", 404, "user", 'did you mean "alice"?', id="an unknown user"),
        pytest.param("key=key_c", 404, "key", 'did you mean "key_', id="an unknown key"),
    ],
)
async def test_a_question_that_has_no_answer(query: str, status: int, param: str, said: str) -> None:
    found, told = await answered(query)
    assert (found, told["error"]["param"]) == (status, param)
    assert said in told["error"]["message"]


async def test_a_key_that_is_unknown_is_not_repeated() -> None:
    _, told = await answered("key=sk-mistyped")
    assert "sk-mistyped" not in json.dumps(told)


async def test_a_store_that_is_away_is_a_503_that_says_when_to_ask_again() -> None:
    async with plane(StandIn(is_store_away=True)) as session, session.get(f"{PATH}?project=proj") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


async def test_an_admin_key_is_needed() -> None:
    async with plane(StandIn(), key="sk-alice") as session, session.get(f"{PATH}?project=proj") as answer:
        assert answer.status == 401


async def test_other_methods_are_not_taken_and_no_cache_keeps_the_answer() -> None:
    async with plane(StandIn()) as session:
        async with session.post(PATH) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET")
        async with session.get(f"{PATH}?project=proj") as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["x-request-id"].startswith("req_")


async def ordered(body: object, gateway: StandIn | None = None) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with plane(gateway or StandIn()) as session, session.post(RESET_PATH, data=raw) as answer:
        return answer.status, json.loads(await answer.read())


@pytest.mark.parametrize(
    ("body", "names"),
    [
        pytest.param({"key": "key_a"}, ["project", "user", "key", "end_user"], id="all that bind a key"),
        pytest.param({"key": "key_a", "limits": ["key"]}, ["key"], id="one of them"),
        pytest.param(
            {"project": "proj", "user": "bob", "limits": ["user", "project"]}, ["project", "user"], id="two of a user"
        ),
        pytest.param(
            {"project": "proj", "end_user": "eve", "limits": None}, ["project", "end_user"], id="those of an end user"
        ),
    ],
)
async def test_limits_are_reset_and_told_as_they_were_and_are(body: dict[str, Any], names: list[str]) -> None:
    gateway = StandIn()
    status, told = await ordered({**body, "reason": "a test"}, gateway)
    assert (status, told["audit_log"], told["reason"]) == (200, "audit_log-5-0", "a test")
    assert [each["name"] for each in told["limits"]] == names
    for each in told["limits"]:
        # 60 of 100 a minute have come back in 36 s; 20 are held.
        assert each["before"] == {"used": 60, "held": 20, "left": 20, "reset_seconds": 36}
        assert each["after"] == {"used": 0, "held": 20, "left": 80, "reset_seconds": 0}
    [event] = gateway.events
    assert (event.type, event.actor, event.project) == ("limits.reset", Actor("api_key", "ops"), "proj")
    assert event.details["end_user"] == body.get("end_user")
    assert [each["name"] for each in event.details["limits"]] == names


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        pytest.param({}, 400, "project", "Say whose limits", id="nobody"),
        pytest.param({"end_user": "eve", "user": "bob"}, 400, "project", "Say whose limits", id="nobody's user"),
        pytest.param({"key": "key_a", "project": "proj"}, 400, "project", "one of both", id="a key and a project"),
        pytest.param({"key": 5}, 400, "key", "key must be a string: the id", id="a key of another type"),
        pytest.param({"key": "key_a", "limits": "user"}, 400, "limits", "must be an array", id="limits in one string"),
        pytest.param({"key": "key_a", "limits": [1]}, 400, "limits", "must be an array", id="a limit that is no name"),
        pytest.param({"key": "key_a", "limits": []}, 400, "limits", "names none", id="none of the limits"),
        pytest.param({"key": "key_a", "reason": "x" * 1_001}, 400, "reason", "at most 1,000", id="a long reason"),
        pytest.param({"kee": "key_a"}, 400, "kee", 'did you mean "key"?', id="an unknown member"),
        pytest.param(b"[]", 400, None, "object", id="no object"),
        pytest.param({"key": "key_c"}, 404, "key", 'did you mean "key_', id="an unknown key"),
        pytest.param({"project": "prj"}, 404, "project", 'did you mean "proj"?', id="an unknown project"),
        pytest.param({"key": "key_a", "limits": ["usr"]}, 404, "limits", 'did you mean "user"?', id="an unknown limit"),
        pytest.param({"project": "proj", "limits": ["user"]}, 404, "limits", "no limit of this name", id="of nobody"),
    ],
)
async def test_what_cannot_be_reset_is_said_and_nothing_is(
    body: object, status: int, param: str | None, said: str
) -> None:
    gateway = StandIn()
    found, told = await ordered(body, gateway)
    assert (found, told["error"]["param"], gateway.events) == (status, param, [])
    assert said in told["error"]["message"]


async def test_a_reset_while_the_store_is_away_is_a_503() -> None:
    assert (await ordered({"key": "key_a"}, StandIn(is_store_away=True)))[0] == 503


async def test_a_reset_is_posted_as_json() -> None:
    async with plane(StandIn()) as session:
        async with session.get(RESET_PATH) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        async with session.post(RESET_PATH, data=b"key=key_a", headers={"Content-Type": "text/plain"}) as answer:
            assert answer.status == 415
