"""Thousands of streams open at once on one worker: all complete, and each takes little memory.

    python tests/benchmarks/many_streams.py [--streams 5000] [--events 30] [--every 1.3]

The streams are begun one after the other; when all are open, each gets its next event every so many seconds. Clients,
upstream and gateway are processes of their own, on loopback; every stream's bytes are compared with what was sent.
Meanwhile plain requests are sent. Printed are the memory of the worker for each stream (by what it grew from before
the streams to its peak), how late its event loop came, as it measures itself, and how long plain requests and
`/healthz` took. Exits 1 if a stream is not complete, a plain request fails, or a stream takes more than 64 KiB; nothing
is asserted of times. Ends within three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "benchmarks")]

import paced_streams  # noqa: E402  the path is set above
from bench_path import POLICY  # noqa: E402
from gateway import Gateway, settings  # noqa: E402
from paced_streams import Came  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_BYTES: Final = 64 * 1024
SPARE_FILES: Final = 500
PAUSE_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 150.0
WARM_UP: Final = 50
HEALTH: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAG: Final = "tidegate_event_loop_lag_seconds"


@dataclass
class Seen:
    """What was seen from outside: memory of the worker in bytes, seconds that requests took, and why some failed."""

    before_bytes: int
    peak_bytes: int
    plain_seconds: list[float] = field(default_factory=list)
    health_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has taken."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def playing(role: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:  # noqa: ANN401  whatever JSON can say
    """Run one side of the streams."""
    command = [sys.executable, paced_streams.__file__, role, json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


async def ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> float:
    """Send one request over a connection, and return how many seconds its answer took. Raises RuntimeError."""
    reader, writer = connection
    begun = time.perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError((head + body).decode(errors="replace"))
    return time.perf_counter() - begun


async def watch(gateway: Gateway, clients: subprocess.Popen[str], seen: Seen) -> None:
    """Look at the worker and send plain requests until the clients have ended."""
    host = gateway.base_url.removeprefix("http://")
    (worker,) = gateway.worker_pids
    address, _, port = host.partition(":")
    connection = await asyncio.open_connection(address, int(port))
    plain = paced_streams.request("a plain question", host, is_stream=False)
    async with asyncio.timeout(LONGEST_SECONDS):
        while clients.poll() is None:
            seen.peak_bytes = max(seen.peak_bytes, resident_bytes(worker))
            try:
                seen.health_seconds.append(await ask(connection, HEALTH))
                seen.plain_seconds.append(await ask(connection, plain))
            except (RuntimeError, OSError, EOFError) as error:
                seen.failures.append(str(error))
                connection = await asyncio.open_connection(address, int(port))
            await asyncio.sleep(PAUSE_SECONDS)
    connection[1].close()


async def warm_up(gateway: Gateway) -> None:
    """Have done once what is done once."""
    host = gateway.base_url.removeprefix("http://")
    address, _, port = host.partition(":")
    connection = await asyncio.open_connection(address, int(port))
    for number in range(WARM_UP):
        await ask(connection, paced_streams.request(f"question {number}", host, is_stream=False))
    connection[1].close()


def lag_counts(gateway: Gateway) -> Mapping[float, float]:
    """Return how often the worker's event loop came at most so many seconds late."""
    with urllib.request.urlopen(f"{gateway.admin_url}/metrics") as answer:  # noqa: S310  our own address
        families = text_string_to_metric_families(answer.read().decode())
        return {
            float(sample.labels["le"]): sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"{LAG}_bucket"
        }


def run(folder: Path, *, streams: int, events: int, every_seconds: float) -> tuple[Came, Seen, Mapping[float, float]]:
    """Let so many streams pass; returns what came of them, what was seen, and by how much the loop was late."""
    with (
        playing("upstream", streams=streams, events=events, every_seconds=every_seconds) as upstream,
        Gateway(folder, settings(f"http://127.0.0.1:{_port(upstream)}/v1", users={"alice": POLICY})) as gateway,
    ):
        asyncio.run(warm_up(gateway))
        (worker,) = gateway.worker_pids
        resident = resident_bytes(worker)
        seen, lag_before = Seen(resident, resident), lag_counts(gateway)
        with playing(
            "clients", streams=streams, events=events, url=gateway.base_url, seconds=LONGEST_SECONDS
        ) as clients:
            asyncio.run(watch(gateway, clients, seen))
            assert clients.stdout is not None
            came = Came(**json.loads(clients.stdout.read()))
        lag = {bound: count - lag_before.get(bound, 0) for bound, count in lag_counts(gateway).items()}
    return came, seen, lag


def _port(upstream: subprocess.Popen[str]) -> int:
    assert upstream.stdout is not None
    return int(upstream.stdout.readline())


def allow_files(count: int) -> None:
    """Let this process and those that it starts open so many files. Raises SystemExit where that is forbidden."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise SystemExit(f"{count} open files are needed, and {hard} are allowed: see `ulimit -Hn`.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


# ---------------------------------------------------------------- what is told
def report(came: Came, seen: Seen, lag: Mapping[float, float], streams: int) -> str:
    """Return what is printed."""
    grown_kib = (seen.peak_bytes - seen.before_bytes) / streams / 1024
    before, peak = (f"{size / 2**20:.0f} MiB" for size in (seen.before_bytes, seen.peak_bytes))
    return "\n".join(
        [
            f"streams complete, byte for byte   {came.complete} of {streams}; {came.most_open} open at once",
            f"memory of the worker              {before} before, {peak} at its peak: {grown_kib:.1f} KiB a stream",
            f"event loop late by                {_late(lag)}",
            f"/healthz                          {_spread(seen.health_seconds)}",
            f"plain requests                    {_spread(seen.plain_seconds)}, {len(seen.failures)} failed",
            *seen.failures[:3],
            *([f"a stream that is wrong: {came.wrong[:2000]}"] if came.wrong else []),
        ]
    )


def _spread(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    shown = [f"{name} {1000 * ordered[int(share * (len(ordered) - 1))]:.1f} ms" for name, share in _SHARES.items()]
    return f"{', '.join(shown)} ({len(ordered)} of them)"


def _late(lag: Mapping[float, float]) -> str:
    """Return the bounds below which the shares lie; the measure is a histogram."""
    bounds, counts = sorted(lag), [lag[bound] for bound in sorted(lag)]
    if not counts or not counts[-1]:
        return "not measured"
    shown = []
    for name, share in _SHARES.items():
        below = next(bound for bound, count in zip(bounds, counts, strict=True) if count >= share * counts[-1])
        shown.append(f"{name} ≤ {1000 * below:g} ms")
    return f"{', '.join(shown)} ({counts[-1]:.0f} of them)"


_SHARES: Final = {"half": 0.5, "99 %": 0.99, "all": 1.0}


def main() -> int:
    """Let the streams pass, print what was seen, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--events", type=int, default=30, help="of each stream, besides its first")
    parser.add_argument("--every", type=float, default=1.3, help="seconds between two events of a stream")
    chosen = parser.parse_args()
    allow_files(2 * chosen.streams + SPARE_FILES)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        came, seen, lag = run(Path(folder), streams=chosen.streams, events=chosen.events, every_seconds=chosen.every)
    print(report(came, seen, lag, chosen.streams))
    is_small = seen.peak_bytes - seen.before_bytes <= MOST_BYTES * chosen.streams
    return 0 if came.complete == chosen.streams and not seen.failures and is_small else 1


if __name__ == "__main__":
    raise SystemExit(main())
