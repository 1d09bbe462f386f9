"""A storm on a cluster of three primaries, of which the one that counts is killed: what is lost then, write by write.

It comes back from its append-only file, and everything is exact; or its replica takes over, and what the primary had
acknowledged and not passed on is lost. The replica's link is cut a moment before, as a partition would, so that there
is something to lose. Both servers' logs are kept; from what the survivor was told follows what its limits must say, and
for every request whose books differ, which of its writes were lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storm_books import Span, charge_of, scope_of
from storm_clients import draw_any
from storm_log import read_passages
from storm_watch import TAG, Monitor, Sampler
from storm_world import make_world
from storming import Outcome, Plan, Run, beyond_outage, kill_gateways

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stores import StoreCluster, StoreServer
    from storm_books import Books, Entry
    from storm_clients import Told
    from storm_log import Passage
    from storm_world import Promise
    from storming import Scene

_CUT_OFF_SECONDS: Final = 0.4
_DEAD_SECONDS: Final = 2.0
_UNSENT_SECONDS: Final = 2.0
"""Records of requests that ended so shortly before may still have been in the store."""
_FORBIDDEN: Final = "CROSSSLOT"


@dataclass
class _Course:
    """What happens to the primary in the middle of a storm."""

    cluster: StoreCluster
    primary: StoreServer
    fails_over: bool
    cut: float = 0.0
    back: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)

    async def __call__(self, scene: Scene) -> None:
        """Kill gateways as in any storm, and half-way the primary."""
        killing = asyncio.create_task(kill_gateways(scene))
        await asyncio.sleep(scene.plan.seconds / 2)
        self.errors.update(self.cluster.errors())
        await (self._replace(scene) if self.fails_over else self._restart(scene))
        await killing

    async def _restart(self, scene: Scene) -> None:
        scene.note("the primary is killed")
        self.primary.kill()
        await asyncio.sleep(_DEAD_SECONDS)
        await asyncio.to_thread(self.primary.start)
        await self.cluster.whole()
        scene.note("the primary is back, from its append-only file")

    async def _replace(self, scene: Scene) -> None:
        replica = self.cluster.replicas[self.cluster.primaries.index(self.primary)]
        self.cut = scene.note("the primary's replica is cut off")
        replica.freeze()
        self.primary.ask("CLIENT", "KILL", "TYPE", "replica")
        await asyncio.sleep(_CUT_OFF_SECONDS)
        scene.note("the primary is killed")
        self.primary.kill()
        replica.thaw()
        await self.cluster.promote(self.primary)
        self.back = scene.note("the replica has taken over")


def cluster_storm(folder: Path, cluster: StoreCluster, plan: Plan, *, fails_over: bool) -> Outcome:
    """Run a storm on a cluster that is whole and empty; with `fails_over` each primary needs a replica."""
    folder.mkdir(parents=True, exist_ok=True)
    world, primary = make_world(plan.clients, plan.seconds), cluster.owner(TAG)
    logs = [folder / "primary.log", folder / "replica.log"]
    course = _Course(cluster, primary, fails_over)
    with ExitStack() as opened:
        sampler = opened.enter_context(Sampler(cluster.url, world))
        watched = [primary, cluster.replicas[cluster.primaries.index(primary)]] if fails_over else []
        monitors = [opened.enter_context(Monitor(node.url, log)) for node, log in zip(watched, logs, strict=False)]
        run = opened.enter_context(Run(folder, cluster.url, plan, world))
        told = run.load(course, draw_any)
        books = run.close(told, Span(course.cut - _UNSENT_SECONDS, course.back) if fails_over else None)
        course.errors.update(cluster.errors())
        for monitor in monitors:
            monitor.end()
        samples = sampler.end()
    violations = [*beyond_outage(run.violations), *books.violations]
    if fails_over:
        run.lines += [f"{each} (while holds were lost)" for each in samples.violations]
        violations += _explain(run, books, told, *map(read_passages, logs))
    else:
        violations += samples.violations
    violations += [f"{count} x {_FORBIDDEN}" for error, count in course.errors.items() if error == _FORBIDDEN]
    run.lines.append(f"errors that the nodes answered: {dict(course.errors)}")
    return Outcome(told, books, samples, violations, run.lines)


def _explain(
    run: Run, books: Books, told: Sequence[Told], before: Mapping[str, Passage], after: Mapping[str, Passage]
) -> list[str]:
    """Say of each request whose books differ which of its writes were lost; return what that does not explain.

    `before` is what the primary was told, `after` what the survivor was, by the primary and then by gateways.
    """
    world, violations = run.world, list[str]()
    entries = {entry.record["request_id"]: entry for entry in books.entries}
    calendars = [promise for promise in world.by_name.values() if promise.is_calendar]
    follows: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for request_id, entry in entries.items():
        passage = after.get(request_id)
        for promise in calendars:
            follows[promise.name, scope_of(entry.record, promise.by)] += _booked(passage, entry, promise)
        violations += _tell_difference(run, entry, before.get(request_id), passage, world.by_name["org-with-hits"])
    names = {each.request_id: each.name for each in told if each.request_id}
    for request_id in before.keys() - entries.keys():
        line, lost = run.bill.get(names.get(request_id, "")), _lost(before[request_id], after.get(request_id))
        billed = "not on the bill, or told to nobody" if line is None else f"billed {line.tokens} tokens"
        run.lines.append(f"{request_id} ({names.get(request_id, '?')}): no record, {billed}, lost: {lost}")
        if not lost:
            violations.append(f"{request_id} has no record, and nothing of it was lost")
    for filled in books.limits:
        name, said = filled.promise.name, follows[filled.promise.name, filled.scope]
        if filled.promise.is_calendar and filled.used != said:
            told = f"{filled.used:.0f}; from what the survivor was told follows {said}"
            violations.append(f"{name} of {filled.scope} says {told}")
    return violations


def _booked(passage: Passage | None, entry: Entry, promise: Promise) -> int:
    """Return what the survivor has booked of a request, by what it was told."""
    how = passage.ends[-1][0] if passage is not None and passage.ends else ""
    if how == "settled":
        return charge_of(entry.record, promise)
    if passage is None or how != "orphaned" or entry.orphan is None:
        return 0
    is_untouched = passage.verdict == "hit" and not (promise.of == "requests" or promise.includes_hits)
    return 0 if is_untouched else charge_of(entry.orphan, promise)


def _tell_difference(
    run: Run, entry: Entry, before: Passage | None, after: Passage | None, promise: Promise
) -> list[str]:
    """Say which writes of a request were lost if its books differ, by a limit of tokens that all requests take from."""
    recorded, booked = charge_of(entry.record, promise), _booked(after, entry, promise)
    lost = _lost(before, after)
    if recorded == booked:
        return []
    told = f"{entry.record['request_id']} ({entry.name}): recorded {recorded}, counted {booked}, {booked - recorded:+}"
    run.lines.append(f"{told}, lost: {lost}")
    return [] if lost else [f"{told}, and nothing of it was lost"]


def _lost(before: Passage | None, after: Passage | None) -> str:
    """Return the writes of a request that the primary acknowledged and its replica never saw."""
    known = set() if after is None else {*after.ends, ("held", after.admitted_at)}
    written = [] if before is None else [("held", before.admitted_at), *before.ends]
    return ", ".join(f"{how} at {at:.3f}" for how, at in written if (how, at) not in known)
