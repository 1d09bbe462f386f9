"""The path of a request, from the key to the last byte.

Reads like its sentence: receive, identify, decode, decide, admit, upstream, relay, settle, record (DESIGN §1).
Knows no parameter, no store command, no field of an event stream, and no HTTP library.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import random
from typing import TYPE_CHECKING

from policies.decision import decide
from policies.errors import NotStored
from policies.requests.body import decode_body
from policies.requests.dialects import read_request
from policies.requests.media import check_media
from proxy.early_streams import EarlyStream
from proxy.fetching import Answering, Fetch, Follower, Lead
from proxy.heartbeats import kept_alive
from proxy.identify import identify
from proxy.renamed_answers import RenamedAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.decision import Decision
    from policies.principals import Principal
    from policies.requests.asked import AskedRequest, Dialect, Endpoint
    from policies.rulebook import Rulebook
    from proxy.admission import Admissions
    from proxy.config import Configuration
    from proxy.drift import DriftChecks
    from proxy.exchange import Exchange, Request, Writer
    from proxy.hedging import Hedging
    from proxy.relay import RelayBounds
    from proxy.shadow import ShadowTraffic


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One configuration, prepared: an exchange keeps the snapshot it began with; `version` is the configuration's."""

    configuration: Configuration
    version: str
    rulebook: Rulebook
    principals: Mapping[str, Principal]
    hedging: Hedging
    relay_bounds: RelayBounds
    admissions: Admissions
    drift: DriftChecks
    shadow: ShadowTraffic


@dataclass(frozen=True, slots=True)
class Generation:
    """What a route says about a request that generates: its endpoint, dialect, and the path's and query's part."""

    endpoint: Endpoint
    dialect: Dialect
    path_model: str | None = None
    api_version: str | None = None


async def generate(
    request: Request,
    writer: Writer,
    exchange: Exchange,
    *,
    generation: Generation,
    snapshot: Snapshot,
) -> None:
    """Answer one request for completions, chat completions or embeddings. Raises Rejection or GatewayError."""
    exchange.principal = identify(request, snapshot.principals)
    exchange.is_recorded = True
    asked = exchange.asked = await _receive(request, generation, snapshot)
    exchange.model = snapshot.rulebook.find_model(asked.model)
    decision = exchange.decision = decide(
        asked,
        exchange.principal,
        snapshot.rulebook,
        cache_control=", ".join(request.headers("Cache-Control")) or None,
        draw=random(),  # noqa: S311  picks a deployment, guards nothing
    )
    with kept_alive(writer, snapshot.configuration.heartbeat_seconds) as kept:
        is_renamed = decision.model.settings.response_model == "asked"
        edge = RenamedAnswer(kept, asked.model, asked.endpoint) if is_renamed else kept
        await _answer(request, edge, exchange, decision=decision, snapshot=snapshot)


async def _answer(
    request: Request, writer: Writer, exchange: Exchange, *, decision: Decision, snapshot: Snapshot
) -> None:
    """Admit a request, and answer it."""
    async with EarlyStream(writer, exchange, decision.effective) as early, AsyncExitStack() as frame:
        admission = await frame.enter_async_context(snapshot.admissions.admit(decision, exchange, early.comment))
        answering = Answering(decision, exchange, admission, snapshot.hedging, snapshot.relay_bounds, snapshot.shadow)
        stored = admission.cache.answer
        if stored is None:
            await _fetch(request, early, answering, frame)
        else:
            await answering.replay(stored, early)
            snapshot.drift.draw(stored, decision, exchange, request)


async def _fetch(request: Request, writer: Writer, answering: Answering, frame: AsyncExitStack) -> None:
    """Answer with what is fetched: by another request that is under way, for others too, or for this one alone."""
    cache = answering.admission.cache
    if answering.decision.cache.only_if_cached:
        raise NotStored
    while (joined := cache.find_flight()) is not None:
        if await Follower(joined, answering).answer(writer):
            return
        await answering.admission.give_up_joining()
        if cache.answer is not None:
            await answering.replay(cache.answer, writer)
            return
    fetch = Fetch(request, answering)
    flight = cache.begin_flight()
    if flight is None:
        await fetch.into(writer)
    else:
        await Lead(flight, fetch).answer(writer, frame)


async def _receive(request: Request, generation: Generation, snapshot: Snapshot) -> AskedRequest:
    check_media(request.header("Content-Type"))
    return read_request(
        endpoint=generation.endpoint,
        dialect=generation.dialect,
        fields=decode_body(await request.read(), max_depth=snapshot.configuration.bounds.json_depth),
        path_model=generation.path_model,
        api_version=generation.api_version,
    )
