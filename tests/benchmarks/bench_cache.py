"""What a hit costs: CPU time of the gateway's process tree, from a worker's memory and from the cache store.

    python tests/benchmarks/bench_cache.py [--rounds 3] [--requests 500]

Answers of 1 and 64 KB, whole, streamed, and put together as a whole of what was stored as a stream, over 1, 16 and 64
connections. Beside them, in the same run and in
interleaved rounds, a bare aiohttp server that answers the same bytes whatever is asked, and nginx with a proxy cache
keyed on the body, where an `nginx` is on the PATH. One gateway keeps answers in its memory, another has no room for
any (`cache_memory_bytes: 0`). CPU time is that of all processes of a target (for a gateway: supervisor, worker and both
embedded stores), per request; medians over the rounds, and beside each what it is of the bare server's. Every answer is
looked at: one that is no hit ends the run. Traffic stays on loopback, and the whole takes about two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "benchmarks")]

import uvloop  # noqa: E402  the path is set above
from bench_path import POLICY, PROMPT, bare  # noqa: E402
from gateway import Gateway, command_line, descendants_of, eventually, free_port, key_of, settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SIZES: Final = (1_024, 65_536)
CONNECTIONS: Final = (1, 16, 64)
READ_BYTES: Final = 2**20
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
NGINX: Final = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_buffer_size 128k;
    keepalive_requests 1000000;
    {before}
    server {{
        listen 127.0.0.1:{port};
{within}
    }}
}}
"""
CACHE: Final = "proxy_cache_path {folder}/cache keys_zone=answers:1m;"
CACHED: Final = """
        proxy_cache answers;
        proxy_cache_methods POST;
        proxy_cache_key $request_uri|$request_body;
        proxy_cache_valid 200 1h;
        add_header X-Cache $upstream_cache_status;
{locations}
"""
LOCATION: Final = "        location /{name}/ {{ proxy_pass {upstream}/; }}"


class Kind(NamedTuple):
    """An answer: how many bytes are stored, nearly, and in which form it is stored and comes."""

    size: int
    form: str

    @property
    def name(self) -> str:
        """What it is called in the table, and its model too."""
        return f"{self.size // 1024}-KB-{self.form}"

    @property
    def is_stored_stream(self) -> bool:
        """Whether the answer came as a stream when it was stored."""
        return self.form != "whole"

    @property
    def is_stream(self) -> bool:
        """Whether a hit is asked for as a stream."""
        return self.form == "stream"


CONSTANT: Final = [Kind(*each) for each in product(SIZES, ("whole", "stream"))]
KINDS: Final = [Kind(*each) for each in product(SIZES, ("whole", "stream", "assembled"))]


@dataclass
class Target:
    """Something that answers: where, in which processes, how a hit is told, and what was measured."""

    name: str
    addresses: Mapping[Kind, str]
    pids: Mapping[Kind, Sequence[int]]
    mark: bytes = b""
    costs: dict[tuple[Kind, int], list[float]] = field(default_factory=dict)

    async def measure(self, kind: Kind, connections: int, count: int) -> None:
        """Send `count` requests and keep what one of them cost, in microseconds."""
        before = cpu_microseconds(self.pids[kind])
        await send(self.addresses[kind], asked_for(kind), connections, count, self.mark)
        spent = cpu_microseconds(self.pids[kind]) - before
        self.costs.setdefault((kind, connections), []).append(spent / count)


def cpu_microseconds(pids: Sequence[int]) -> float:
    """Return how long the threads of some processes have been running; the kernel counts it in nanoseconds."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1000


def asked_for(kind: Kind, *, is_stream: bool | None = None) -> bytes:
    """Return the body of a request for a kind of answer, in its form unless another is named."""
    asked = {"model": kind.name, "prompt": PROMPT, "max_tokens": 200, "temperature": 0}
    return json.dumps({**asked, "stream": kind.is_stream if is_stream is None else is_stream}).encode()


async def send(address: str, body: bytes, connections: int, count: int, mark: bytes) -> None:
    """Send `count` requests; raises RuntimeError for an answer that is not 200 or whose head has no `mark`."""
    host, _, path = address.removeprefix("http://").partition("/")
    port = int(host.partition(":")[2])
    request = (
        f"POST /{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key_of('alice')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    left = iter(range(count))

    async def one_connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_BYTES)
        for _ in left:
            writer.write(request)
            await _read_answer(reader, mark)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one_connection() for _ in range(connections)))


async def _read_answer(reader: asyncio.StreamReader, mark: bytes) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200") or mark not in head:
        raise RuntimeError(head.decode())
    _, is_known, length = head.partition(b"content-length:")
    if is_known:
        await reader.readexactly(int(length.partition(b"\r\n")[0]))
    else:
        await reader.readuntil(LAST_CHUNK)


# ---------------------------------------------------------------- what is measured
@contextmanager
def nginx(folder: Path, before: str, within: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Run nginx with these directives before and within its server; yields its address and its processes.

    The process that loads a cache from disk ends after a minute.
    """
    folder.mkdir()
    port = free_port()
    user = "" if os.geteuid() else "user root;"
    path = folder / "nginx.conf"
    path.write_text(NGINX.format(folder=folder, port=port, user=user, before=before, within=within))
    command = ["nginx", "-c", str(path), "-e", str(folder / "error.log")]
    with subprocess.Popen(command) as process:
        try:
            workers = eventually(
                lambda: [pid for pid in descendants_of(process.pid) if "worker" in "".join(command_line(pid))]
            )
            yield f"http://127.0.0.1:{port}", (process.pid, *workers)
        finally:
            process.terminate()


