"""Admissions on a real store, and requests for them, without a server in front: the way to test limits closely.

Requests are decided by the real core from a policy that the test writes; what an upstream would have done is told by
`served`.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from policies.catalog import ModelSettings
from policies.decision import Decision, decide
from policies.policy import Policy
from policies.principals import AppliedPolicy, Principal
from policies.requests.asked import Dialect, Endpoint
from policies.requests.dialects import read_request
from policies.rulebook import Rulebook
from proxy.admission import Admissions
from proxy.answer_cache import AnswerCache
from proxy.exchange import Exchange, Outcome
from proxy.flights import Flights
from proxy.memory_level import MemoryLevel
from proxy.metrics import Metrics
from proxy.spool import Spool
from proxy.store.cache_state import CacheState
from proxy.store.connection import Store
from proxy.store.keys import Keys
from proxy.store.reservations import Reservations, probe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    import redis

    from policies.usage import Usage

ORGANIZATION = "org_acme"
KEYS = Keys(ORGANIZATION)
MEMORY_BYTES = 1024 * 1024
WINDOW_SECONDS = 600.0
_numbers = count()


@dataclass
class Worker:
    """One worker's admissions and what it stands on."""

    admissions: Admissions
    state: Store
    answers: Store
    spool: Spool
    metrics: Metrics


@asynccontextmanager
async def worker(
    state_url: str,
    directory: Path,
    *,
    cache_url: str | None = None,
    workers: int = 1,
    lease_seconds: float = 30.0,
    timeout_seconds: float = 0.25,
) -> AsyncIterator[Worker]:
    """Open admissions as a worker does."""
    metrics = Metrics()
    state = Store(state_url, name="state", metrics=metrics, timeout_seconds=timeout_seconds, probe=probe(KEYS))
    answers = Store(cache_url or state_url, name="cache_state", metrics=metrics, timeout_seconds=timeout_seconds)
    await state.start()
    await answers.start()
    spool = Spool(directory, 0)
    reservations = Reservations(state, KEYS, ZoneInfo("Europe/Berlin"), lease_seconds=lease_seconds)
    known = CacheState(state, ORGANIZATION, window_seconds=WINDOW_SECONDS)
    cache = AnswerCache(answers, known, MemoryLevel(MEMORY_BYTES), now=reservations.now, metrics=metrics)
    await known.start()
    await cache.start()
    admissions = Admissions(
        state,
        cache,
        reservations=reservations,
        flights=Flights(max_bytes=MEMORY_BYTES, max_flight_bytes=MEMORY_BYTES),
        spool=spool,
        metrics=metrics,
        workers=workers,
        lease_seconds=lease_seconds,
    )
    await admissions.start()
    try:
        yield Worker(admissions, state, answers, spool, metrics)
    finally:
        await admissions.close()
        await cache.close()
        await known.close()
        spool.close()
        await state.close()
        await answers.close()


def decision(
    limits: Sequence[Mapping[str, Any]] = (),
    *,
    user: str = "alice",
    cache_control: str | None = None,
    model: Mapping[str, Any] | None = None,
    **fields: Any,  # noqa: ANN401  members of a request
) -> Decision:
    """Decide a request for completions under one policy with these limits."""
    settings = {"deployments": [{"upstream": "u"}], **(model or {})}
    rulebook = Rulebook({"m": ModelSettings(**settings)}, {"p": Policy(limits=limits)})
    principal = Principal(ORGANIZATION, "proj", user, f"key_{user}", policies=(AppliedPolicy("project", "p"),))
    asked = read_request(
        endpoint=Endpoint.COMPLETIONS,
        dialect=Dialect.OPENAI,
        fields={"model": "m", "prompt": "hi", **fields},
        path_model=None,
        api_version=None,
    )
    return decide(asked, principal, rulebook, cache_control=cache_control, draw=0.5)


def exchange(decided: Decision) -> Exchange:
    """Begin an exchange for a decision."""
    name = f"req_{next(_numbers)}"
    return Exchange(name, time.time(), time.monotonic(), principal=decided.principal, decision=decided)


def served(told: Exchange, usage: Usage | None = None, *, events: int = 0, outcome: Outcome | None = None) -> None:
    """Tell an exchange that an upstream answered well, with this report, or with none and so many events."""
    told.attempts, told.is_sent_upstream, told.upstream_status, told.status = 1, True, 200, 200
    told.outcome = outcome or Outcome.COMPLETED
    told.answer.usage = usage
    told.answer.content_events = events
    told.answer.is_complete = told.outcome is Outcome.COMPLETED


def held(client: redis.Redis) -> int:
    """Return all that is held in the store, over all limits."""
    return sum(int(client.hget(key, "held") or 0) for key in client.keys("*:limit:*"))


def spent(client: redis.Redis, quantity: str) -> int:
    """Return all that is spent of a quantity, over all limits whose names begin with it."""
    return sum(int(client.hget(key, "spent") or 0) for key in client.keys(f"*:limit:*:{quantity}-*"))


def records(client: redis.Redis) -> list[bytes]:
    """Return the usage records in the outbox, in order."""
    return [fields[b"record"] for _id, fields in client.xrange(KEYS.outbox)]
