"""What an event of a stream costs: CPU time of the gateway's process tree, and what it adds to the first token's time.

    python tests/benchmarks/bench_streams.py [--rounds 5] [--events 6400] [--first-tokens 100]

1, 16 and 128 streams at once. Each event is sent when the one before has come out, so that none is saved by being
passed along with another. CPU time is that of all processes of a target (for a gateway: supervisor, worker and both
embedded stores) between the streams' first events and their last, for each event; medians over the rounds, and beside
each what it is of a bare aiohttp relay's, which is measured in the same run and in interleaved rounds, as is nginx with
`proxy_buffering off` where an `nginx` is on the PATH. The gateway is measured twice: with streams of which nothing is
kept, and with such as others may join and the cache keeps.

The time to the first token is that of one stream after another while nothing else is open, and what it is more than
without anything in between. Everything runs on one processor: to wake up another one costs whoever does so more than
many an event. Traffic stays on loopback, and the whole takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "benchmarks")]

import uvloop  # noqa: E402  the path is set above
from bench_cache import cpu_microseconds, nginx  # noqa: E402
from bench_path import POLICY, bare  # noqa: E402
from both_ends import BothEnds, Stream, connected  # noqa: E402
from gateway import Gateway, descendants_of, settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

STREAMS: Final = (1, 16, 128)
LONGEST_SECONDS: Final = 60.0
"""How long one measurement may take before something is wrong."""
PATH: Final = "/v1/chat/completions"
NGINX: Final = "upstream ends {{ server {host}; keepalive 256; }}"
UNBUFFERED: Final = """
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_buffering off;
        location / { proxy_pass http://ends; }
"""


@dataclass
class Target:
    """Something that passes streams on: where, in which processes, and what was measured.

    `temperature` is asked for: a gateway keeps what is asked for with 0. Costs are microseconds an event by the number
    of streams, first tokens seconds.
    """

    name: str
    base_url: str
    pids: Sequence[int]
    temperature: float = 1
    costs: dict[int, list[float]] = field(default_factory=dict)
    first_tokens: list[float] = field(default_factory=list)

    async def measure_events(self, ends: BothEnds, streams: int, events: int) -> None:
        """Pass so many events in so many streams, and keep what one of them cost."""
        async with self._connected(ends, streams) as opened:
            await asyncio.gather(*(stream.begin() for stream in opened))
            before = cpu_microseconds(self.pids)
            await asyncio.gather(*(stream.go_on(events // streams) for stream in opened))
            spent = cpu_microseconds(self.pids) - before
            await asyncio.gather(*(stream.end() for stream in opened))
        self.costs.setdefault(streams, []).append(spent / (events // streams * streams))

    async def measure_first_tokens(self, ends: BothEnds, count: int) -> None:
        """Open so many streams one after the other, and keep how long the first event of each took."""
        async with self._connected(ends, 1) as (stream,):
            await stream.begin()  # connections are made, and are not what is measured
            await stream.end()
            for _ in range(count):
                self.first_tokens.append(await stream.begin())
                await stream.end()

    @asynccontextmanager
    async def _connected(self, ends: BothEnds, streams: int) -> AsyncIterator[Sequence[Stream]]:
        async with asyncio.timeout(LONGEST_SECONDS):
            opened = await connected(ends, self.base_url + PATH, streams, temperature=self.temperature)
            yield opened
        for stream in opened:
            stream.close()


# ---------------------------------------------------------------- what is measured
@contextmanager
def all_targets(folder: Path, upstream: str) -> Iterator[list[Target]]:
    """Start everything that is measured, before one upstream; the first is what the others are compared with."""
    with ExitStack() as opened:
        url, pids = opened.enter_context(bare("relay", upstream + PATH))
        targets = [Target("bare aiohttp relay", url, pids)]
        if shutil.which("nginx"):
            before = NGINX.format(host=upstream.removeprefix("http://"))
            url, workers = opened.enter_context(nginx(folder / "nginx", before, UNBUFFERED))
            targets.append(Target("nginx, unbuffered", url, workers))
        gateway = opened.enter_context(Gateway(folder, settings(f"{upstream}/v1", users={"alice": POLICY})))
        pids = [gateway.pid, *descendants_of(gateway.pid)]
        targets.append(Target("gateway", gateway.base_url, pids))
        targets.append(Target("gateway, for the cache", gateway.base_url, pids, temperature=0))
        yield targets


async def measure_all(folder: Path, *, rounds: int, events: int, first_tokens: int) -> tuple[Target, list[Target]]:
    """Warm up, then measure the targets in turn, round after round; returns the upstream itself, too."""
    async with BothEnds.open() as ends:
        with all_targets(folder, ends.upstream_url) as targets:
            direct = Target("nothing in between", ends.upstream_url, [])
            for target, streams in product(targets, STREAMS):
                await target.measure_events(ends, streams, max(events // 5, streams))
                target.costs.clear()
            for _ in range(rounds):
                for streams, target in product(STREAMS, targets):
                    await target.measure_events(ends, streams, max(events, streams))
                for target in (direct, *targets):
                    await target.measure_first_tokens(ends, first_tokens)
            return direct, targets


# ---------------------------------------------------------------- what is told
def report(direct: Target, targets: Sequence[Target]) -> str:
    """Return the table: a line for each target."""
    heads = "".join(f"{_streams(streams):>13}{'ratio':>7}" for streams in STREAMS)
    lines = [f"{'µs of CPU an event':26}{heads}{'first token':>14}{'added':>8}{'ratio':>7}"]
    for target in targets:
        cells = "".join(_cost(target, targets[0], streams) for streams in STREAMS)
        lines.append(f"{target.name:26}{cells}{_first_token(target, targets[0], direct)}")
    lines.append(f"{direct.name:26}{' ' * 20 * len(STREAMS)}{_milliseconds(direct):11.2f} ms")
    if not any(target.name.startswith("nginx") for target in targets):
        lines.append("nginx, unbuffered: not measured, as no nginx is on the PATH")
    return "\n".join(lines)


def _streams(count: int) -> str:
    return f"{count} stream{'s' * (count > 1)}"


def _cost(target: Target, least: Target, streams: int) -> str:
    cost = median(target.costs[streams])
    return f"{cost:13.1f}{cost / median(least.costs[streams]):7.2f}"


def _first_token(target: Target, least: Target, direct: Target) -> str:
    added, by_least = (_milliseconds(each) - _milliseconds(direct) for each in (target, least))
    return f"{_milliseconds(target):11.2f} ms{added:8.2f}{added / by_least:7.2f}"


def _milliseconds(target: Target) -> float:
    return 1000 * median(target.first_tokens)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=6400, help="for each target and number of streams in each round")
    parser.add_argument("--first-tokens", type=int, default=100, help="for each target in each round")
    chosen = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        measuring = measure_all(
            Path(folder), rounds=chosen.rounds, events=chosen.events, first_tokens=chosen.first_tokens
        )
        print(report(*uvloop.run(measuring)))


if __name__ == "__main__":
    main()
