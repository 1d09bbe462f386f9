"""Drift checks: hits that are fetched again in the background, to see how deterministic "deterministic" is (SPEC §6).

The client has its answer, and no part in the check: that is the organization's, needs room in its limits, leaves a
usage record of an origin of its own, and is dropped where there is no room, or when the process ends. Knows neither how
hits are found nor what a share of them is worth.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace as replaced
from random import random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from policies.cacheability import Keyed
from policies.errors import LimitExceeded
from policies.own_requests import for_organization
from policies.requests.asked import Endpoint
from proxy.answer_cache import in_form
from proxy.errors import GatewayError, StoreUnavailable
from proxy.exchange import Exchange, new_request_id
from proxy.relay import relay

if TYPE_CHECKING:
    from policies.decision import Decision
    from policies.principals import Principal
    from policies.rulebook import Rulebook
    from proxy.admission import Admissions
    from proxy.exchange import Headers, Request
    from proxy.metrics import Metrics
    from proxy.relay import RelayBounds
    from proxy.store.entries import StoredAnswer
    from proxy.upstreams.dispatch import Dispatcher

ORIGIN: Final = "drift_check"
"""Where usage records of checks come from."""
_MOST_AT_ONCE: Final = 8
"""Checks of one worker; what comes beyond is not checked."""
_OWN: Final = frozenset({"index", "logprobs", "id", "encrypted_content"})
"""Members of what was generated that differ between equal answers."""

_log = structlog.get_logger(__name__)


class DriftChecks:
    """The checks of one worker. End with `close`."""

    def __init__(  # noqa: PLR0913  what it stands on, by name
        self,
        dispatcher: Dispatcher,
        admissions: Admissions,
        *,
        organization: Principal,
        rulebook: Rulebook,
        bounds: RelayBounds,
        metrics: Metrics,
    ) -> None:
        """Check nothing yet; `organization` is on whose account checks are made, with the policies that bind it."""
        self._dispatcher = dispatcher
        self._admissions = admissions
        self._organization = organization
        self._rulebook = rulebook
        self._bounds = bounds
        self._metrics = metrics
        self._under_way: set[asyncio.Task[None]] = set()

    def draw(self, stored: StoredAnswer, decision: Decision, exchange: Exchange, request: Request) -> None:
        """Check an answer that was served from the cache, if its policy's lot falls on it. Returns at once."""
        share = decision.policy.cache.drift_check
        if not share or random() >= share or len(self._under_way) >= _MOST_AT_ONCE:  # noqa: S311  guards nothing
            return
        task = asyncio.create_task(self._check(stored, decision, exchange, request), name="drift check")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Drop the checks that are under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _check(self, stored: StoredAnswer, decision: Decision, served: Exchange, request: Request) -> None:
        result: str | None = "failed"
        try:
            fetched = await self._fetch(decision, served, request)
            if fetched is not None:
                result = "same" if _generated(stored, decision) == _generated(fetched, decision) else "different"
        except (LimitExceeded, StoreUnavailable):
            result = None  # dropped: that says nothing of the upstream
        except GatewayError:
            pass  # it is counted, and the log tells of the upstream
        except asyncio.CancelledError:
            result = None  # dropped likewise
            raise
        except Exception:  # noqa: BLE001  the outermost frame of a task
            _log.exception("a drift check failed in a way that nothing foresaw")
        finally:
            if result is not None:
                self._metrics.cache_divergence_total.labels(decision.model.name, result).inc()

    async def _fetch(self, decision: Decision, served: Exchange, request: Request) -> StoredAnswer | None:
        """Return the answer as it would be stored, None for one that is not complete; raises as admission and relay."""
        own = for_organization(decision, self._organization, self._rulebook, reason=ORIGIN)
        exchange = _exchange(served, own)
        kept: list[StoredAnswer | None] = []
        async with self._admissions.admit(own, exchange) as admission:

            async def keep(entry: StoredAnswer | None) -> None:
                kept.append(entry)
                await admission.settle()

            answer = await self._dispatcher.send(own, exchange, request)
            await relay(
                answer,
                _Nowhere(),
                decision=_to_be_kept(decision),
                exchange=exchange,
                settle=keep,
                headers=list,
                bounds=replaced(self._bounds, entry_bytes=self._bounds.flight_bytes),  # of items, each may be an entry
            )
        return kept[0]


def _exchange(served: Exchange, decision: Decision) -> Exchange:
    now = time.monotonic()
    return Exchange(
        request_id=new_request_id(),
        started_at=served.unix_milliseconds(now) / 1000,
        started=now,
        configuration_version=served.configuration_version,
        route=served.route,
        principal=decision.principal,
        asked=served.asked,
        model=served.model,
        decision=decision,
        origin=ORIGIN,
    )


class _Nowhere:
    """A writer whose client is nobody."""

    is_started = False

    async def start(self, status: int, headers: Headers) -> None:
        """Take the head."""

    async def write(self, data: bytes) -> None:
        """Take bytes of the body."""

    async def finish(self) -> None:
        """Take the end."""

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Take a whole answer."""

    def abort(self) -> None:
        """Do nothing."""


def _to_be_kept(decision: Decision) -> Decision:
    """Return the decision as if its answer were to be stored, which that of a client may forbid: it is handed over."""
    plan = decision.cache
    return replace(decision, cache=replace(plan, store=True)) if isinstance(plan, Keyed) else decision


def _generated(answer: StoredAnswer, decision: Decision) -> Any:  # noqa: ANN401  JSON values
    """Return what was generated, without ids, times and probabilities; of what cannot be taken apart all of it."""
    endpoint = decision.effective.endpoint
    whole = in_form(answer, endpoint, is_stream=False)
    if whole is None:
        return answer.body
    held = msgspec.json.decode(whole.body).get(_HOLDERS[endpoint])
    return _content(sorted(held, key=_index) if isinstance(held, list) else held)


def _index(held: Any) -> int:  # noqa: ANN401  a JSON value
    """Return the place of a choice or an embedding, however they are listed."""
    index = held.get("index") if isinstance(held, dict) else None
    return index if isinstance(index, int) else 0


def _content(value: Any) -> Any:  # noqa: ANN401  a JSON value
    """Leave out what differs between equal answers, at every depth; and null, which is as good as absent."""
    if isinstance(value, dict):
        return {name: _content(each) for name, each in value.items() if name not in _OWN and each is not None}
    return [_content(each) for each in value] if isinstance(value, list) else value


_HOLDERS: Final = {
    Endpoint.COMPLETIONS: "choices",
    Endpoint.CHAT: "choices",
    Endpoint.EMBEDDINGS: "data",
    Endpoint.RESPONSES: "output",
}
