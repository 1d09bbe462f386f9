"""A third opinion on limits: from the log of a run, which verdicts were allowed, and what every limit has counted.

Written from SPEC §5, with exact fractions, before the store's scripts and the arithmetic in `policies` were read; it
imports neither. What SPEC does not say was then taken from what the scripts promise: that a hit holds its requests
until it is one, that what nothing was held for fills a bucket to its burst at most, who may wait, and how lines are
ordered. It does not know how a log is taken (`store_log`).

What a bucket has used flows off at limit / window, and never below nothing; what is held in it does not flow off. A
gateway may round that rate down by ROUNDING, so what a limit has used is known between two bounds, `least` and `most`;
between them also lies what SPEC leaves open: how much of a booking that is corrected later had already flowed off.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROUNDING: Final = Fraction(1, 10**6)
"""How much slower than promised a bucket may refill, of its rate."""
WAITER_LIFE_MILLISECONDS: Final = 3_000
"""How long a request that waits keeps its place without asking again."""
MOST_AHEAD: Final = 64
"""Behind so many others there is no room, however little they ask."""
MICROSECONDS: Final = 1_000


class Taken(StrEnum):
    """When a request takes from a limit."""

    SPEND = "spend"
    """At admission, for good; held from one that was admitted for a hit only, until it is known whether it is one."""
    HOLD = "hold"
    """Held until it ends."""
    MISS = "miss"
    """Held until it ends, but not by an answer from the cache."""


class Says(Enum):
    """What one limit says to a request."""

    YES = auto()
    WAIT = auto()
    HIT = auto()
    """Not it, but an answer from the cache it lets pass."""
    NO = auto()


@dataclass(frozen=True, slots=True)
class Terms:
    """What one limit promises: at most `limit` in each `window` (ms), at once at most `burst`.

    `window` 0 means that nothing flows off: a calendar window, which begins at `start` and ends at `end` (Unix ms), or
    concurrency, which has neither. `told` is the rate (in a millisecond) that the store was told, if that is known.
    """

    key: str
    burst: int
    limit: int = 0
    window: int = 0
    start: int = 0
    end: int = 0
    told: Fraction | None = None

    @property
    def rate(self) -> Fraction:
        """How much flows off in a millisecond."""
        return Fraction(self.limit, self.window) if self.window else Fraction(0)

    @property
    def slowest(self) -> Fraction:
        """How much flows off in a millisecond at least."""
        return self.rate if self.told is None else self.told

    @property
    def is_told_rightly(self) -> bool:
        """Whether the store was told what is promised, or hardly less."""
        return self.rate * (1 - ROUNDING) <= self.slowest <= self.rate

    def is_over(self, now: int) -> bool:
        """Tell whether a calendar window is not the present one."""
        return self.end > 0 and not self.start <= now < self.end


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants of one limit.

    `asks` must fit; `takes` is taken when it is admitted (nothing with `hold: none`). `refuses` is False for observed
    limits. `line` names where requests for it wait, `patience` says for how long yet (ms).
    """

    terms: Terms
    taken: Taken
    asks: int
    takes: int
    refuses: bool = True
    line: str = ""
    patience: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """An admission as the store executed it at `now` (Unix ms), and what it said.

    `hits` is "no", "maybe" or "only". `came` orders those that wait (μs); `waits_for` are the positions of the limits
    in whose lines it was put, which is read only where SPEC leaves open whether there was room.
    """

    request: str
    now: int
    hits: str
    asks: tuple[Ask, ...]
    verdict: str
    deadline: int = 0
    came: int = 0
    waits_for: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """An end as the store executed it: `truths` is how much of each limit the request took in all.

    `how` is "settle", "orphan" or "release"; `age` how long before `now` it ended (ms).
    """

    request: str
    now: int
    how: str
    truths: tuple[tuple[Terms, int], ...]
    age: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """What somebody read of a limit at `now`: used, rounded up, and held."""

    terms: Terms
    now: int
    used: int
    held: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A request left the lines in which it stood."""

    request: str
    now: int
    lines: tuple[str, ...]


Entry: TypeAlias = Admit | End | Look | Leave


@dataclass(frozen=True, slots=True)
class Objection:
    """What was wrong at which entry (by its position; the length of the log for what only the whole shows)."""

    position: int
    about: str
    said: str


@dataclass(slots=True)
class Booking:
    """One amount that was booked at one time.

    What nothing was held for fills a bucket to its burst at most; `lost` is how much of it did not fit then, at most.
    Whatever is corrected later, that does not come back.
    """

    at: int
    amount: Fraction
    lost: Fraction = Fraction(0)


@dataclass(slots=True)
class Count:
    """What one limit has counted so far.

    `bookings` in the order of their times; `before` what was used just before each, at least.
    """

    terms: Terms
    held: int = 0
    most: Fraction = Fraction(0)
    now: int = 0
    bookings: list[Booking] = field(default_factory=list)
    after: list[Fraction] = field(default_factory=list)

    def come_to(self, now: int) -> None:
        """Let time pass; a clock that went back stands still."""
        if now > self.now:
            gone = (now - self.now) * self.terms.slowest
            self.most = max(Fraction(0), self.most - gone)
            self.now = now

    @property
    def least(self) -> Fraction:
        """What is used by now, at least."""
        if not self.bookings:
            return Fraction(0)
        return max(Fraction(0), self.after[-1] - (self.now - self.bookings[-1].at) * self.terms.rate)

    def book(self, amount: int, at: int | None = None, *, is_held: bool = True) -> Booking:
        """Book an amount now, or one that was used some time ago."""
        at = self.now if at is None else min(at, self.now)
        booking = Booking(at, Fraction(amount))
        is_bounded = self.terms.window and not is_held
        if is_bounded:
            used = self.most + (self.now - at) * self.terms.rate
            booking.lost = max(Fraction(0), amount - max(Fraction(0), self.terms.burst - used))
        place = len(self.bookings)
        while place and self.bookings[place - 1].at > at:
            place -= 1
        self.bookings.insert(place, booking)
        self.after.insert(place, Fraction(0))
        self._reckon(place)
        most = self.most + amount
        self.most = max(self.most, min(most, Fraction(self.terms.burst))) if is_bounded else most
        return booking

    def correct(self, booking: Booking, truth: int) -> None:
        """Replace what was booked by less: exactly at least; at most all has flowed off since that could have."""
        difference = booking.amount - truth
        flowed = (self.now - booking.at) * self.terms.rate
        booking.amount = Fraction(truth)
        self._reckon(next(place for place in range(len(self.bookings) - 1, -1, -1) if self.bookings[place] is booking))
        self.most = max(self.least, self.most - max(Fraction(0), difference - flowed))

    def _reckon(self, place: int) -> None:
        for number in range(place, len(self.bookings)):
            booking, used = self.bookings[number], Fraction(0)
            if number:
                previous = self.bookings[number - 1]
                used = max(Fraction(0), self.after[number - 1] - (booking.at - previous.at) * self.terms.rate)
            self.after[number] = used + booking.amount - booking.lost


@dataclass(frozen=True, slots=True)
class Pass:
    """What one request was let pass by one limit, and when: some time between its admission and its end."""

    admitted: int
    ended: int | None
    amount: int


@dataclass(slots=True)
class Part:
    """What one request has of one limit: what it holds, and what is booked for it, perhaps since its admission."""

    terms: Terms
    takes: int
    holds: int = 0
    booking: Booking | None = None
    is_promised: bool = True
    is_spent_at_once: bool = False
    passed: Pass | None = None


@dataclass(slots=True)
class Request:
    """What is known of one request; `state` is "held", "orphan", "released" or "ended".

    A gateway that does not hear of an admission in time releases it, and tells the truth of the request all the same.
    """

    state: str
    verdict: str = ""
    admitted: int = 0
    parts: dict[str, Part] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Waiter:
    """One request in a line."""

    came: int
    request: str
    asks: int = field(compare=False)
    until: int = field(compare=False)


class LogOracle:
    """Reads a log entry by entry, in the order of the store, and objects."""

    def __init__(self) -> None:
        """Begin with a store that knows nothing."""
        self.objections: list[Objection] = []
        self.counts: dict[str, Count] = {}
        self.requests: dict[str, Request] = {}
        self.passes: dict[str, list[Pass]] = {}
        self.lines: dict[str, list[Waiter]] = {}
        self.open_verdicts = 0
        self._position = 0
        self._now = 0

    def read(self, log: Iterable[Entry]) -> list[Objection]:
        """Read a whole log, and return what is wrong with it."""
        for entry in log:
            self._now = max(self._now, entry.now)
            match entry:
                case Admit():
                    self._admit(entry)
                case End():
                    self._end(entry)
                case Look():
                    self._look(entry)
                case Leave():
                    self._leave(entry.request, entry.lines)
            self._position += 1
        self._judge_promises()
        return self.objections

    # admissions

    def _admit(self, entry: Admit) -> None:
        allowed = self.allowed(entry)
        self.open_verdicts += len(allowed) > 1
        if entry.verdict not in allowed:
            self._object("verdict", f"{entry.request}: {entry.verdict}, allowed: {', '.join(sorted(allowed))}")
        if entry.request in self.requests or entry.verdict not in {"admitted", "hit", "refused", "waiting"}:
            return
        if entry.verdict == "waiting":
            self._wait(entry)
        else:
            self._leave(entry.request, _lines(entry))
        if entry.verdict in {"admitted", "hit"}:
            self._take(entry)

    def allowed(self, entry: Admit) -> set[str]:
        """Return the verdicts that SPEC allows; several where only what it leaves open decides."""
        known = self.requests.get(entry.request)
        if known is not None:
            return {known.verdict} if known.state == "held" else {"ended"}
        if entry.deadline and self._now > entry.deadline:
            return {"late"}
        if any(ask.terms.is_over(self._now) for ask in entry.asks):
            return {"moved"}
        return {_verdict(entry, said) for said in product(*(self._says(entry, ask) for ask in entry.asks))}

    def _says(self, entry: Admit, ask: Ask) -> set[Says]:
        """Return what one limit says to a request: more than one thing only where it is open."""
        is_for_hit = entry.hits == "only" and ask.taken is Taken.MISS
        if is_for_hit or not ask.refuses:
            return {Says.YES}
        count = self._count(ask.terms)
        words = set[Says]()
        for ahead in self._ahead(entry, ask):
            for used in {count.least, count.most}:
                if used + count.held + ahead + ask.asks <= ask.terms.burst:
                    words.add(Says.YES)
                elif self._may_wait(ask, used):
                    words.add(Says.WAIT)
                else:
                    words.add(Says.HIT if entry.hits == "maybe" and ask.taken is Taken.MISS else Says.NO)
        return words

    def _may_wait(self, ask: Ask, used: Fraction) -> bool:
        """Tell whether a request may wait: whether time alone brings it room while it is patient, if all holds end."""
        if not ask.line or ask.patience <= 0 or ask.asks > ask.terms.burst:
            return False
        missing = used + ask.asks - ask.terms.burst
        if missing > 0 and not ask.terms.window:
            return 0 < ask.terms.end - self._now <= ask.patience
        return missing <= ask.patience * ask.terms.rate

    def _ahead(self, entry: Admit, ask: Ask) -> set[int]:
        """Return what those ask for who came before and are alive; where they are too many to tell, also more."""
        line = self.lines.get(ask.line, [])
        came = entry.came or self._now * MICROSECONDS
        own = next((waiter for waiter in line if waiter.request == entry.request), None)
        before = [each for each in line if (each < own if own is not None else each.came <= came)]
        alive = [each.asks for each in before if each.until >= self._now]
        ahead = {min(sum(alive[:MOST_AHEAD]), ask.terms.burst)}
        if len(before) > MOST_AHEAD:
            ahead = {ask.terms.burst} if len(alive) > MOST_AHEAD else ahead | {ask.terms.burst}
        return ahead

    def _wait(self, entry: Admit) -> None:
        """Let a request stand in the lines of what it waits for, at the place of when it came."""
        said = [self._says(entry, ask) for ask in entry.asks]
        is_put = [words == {Says.WAIT} or (Says.WAIT in words and i in entry.waits_for) for i, words in enumerate(said)]
        waits_for = [ask for ask, is_waiting in zip(entry.asks, is_put, strict=True) if is_waiting]
        self._leave(entry.request, _lines(entry))
        for ask in waits_for:
            until = self._now + WAITER_LIFE_MILLISECONDS
            insort(self.lines.setdefault(ask.line, []), Waiter(entry.came, entry.request, ask.asks, until))

    def _leave(self, request: str, lines: Iterable[str]) -> None:
        for line in lines:
            self.lines[line] = [each for each in self.lines.get(line, []) if each.request != request]

    def _take(self, entry: Admit) -> None:
        request = self.requests[entry.request] = Request("held", entry.verdict, self._now)
        for ask in entry.asks:
            if entry.verdict == "hit" and ask.taken is Taken.MISS:
                continue
            count = self._count(ask.terms)
            is_promised = ask.refuses and ask.takes == ask.asks
            part = request.parts[ask.terms.key] = Part(ask.terms, ask.takes, is_promised=is_promised)
            if ask.taken is Taken.SPEND and entry.verdict == "admitted":
                part.booking = count.book(ask.takes)
                part.is_spent_at_once = True
            else:
                part.holds = ask.takes
                count.held += ask.takes

    # ends

    def _end(self, entry: End) -> None:
        request = self.requests.get(entry.request)
        if request is None:
            request = self.requests[entry.request] = Request("held", admitted=self._now)
        is_known_after_all = {"orphan": entry.how != "orphan", "released": entry.how == "settle"}
        if not is_known_after_all.get(request.state, request.state == "held"):
            return
        truths = {terms.key: (terms, truth) for terms, truth in entry.truths}
        if entry.how != "orphan":  # which takes from what the request was admitted to, at worst
            for key, (terms, _truth) in truths.items():
                request.parts.setdefault(key, Part(terms, 0, is_promised=False))
        for key, part in request.parts.items():
            truth = 0 if entry.how == "release" else truths.get(key, (part.terms, 0))[1]
            self._settle(request, part, truth, entry.age)
            if request.state != "released":
                part.passed = self._passed(request, part, truth, self._now - entry.age)
        request.state = {"orphan": "orphan", "release": "released", "settle": "ended"}[entry.how]

    def _settle(self, request: Request, part: Part, truth: int, age: int) -> None:
        count = self._count(part.terms)
        count.held -= part.holds
        part.holds = 0
        booked = 0 if part.booking is None else int(part.booking.amount)
        if part.booking is not None and truth < booked:
            count.correct(part.booking, truth)
        elif truth > booked:
            is_held = request.state == "held" and request.verdict != ""
            part.booking = count.book(truth - booked, self._now - age, is_held=is_held)

    def _passed(self, request: Request, part: Part, truth: int, ended: int) -> Pass:
        """Tell what was let pass of what was held, and until when at the latest: the first time that it was ended."""
        if part.is_spent_at_once:
            ended = request.admitted
        elif part.passed is not None and part.passed.ended is not None:
            ended = part.passed.ended
        is_returned = not part.terms.window and not part.terms.end
        amount = part.takes if is_returned else min(truth, part.takes)
        return Pass(request.admitted, max(ended, request.admitted), amount)

    # levels

    def _count(self, terms: Terms) -> Count:
        if terms.key not in self.counts:
            self.counts[terms.key] = Count(terms)
            if not terms.is_told_rightly:
                self._object("rate", f"{terms.key}: {terms.told} in a millisecond, not {terms.rate}")
        count = self.counts[terms.key]
        count.terms = terms
        count.come_to(self._now)
        return count

    def _look(self, entry: Look) -> None:
        count = self._count(entry.terms)
        if entry.terms.end and self._now >= entry.terms.end:
            return
        if entry.held != count.held:
            self._object("held", f"{entry.terms.key}: {entry.held} held, not {count.held}")
        if not -(-count.least // 1) <= entry.used <= -(-count.most // 1):
            said = f"{entry.terms.key}: {entry.used} used, not {float(count.least)} to {float(count.most)}"
            self._object("used", said)

    # promises

    def _judge_promises(self) -> None:
        for request in self.requests.values():
            for key, part in request.parts.items():
                if part.is_promised:
                    passed = part.passed or Pass(request.admitted, None, part.takes)
                    self.passes.setdefault(key, []).append(passed)
        for key, passes in self.passes.items():
            self._judge(self.counts[key].terms, passes)

    def _judge(self, terms: Terms, passes: Sequence[Pass]) -> None:
        if terms.window:
            for when in ("admitted", "ended"):
                times = [(getattr(each, when) or each.admitted, each.amount) for each in passes]
                if (highest := highest_level(terms.rate, times)) > terms.burst:
                    self._object(
                        "promise", f"{terms.key}: {float(highest)} at once where {terms.burst} may be ({when})"
                    )
        elif terms.end:
            if (passed := sum(each.amount for each in passes)) > terms.burst:
                self._object("promise", f"{terms.key}: {passed} in a window of {terms.burst}")
        elif (most := most_at_once(passes)) > terms.burst:
            self._object("promise", f"{terms.key}: {most} at once where {terms.burst} may be")

    def _object(self, about: str, said: str) -> None:
        self.objections.append(Objection(self._position, about, said))


def _verdict(entry: Admit, said: Sequence[Says]) -> str:
    """Say what follows from what all limits say: one that refuses decides, and nobody waits where a hit needs not."""
    if Says.NO in said:
        return "refused"
    waits = [ask.taken for ask, word in zip(entry.asks, said, strict=True) if word is Says.WAIT]
    if waits and (Says.HIT not in said or any(taken is not Taken.MISS for taken in waits)):
        return "waiting"
    return "hit" if Says.HIT in said or entry.hits == "only" else "admitted"


def _lines(entry: Admit) -> tuple[str, ...]:
    return tuple(ask.line for ask in entry.asks if ask.line)


def highest_level(rate: Fraction, times: Iterable[tuple[int, int]]) -> Fraction:
    """Return by how much the worst span passes rate · t: at most `burst` if the promise was kept in all spans."""
    level, highest, before = Fraction(0), Fraction(0), 0
    for at, amount in sorted(times):
        level = max(Fraction(0), level - (at - before) * rate) + amount
        highest, before = max(highest, level), at
    return highest


def most_at_once(passes: Iterable[Pass]) -> int:
    """Return how much was under way at the busiest moment; what ends and begins in one millisecond does not meet."""
    changes = [(each.admitted, 1, each.amount) for each in passes]
    changes += [(each.ended, 0, -each.amount) for each in passes if each.ended is not None]
    level = highest = 0
    for _at, _order, amount in sorted(changes):
        level += amount
        highest = max(highest, level)
    return highest
