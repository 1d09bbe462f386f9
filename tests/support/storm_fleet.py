"""Gateways that share one store, each with a folder of its own: started together, killed, frozen, started again."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from gateway import Gateway, free_port
from harness import call
from judging import faults_in_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gateway import Settings

_SERIES = re.compile(r"^tidegate_(\w+)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)
_SHOWN_CHARACTERS = 1500


class Fleet:
    """So many gateways with the same settings; use it in a `with`."""

    def __init__(self, folder: Path, settings: Settings, *, count: int) -> None:
        self.gateways = [
            Gateway(folder / f"gateway-{number}", {**settings, "listen": f"127.0.0.1:{free_port()}"})
            for number in range(count)
        ]
        self._living: set[int] = set()
        self.faults: list[str] = []
        """Lines of the gateways' logs that tell of a fault of their own."""

    def __enter__(self) -> Self:
        """Start all of them at once."""
        try:
            with ThreadPoolExecutor(len(self.gateways)) as starters:
                list(starters.map(self.start, range(len(self.gateways))))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End those that live, and read what they have logged."""
        for number in sorted(self._living):
            self.gateways[number].__exit__()
            self._read_log(number)
        self._living.clear()

    @property
    def living(self) -> list[int]:
        """Return the numbers of the gateways that serve."""
        return sorted(self._living)

    def base_urls(self) -> Sequence[str]:
        """Return where clients are served just now."""
        return [self.gateways[number].base_url for number in self.living]

    def start(self, number: int) -> None:
        """Start a gateway, or start it again where it was."""
        self.gateways[number].__enter__()
        self._living.add(number)

    def kill(self, number: int) -> None:
        """Kill a gateway with all of its processes."""
        self._living.discard(number)
        self.gateways[number].kill_tree()
        self._read_log(number)

    def freeze(self, number: int) -> None:
        """Stop all processes of a gateway in their tracks; clients of others are sent elsewhere."""
        self._living.discard(number)
        self.gateways[number].signal_tree(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """Let them go on."""
        self.gateways[number].signal_tree(signal.SIGCONT)
        self._living.add(number)

    def records(self) -> list[dict[str, Any]]:
        """Return the usage records of all gateways, file by file."""
        return [record for gateway in self.gateways for record in gateway.records()]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over the gateways that live and its labels; those that died took theirs along."""
        pages = [
            call(self.gateways[number].admin_url, "GET", "/metrics").body.decode() for number in sorted(self._living)
        ]
        return sum(float(value) for page in pages for found, value in _SERIES.findall(page) if found == name)

    def _read_log(self, number: int) -> None:
        self.faults += [
            f"gateway {number}: {line.strip():.{_SHOWN_CHARACTERS}}" for line in faults_in_log(self.gateways[number])
        ]
