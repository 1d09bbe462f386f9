"""`GET /v1/tidegate/limits` over a real socket: whose limits are told, and a strict query."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession

from policies.room import Room
from policies.windows import Level
from proxy.admin.app import Access, control_plane, serve
from proxy.admin.limits import PATH
from proxy.config import Address, Configuration
from proxy.errors import StoreUnavailable
from proxy.listening import listening, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from policies.limits import BoundLimit

ADMIN_KEY = "admin-key"
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
class StandIn:
    """A gateway of whose limits 60 is spent and 20 held, or whose store is away."""

    is_store_away: bool = False
    configuration: Configuration = CONFIGURATION

    async def metrics_page(self) -> bytes:
        return b""

    def reasons_not_ready(self) -> list[str]:
        return []

    async def rooms(self, limits: Sequence[BoundLimit]) -> Sequence[Room]:
        if self.is_store_away:
            raise StoreUnavailable("The store is away.")
        return [Room(bound, Level(spent=60, held=20), bound.tank) for bound in limits]


@contextlib.asynccontextmanager
async def plane(gateway: StandIn, key: str = ADMIN_KEY) -> AsyncIterator[ClientSession]:
    access = Access((sha256(ADMIN_KEY.encode()).hexdigest(),))
    with listening(Address("127.0.0.1", 0), setting="admin_listen", count=1) as [sock]:
        serving = contextlib.asynccontextmanager(serve)(control_plane(gateway, access), sock)
        async with serving, ClientSession(url_of(sock), headers={"Authorization": f"Bearer {key}"}) as session:
            yield session


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
