"""Drift checks: hits that are fetched again in the background, to see how deterministic "deterministic" is (SPEC §6).

The client has its answer, and no part in the check, which is the organization's. Knows neither how hits are found nor
how a request of the gateway's own is sent.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import random
from typing import TYPE_CHECKING, Final

from policies.own_requests import DRIFT_CHECK, is_checked
from proxy.divergence import compare
from proxy.errors import GatewayError
from proxy.own_requests import DROPPED

if TYPE_CHECKING:
    from policies.decision import Decision
    from proxy.exchange import Exchange, Request
    from proxy.metrics import Metrics
    from proxy.own_requests import OwnRequests
    from proxy.store.entries import StoredAnswer

_MOST_AT_ONCE: Final = 8
"""Checks of one worker; what comes beyond is not checked."""


class DriftChecks:
    """The checks of one configuration."""

    def __init__(self, own: OwnRequests, metrics: Metrics) -> None:
        """Check nothing yet."""
        self._own = own
        self._metrics = metrics

    def draw(self, stored: StoredAnswer, decision: Decision, exchange: Exchange, request: Request) -> None:
        """Check an answer that was served from the cache, if its policy's lot falls on it. Returns at once."""
        if is_checked(decision, random()):  # noqa: S311  guards nothing
            check = partial(self._check, stored, decision, exchange, request)
            self._own.under_way.begin(DRIFT_CHECK, check, most=_MOST_AT_ONCE)

    async def _check(self, stored: StoredAnswer, decision: Decision, served: Exchange, request: Request) -> None:
        result: str | None = "failed"
        try:
            own, exchange = self._own.prepare(DRIFT_CHECK, decision, served)
            fetched = await self._own.fetch(own, exchange, request)
            if fetched is not None:
                is_same = await compare(stored, fetched, decision.effective.endpoint) is None
                result = "same" if is_same else "different"
        except DROPPED:
            result = None  # dropped: that says nothing of the upstream
        except GatewayError:
            pass  # it is counted, and the log tells of the upstream
        except asyncio.CancelledError:
            result = None  # dropped likewise
            raise
        finally:
            if result is not None:
                self._metrics.cache_divergence_total.labels(decision.model.name, result).inc()
