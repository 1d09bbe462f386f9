"""What limits cost: CPU time of an admission with its settlement, and memory of the store.

    python tests/benchmarks/bench_limits.py [--rounds 7] [--requests 2000] [--users 20000]

64 requests at once are admitted and settled over one `Store`, with 1, 4 and 12 limits binding each: by `Admissions`, as
the handler does it, and by the two scripts alone. Beside them, in the same run and in interleaved rounds, two trivial
scripts through the same `Store`, one after the other: no exchange with the store can cost less. CPU time is user and
system time per request, of this process and of the store told apart; medians over the rounds.

Then so many users with four limits each are admitted and settled once, and the store's memory is looked at, all of it
and with parts taken away: what stays for each limit of each user, what a request under way holds, what is left of one
that has ended, and its usage record until it is drained. One Valkey on a Unix socket; ends within two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import uvloop  # noqa: E402  the path is set above
from admitting import KEYS, Worker, decision, exchange, served, worker  # noqa: E402
from stores import StoreServer  # noqa: E402

from policies.usage import Usage  # noqa: E402
from proxy.records import orphan_record, usage_record  # noqa: E402
from proxy.store.reservations import Ending, Hits, Settlement, share  # noqa: E402
from proxy.store.scripts import Script  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import redis

    from policies.decision import Decision

AT_ONCE: Final = 64
BOUND: Final = (1, 4, 12)
USERS: Final = 16
LARGE: Final = 10_000_000
PRICED: Final = {"price": {"input": 1.5, "output": 2.0}, "context_window": 1_000_000}
REPORTED: Final = Usage(input_tokens=200, output_tokens=20)
BATCH: Final = 2_000
"""Most keys that one command removes."""
LOOK_SECONDS: Final = 0.01
PATIENCE_SECONDS: Final = 10.0
"""Longest wait for the store: that the machine is busy is nothing to find here."""


def limit(of: str, per: str | None, by: str) -> Mapping[str, Any]:
    """Return one limit that is never reached."""
    return {"of": of, "limit": LARGE, "by": [by]} if per is None else {"of": of, "limit": LARGE, "per": per, "by": [by]}


LIMITS: Final = (
    limit("tokens", "minute", "user"),
    limit("requests", "minute", "user"),
    limit("usd", "month", "project"),
    limit("concurrency", None, "key"),
    limit("tokens", "day", "user"),
    limit("requests", "hour", "project"),
    limit("input_tokens", "90s", "user"),
    limit("output_tokens", "90s", "user"),
    limit("completions", "hour", "key"),
    limit("usd", "day", "user"),
    limit("requests", "day", "organization"),
    limit("tokens", "month", "organization"),
)
"""The first so many of them bind."""

OF_A_USER: Final = tuple(
    limit(of, per, "user")
    for of, per in (("tokens", "minute"), ("requests", "minute"), ("usd", "month"), ("tokens", "day"))
)
"""Four limits that count for each user, two in buckets and two in calendar windows."""


class Trivial(Script):
    """A script that does next to nothing."""

    @cached_property
    def source(self) -> bytes:
        """One command, and the one argument that it needs."""
        return b"return redis.call('INCRBY', KEYS[1], ARGV[1])"


TRIVIAL: Final = Trivial("trivial")


def deciding(limits: Sequence[Mapping[str, Any]], user: int) -> Decision:
    """Decide a request of one of the users."""
    return decision(limits, user=f"user-{user}", model=PRICED, prompt="word " * 100, max_tokens=200)


@dataclass
class Target:
    """Something to do for each request, and what it cost in microseconds: here and in the store."""

    name: str
    do: Callable[[int], Awaitable[None]]
    here: list[float] = field(default_factory=list)
    store: list[float] = field(default_factory=list)


async def two_trivial_scripts(on: Worker, number: int) -> None:
    """Make two trips to the store for one request."""
    key = f"trivial:{number % AT_ONCE}"
    await on.state.run(TRIVIAL, [key], [1])
    await on.state.run(TRIVIAL, [key], [1])


async def scripts_alone(on: Worker, decisions: Sequence[Decision], records: tuple[bytes, str], number: int) -> None:
    """Send the two scripts of one request as `Admissions` does, with records and charges that are ready."""
    decided = decisions[number % len(decisions)]
    reservations, name = on.admissions.reservations, f"alone-{number}"
    counts = reservations.counts(decided.limits, reservations.now())
    deadline = reservations.now() + round(PATIENCE_SECONDS * 1000)
    await reservations.send_admit(name, counts, hits=Hits.NO, deadline=deadline, record=records[0])
    shares = tuple(share(count, 1) for count in counts)
    await reservations.send(Settlement(name, Ending.SETTLE, records[1], shares, reservations.now()))


async def admission(on: Worker, decisions: Sequence[Decision], number: int) -> None:
    """Admit one request and settle it."""
    told = exchange(decided := decisions[number % len(decisions)])
    async with on.admissions.admit(decided, told) as admitted:
        served(told, REPORTED)
        await admitted.settle()


async def all_at_once(do: Callable[[int], Awaitable[None]], numbers: Iterable[int]) -> None:
    """Do something for each number, for so many at once."""
    left = iter(numbers)

    async def one_after_the_other() -> None:
        for number in left:
            await do(number)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


def targets(on: Worker) -> list[Target]:
    """Return everything that is measured, what the others are compared with first."""
    found = [Target("two trivial scripts", partial(two_trivial_scripts, on))]
    for bound in BOUND:
        decisions = [deciding(LIMITS[:bound], user) for user in range(USERS)]
        assert len(decisions[0].limits) == bound
        records = orphan_record(told := exchange(decisions[0])), usage_record(told, None).decode()
        found.append(Target(f"scripts alone, {count_words(bound)}", partial(scripts_alone, on, decisions, records)))
        found.append(Target(f"admission, {count_words(bound)}", partial(admission, on, decisions)))
    return found


def count_words(bound: int) -> str:
    """Return how many limits bind, such as `4 limits`."""
    return f"{bound} limit" + "s" * (bound > 1)


def cpu_of_store(client: redis.Redis) -> float:
    """Return the store's user and system time, in seconds."""
    told = client.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def cpu_of_this() -> float:
    """Return this process's user and system time, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(target: Target, client: redis.Redis, numbers: range) -> None:
    """Do it for all numbers, and keep what one of them cost."""
    store_before, before = cpu_of_store(client), cpu_of_this()
    await all_at_once(target.do, numbers)
    spent, by_store = cpu_of_this() - before, cpu_of_store(client) - store_before
    target.here.append(spent / len(numbers) * 1e6)
    target.store.append(by_store / len(numbers) * 1e6)
    client.flushall()  # records, and what is left of requests that have ended, are not to add up


def report(measured: Sequence[Target]) -> str:
    """Return the table of what things cost, beside the first of them."""
    first = measured[0]
    lines = [
        f"{'µs of CPU per request':28}{'gateway':>9}{'lowest':>9}{'ratio':>7}{'store':>9}{'lowest':>9}{'ratio':>7}"
    ]
    for target in measured:
        here, store = (
            f"{median(own):9.1f}{min(own):9.1f}{median(own) / (median(base) or float('nan')):7.2f}"
            for own, base in ((target.here, first.here), (target.store, first.store))
        )
        lines.append(f"{target.name:28}{here}{store}")
    return "\n".join(lines)


async def measure_time(on: Worker, client: redis.Redis, *, rounds: int, requests: int) -> str:
    """Warm up, then measure in turn, round after round; each round has numbers of its own."""
    measured = targets(on)
    for target in measured:
        await all_at_once(target.do, range(-AT_ONCE * 2, 0))
    gc.collect()
    gc.freeze()  # as a worker does
    for number in range(rounds):
        for target in measured:
            await measure(target, client, range(number * requests, (number + 1) * requests))
    return report(measured)


class Used(NamedTuple):
    """Memory of the store at one time, in bytes: of what is in it, and of the tables of its keys."""

    content: int
    tables: int
    keys: int


async def measure_memory(on: Worker, client: redis.Redis, users: int) -> str:
    """Fill the store with the limits of many users, and tell what each thing in it takes."""
    at_once = max(1, users // 4)
    remove_all(client, "*")
    empty = used_memory(client)
    await all_at_once(lambda user: admission(on, [deciding(OF_A_USER, user)], 0), range(users))
    remove_all(client, "*:hold:*")
    client.delete(KEYS.outbox)
    limits = used_memory(client)
    async with AsyncExitStack() as under_way:
        for decided in [deciding(OF_A_USER, user) for user in range(at_once)]:
            told = exchange(decided)
            await under_way.enter_async_context(on.admissions.admit(decided, told))
            served(told, REPORTED)
        held = used_memory(client)
    ended = used_memory(client)
    client.delete(KEYS.outbox)
    drained = used_memory(client)
    of_each = f"one limit of one user ({users} users with {len(OF_A_USER)} each)"
    rows = {
        of_each: grown(empty, limits, limits.keys - empty.keys),
        f"a request under way ({at_once} at once)": grown(limits, held, at_once),
        "what is left of one that has ended, for 10 minutes": grown(limits, drained, at_once),
        "its usage record, until it is drained": grown(drained, ended, at_once),
        "for each of these but the record, in the tables of keys": (limits.tables - empty.tables) / limits.keys,
    }
    return "\n".join(["bytes of the store's memory", *(f"{name:64}{each:9.0f}" for name, each in rows.items())])


def grown(before: Used, after: Used, count: int) -> float:
    """Return by how much the content has grown for each of so many things."""
    return (after.content - before.content) / count


def used_memory(client: redis.Redis) -> Used:
    """Look at the store's memory, once what was removed has been freed."""
    while (told := client.info("memory"))["lazyfree_pending_objects"]:
        time.sleep(LOOK_SECONDS)  # the store frees in the background, and tells nobody when it is done
    tables = told["used_memory_overhead"] - told["used_memory_startup"] - told["mem_clients_normal"]
    return Used(told["used_memory_dataset"], tables, client.dbsize())


def remove_all(client: redis.Redis, pattern: str) -> None:
    """Remove the keys of a pattern, at once."""
    batch: list[bytes] = []
    for key in client.scan_iter(pattern, count=BATCH):
        batch.append(key)
        if len(batch) == BATCH:
            client.delete(*batch)
            batch.clear()
    if batch:
        client.delete(*batch)


async def run(rounds: int, requests: int, users: int) -> None:
    """Measure both on one store, and print the tables."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, StoreServer() as server, server.client() as client:
        async with worker(server.url, Path(folder), timeout_seconds=PATIENCE_SECONDS) as on:
            print(await measure_time(on, client, rounds=rounds, requests=requests), flush=True)
            print()
            print(await measure_memory(on, client, users))


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=2000, help="for each target in each round")
    parser.add_argument("--users", type=int, default=20_000, help="with four limits each, for the memory")
    arguments = parser.parse_args()
    uvloop.run(run(arguments.rounds, arguments.requests, arguments.users))


if __name__ == "__main__":
    main()
