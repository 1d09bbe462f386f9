"""Shadow traffic: a share of what upstreams answer is also sent to another deployment (SPEC §8).

It is sent when the client's answer has come to its end and is booked: so no client waits for it, nothing is sent that
no upstream has answered, and what clients need goes first. It is the organization's, dropped where that has no room,
where too many are under way, or when the process ends. Knows neither how a request of the gateway's own is sent, nor on
which requests the lot falls.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import random
from typing import TYPE_CHECKING, Final

import structlog

from policies.own_requests import SHADOW, find_shadow, is_compared
from proxy.divergence import compare
from proxy.errors import GatewayError
from proxy.exchange import Outcome
from proxy.own_requests import DROPPED, to_be_kept

if TYPE_CHECKING:
    from policies.catalog import Deployment
    from policies.decision import Decision
    from proxy.exchange import Exchange, Request
    from proxy.metrics import Metrics
    from proxy.own_requests import OwnRequests
    from proxy.relay import Settle
    from proxy.store.entries import StoredAnswer

_MOST_AT_ONCE: Final = 64
"""Requests of one worker to shadow deployments; what comes beyond is dropped."""
_ANSWERED: Final = (Outcome.COMPLETED, Outcome.INCOMPLETE)
_log = structlog.get_logger(__name__)


class ShadowTraffic:
    """What is sent to the shadow deployments of one configuration."""

    def __init__(self, own: OwnRequests, metrics: Metrics) -> None:
        """Send nothing yet."""
        self._own = own
        self._metrics = metrics

    def draw(self, decision: Decision, exchange: Exchange, request: Request, settle: Settle) -> tuple[Decision, Settle]:
        """Return how the answer to a request is to be relayed: as it is, unless its model's lot falls on it.

        Then the relay keeps what is to be compared, and when it settles the request, that is sent once more. What
        `settle` is given is a complete answer then, even where it must not be stored.
        """
        shadow = find_shadow(decision, random())  # noqa: S311  guards nothing
        if shadow is None:
            return decision, settle

        async def settle_and_send(entry: StoredAnswer | None) -> None:
            is_answered = exchange.outcome in _ANSWERED  # later it may say that the client left
            await settle(entry)
            if is_answered:
                send = partial(self._send, shadow, decision, exchange, request, entry)
                if self._own.under_way.begin(SHADOW, send, most=_MOST_AT_ONCE) is None:
                    self._count(decision, "dropped")

        return to_be_kept(decision) if is_compared(decision) else decision, settle_and_send

    async def _send(
        self, shadow: Deployment, decision: Decision, served: Exchange, request: Request, answer: StoredAnswer | None
    ) -> None:
        result = "failed"
        try:
            own, exchange = self._own.prepare(SHADOW, decision, served, [shadow])
            theirs = await self._own.fetch(own, exchange, request)
            if exchange.outcome in _ANSWERED:
                result = await self._compare(decision, (served, answer), (exchange, theirs))
        except DROPPED:
            result = "dropped"
        except GatewayError:
            pass  # it is counted, and the log tells of the upstream
        except asyncio.CancelledError:
            result = "dropped"
            raise
        finally:
            self._count(decision, result)

    async def _compare(
        self,
        decision: Decision,
        ours: tuple[Exchange, StoredAnswer | None],
        theirs: tuple[Exchange, StoredAnswer | None],
    ) -> str:
        """Say what a comparison comes to; the log tells of what differs, and nothing of what it says."""
        (served, one), (exchange, other) = ours, theirs
        if one is None or other is None or not is_compared(decision):
            return "sent"
        difference = await compare(one, other, decision.effective.endpoint)
        if difference is None:
            return "same"
        _log.info(
            "a shadow deployment answered differently",
            request_id=served.request_id,
            shadow_request_id=exchange.request_id,
            model=decision.model.name,
            deployment=served.deployment,
            upstream=served.upstream,
            shadow_upstream=exchange.upstream,
            shadow_deployment=exchange.deployment,
            place=difference.place,
            position=difference.position,
        )
        return "different"

    def _count(self, decision: Decision, result: str) -> None:
        self._metrics.shadow_requests_total.labels(decision.model.name, result).inc()
