"""What clients feel of a store that is frozen, killed or brought back empty under load, and what was counted after.

One gateway serves users whose limits allow, deny or count locally while the store is away. `run_outage` lets one thing
happen to the store, and judges: how much longer requests took, what they were answered, and what is in the books.
Delays that have nothing to do with the store, such as those of a busy machine, are seen by clients that ask for
`/healthz` all the while, which needs none; they are allowed for.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from storm_books import Span
from storm_clients import draw_plain
from storm_watch import find_keys, open_client, read_limits
from storm_world import ON_STORE_FAILURE, make_outage_world
from storming import Plan, Run, beyond_outage
from swarm import Connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from stores import StoreServer
    from storm_books import Books
    from storm_clients import Told
    from storming import Scene

DEAD_SECONDS: Final = 0.05
HUNG_SECONDS: Final = 0.6
"""Most that a store which is dead, or hung, adds to a request, once for each worker (SPEC §10)."""
_UNSENT_SECONDS: Final = 1.5
"""Records of requests that ended so shortly before the store lost its data may still have been in it."""
_PROBES: Final = 4
"""So many connections that each worker is likely to serve one."""
_PROBE_SECONDS: Final = 0.02
_PROBE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass(frozen=True)
class Outage:
    """One thing that happens to a store: how long a request may wait for it, and whether its data is lost."""

    name: str
    happens: Callable[[StoreServer, float], Awaitable[None]]
    most_seconds: float
    loses_data: bool = False


async def _freeze(store: StoreServer, seconds: float) -> None:
    store.freeze()
    await asyncio.sleep(seconds)
    store.thaw()


async def _kill(store: StoreServer, seconds: float) -> None:
    store.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(store.start)


async def _kill_and_empty(store: StoreServer, seconds: float) -> None:
    store.kill()
    shutil.rmtree(store.directory / "appendonlydir")
    await asyncio.sleep(seconds)
    await asyncio.to_thread(store.start)


OUTAGES: Final = (
    Outage("frozen", _freeze, HUNG_SECONDS),
    Outage("killed, back from its append-only file", _kill, DEAD_SECONDS),
    Outage("killed, back empty", _kill_and_empty, DEAD_SECONDS, loses_data=True),
)


@dataclass(frozen=True)
class Felt:
    """What the clients of one policy felt in one stretch of time."""

    policy: str
    stretch: str
    seconds: tuple[float, ...]
    statuses: Counter[int]

    def __str__(self) -> str:
        answered = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        times = (median(self.seconds), max(self.seconds)) if self.seconds else (0.0, 0.0)
        return f"  {self.policy:6} {self.stretch:8} {times[0] * 1000:9.1f} {times[1] * 1000:9.1f}   {answered}"


@dataclass
class Seen:
    """All that one outage has shown; `violations` must be empty, and `delays` if the machine has nothing else to do."""

    outage: Outage
    violations: list[str] = field(default_factory=list)
    delays: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


@dataclass
class _Course:
    """When the store went and was back, what limits had counted by then, and the pings of the probes."""

    outage: Outage
    store: StoreServer
    away_seconds: float
    went: float = 0.0
    back: float = 0.0
    before: dict[str, int] = field(default_factory=dict)
    pings: list[float] = field(default_factory=list)

    async def __call__(self, scene: Scene) -> None:
        """Let the load run, let the store go and come back, and let the load run on."""
        [base_url] = scene.fleet.base_urls()
        probing = asyncio.gather(*(self._probe(base_url) for _ in range(_PROBES)), return_exceptions=True)
        await asyncio.sleep(scene.plan.rest_seconds)
        self.before = await asyncio.to_thread(_counted, self.store)
        self.went = scene.note(f"the store is {self.outage.name.partition(',')[0]}")
        await self.outage.happens(self.store, self.away_seconds)
        self.back = scene.note("the store is back")
        await asyncio.sleep(scene.plan.rest_seconds)
        probing.cancel()
        with suppress(asyncio.CancelledError):
            await probing

    async def _probe(self, base_url: str) -> None:
        connection = Connection(base_url)
        try:
            while True:
                started = time.time()
                await connection.ask(_PROBE)
                self.pings.append(time.time() - started)
                await asyncio.sleep(_PROBE_SECONDS)
        finally:
            connection.close()

    @property
    def noise(self) -> float:
        """How long a probe had to wait at most."""
        return max(self.pings, default=0.0)

    def added(self, told: Told, usual: float) -> float:
        """Return how much longer than usual a request took, less what the machine may have been busy with."""
        return told.seconds - usual - self.noise


def _counted(store: StoreServer) -> dict[str, int]:
    """Return what limits count just now, by their names; what is held is not counted yet."""
    with closing(open_client(store.url)) as client:
        _now, limits = read_limits(client, make_outage_world(0).by_name, find_keys(client))
    return {each.promise.name: each.parts for each in limits}


def run_outage(folder: Path, store: StoreServer, outage: Outage, plan: Plan, *, away_seconds: float) -> Seen:
    """Let one outage happen under load to a store that runs and is empty; it runs again afterwards."""
    world, seen = make_outage_world(plan.clients), Seen(outage)
    course = _Course(outage, store, away_seconds)
    with Run(folder, store.url, plan, world) as run:
        told = run.load(course, draw_plain)
        lost = Span(course.went - _UNSENT_SECONDS, course.back) if outage.loses_data else None
        books = run.close(told, lost)
    seen.violations += [*beyond_outage(run.violations), *books.violations]
    seen.lines += [f"{outage.name}:", *(f"  {line.strip()}" for line in run.lines)]
    _judge_latency(seen, course, told)
    _judge_answers(seen, told)
    _tell_counts(seen, course, books)
    return seen


def _judge_latency(seen: Seen, course: _Course, told: Sequence[Told]) -> None:
    """Hold the times of requests against what an outage may add: at most so much, and nothing once it is known.

    Where the machine kept even the probes waiting for longer than that, times tell nothing, and are only shown.
    """
    seen.lines.append(f"  {'policy':6} {'store':8} {'median ms':>9} {'longest':>9}   answered")
    stretches = {"there": (0.0, course.went), "away": (course.went, course.back), "back": (course.back, float("inf"))}
    for policy in ON_STORE_FAILURE:
        own = [each for each in told if each.member.policy == policy and each.is_whole]
        for stretch, (start, end) in stretches.items():
            within = [each for each in own if start <= each.ended and each.started < end]
            felt = Felt(policy, stretch, tuple(e.seconds for e in within), Counter(e.status for e in within))
            seen.lines.append(str(felt))
        usual = max(each.seconds for each in own if each.ended < course.went)
        added = [(each, course.added(each, usual)) for each in own if each.ended > course.went]
        slow = [(each, seconds) for each, seconds in added if seconds > DEAD_SECONDS]
        for each, seconds in slow:
            late = each.started - course.went
            if seconds > seen.outage.most_seconds or (late > HUNG_SECONDS and each.started < course.back):
                told_so = f"took {seconds:.3f} s longer than usual, {late:.3f} s after the store went"
                seen.delays.append(f"{seen.outage.name}, {policy}: {each.name} {told_so}")
        seen.lines.append(f"  {policy:6} {len(slow)} requests took over {DEAD_SECONDS * 1000:.0f} ms longer than usual")
    seen.lines.append(f"  the probes waited {course.noise * 1000:.1f} ms at most")
    if course.noise > DEAD_SECONDS:
        seen.lines.append("  the machine is too busy to judge times: run it again when it is quiet")
        seen.delays.clear()


def _judge_answers(seen: Seen, told: Sequence[Told]) -> None:
    for each in told:
        is_denied = each.status == 503 and each.member.policy == "deny"
        if not each.is_whole or not (each.status == 200 or is_denied):
            got = f"{each.status} {each.body[:200]!r}"
            seen.violations.append(f"{seen.outage.name}, {each.member.policy}: {each.name} got {got}")


def _tell_counts(seen: Seen, course: _Course, books: Books) -> None:
    seen.lines.append(f"  {'limit':16} {'before':>9} {'after':>9} {'records':>9} {'billed':>9} {'missing':>9}")
    for name, sums in sorted(books.sums.items()):
        if not 0 <= sums.limits <= sums.records:
            seen.violations.append(f"{seen.outage.name}: {name} says {sums.limits}, the records say {sums.records}")
        counted = f"{course.before.get(name, 0):9} {sums.limits:9} {sums.records:9} {sums.billed:9}"
        seen.lines.append(f"  {name:16} {counted} {sums.records - sums.limits:9}")
    seen.lines += [f"  {count} {what}" for what, count in sorted(books.counts.items()) if "lost" in what]
