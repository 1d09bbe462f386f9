"""How many requests are refused that would have fitted, for each way to hold: what to choose (SPEC §5).

    python tests/benchmarks/bench_refusals.py [--seconds 20] [--rate 24] [--seed 1]

The model. Each user has one limit of tokens in a bucket that refills in five seconds, and that holds 2, 5, 20 or 100
times the worst case of one request. Requests come at random (Poisson), so many that with what they turn out to take
they use 1/1.3 of the limit: 30 % head room. A request is 10 token ids and `max_tokens: 1000`; its answer has a tenth of
that on average (exponentially distributed, cut at 1000), and takes a twelfth of the usual time at once and the rest in
proportion to its length. Answers are short, 2 % of the window on average, or long, 12 %: of a limit per minute, 1.2 s
and 7 s. A last table has no head room, but twice as many requests as fit. Nobody who is refused asks again. Users are
independent; there are as many as make `--rate` requests a second for each line. All lines of a table run at once, with
the same arrivals and answers, on one Valkey; what comes in the first window is not counted.

Asked is `Admissions`, without a server in front. Which requests are refused is decided by the admission script, from
when admissions and settlements reach it and from what they say; a gateway passes on both as they come, about a
millisecond later, which is nothing beside windows and answers.

Printed for each line: requests; the share refused; how much of the limit was used; by how much at most a bucket was
overfilled, of the limit, recomputed here from the settlements alone; and how long those that were admitted waited: the
median, the 95th percentile, the longest. Ends by itself within two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from admitting import Worker, decision, exchange, served, worker  # noqa: E402  the path is set above
from stores import StoreServer  # noqa: E402

from policies.errors import LimitExceeded  # noqa: E402
from policies.usage import Usage  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.decision import Decision

WINDOW_SECONDS: Final = 5.0
INPUT_TOKENS: Final = 10
MAX_TOKENS: Final = 1_000
WORST_CASE: Final = INPUT_TOKENS + MAX_TOKENS
USUAL_TOKENS: Final = MAX_TOKENS // 10
USUAL_CHARGE: Final = INPUT_TOKENS + USUAL_TOKENS
AT_ONCE_PART: Final = 1 / 12
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "hold: worst_case": {},
    "hold: none": {"hold": "none"},
    "on_exceed: wait": {"on_exceed": "wait", "max_wait": "5s"},
}
PATIENCE_SECONDS: Final = 10.0
"""Longest wait for the store: that the machine is busy is nothing to find here."""


class Load(NamedTuple):
    """What comes in one table: how much of the window an answer takes on average, and how much of the limit all do.

    `worst_cases` are the sizes of the limit: how many worst cases it holds.
    """

    words: str
    length: float
    demand: float
    worst_cases: tuple[int, ...]

    def rate_of_user(self, worst_cases: int) -> float:
        """Return how many requests a second one user makes."""
        return self.demand * worst_cases * WORST_CASE / WINDOW_SECONDS / USUAL_CHARGE

    def users(self, worst_cases: int, rate: float) -> int:
        """Return how many users make so many requests a second together; one at least."""
        return max(1, round(rate / self.rate_of_user(worst_cases)))

    def answer_seconds(self, output_tokens: int) -> float:
        """Return how long an answer takes."""
        in_proportion = (1 - AT_ONCE_PART) * output_tokens / USUAL_TOKENS
        return self.length * WINDOW_SECONDS * (AT_ONCE_PART + in_proportion)

    @property
    def held(self) -> float:
        """How much of the limit would be held on average if all were admitted at their worst case (Little's law)."""
        return self.demand * self.length * WORST_CASE / USUAL_CHARGE


LOADS: Final = (
    Load("short answers, 30 % head room", 0.02, 1 / 1.3, (2, 5, 20, 100)),
    Load("long answers, 30 % head room", 0.12, 1 / 1.3, (2, 5, 20, 100)),
    Load("long answers, twice of what fits", 0.12, 2.0, (2, 5, 20)),
)


class Arrival(NamedTuple):
    """One request: which of the users asks, when, and what is answered."""

    user: int
    at_seconds: float
    output_tokens: int


@dataclass
class Line:
    """One way to hold for one size of the limit, and what became of its requests.

    `settled` is told for each user: when, in seconds from the beginning, and how many tokens.
    """

    way: str
    worst_cases: int
    users: int
    settled: list[list[tuple[float, int]]] = field(default_factory=list)
    waited_seconds: list[float] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        """Have a place for each user."""
        self.settled = [[] for _ in range(self.users)]

    @property
    def limit(self) -> int:
        """Tokens of a window."""
        return self.worst_cases * WORST_CASE

    def decisions(self) -> list[Decision]:
        """Decide the request of each user."""
        limit = {"of": "tokens", "limit": self.limit, "per": f"{WINDOW_SECONDS:.0f}s", "by": ["user"], **WAYS[self.way]}
        return [
            decision(
                [limit],
                user=f"{self.way}-{self.worst_cases}-{user}".replace(": ", "-"),
                model={"context_window": 100_000},
                prompt=list(range(1, INPUT_TOKENS + 1)),
                max_tokens=MAX_TOKENS,
            )
            for user in range(self.users)
        ]

    @property
    def overshoot(self) -> float:
        """By how much at most any user's bucket was overfilled, in parts of the limit."""
        return max(map(self._overshoot_of, self.settled)) / self.limit

    def _overshoot_of(self, settled: Sequence[tuple[float, int]]) -> float:
        level = most = before = 0.0
        for at, tokens in settled:
            level = max(0.0, level - (at - before) * self.limit / WINDOW_SECONDS) + tokens
            most, before = max(most, level), at
        return max(0.0, most - self.limit)

    def used(self, start: float, end: float) -> float:
        """Return how much of the limit was settled for in a stretch of time."""
        tokens = sum(tokens for settled in self.settled for at, tokens in settled if start <= at < end)
        return tokens / (self.users * self.limit * (end - start) / WINDOW_SECONDS)


def arrivals(drawn: random.Random, rate: float, users: int, seconds: float) -> list[Arrival]:
    """Draw the requests of some users, each of whom makes so many a second."""
    found = []
    for user in range(users):
        at = drawn.expovariate(rate)
        while at < seconds:
            tokens = min(MAX_TOKENS, max(1, round(drawn.expovariate(1 / USUAL_TOKENS))))
            found.append(Arrival(user, at, tokens))
            at += drawn.expovariate(rate)
    return found


@dataclass(frozen=True)
class Run:
    """One table's run: where admissions are asked for, what answers take, and when it has begun."""

    on: Worker
    load: Load
    began: float

    async def ask(self, line: Line, decided: Decision, arrival: Arrival) -> None:
        """Let one request come, be answered if it is admitted, and be settled."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.began + arrival.at_seconds - loop.time())
        is_counted = arrival.at_seconds >= WINDOW_SECONDS
        told, came = exchange(decided), loop.time()
        try:
            async with self.on.admissions.admit(decided, told) as admission:
                line.waited_seconds += [loop.time() - came] * is_counted
                await asyncio.sleep(self.load.answer_seconds(arrival.output_tokens))
                served(told, Usage(INPUT_TOKENS, arrival.output_tokens))
                await admission.settle()
        except LimitExceeded:
            line.refused += is_counted
            return
        line.settled[arrival.user].append((loop.time() - self.began, INPUT_TOKENS + arrival.output_tokens))


async def run_table(on: Worker, load: Load, *, rate: float, seconds: float, seed: int) -> list[Line]:
    """Run all lines of a table at once, and return them."""
    lines = [Line(way, size, load.users(size, rate)) for size in load.worst_cases for way in WAYS]
    asked: list[tuple[Line, Decision, Arrival]] = []
    for line in lines:
        drawn = random.Random(f"{seed} {line.worst_cases}")  # noqa: S311  no secret
        decisions = line.decisions()
        came = arrivals(drawn, load.rate_of_user(line.worst_cases), line.users, seconds)
        asked += [(line, decisions[arrival.user], arrival) for arrival in came]
    run = Run(on, load, asyncio.get_running_loop().time())
    await asyncio.gather(*(run.ask(*each) for each in asked))
    return lines


def report(load: Load, lines: Sequence[Line], seconds: float) -> str:
    """Return the table of a run."""
    rows = [
        f"{load.words}; at worst case {load.held:.0%} of the limit would be held on average",
        f"{'limit holds':>14}  {'':18}{'requests':>9}{'refused':>9}{'used':>7}{'overshoot':>11}{'waited ms':>27}",
    ]
    for line in lines:
        waited = [1000 * each for each in sorted(line.waited_seconds)] or [0.0]
        times = f"{median(waited):9.0f}{waited[len(waited) * 95 // 100]:9.0f}{waited[-1]:9.0f}"
        asked = len(line.waited_seconds) + line.refused
        rows.append(
            f"{line.worst_cases:4} x worst    {line.way:18}{asked:9}{line.refused / max(1, asked):9.1%}"
            f"{line.used(WINDOW_SECONDS, seconds):7.0%}{line.overshoot:11.1%}{times}"
        )
    return "\n".join(rows)


async def run_all(loads: Sequence[Load], *, rate: float, seconds: float, seed: int) -> None:
    """Run one table after the other, each on a store of its own."""
    for load in loads:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder, StoreServer() as server:
            async with worker(server.url, Path(folder), timeout_seconds=PATIENCE_SECONDS) as on:
                lines = await run_table(on, load, rate=rate, seconds=WINDOW_SECONDS + seconds, seed=seed)
                print(report(load, lines, WINDOW_SECONDS + seconds), flush=True)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="that are counted, for each of the tables")
    parser.add_argument("--rate", type=float, default=24.0, help="requests a second for each line, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tables", type=int, default=len(LOADS), help="only the first so many of them")
    chosen = parser.parse_args()
    asyncio.run(run_all(LOADS[: chosen.tables], rate=chosen.rate, seconds=chosen.seconds, seed=chosen.seed))


if __name__ == "__main__":
    main()