@contextmanager
def proxy_cache(folder: Path, upstreams: Mapping[Kind, str]) -> Iterator[Target]:
    """Run nginx in front of the upstreams, with a cache."""
    locations = [LOCATION.format(name=kind.name, upstream=url) for kind, url in upstreams.items()]
    within = CACHED.format(locations="\n".join(locations))
    with nginx(folder, CACHE.format(folder=folder), within) as (url, pids):
        addresses = {kind: f"{url}/{kind.name}/v1/completions" for kind in upstreams}
        yield Target("nginx, proxy cache", addresses, dict.fromkeys(upstreams, pids), mark=b"x-cache: hit")


@contextmanager
def gateway(name: str, folder: Path, upstreams: Mapping[Kind, str], **more: int) -> Iterator[Target]:
    """Run a gateway in front of the upstreams, one model for each."""
    folder.mkdir()
    configuration = settings(
        "",
        users={"alice": POLICY},
        models={kind.name: {"deployments": [{"upstream": kind.name}]} for kind in upstreams},
        upstreams={kind.name: {"kind": "openai", "base_url": f"{url}/v1"} for kind, url in upstreams.items()},
        **more,
    )
    with Gateway(folder, configuration) as running:
        pids = (running.pid, *descendants_of(running.pid))
        addresses = dict.fromkeys(upstreams, f"{running.base_url}/v1/completions")
        yield Target(name, addresses, dict.fromkeys(upstreams, pids), mark=b"tidegate;hit")


@contextmanager
def all_targets(folder: Path) -> Iterator[list[Target]]:
    """Start everything that is measured; the bare servers are the others' upstreams too."""
    with ExitStack() as opened:
        bares = {kind: opened.enter_context(bare("constant", str(kind.size), kind.form)) for kind in CONSTANT}
        upstreams = {kind: url for kind, (url, _) in bares.items()}
        targets = [
            Target(
                "bare aiohttp, constant answer",
                {kind: f"{url}/v1/completions" for kind, url in upstreams.items()},
                {kind: pids for kind, (_, pids) in bares.items()},
            )
        ]
        if shutil.which("nginx"):
            targets.append(opened.enter_context(proxy_cache(folder / "nginx", upstreams)))
        upstreams |= {Kind(size, "assembled"): upstreams[Kind(size, "stream")] for size in SIZES}
        in_memory = gateway("gateway, hit from memory", folder / "memory", upstreams)
        in_store = gateway("gateway, hit from the store", folder / "store", upstreams, cache_memory_bytes=0)
        yield [*targets, opened.enter_context(in_memory), opened.enter_context(in_store)]


async def measure_all(targets: Sequence[Target], *, rounds: int, requests: int) -> None:
    """Have every answer stored, then measure the targets in turn, round after round."""
    for target in targets:
        for kind, address in target.addresses.items():
            await send(address, asked_for(kind, is_stream=kind.is_stored_stream), 1, 1, b"")
            await send(address, asked_for(kind), CONNECTIONS[-1], max(requests // 5, CONNECTIONS[-1]), target.mark)
    for _, kind, connections, target in product(range(rounds), KINDS, CONNECTIONS, targets):
        if kind in target.addresses:
            await target.measure(kind, connections, requests)


# ---------------------------------------------------------------- what is told
def report(targets: Sequence[Target]) -> str:
    """Return the table: a line for each target and number of connections, two columns for each kind of answer.

    What is put together is compared with the bare server's whole answer.
    """
    heads = "".join(f"{kind.name.replace('-', ' '):>16}{'ratio':>7}" for kind in KINDS)
    lines = [f"{'µs of CPU a request':30}{'connections':>12}{heads}"]
    for connections, target in product(CONNECTIONS, targets):
        cells = [_cell(target, targets[0], kind, connections) for kind in KINDS]
        lines.append(f"{target.name:30}{connections:12}{''.join(cells)}")
    if not any(target.name.startswith("nginx") for target in targets):
        lines.append("nginx, proxy cache: not measured, as no nginx is on the PATH")
    return "\n".join(lines)


def _cell(target: Target, bare_one: Target, kind: Kind, connections: int) -> str:
    if kind not in target.addresses:
        return f"{'-':>16}{'-':>7}"
    beside = kind if kind in bare_one.addresses else Kind(kind.size, "whole")
    cost, least = median(target.costs[kind, connections]), median(bare_one.costs[beside, connections])
    return f"{cost:16.0f}{cost / least:7.2f}"


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=500, help="for each target in each round, whatever the answer")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, all_targets(Path(folder)) as targets:
        uvloop.run(measure_all(targets, rounds=arguments.rounds, requests=arguments.requests))
        print(report(targets))


if __name__ == "__main__":
    main()
