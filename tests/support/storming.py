"""A storm from its first request to its closed books: several gateways on one store, killed one after another.

    outcome = storm(folder, store_url, Plan(clients=300, gateways=4, seconds=30))
    assert not outcome.violations

Puts together the parts: `storm_world` what is promised, `bill` the upstream, `storm_fleet` the gateways,
`storm_clients` the load, `storm_watch` who watches, `storm_books` who compares.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from bill import BilledUpstream
from storm_books import close_books
from storm_clients import Load, draw_any
from storm_fleet import Fleet
from storm_log import find_flows, read_passages, tell_flows
from storm_watch import LEASES, OUTBOX, Monitor, Sampler, find_keys, open_client, read_limits
from storm_world import make_world

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from random import Random

    from bill import Line
    from storm_books import Books, Span
    from storm_clients import Errand, Told
    from storm_log import Passage
    from storm_watch import Samples
    from storm_world import World

_QUIET_SECONDS = 1.5
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_AWAY_SECONDS = 0.7
_AWAY = "usage records wait in the outbox"


@dataclass(frozen=True)
class Plan:
    """How large a storm is. `rest_seconds` lie between two deaths; `freezes`: every third only outsleeps its leases."""

    clients: int = 300
    gateways: int = 4
    workers: int = 1
    seconds: float = 30.0
    rest_seconds: float = 2.0
    think_seconds: float = 1.5
    pace_seconds: float = 0.01
    lease_seconds: float = 2.0
    freezes: bool = True
    seed: int = 1


@dataclass
class Outcome:
    """All that a storm has shown; `violations` must be empty."""

    told: list[Told]
    books: Books
    samples: Samples
    violations: list[str]
    lines: list[str]


@dataclass
class Scene:
    """What whoever strikes finds: the gateways, the plan, and where to say what was done when."""

    fleet: Fleet
    plan: Plan
    began: float = field(default_factory=time.time)
    events: list[str] = field(default_factory=list)

    def note(self, text: str) -> float:
        """Say what was done just now; returns the moment, in Unix seconds."""
        now = time.time()
        self.events.append(f"{now - self.began:6.1f} s: {text}")
        return now


Strike: TypeAlias = Callable[[Scene], Awaitable[None]]
"""Does what the run is about, while the load goes on."""


def storm(folder: Path, store_url: str, plan: Plan) -> Outcome:
    """Run a storm on a store that is there and empty; everything that was started has ended afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    world, log = make_world(plan.clients, plan.seconds), folder / "monitor.log"
    with ExitStack() as opened:
        sampler = opened.enter_context(Sampler(store_url, world))
        monitor = opened.enter_context(Monitor(store_url, log))
        run = opened.enter_context(Run(folder, store_url, plan, world))
        told = run.load(kill_gateways, draw_any)
        books = run.close(told)
        monitor.end()
        samples: Samples = sampler.end()
    violations = [*beyond_outage(run.violations), *books.violations, *samples.violations]
    violations += _judge_flows(world, books, read_passages(log), run.bill, run.lines)
    return Outcome(told, books, samples, violations, run.lines)


