"""`GET /v1/organization/audit_logs` over a real socket and a real store: pages, filters, and a strict query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from quiet_gateway import QuietGateway, plane

from proxy.admin.audit import PATH
from proxy.config import Configuration
from proxy.metrics import Metrics
from proxy.store.audit import Actor, Event, read_entries
from proxy.store.connection import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stores import StoreServer

    from proxy.store.audit import Entry, Stretch

KEY = "tidegate:{org}:audit"
CONFIGURATION = Configuration.model_validate(
    {"projects": [{"id": "proj", "name": "Project of tests"}, {"id": "other"}], "policies": {}}
)
OPS, ROOT = Actor("api_key", "ops"), Actor("session", "root")
EVENTS = (
    ("5000-0", Event("key.made", OPS, "proj", {"number": 0})),
    ("6000-0", Event("key.made", ROOT, "other", {"number": 1})),
    ("6000-1", Event("key.lost", OPS, "proj", {"number": 2})),
    ("7400-0", Event("key.lost", ROOT, "proj", {"number": 3})),
    ("9000-0", Event("key.made", OPS, "gone", {"number": 4})),
)


@dataclass
class StandIn(QuietGateway):
    """A gateway that reads its audit tail in a store."""

    configuration: Configuration = CONFIGURATION
    url: str = field(default="")

    async def audit_entries(self, stretch: Stretch, *, oldest_first: bool) -> AsyncIterator[Entry]:
        store = Store(self.url, name="state", metrics=Metrics())
        await store.start()
        try:
            async for entry in read_entries(store, KEY, stretch, oldest_first=oldest_first):
                yield entry
        finally:
            await store.close()


@pytest.fixture
def gateway(valkey: StoreServer) -> StandIn:
    with valkey.client() as client:
        for place, event in EVENTS:
            client.xadd(KEY, {"record": msgspec.json.encode(event)}, id=place)
    return StandIn(url=valkey.url)


async def answered(gateway: QuietGateway, query: str = "") -> tuple[int, dict[str, Any]]:
    async with plane(gateway) as session, session.get(f"{PATH}?{query}") as answer:
        return answer.status, await answer.json()


def numbers(told: dict[str, Any]) -> list[int]:
    return [each[each["type"]]["number"] for each in told["data"]]


@pytest.mark.parametrize(
    ("query", "expected", "has_more"),
    [
        pytest.param("", [4, 3, 2, 1, 0], False, id="all, the latest first"),
        pytest.param("limit=2", [4, 3], True, id="a page"),
        pytest.param("limit=2&after=audit_log-7400-0", [2, 1], True, id="the next page"),
        pytest.param("limit=2&after=audit_log-6000-0", [0], False, id="the last page"),
        pytest.param("limit=1&after=audit_log-6000-0", [0], False, id="a page that is the last and full"),
        pytest.param("limit=2&before=audit_log-6000-0", [3, 2], True, id="the page before"),
        pytest.param("limit=2&before=audit_log-6000-1", [4, 3], False, id="the first page, from behind"),
        pytest.param("limit=2&before=audit_log-9000-0", [], False, id="nothing before the first"),
        pytest.param("after=audit_log-9000-0&before=audit_log-6000-0", [3, 2], False, id="between two"),
        pytest.param("after=audit_log-5500-3", [0], False, id="after a record that is no more"),
        pytest.param("event_types[]=key.lost", [3, 2], False, id="of a type"),
        pytest.param("event_types%5B%5D=key.lost&event_types[]=key.made&limit=3", [4, 3, 2], True, id="of two types"),
        pytest.param("event_types[]=login.failed", [], False, id="of a type that there is none of"),
        pytest.param("actor_ids[]=root", [3, 1], False, id="of an actor"),
        pytest.param("project_ids[]=proj&actor_ids[]=ops", [2, 0], False, id="of a project and an actor"),
        pytest.param("event_types[]=key.made&limit=1&after=audit_log-9000-0", [1], True, id="a page of a type"),
        pytest.param("event_types[]=key.made&limit=1&before=audit_log-5000-0", [1], True, id="the page before, of one"),
        pytest.param("effective_at[gte]=6&effective_at[lt]=7", [2, 1], False, id="of a second"),
        pytest.param("effective_at[gt]=5&effective_at[lte]=7", [3, 2, 1], False, id="of seconds: 7.4 s is second 7"),
        pytest.param("effective_at[gt]=5&effective_at[gte]=7", [4, 3], False, id="of the later of two bounds"),
        pytest.param("effective_at[lt]=7&effective_at[lte]=7", [2, 1, 0], False, id="of the earlier of two bounds"),
        pytest.param("effective_at[lt]=0", [], False, id="before all time"),
    ],
)
async def test_pages_and_filters(gateway: StandIn, query: str, expected: list[int], *, has_more: bool) -> None:
    status, told = await answered(gateway, query)
    assert (status, told["object"], numbers(told), told["has_more"]) == (200, "list", expected, has_more)
    ends = [told["data"][0]["id"], told["data"][-1]["id"]] if expected else [None, None]
    assert [told["first_id"], told["last_id"]] == ends


async def test_twenty_are_told_unless_asked_otherwise(gateway: StandIn, valkey: StoreServer) -> None:
    with valkey.client() as client:
        for number in range(100):
            client.xadd(KEY, {"record": msgspec.json.encode(EVENTS[0][1])}, id=f"9000-{number + 1}")
    assert len((await answered(gateway))[1]["data"]) == 20
    assert len((await answered(gateway, "limit=100"))[1]["data"]) == 100


async def test_what_concerns_no_single_project_has_none(gateway: StandIn, valkey: StoreServer) -> None:
    with valkey.client() as client:
        client.xadd(KEY, {"record": msgspec.json.encode(Event("cache.purged", OPS, "", {"all": True}))}, id="9001-0")
    _, told = await answered(gateway, "limit=1")
    assert told["data"][0]["project"] is None
    assert told["data"][0]["cache.purged"] == {"all": True}


async def test_a_record_says_who_did_what_in_which_project_and_when(gateway: StandIn) -> None:
    _, told = await answered(gateway)
    assert told["data"][1] == {
        "id": "audit_log-7400-0",
        "type": "key.lost",
        "effective_at": 7,
        "project": {"id": "proj", "name": "Project of tests"},
        "actor": {"type": "session", "session": {"user": {"id": "root"}}},
        "key.lost": {"number": 3},
    }
    assert told["data"][0]["actor"] == {"type": "api_key", "api_key": {"id": "ops"}}
    assert [each["project"]["name"] for each in told["data"]][::3] == ["gone", "other"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        pytest.param("limit=0", "limit", id="no record"),
        pytest.param("limit=101", "limit", id="too many"),
        pytest.param("limit=-1", "limit", id="less than none"),
        pytest.param("limit=ten", "limit", id="a number in words"),
        pytest.param("limit=", "limit", id="an empty number"),
        pytest.param("limit=1&limit=1", "limit", id="twice"),
        pytest.param("after=7400-0", "after", id="no id"),
        pytest.param("before=", "before", id="an empty id"),
        pytest.param("effective_at[gt]=2026-01-01", "effective_at[gt]", id="a day"),
        pytest.param("effective_at[gt]=1234567890123", "effective_at[gt]", id="milliseconds"),
        pytest.param("effective_at=5", "effective_at", id="an unknown parameter"),
        pytest.param("event_types=key.made", "event_types", id="a list as one value"),
    ],
)
async def test_a_query_that_cannot_be_answered(query: str, param: str) -> None:
    status, told = await answered(QuietGateway(), query)
    assert (status, told["error"]["param"]) == (400, param)


async def test_a_store_that_is_away_is_a_503() -> None:
    assert (await answered(QuietGateway()))[0] == 503
