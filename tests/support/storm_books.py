"""Closing the books of a storm: what limits, usage records, the upstream's bill and the clients say of each request.

Three books that were kept apart are held against each other, line by line and in sum. Knows what the books mean
(README, METRICS, SPEC §5), and nothing of the code that wrote them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from bill import Line
from storm_world import ORGANIZATION, cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from storm_clients import Told
    from storm_watch import Filled
    from storm_world import Promise, World

Record = dict[str, Any]

ORPHANED = "orphaned"
LEFT = "client_left"
_KEPT = 20

CHARGES: Mapping[str, Callable[[Record], int]] = {
    "requests": lambda record: 1 if record["held_tokens"] else 0,  # whatever was admitted held something
    "tokens": lambda record: record["input_tokens"] + record["output_tokens"],
    "input_tokens": lambda record: record["input_tokens"],
    "output_tokens": lambda record: record["output_tokens"],
    "completions": lambda record: record["completions"],
    "usd": lambda record: record["cost_microdollars"],
    "concurrency": lambda _record: 0,
}


@dataclass
class Sums:
    """What limits of one name say, what the records say, and the bill."""

    counts: int = 0
    limits: int = 0
    records: int = 0
    billed: int = 0


@dataclass
class Books:
    """What was found: `entries` of all requests, `violations` that must not be, and lines for people to read."""

    entries: list[Entry] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sums: dict[str, Sums] = field(default_factory=dict)
    """What each calendar limit has counted, by its name, over all its scopes."""
    limits: Sequence[Filled] = ()
    lost: Span | None = None

    def accuse(self, text: str) -> None:
        """Keep a violation."""
        self.counts["violations"] += 1
        if len(self.violations) < _KEPT:
            self.violations.append(text)

    def say(self, text: str) -> None:
        """Keep a line for people."""
        self.lines.append(text)


@dataclass(frozen=True)
class Entry:
    """One request in all books: its record and an orphan's, if there was one; the upstream's line, and the client's."""

    record: Record
    orphan: Record | None
    line: Line
    told: Told | None

    @property
    def is_corrected(self) -> bool:
        """Tell whether the truth came after an orphan's worst case."""
        return self.orphan is not None and self.record is not self.orphan

    @property
    def name(self) -> str:
        """The request's name."""
        return self.line.name


class Span(NamedTuple):
    """From when to when, in Unix seconds."""

    start: float
    end: float


def close_books(
    world: World,
    records: Sequence[Record],
    bill: Mapping[str, Line],
    told: Iterable[Told],
    limits: Sequence[Filled],
    lost: Span | None = None,
) -> Books:
    """Hold all books against each other, when all is quiet.

    `lost` is a time of which the store has lost writes: records of requests that ended in it may be missing or told
    twice, those that were answered may be orphans, and it is the caller's business to explain what limits say.
    """
    books = Books(lost=lost, limits=limits)
    clients = {each.name: each for each in told}
    books.entries = _join(books, records, bill, clients)
    for entry in books.entries:
        _judge(books, entry)
    _find_unrecorded(books, {entry.name for entry in books.entries}, bill, clients)
    _compare_limits(books, world, books.entries, limits)
    return books


def _join(
    books: Books, records: Sequence[Record], bill: Mapping[str, Line], clients: Mapping[str, Told]
) -> list[Entry]:
    """Take each request once: of its records the truth before an orphan's."""
    by_id: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record["outbox_id"] in by_id[record["request_id"]]:
            books.counts["records handed out twice by a drainer that was killed"] += 1
        by_id[record["request_id"]][record["outbox_id"]] = record
    entries: list[Entry] = []
    names: Counter[str] = Counter()
    for request_id, found in by_id.items():
        orphans = [record for record in found.values() if record["outcome"] == ORPHANED]
        truths = [record for record in found.values() if record["outcome"] != ORPHANED]
        if (len(truths) > 1 or len(orphans) > 1) and not _may_be_told_again(books, truths):
            books.accuse(f"{request_id} was charged {len(truths)} times and orphaned {len(orphans)} times")
        record = (truths or orphans)[-1]
        name = (record["end_user"] or "").partition(".")[0]
        names[name] += 1
        orphan = orphans[-1] if orphans else None
        entries.append(Entry(record, orphan, bill.get(name, Line(name)), clients.get(name)))
    for name, times in names.items():
        if times > 1:
            books.accuse(f"{name} was sent once and has {times} requests in the records")
    return entries