class Run:
    """Upstream and gateways of a run, from `with` on until its books are closed; what is wrong is in `violations`."""

    def __init__(self, folder: Path, store_url: str, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.lines: list[str] = []
        self.violations: list[str] = []
        self.bill: dict[str, Line] = {}
        self._folder, self._store_url = folder, store_url
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        """Start all of it."""
        with ExitStack() as opened:
            self._upstream = opened.enter_context(BilledUpstream(pace_seconds=self.plan.pace_seconds))
            lease = f"{round(self.plan.lease_seconds * 1000)}ms"
            settings = self.world.settings(
                f"{self._upstream.url}/v1", self._store_url, workers=self.plan.workers, lease=lease
            )
            self.fleet = opened.enter_context(Fleet(self._folder, settings, count=self.plan.gateways))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End what runs."""
        self._opened.close()

    def load(self, strike: Strike, draw: Callable[[Random, str], Errand]) -> list[Told]:
        """Let the clients ask until the strike is over; returns what they know."""
        return asyncio.run(self._load(strike, draw))

    async def _load(self, strike: Strike, draw: Callable[[Random, str], Errand]) -> list[Told]:
        load = Load(self.world, self.fleet.base_urls, self.plan.seed, self.plan.think_seconds, draw)
        asking, scene = asyncio.create_task(load.run()), Scene(self.fleet, self.plan)
        await strike(scene)
        load.stop.set()
        await asking
        self.lines += scene.events
        return load.told

    def close(self, told: Sequence[Told], lost: Span | None = None) -> Books:
        """Wait until all is quiet, end everything, and hold the books against each other.

        `lost` is the time whose writes the store has lost, by the plan.
        """
        with closing(open_client(self._store_url)) as client:
            if not wait_until_quiet(client):
                self.violations.append(f"not quiet after {_PATIENCE_SECONDS:.0f} s: {_under_way(client)}")
            _now, limits = read_limits(client, self.world.by_name, find_keys(client))
        self.bill = self._upstream.bill()
        self.violations += _faults_in_metrics(self.fleet)
        records = self.fleet.records()
        self._opened.close()
        self.violations += self.fleet.faults
        return close_books(self.world, records, self.bill, told, limits, lost)


def beyond_outage(violations: Sequence[str]) -> list[str]:
    """Return what is wrong beyond that gateways have logged a store that was away, or too busy, for a while."""
    return [each for each in violations if _AWAY not in each]


def _judge_flows(
    world: World, books: Books, passages: Mapping[str, Passage], bill: Mapping[str, Line], lines: list[str]
) -> list[str]:
    """Hold what passed each bucket against its promise over any span of time."""
    records = {entry.record["request_id"]: entry.record for entry in books.entries}
    by_store, by_bill = find_flows(world, records, passages, bill)
    lines += tell_flows("fullest bucket, by the store", by_store) + tell_flows("and by the bill", by_bill)
    return [f"more passed than promised: {flow}" for flow in (*by_store, *by_bill) if flow.is_too_much]


async def kill_gateways(scene: Scene) -> None:
    """Kill or freeze one gateway after another, while two at least live; all are back at the end."""
    fleet, plan, returns = scene.fleet, scene.plan, set()

    async def strike(number: int, *, freezes: bool) -> None:
        did = "is frozen for longer than its leases" if freezes else "is killed"
        scene.note(f"gateway {number} {did}")
        await asyncio.to_thread(fleet.freeze if freezes else fleet.kill, number)
        await asyncio.sleep(1.8 * plan.lease_seconds if freezes else _AWAY_SECONDS)
        await asyncio.to_thread(fleet.thaw if freezes else fleet.start, number)
        scene.note(f"gateway {number} is back")

    for turn in count():
        await asyncio.sleep(plan.rest_seconds)
        if time.time() - scene.began > plan.seconds:
            break
        living = fleet.living
        if len(living) > 1:
            struck = strike(living[turn % len(living)], freezes=plan.freezes and turn % 3 == 2)
            returns.add(asyncio.create_task(struck))
            await asyncio.sleep(0)
    await asyncio.gather(*returns)


def wait_until_quiet(client: Any) -> bool:  # noqa: ANN401  a client of one server or of a cluster
    """Wait until nothing is held, orphans are booked and records drained, for a while; tell whether that came."""
    end, since = time.monotonic() + _PATIENCE_SECONDS, None
    while time.monotonic() < end:
        if any(_under_way(client)):
            since = None
        elif since is None:
            since = time.monotonic()
        elif time.monotonic() - since > _QUIET_SECONDS:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _under_way(client: Any) -> tuple[int, int]:  # noqa: ANN401  likewise
    """Return how many leases and records there are."""
    return client.zcard(LEASES), client.xlen(OUTBOX)


def _faults_in_metrics(fleet: Fleet) -> list[str]:
    counted = {name: fleet.metric(name) for name in ("unhandled_errors_total", "underestimates_total", "spool_records")}
    return [f"tidegate_{name} is {value:g}" for name, value in counted.items() if value]


def told_lines(outcome: Outcome) -> list[str]:
    """Return what a storm has shown, in lines for people."""
    samples, told = outcome.samples, outcome.told
    times = sorted(each.seconds for each in told if each.is_whole)
    span = max(each.ended for each in told) - min(each.started for each in told)
    return [
        *outcome.lines,
        *outcome.books.lines,
        f"{len(told)} requests in {span:.0f} s; answered in {times[len(times) // 2]:.3f} s (median)",
        *(f"  {count:7} {what}" for what, count in sorted(outcome.books.counts.items())),
        f"{samples.count} samples, {samples.count / samples.seconds:.0f}/s, {samples.readings} readings; fullest:",
        *(f"  {name:18} {float(share):7.2%}" for name, share in sorted(samples.fullest.items())),
        *(f"  could not look: {count} x {why}" for why, count in samples.trouble.items()),
        *(f"VIOLATION {text}" for text in outcome.violations),
        f"{len(outcome.violations)} violations",
    ]
