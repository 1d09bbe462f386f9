"""Reloading: the configuration is read again when its files change, or when told to, and put in force as a whole.

What cannot be used changes nothing: it is told as `tidegate check` tells it, and counted. Knows neither what a
configuration means nor who obeys it: whoever does takes the new one and says whether it can.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from proxy.config_changes import change
from proxy.config_file import ConfigurationError
from proxy.config_watch import LOOK_SECONDS, touches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from proxy.config import Configuration
    from proxy.config_file import ConfigurationFile
    from proxy.metrics import Metrics

    Take = Callable[[Configuration], Awaitable[str | None]]

ABSENT_SECONDS: Final = 1.0
"""How long a file that is gone, or empty, is being replaced; it is gone for good after that."""

_APPLIED: Final = "applied"
_REJECTED: Final = "rejected"
_UNCHANGED: Final = "unchanged"

_log = structlog.get_logger("tidegate.reload")


class Reloads:
    """The reloads of one gateway."""

    def __init__(self, file: ConfigurationFile | None, running: Configuration, metrics: Metrics) -> None:
        """Take what is in force and the file that it was read from, if it was from one."""
        self._file = file
        self._running = running
        self._named_files = None if file is None else file.named_files
        self._metrics = metrics
        self._woken = asyncio.Event()
        self._is_asked = False
        self._is_absent = False
        for result in (_APPLIED, _REJECTED, _UNCHANGED):
            metrics.config_reloads_total.labels(result)
        metrics.config_last_reload_successful.set(1)
        self._note_applied()

    def ask(self) -> None:
        """Have the configuration read again, whether its files have changed or not."""
        self._is_asked = True
        self._woken.set()

    async def follow(self, take: Take) -> None:
        """Reload whenever that is asked for, and when the files have changed; for ever.

        `take` puts another configuration in force, everywhere or nowhere: then it returns why not.
        """
        watching = asyncio.create_task(self._watch(), name="configuration files")
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                if self._is_asked or await self._has_changed():
                    self._is_asked = False
                    await self._reload(take)
        finally:
            watching.cancel()
            await asyncio.wait({watching})

    async def _watch(self) -> None:
        file = self._file
        while file is not None:
            try:
                async for _ in touches(lambda: file.paths):
                    self._woken.set()
            except Exception:  # noqa: BLE001  the outermost frame of a task
                _log.exception("the configuration files cannot be watched; another try follows")
                self._metrics.unhandled_errors_total.labels("reload").inc()
                await asyncio.sleep(LOOK_SECONDS)

    async def _has_changed(self) -> bool:
        """Tell whether the files hold something else, and hold it for good."""
        file = self._file
        if file is None or not await asyncio.to_thread(file.has_changed):
            return False
        was_absent, self._is_absent = self._is_absent, file.path in await self._absent(file)
        if self._is_absent:
            if not was_absent:
                _log.warning("the configuration file is gone; what it said stays in force", file=str(file.path))
            return self._is_asked
        return self._is_asked or await asyncio.to_thread(file.has_changed)

    async def _absent(self, file: ConfigurationFile) -> frozenset[Path]:
        """Return which files are gone, and do not come back within `ABSENT_SECONDS`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ABSENT_SECONDS):
                while await asyncio.to_thread(file.lacks) and not self._is_asked:
                    await self._woken.wait()
                    self._woken.clear()
        return await asyncio.to_thread(file.lacks)

    async def _reload(self, take: Take) -> None:
        if self._file is None:
            _log.warning("there is no configuration file to be read again: this gateway was started without one")
            return
        try:
            result = await self._read_and_take(self._file, take)
        except ConfigurationError as error:
            result = self._reject(error.lines)
        except Exception:  # noqa: BLE001  the outermost frame of a reload
            _log.exception("a reload failed in a way that nothing foresaw; the configuration in force stays")
            self._metrics.unhandled_errors_total.labels("reload").inc()
            result = _REJECTED
        self._metrics.config_reloads_total.labels(result).inc()
        self._metrics.config_last_reload_successful.set(float(result != _REJECTED))

    async def _read_and_take(self, file: ConfigurationFile, take: Take) -> str:
        """Read the file and put it in force; returns what became of it. Raises ConfigurationError."""
        new, waiting = change(self._running, await asyncio.to_thread(file.read))
        if waiting:
            _log.warning("settings wait for a restart of the gateway", settings=list(waiting))
        if new == self._running and file.named_files == self._named_files:
            _log.info("the configuration is as it was", configuration=new.version)
            return _UNCHANGED
        fault = await take(new)
        if fault is not None:
            return self._reject([fault])
        self._running, self._named_files = new, file.named_files
        self._note_applied()
        _log.info("the configuration was reloaded", configuration=new.version)
        return _APPLIED

    def _reject(self, problems: Iterable[str]) -> str:
        _log.error("the new configuration cannot be used; the one in force stays", problems=list(problems))
        return _REJECTED

    def _note_applied(self) -> None:
        self._metrics.config_applied_timestamp_seconds.set(time.time())