def _may_be_told_again(books: Books, truths: Sequence[Record]) -> bool:
    """Tell whether the store forgot that it had been told, and all truths say the same."""
    if books.lost is None or any(told != {**truths[0], "outbox_id": told["outbox_id"]} for told in truths):
        return False
    books.counts["truths told again to a store that had lost them"] += 1
    return True


# ---------------------------------------------------------------- one request
def _judge(books: Books, entry: Entry) -> None:
    record, outcome = entry.record, entry.record["outcome"]
    hit = " from the cache" if record["cache"] == "hit" else ""
    books.counts[f"{outcome}{hit}{', after an orphan' if entry.is_corrected else ''}"] += 1
    books.counts["waited for room in limits"] += record["waited_seconds"] > 0
    if record["cost_microdollars"] != cost(record["input_tokens"], record["output_tokens"]):
        books.accuse(f"{entry.name}: {record['cost_microdollars']} micro-dollars for {_tokens(record)}")
    if outcome == ORPHANED:
        _judge_orphan(books, entry)
    elif outcome == LEFT:
        _judge_left(books, entry)
    elif (record["input_tokens"], record["output_tokens"]) != (entry.line.input_tokens, entry.line.output_tokens):
        books.accuse(f"{entry.name} ({outcome}, {record['known']}): charged {_tokens(record)}, billed {_billed(entry)}")
    if entry.told is not None and entry.told.is_whole:
        _judge_finished(books, entry, entry.told)


def _judge_orphan(books: Books, entry: Entry) -> None:
    """Hold an orphan against what it held, and against the upstream's bill, which is no more than that."""
    record = entry.record
    held = record["held_tokens"], record["held_cost_microdollars"]
    charged = record["input_tokens"] + record["output_tokens"], record["cost_microdollars"]
    books.counts["tokens of orphans above the bill"] += charged[0] - entry.line.tokens
    books.say(f"orphan {record['request_id']} ({entry.name}): held {held}, charged {charged}, billed {_billed(entry)}")
    if charged != held:
        books.accuse(f"orphan {entry.name}: charged {charged}, held {held}")
    if entry.line.tokens > charged[0]:
        books.accuse(f"orphan {entry.name}: billed {_billed(entry)}, charged only {charged}")


def _judge_left(books: Books, entry: Entry) -> None:
    """Hold a charge between what the client had got and what was billed; an answer not begun costs the worst."""
    record, line, told = entry.record, entry.line, entry.told
    got = told.events if told is not None else 0
    charged = record["input_tokens"] + record["output_tokens"]
    in_flight = line.output_tokens - got
    if charged != line.tokens:
        kind = record["known"]
        books.say(
            f"left {entry.name} ({kind}): charged {_tokens(record)}, billed {_billed(entry)}, "
            f"difference {charged - line.tokens}, in flight {in_flight}"
        )
        books.counts[f"left with a difference, {kind}"] += 1
        books.counts[f"tokens of difference of those left, {kind}"] += charged - line.tokens
    if record["known"] == "worst_case":
        if charged != record["held_tokens"] or line.tokens > charged:
            books.accuse(
                f"{entry.name} was left: charged {charged}, held {record['held_tokens']}, billed {line.tokens}"
            )
        return
    if not min(got, line.output_tokens) <= record["output_tokens"] <= line.output_tokens:
        books.accuse(
            f"{entry.name} was left: charged {_tokens(record)}, billed {_billed(entry)}, the client had {got} events"
        )
    if record["input_tokens"] != line.input_tokens and (got or (record["input_tokens"] and line.input_tokens)):
        books.accuse(f"{entry.name} was left: charged {_tokens(record)}, billed {_billed(entry)}")


