"""Watching a store while a storm goes on: how full limits are at sampled moments, and everything it is told.

Both watchers are processes of their own, beside the gateways and with nothing of their code: `Sampler` reads the hashes
of limits many times a second, by the store's own clock; `Monitor` keeps what `MONITOR` says in a file.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from storm_world import ORGANIZATION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

    from storm_world import Promise, World

TAG = f"tidegate:{{{ORGANIZATION}}}"
LIMITS = f"{TAG}:limit:"
HOLDS = f"{TAG}:hold:"
LEASES = f"{TAG}:leases"
OUTBOX = f"{TAG}:outbox"

_READ = """
local time = redis.call('TIME')
local seen = {time[1] * 1000 + math.floor(time[2] / 1000)}
for index, key in ipairs(KEYS) do
  seen[index + 1] = redis.call('HMGET', key, 'spent', 'carry', 'at', 'held')
end
return seen
"""
_PAUSE_SECONDS = 0.01
_FIND_SECONDS = 0.3
_REPLY_SECONDS = 30.0
_KEPT = 20


@dataclass(frozen=True)
class Filled:
    """How full one limit is: `parts` are what is used as it is now, in parts of the limit's period, `held` units."""

    key: str
    promise: Promise
    scope: tuple[str, ...]
    parts: int
    held: int

    @property
    def used(self) -> float:
        """What is used, in units; whole where nothing refills."""
        return self.parts / self.promise.refill[1]

    @property
    def share(self) -> float:
        """What is used and held, of what the limit promises."""
        return (self.used + self.held) / self.promise.capacity

    @property
    def is_too_full(self) -> bool:
        """Tell whether this is more than the limit promises."""
        _amount, period = self.promise.refill
        return self.parts + self.held * period > self.promise.capacity * period


@dataclass
class Samples:
    """What a sampler saw: how often it looked, the fullest moment of each limit, and every moment that was too full."""

    count: int = 0
    readings: int = 0
    seconds: float = 0.0
    fullest: dict[str, float] = field(default_factory=dict)
    too_full: list[str] = field(default_factory=list)
    trouble: Counter[str] = field(default_factory=Counter)
    """Why it could not look, by the error's name: the store was away."""

    @property
    def violations(self) -> list[str]:
        """Return what must not have been seen."""
        return [f"too full {each}" for each in self.too_full] or ([] if self.count else ["nothing was sampled"])

    def note(self, filled: Filled, now: int) -> None:
        """Hold one reading against its promise."""
        name, capacity = filled.promise.name, filled.promise.capacity
        self.readings += 1
        self.fullest[name] = max(self.fullest.get(name, 0.0), filled.share)
        if filled.is_too_full and len(self.too_full) < _KEPT:
            told = f"{filled.used:.3f} used + {filled.held} held of {capacity}"
            self.too_full.append(f"at {now} ms: {name} of {'/'.join(filled.scope)}: {told}")


def read_limits(client: Any, promises: Mapping[str, Promise], keys: list[str]) -> tuple[int, list[Filled]]:  # noqa: ANN401  a client of any kind
    """Read limits in one go; returns the store's time (Unix ms) and how full they are."""
    now, *hashes = client.eval(_READ, len(keys), *keys)
    return int(now), [
        _filled(key, promises, found, int(now)) for key, found in zip(keys, hashes, strict=True) if any(found)
    ]


def find_keys(client: Any) -> list[str]:  # noqa: ANN401  likewise
    """Return the names of all limits that the store knows."""
    return sorted({each.decode() for each in client.scan_iter(match=f"{LIMITS}*", count=2000)})


def _filled(key: str, promises: Mapping[str, Promise], found: list[bytes | None], now: int) -> Filled:
    promise, scope = _promise_of(key, promises)
    spent, carry, at, held = (int(each or 0) for each in found)
    amount, period = promise.refill
    return Filled(key, promise, scope, max(0, spent * period - carry - max(0, now - at) * amount), held)


def _promise_of(key: str, promises: Mapping[str, Promise]) -> tuple[Promise, tuple[str, ...]]:
    _policy, name, _of, _per, *scope = map(unquote, key.removeprefix(LIMITS).split(":"))
    promise = promises[name]
    return promise, tuple(scope[:-1] if promise.is_calendar else scope)  # less the window's start


# ---------------------------------------------------------------- the processes
class _Watcher:
    """A process that works until it is told to end, and then says what it saw."""

    def __init__(self, target: Any, *arguments: Any) -> None:  # noqa: ANN401  whatever the target takes
        spawned = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawned.Pipe()
        self._process = spawned.Process(target=target, args=(theirs, *arguments), daemon=True)

    def __enter__(self) -> Self:
        """Start it, and wait until it watches."""
        self._process.start()
        self._receive()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it, should it still run."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def end(self) -> Any:  # noqa: ANN401  what the process says
        """End it and return what it saw."""
        self._pipe.send("end")
        seen = self._receive()
        self._process.join(_REPLY_SECONDS)
        return seen

    def _receive(self) -> Any:  # noqa: ANN401  likewise
        if not self._pipe.poll(_REPLY_SECONDS):
            raise TimeoutError("a watcher does not answer")
        return self._pipe.recv()


class Sampler(_Watcher):
    """Reads all limits of a world many times a second; `end` returns the `Samples`."""

    def __init__(self, url: str, world: World) -> None:
        super().__init__(_sample, url, world.by_name)


class Monitor(_Watcher):
    """Keeps what a store is told in a file, as `MONITOR` says it; `end` returns how many bytes there are."""

    def __init__(self, url: str, path: Path) -> None:
        super().__init__(_monitor, url, path)


def open_client(url: str) -> Any:  # noqa: ANN401  of one server or of a cluster
    """Open a plain client of a store by its address."""
    if url.startswith("redis+cluster://"):
        where = urlsplit(url.partition(",")[0])
        return redis.RedisCluster(
            host=where.hostname, port=where.port, protocol=2, socket_timeout=1.0, retry=Retry(NoBackoff(), 1)
        )
    return redis.Redis.from_url(url, protocol=2)


def _sample(pipe: Connection, url: str, promises: Mapping[str, Promise]) -> None:
    samples, keys, found_at = Samples(), [], 0.0
    client = open_client(url)
    pipe.send("watching")
    began = time.monotonic()
    while not pipe.poll(_PAUSE_SECONDS):
        try:
            if time.monotonic() - found_at > _FIND_SECONDS:
                keys, found_at = find_keys(client), time.monotonic()
            if not keys:
                continue
            now, filled = read_limits(client, promises, keys)
        except redis.RedisError as error:
            samples.trouble[type(error).__name__] += 1
            continue
        samples.count += 1
        for each in filled:
            samples.note(each, now)
    samples.seconds = time.monotonic() - began
    pipe.send(samples)


def _monitor(pipe: Connection, url: str, path: Path) -> None:
    where = urlsplit(url)
    if where.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(where.path)
    else:
        connection = socket.create_connection((where.hostname, where.port))
    connection.settimeout(0.2)
    connection.sendall(b"MONITOR\r\n")
    written = 0
    with connection, path.open("wb") as file:
        pipe.send("watching")
        while not pipe.poll():
            try:
                data = connection.recv(1 << 20)
            except TimeoutError:
                continue
            if not data:
                break
            written += file.write(data)
    pipe.recv()
    pipe.send(written)
