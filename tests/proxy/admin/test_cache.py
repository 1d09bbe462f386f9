"""`/v1/tidegate/cache` over a real socket: purges, what stands there for a request, and how it does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from quiet_gateway import QuietGateway, plane

from policies.freshness import Fit
from proxy.admin.cache import ENTRY_PATH, PURGE_PATH, STATUS_PATH
from proxy.cache_report import CacheReport
from proxy.cached_entries import CachedEntry, describe_entries
from proxy.config import Configuration
from proxy.explanation import Question, explain
from proxy.metrics import Metrics, render
from proxy.store.audit import Actor
from proxy.store.cache_state import Copy
from proxy.store.entries import StoredAnswer
from proxy.store.occupancy import Occupancy
from proxy.store.purges import Purged, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.cacheability import Keyed
    from proxy.store.audit import Event

CONFIGURATION = Configuration.model_validate(
    {
        "upstreams": {"u": {"kind": "openai", "base_url": "http://u"}},
        "models": {"m": {"deployments": [{"upstream": "u"}], "aliases": ["old"]}},
        "projects": [{"id": "proj"}],
        "keys": [
            {"id": "key_a", "project": "proj", "user": "alice", "sha256": sha256(b"sk-alice").hexdigest()},
            {"id": "key_b", "project": "proj", "user": "bob", "sha256": "cd" * 32},
        ],
        "bounds": {"json_depth": 6},
    }
)
ENTRY = "0123456789abcdef" * 4
REQUEST = {"model": "m", "prompt": "Hi", "temperature": 0}
ANSWER = StoredAnswer(is_stream=False, content_type="application/json", body=b"{}", created_milliseconds=0)


@dataclass
class StandIn(QuietGateway):
    """A gateway that has an answer to every request, or whose store is away."""

    is_store_away: bool = False
    configuration: Configuration = CONFIGURATION
    purges: list[tuple[Sequence[Scope], Event]] = field(default_factory=list)

    async def purge(self, scopes: Sequence[Scope], event: Event) -> Purged:
        if self.is_store_away:
            return await super().purge(scopes, event)
        self.purges.append((scopes, event))
        return Purged(1_700_000_000_123, "audit_log-5-0")

    async def cached_entries(self, plan: Keyed) -> Sequence[CachedEntry]:
        if self.is_store_away:
            return await super().cached_entries(plan)
        return entries_of(plan)

    async def cache_report(self) -> CacheReport:
        if self.is_store_away:
            return await super().cache_report()
        return CacheReport(
            Copy.read((b"epoch", b"7", b"purged:model:m", b"5")), (), Occupancy(3, 9, 0), is_shared=False
        )

    async def metrics_page(self) -> bytes:
        metrics = Metrics()
        metrics.cache_stores_total.inc(5)
        return render(metrics.snapshot())


def entries_of(plan: Keyed) -> list[CachedEntry]:
    return [CachedEntry(key, 99, ANSWER, Fit.GOOD) for key in plan.items or (plan.key,)]


async def posted(path: str, body: object, gateway: StandIn | None = None) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with plane(gateway or StandIn()) as session, session.post(path, data=raw) as answer:
        return answer.status, json.loads(await answer.read())


@pytest.mark.parametrize(
    ("body", "scopes", "project"),
    [
        pytest.param({"models": ["old"]}, [("model", "m")], "", id="a model by its alias"),
        pytest.param({"projects": ["proj"], "all": None}, [("project", "proj")], "proj", id="a project"),
        pytest.param({"keys": ["key_a", "key_b"]}, [("key", "key_a"), ("key", "key_b")], "proj", id="two keys"),
        pytest.param({"entries": [ENTRY]}, [("entry", ENTRY)], "", id="an entry"),
        pytest.param({"all": True, "models": ["m"]}, [("all", ""), ("model", "m")], "", id="everything"),
    ],
)
async def test_what_is_named_is_purged_by_the_admin_key_s_holder(
    body: dict[str, Any], scopes: list[tuple[str, str]], project: str
) -> None:
    gateway = StandIn()
    status, told = await posted(PURGE_PATH, {**body, "reason": "a test"}, gateway)
    assert (status, told["generation"], told["audit_log"]) == (200, 1_700_000_000_123, "audit_log-5-0")
    [(purged, event)] = gateway.purges
    assert [tuple(scope) for scope in purged] == scopes
    assert (event.type, event.actor, event.project) == ("cache.purged", Actor("api_key", "ops"), project)
    assert (event.details["reason"], told["reason"]) == ("a test", "a test")


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        pytest.param({}, 400, "all", "nothing is named that is to be purged; name models", id="nothing"),
        pytest.param({"models": [], "all": False}, 400, "all", "nothing is named", id="nothing, at length"),
        pytest.param({"models": "m"}, 400, "models", "must be an array of strings", id="a model in a string"),
        pytest.param({"all": 1}, 400, "all", "all must be true or false", id="a number for true"),
        pytest.param({"model": ["m"]}, 400, "model", 'did you mean "models"?', id="an unknown member"),
        pytest.param({"everything": True}, 400, "everything", "unknown member", id="a name that is only ours"),
        pytest.param({"entries": ["key_a"]}, 400, "entries", "must be a cache key", id="an API key for an entry"),
        pytest.param({"all": True, "reason": "x" * 1_001}, 400, "reason", "at most 1,000", id="a long reason"),
        pytest.param(b"[]", 400, None, "object", id="no object"),
        pytest.param({"models": ["n"]}, 404, "models", "no model has this name", id="an unknown model"),
        pytest.param({"projects": ["prj"]}, 404, "projects", 'did you mean "proj"?', id="an unknown project"),
        pytest.param({"keys": ["key_c"]}, 404, "keys", 'did you mean "key_', id="an unknown key"),
    ],
)
async def test_what_cannot_be_purged_is_said_and_nothing_is(
    body: object, status: int, param: str | None, said: str
) -> None:
    gateway = StandIn()
    found, told = await posted(PURGE_PATH, body, gateway)
    assert (found, told["error"]["param"], gateway.purges) == (status, param, [])
    assert said in told["error"]["message"]


@pytest.mark.parametrize("more", [{"as": "key_a"}, {"project": "proj", "body": True, "cache_control": "no-cache"}])
async def test_an_entry_is_told_as_the_command_tells_it(more: dict[str, Any]) -> None:
    status, told = await posted(ENTRY_PATH, {"request": REQUEST, **more})
    question = Question(
        json.dumps(REQUEST).encode(),
        key=more.get("as"),
        project=more.get("project"),
        cache_control=more.get("cache_control"),
    )
    one = explain(CONFIGURATION, question)
    expected = describe_entries(one, entries_of(one.outcome.cache), with_body="body" in more)  # type: ignore[union-attr,arg-type]
    assert (status, told) == (200, expected)
    assert ("body" in told["entries"][0]) is ("body" in more)


async def test_a_request_that_is_not_cacheable_asks_no_store() -> None:
    status, told = await posted(
        ENTRY_PATH, {"request": {**REQUEST, "temperature": 1}, "as": "key_a"}, StandIn(is_store_away=True)
    )
    assert (status, told["verdict"], told["reason"]) == (200, "bypass", "not-deterministic")


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        pytest.param({}, "request", "request is missing", id="no request"),
        pytest.param({"request": REQUEST}, "as", "say which key, or name a project", id="nobody"),
        pytest.param({"request": REQUEST, "as": "key_c"}, "as", "no key has this id", id="an unknown key"),
        pytest.param({"request": REQUEST, "as": "key_a", "live": True}, "live", "unknown member", id="explain's own"),
        pytest.param(
            {"request": REQUEST, "as": "key_a", "body": "yes"}, "body", "must be true or false", id="no truth"
        ),
        pytest.param({"request": REQUEST, "as": "key_a", "path": "x"}, "path", "cannot be read", id="no path"),
    ],
)
async def test_a_question_that_has_no_answer(body: object, param: str, said: str) -> None:
    status, told = await posted(ENTRY_PATH, body)
    assert (status, told["error"]["param"]) == (400, param)
    assert said in told["error"]["message"]


async def test_a_question_may_be_one_level_deeper_than_a_request() -> None:
    deep = {**REQUEST, "x": [[[[[0]]]]]}
    assert (await posted(ENTRY_PATH, {"request": deep, "as": "key_a"}))[1]["verdict"] == "hit"


async def test_status_tells_what_stores_and_workers_know() -> None:
    async with plane(StandIn()) as session, session.get(STATUS_PATH) as answer:
        told = json.loads(await answer.read())
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
    assert told["purges"] == [{"kind": "model", "name": "m", "generation": 5}]
    assert (told["generation"], told["store"]["entries"], told["workers"]["stored"]) == (7, 3, 5)


async def test_stores_that_are_away_are_a_503() -> None:
    away = StandIn(is_store_away=True)
    assert (await posted(PURGE_PATH, {"all": True}, away))[0] == 503
    assert (await posted(ENTRY_PATH, {"request": REQUEST, "as": "key_a"}, away))[0] == 503
    async with plane(away) as session, session.get(STATUS_PATH) as answer:
        assert answer.status == 503


@pytest.mark.parametrize("path", [PURGE_PATH, ENTRY_PATH, STATUS_PATH])
async def test_an_admin_key_is_needed_and_the_method_is_right(path: str) -> None:
    method, other = ("GET", "POST") if path == STATUS_PATH else ("POST", "GET")
    async with plane(StandIn(), key="sk-alice") as session, session.request(method, path) as answer:
        assert answer.status == 401
    async with plane(StandIn()) as session, session.request(other, path) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, method)


async def test_orders_are_posted_as_json() -> None:
    async with (
        plane(StandIn()) as session,
        session.post(PURGE_PATH, data=b"all=true", headers={"Content-Type": "text/plain"}) as answer,
    ):
        assert answer.status == 415