def _judge_finished(books: Books, entry: Entry, told: Told) -> None:
    """Hold to it that what a client has to its end was settled before: no later death makes an orphan of it."""
    if entry.record["outcome"] == ORPHANED:
        if books.lost is not None and books.lost.start <= told.ended <= books.lost.end:
            books.counts["truths lost with the store, so that orphans stand"] += 1
            return
        books.accuse(f"{entry.name} was answered to its end and is an orphan")
    if told.status != entry.record["status"]:
        books.accuse(f"{entry.name}: the client was told {told.status}, the record says {entry.record['status']}")
    if told.request_id != entry.record["request_id"]:
        books.accuse(f"{entry.name}: {told.request_id} was told, {entry.record['request_id']} recorded")


def _find_unrecorded(books: Books, recorded: set[str], bill: Mapping[str, Line], clients: Mapping[str, Told]) -> None:
    """Find whoever is on the bill, or was answered by a gateway, and not in the records."""
    for name, line in bill.items():
        if name in recorded or not line.attempts:
            continue
        if books.lost is not None and books.lost.start <= line.last_at <= books.lost.end:
            books.counts["records lost with the store"] += 1
            books.counts["tokens of records lost with the store"] += line.tokens
        else:
            books.accuse(f"{name} is on the bill ({line.tokens} tokens, {line.last_at:.3f}) and in no record")
    for name, told in clients.items():
        books.counts[f"clients: {_how(told)}"] += 1
        if name not in recorded and name not in bill and told.is_whole and told.status == 200 and books.lost is None:
            books.accuse(f"{name} was answered 200 and is in no record")


def _how(told: Told) -> str:
    if told.is_left:
        return "left"
    return f"{told.status or 'no answer'}{', cut' if told.is_broken else ''}"


# ---------------------------------------------------------------- in sum
def _compare_limits(books: Books, world: World, entries: Sequence[Entry], limits: Sequence[Filled]) -> None:
    """Hold calendar limits against the records, to the unit; nothing is held any more."""
    for filled in limits:
        promise = filled.promise
        if filled.held:
            books.accuse(f"{promise.name} of {filled.scope} still holds {filled.held}")
        if not promise.is_calendar:
            continue
        of, within = promise.of, [entry for entry in entries if scope_of(entry.record, promise.by) == filled.scope]
        recorded = sum(charge_of(entry.record, promise) for entry in within)
        if filled.used != recorded and books.lost is None:
            books.accuse(f"{promise.name} of {filled.scope} says {filled.used:.0f}, the records say {recorded}")
        sums = books.sums.setdefault(promise.name, Sums())
        sums.counts += 1
        sums.limits += int(filled.used)
        sums.records += recorded
        sums.billed += sum(_billed_of(of, entry) for entry in within)
    books.say(f"{'limit':18} {'of':14} {'counts':>6} {'limits say':>12} {'records say':>12} {'the bill says':>13}")
    for name, sums in books.sums.items():
        of = world.by_name[name].of
        books.say(f"{name:18} {of:14} {sums.counts:6} {sums.limits:12} {sums.records:12} {sums.billed:13}")
    books.say("(the bill differs by orphans and by those that left, listed above, and has no requests that were hits)")


def scope_of(record: Record, by: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a limit's `by` is for a record."""
    values = {
        "organization": ORGANIZATION,
        "project": record["project"],
        "user": record["owner"],
        "key": record["key"],
        "model": record["model"],
    }
    return tuple(values[each] or "" for each in by)


def charge_of(record: Record, promise: Promise) -> int:
    """Return what a request took of a limit, by its record."""
    saved: int = record["saved_input_tokens"] + record["saved_output_tokens"] if promise.includes_hits else 0
    return CHARGES[promise.of](record) + saved


def _billed_of(of: str, entry: Entry) -> int:
    line = entry.line
    return {
        "requests": 1 if line.attempts else 0,
        "tokens": line.tokens,
        "input_tokens": line.input_tokens,
        "output_tokens": line.output_tokens,
        "completions": line.candidates,
        "usd": cost(line.input_tokens, line.output_tokens),
    }.get(of, 0)


def _tokens(record: Record) -> str:
    return f"{record['input_tokens']}+{record['output_tokens']}"


def _billed(entry: Entry) -> str:
    return f"{entry.line.input_tokens}+{entry.line.output_tokens}"
