"""Active health checks of one worker: each upstream that has `health` settings is asked every now and then (SPEC §8).

2xx means healthy, and so does 429: who says that it is busy is alive. Everything else does not, 401 and 404 among it,
as requests would fare no better, or the path is wrong. What follows from a verdict is decided where deployments are
chosen. Knows nothing of models, and of requests only that they are no checks.
"""

from __future__ import annotations

import asyncio
import logging
from random import random
from typing import TYPE_CHECKING, Final

from proxy.upstreams.client import AttemptFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxy.config_upstreams import HealthSettings
    from proxy.metrics import Metrics
    from proxy.upstreams.client import UpstreamClient
    from proxy.upstreams.targets import Target

_log = logging.getLogger("tidegate.upstreams")

_SUCCESSES: Final = range(200, 300)
_TOO_MANY_REQUESTS: Final = 429


class HealthChecks:
    """All checks of one worker. Its tasks begin with `adopt` and end with `close`."""

    def __init__(self, client: UpstreamClient, metrics: Metrics) -> None:
        """Check nothing yet; the client must stay open until `close`."""
        self._client = client
        self._metrics = metrics
        self._checks: dict[str, _Check] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def is_healthy(self, upstream: str) -> bool:
        """Tell what the latest checks say; an upstream of which they say nothing yet is taken for healthy."""
        check = self._checks.get(upstream)
        return check is None or check.is_healthy

    def adopt(self, targets: Mapping[str, Target]) -> None:
        """Check these upstreams from now on. What is known of an upstream stays unless its address is another."""
        before, self._checks = self._checks, {}
        for name, target in targets.items():
            health = target.settings.health
            if health is None:
                continue
            check = before.get(name)
            if check is not None and check.target.settings == target.settings:
                check.target = target  # its certificates may have been read again
                self._checks[name] = before.pop(name)
                continue
            is_same = check is not None and check.target.settings.base_url == target.settings.base_url
            self._checks[name] = self._begin(target, health, is_healthy=check.is_healthy if check and is_same else True)
        for name, check in before.items():
            self._end(check)
            if name not in self._checks:
                self._metrics.upstream_healthy.remove(name)

    async def close(self) -> None:
        """End all checks."""
        for check in self._checks.values():
            self._end(check)
        self._checks = {}
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _begin(self, target: Target, health: HealthSettings, *, is_healthy: bool) -> _Check:
        check = _Check(target, health, is_healthy=is_healthy)
        self._metrics.upstream_healthy.labels(target.name).set(float(is_healthy))
        check.task = asyncio.create_task(self._repeat(check), name=f"health: {target.name}")
        return check

    def _end(self, check: _Check) -> None:
        task = check.task
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def _repeat(self, check: _Check) -> None:
        """Ask an upstream again and again; the first pause is drawn, so that not all workers ask at once."""
        pause_seconds = check.health.every / 1000
        await asyncio.sleep(pause_seconds * random())  # noqa: S311  spreads load, guards nothing
        while True:
            try:
                self._note(check, await self._ask(check))
            except Exception:  # noqa: BLE001  the outermost frame of a task
                self._metrics.unhandled_errors_total.labels("health").inc()
                _log.exception("health check of upstream %s failed", check.target.name)
            await asyncio.sleep(pause_seconds)

    async def _ask(self, check: _Check) -> str | None:
        """Ask once: None where the upstream is well, else what is wrong."""
        target, health = check.target, check.health
        address = target.settings.base_url + health.path
        try:
            status = await self._client.get(
                address, target.headers, way=target.way, timeout_seconds=health.timeout / 1000
            )
        except AttemptFailed as failed:
            return f"no answer ({failed.reason})"
        return None if status in _SUCCESSES or status == _TOO_MANY_REQUESTS else f"it answered {status}"

    def _note(self, check: _Check, fault: str | None) -> None:
        if not check.note(is_well=fault is None):
            return
        name = check.target.name
        self._metrics.upstream_healthy.labels(name).set(float(check.is_healthy))
        if check.is_healthy:
            _log.info("upstream %s is healthy again", name)
        else:
            _log.warning("upstream %s is unhealthy, others are tried first: %s", name, fault)


class _Check:
    """The checks of one upstream, and what they say of it."""

    __slots__ = ("_against", "health", "is_healthy", "target", "task")

    def __init__(self, target: Target, health: HealthSettings, *, is_healthy: bool) -> None:
        self.target = target
        self.health = health
        self.is_healthy = is_healthy
        self.task: asyncio.Task[None] | None = None
        self._against = 0
        """How many in a row said the contrary of `is_healthy`."""

    def note(self, *, is_well: bool) -> bool:
        """Take the outcome of a check, and tell whether it changed the verdict."""
        self._against = 0 if is_well is self.is_healthy else self._against + 1
        if self._against < (self.health.failures if self.is_healthy else self.health.successes):
            return False
        self.is_healthy, self._against = is_well, 0
        return True
