"""What a request costs: CPU time of the gateway's process tree, for a hit and a pass-through.

    python tests/benchmarks/bench_path.py [--rounds 7] [--requests 2500]

Beside it, in the same run and in interleaved rounds, what a bare aiohttp server costs that answers a constant, and a
bare aiohttp server and client that pass requests through. CPU time is user and system time of all processes of a
target (for the gateway: supervisor, worker and both embedded stores), per request; medians over the rounds. Traffic
stays on loopback, and the whole takes less than two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from gateway import Gateway, command_line, descendants_of, key_of, settings  # noqa: E402  the path is set above

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONNECTIONS = 16
PROMPT = "word " * 200
LARGE = 1_000_000_000_000
POLICY = {
    "parameters": {"max_tokens": {"max": 1024, "default": 256, "on_violation": "clamp"}},
    "limits": [
        {"of": "requests", "limit": LARGE, "per": "minute", "by": ["user"]},
        {"of": "tokens", "limit": LARGE, "per": "day", "by": ["user"]},
        {"of": "concurrency", "limit": LARGE, "by": ["key"]},
    ],
}


@dataclass
class Target:
    """Something that answers, the processes whose time counts, and what was measured."""

    name: str
    base_url: str
    pids: Sequence[int]
    temperature: float
    costs: list[float] = field(default_factory=list)
    store_costs: list[float] = field(default_factory=list)

    @property
    def store_pids(self) -> list[int]:
        """Those of the processes that are stores."""
        return [pid for pid in self.pids if "server" in Path(command_line(pid)[0]).name]

    async def measure(self, count: int) -> None:
        """Send `count` requests and keep what one of them cost, in microseconds."""
        before, stores_before = cpu_microseconds(self.pids), cpu_microseconds(self.store_pids)
        await send(self.base_url, self.temperature, count)
        spent, by_stores = cpu_microseconds(self.pids) - before, cpu_microseconds(self.store_pids) - stores_before
        self.costs.append(spent / count)
        self.store_costs.append(by_stores / count)


def cpu_microseconds(pids: Sequence[int]) -> int:
    """Return the user and system time of some processes; the kernel counts it in ticks of 10 ms."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    ticks = sum(int(of_process[11]) + int(of_process[12]) for of_process in fields)
    return ticks * 1_000_000 // os.sysconf("SC_CLK_TCK")


async def send(base_url: str, temperature: float, count: int) -> None:
    """Send `count` requests over a few connections; raises RuntimeError for an answer that is not 200."""
    host, port = base_url.removeprefix("http://").split(":")
    body = json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": 200, "temperature": temperature}).encode()
    request = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key_of('alice')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    left = iter(range(count))

    async def one_connection() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in left:
            writer.write(request)
            await _read_answer(reader)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(head.decode())
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)


@contextmanager
def bare(*arguments: str) -> Iterator[tuple[str, list[int]]]:
    """Run one of the bare servers; yields its address and its process."""
    program = Path(__file__).with_name("bare_servers.py")
    with subprocess.Popen([sys.executable, str(program), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}", [process.pid]
        finally:
            process.terminate()


@contextmanager
def all_targets(folder: Path) -> Iterator[list[Target]]:
    """Start everything that is measured, before one upstream that is not."""
    with ExitStack() as opened:
        upstream, _ = opened.enter_context(bare("constant"))
        constant = opened.enter_context(bare("constant"))
        forward = opened.enter_context(bare("forward", f"{upstream}/v1/completions"))
        gateway = opened.enter_context(Gateway(folder, settings(f"{upstream}/v1", users={"alice": POLICY})))
        ours = (gateway.base_url, [gateway.pid, *descendants_of(gateway.pid)])
        yield [
            Target("bare aiohttp, constant answer", *constant, temperature=0),
            Target("gateway, hit", *ours, temperature=0),
            Target("bare aiohttp, pass-through", *forward, temperature=1),
            Target("gateway, pass-through", *ours, temperature=1),
        ]


def report(targets: Sequence[Target]) -> str:
    """Return the table; a gateway's line is compared with the bare one before it."""
    lines = [f"{'':32}{'µs/request':>12}{'of it stores':>14}{'lowest':>9}{'highest':>9}{'ratio':>8}"]
    for bare_one, ours in zip(targets[::2], targets[1::2], strict=True):
        for target in (bare_one, ours):
            ratio = f"{median(target.costs) / (median(bare_one.costs) or float('nan')):.2f}"
            lines.append(
                f"{target.name:32}{median(target.costs):12.0f}{median(target.store_costs):14.0f}"
                f"{min(target.costs):9.0f}{max(target.costs):9.0f}{ratio:>8}"
            )
    return "\n".join(lines)


async def measure_all(targets: Sequence[Target], *, rounds: int, requests: int) -> None:
    """Warm up, then measure the targets in turn, round after round."""
    for target in targets:
        await send(target.base_url, target.temperature, max(requests // 5, CONNECTIONS))
    for _ in range(rounds):
        for target in targets:
            await target.measure(requests)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=2500, help="for each target in each round")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, all_targets(Path(folder)) as targets:
        asyncio.run(measure_all(targets, rounds=arguments.rounds, requests=arguments.requests))
        print(report(targets))


if __name__ == "__main__":
    main()
