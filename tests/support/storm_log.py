"""What a store was told in a run, from the file that `MONITOR` filled: admissions and ends of requests, in order.

A line of `MONITOR` shows a command, and what a script writes stands in lines of its own behind the script's call; so
the log tells the verdicts too, of all but refusals. Knows the hashes of holds that the heads of the scripts describe,
and nothing of how a verdict is come by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from storm_books import CHARGES, scope_of
from storm_watch import HOLDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bill import Line
    from storm_world import Promise, World

_WORD: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_HOLD: Final = b'"HSET" "' + HOLDS.encode()
_MILLISECONDS: Final = 1000


@dataclass
class Passage:
    """One request in the store: admitted, as a miss or for a hit only, and ended how. Times are Unix seconds."""

    request_id: str
    verdict: str
    admitted_at: float
    ends: list[tuple[str, float]] = field(default_factory=list)
    """(settled | orphaned | released, when), the first one first."""

    @property
    def is_released(self) -> bool:
        """Tell whether it gave everything back."""
        return any(how == "released" for how, _ in self.ends)


def read_passages(*logs: Path) -> dict[str, Passage]:
    """Read all requests that a store has had to do with, by their ids; of several logs one behind the other.

    One that ended and was not admitted here has an empty verdict.
    """
    passages: dict[str, Passage] = {}
    for request_id, written in _written_holds(logs):
        at = int(written["at"]) / _MILLISECONDS
        if written["state"] == "held":
            passages.setdefault(request_id, Passage(request_id, written["verdict"], at))
        else:
            passages.setdefault(request_id, Passage(request_id, "", at)).ends.append((written["state"], at))
    return passages


def _written_holds(logs: Iterable[Path]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what was written of holds, with the requests' ids; only the members that are plain words."""
    for log in logs:
        with log.open("rb") as lines:
            for line in lines:
                if _HOLD not in line:
                    continue
                _command, key, *words = (word.decode("latin-1") for word in _WORD.findall(line))
                members = dict(zip(words[::2], words[1::2], strict=False))
                if "state" in members:
                    yield key.removeprefix(HOLDS), members


@dataclass(frozen=True)
class Passing:
    """So much passed a limit at one moment."""

    at: float
    amount: int


def fullest(passings: Sequence[Passing], promise: Promise) -> float:
    """Return the most that passed in any span t, less what may pass in t beyond the burst: limit x t / window.

    It is the highest level of a bucket that leaks at the limit's rate, which is the same.
    """
    amount, period = promise.refill
    level, highest, since = 0.0, 0.0, 0.0
    for each in sorted(passings, key=lambda passing: passing.at):
        level = max(0.0, level - (each.at - since) * _MILLISECONDS * amount / period) + each.amount
        highest, since = max(highest, level), each.at
    return highest


@dataclass(frozen=True)
class Flow:
    """The fullest that a bucket of one kind ever was by a log: its level, its capacity, and how unsure times are."""

    promise: Promise
    scope: tuple[str, ...]
    level: float
    unsure_seconds: float

    @property
    def slack(self) -> float:
        """What may have passed in the time that the log's moments are unsure by: a millisecond in the store's own."""
        amount, period = self.promise.refill
        return self.unsure_seconds * _MILLISECONDS * amount / period

    @property
    def is_too_much(self) -> bool:
        """Tell whether more passed than the limit promises."""
        return self.level > self.promise.capacity + self.slack

    def __str__(self) -> str:
        return (
            f"{self.promise.name:16} {'/'.join(self.scope):14} {self.level:9.1f} {self.promise.capacity:9} "
            f"{self.slack:9.1f}"
        )


def find_flows(
    world: World, records: Mapping[str, dict[str, Any]], passages: Mapping[str, Passage], bill: Mapping[str, Line]
) -> tuple[list[Flow], list[Flow]]:
    """Return how full each bucket was at most, by the store's log, and by the upstream's bill.

    `records` are the last ones by request id. What was billed while room was held for it is covered by the hold,
    whenever that is settled. So the bill's moments are unsure only by what a request took at most from its admission to
    the upstream, and by what the upstream wrote at most after the settlement of an answer that was left.
    """
    by_store: dict[tuple[str, tuple[str, ...]], list[Passing]] = {}
    by_bill: dict[tuple[str, tuple[str, ...]], list[Passing]] = {}
    unsure = {"requests": 0.0, "": 0.0}
    buckets = [each for each in world.by_name.values() if each.per and not each.is_calendar]
    for request_id, passage in passages.items():
        record = records.get(request_id)
        if record is None or passage.is_released or not (passage.ends and passage.verdict):
            continue
        line = bill.get((record["end_user"] or "").partition(".")[0])
        for promise in buckets:
            is_request = promise.of == "requests"
            at = passage.admitted_at if is_request and passage.verdict == "admitted" else passage.ends[0][1]
            count = promise.name, scope_of(record, promise.by)
            by_store.setdefault(count, []).append(Passing(at, CHARGES[promise.of](record)))
            if line is None or not line.ended_at:
                continue
            moment = line.began_at if is_request else line.ended_at
            kind = "requests" if is_request else ""
            unsure[kind] = max(unsure[kind], moment - at)
            by_bill.setdefault(count, []).append(Passing(moment, 1 if is_request else _billed(promise.of, line)))

    def flows(found: Mapping[tuple[str, tuple[str, ...]], list[Passing]], *, is_exact: bool) -> list[Flow]:
        made = []
        for (name, scope), passings in found.items():
            promise = world.by_name[name]
            spread = 0.001 if is_exact else unsure["requests" if promise.of == "requests" else ""]
            made.append(Flow(promise, scope, fullest(passings, promise), spread))
        return made

    return flows(by_store, is_exact=True), flows(by_bill, is_exact=False)


def _billed(of: str, line: Line) -> int:
    return line.output_tokens if of == "output_tokens" else line.tokens


def tell_flows(told: str, flows: Sequence[Flow]) -> list[str]:
    """Return the fullest bucket of each kind in lines for people."""
    lines = [f"{told:31} {'level':>9} {'capacity':>9} {'unsure':>9}"]
    for name in dict.fromkeys(flow.promise.name for flow in flows):
        of_kind = [flow for flow in flows if flow.promise.name == name]
        lines.append(str(max(of_kind, key=lambda flow: flow.level / flow.promise.capacity)))
    return lines
