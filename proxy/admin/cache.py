"""`/v1/tidegate/cache`: purging cached answers, what stands there for a request, and how the cache does.

Knows the members of questions and orders; what is told is made by `proxy/purges`, `proxy/cached_entries` and
`proxy/cache_report`, the stores are asked by the gateway behind the control plane. How it is warmed is in `warming`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web
from pydantic import Field

from policies.requests.media import check_media
from proxy.admin.answers import json_answer, refusal_of
from proxy.admin.audit import actor_of
from proxy.admin.bodies import Members, leave_it_to_the_reader, read_members
from proxy.admin.explain import AskedRequest, Running, answer_question, read_question
from proxy.cache_report import describe_report
from proxy.cached_entries import describe_entries, plan_of
from proxy.named_principal import CannotAnswer
from proxy.purges import describe_purge, event_of, order_purge
from proxy.server import ServedRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.cacheability import Keyed
    from proxy.cache_report import CacheReport
    from proxy.cached_entries import CachedEntry
    from proxy.config import Configuration
    from proxy.explanation import Explained
    from proxy.purges import Order
    from proxy.store.audit import Event
    from proxy.store.purges import Purged, Scope

PATH: Final = "/v1/tidegate/cache"
PURGE_PATH: Final = f"{PATH}/purge"
ENTRY_PATH: Final = f"{PATH}/entry"
STATUS_PATH: Final = f"{PATH}/status"


class Caching(Running, Protocol):
    """A gateway whose cache can be looked into, and purged."""

    async def purge(self, scopes: Sequence[Scope], event: Event) -> Purged:
        """Purge cached answers, and leave an audit record of the event. Raises StoreUnavailable."""

    async def cached_entries(self, plan: Keyed) -> Sequence[CachedEntry]:
        """Return what stands in the cache under the keys of a request, in their order. Raises StoreUnavailable."""

    async def cache_report(self) -> CacheReport:
        """Return the state of the cache as far as the stores have it. Raises StoreUnavailable."""

    async def metrics_page(self) -> bytes:
        """Return the metrics of all processes, added up, in Prometheus' text format."""


class AskedEntry(AskedRequest):
    """Which request is meant."""

    body: bool | None = None
    """true or false: whether to tell the stored body itself"""


class AskedPurge(Members):
    """What is to be purged."""

    everything: bool | None = Field(default=None, alias="all")
    """true or false: whether every answer is meant"""
    models: list[str] | None = None
    """an array of strings: names of models whose answers are meant"""
    projects: list[str] | None = None
    """an array of strings: ids of projects that paid for the answers that are meant"""
    keys: list[str] | None = None
    """an array of strings: ids of API keys whose requests paid for the answers that are meant"""
    entries: list[str] | None = None
    """an array of strings: cache keys of the answers that are meant"""
    reason: str | None = None
    """a string: why, for the audit record"""


def purge_route(gateway: Caching) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        order = await asyncio.to_thread(_order, gateway.configuration, await _body(request, gateway.configuration))
        done = await gateway.purge(order.selection.scopes, event_of(order, actor_of(request)))
        return json_answer(describe_purge(order, done))

    return web.post(PURGE_PATH, answer, expect_handler=leave_it_to_the_reader)


def entry_route(gateway: Caching) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        configuration = gateway.configuration
        asked, explained = await asyncio.to_thread(_explain, configuration, await _body(request, configuration))
        plan = plan_of(explained)
        entries = () if plan is None else await gateway.cached_entries(plan)
        with_body = bool(asked.body)
        return await asyncio.to_thread(lambda: json_answer(describe_entries(explained, entries, with_body=with_body)))

    return web.post(ENTRY_PATH, answer, expect_handler=leave_it_to_the_reader)


def status_route(gateway: Caching) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        report, page = await asyncio.gather(gateway.cache_report(), gateway.metrics_page())
        return json_answer(describe_report(report, page))

    return web.get(STATUS_PATH, answer, allow_head=False)


async def _body(request: web.Request, configuration: Configuration) -> bytes:
    check_media(request.headers.get("Content-Type"))
    return await ServedRequest(request, configuration.bounds).read()


def _explain(configuration: Configuration, raw: bytes) -> tuple[AskedEntry, Explained]:
    asked = read_question(AskedEntry, raw, configuration)
    return asked, answer_question(asked, configuration)


def _order(configuration: Configuration, raw: bytes) -> Order:
    asked = read_members(AskedPurge, raw, noun="The purge", max_depth=configuration.bounds.json_depth)
    try:
        return order_purge(
            configuration,
            everything=bool(asked.everything),
            models=asked.models or (),
            projects=asked.projects or (),
            keys=asked.keys or (),
            entries=asked.entries or (),
            reason=asked.reason,
        )
    except CannotAnswer as error:
        raise refusal_of(error, error.member) from None
