"""Real stores for tests: start one, flush it, freeze it, kill it, bring it back.

Knows processes and sockets; it does not use the gateway's own store client, which it is there to test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import hiredis
import pytest
import redis
from redis.crc import key_slot

from proxy.store.embedded import find_server_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

_READY_SECONDS = 10.0
_PATIENCE_SECONDS = 10.0
_ELECTION_SECONDS = 30.0
_LOOK_SECONDS = 0.005
_READ_BYTES = 1 << 20
_SLOTS = 16_384

OK = b"+OK\r\n"
NIL = b"$-1\r\n"
SILENCE = None
HANG_UP = b"hang up"


async def eventually(holds: Callable[[], bool], *, seconds: float = _PATIENCE_SECONDS) -> None:
    """Wait until something that has no event of its own is so; TimeoutError if it never is."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - processes and foreign servers send us no event
            await asyncio.sleep(_LOOK_SECONDS)


def server_binaries() -> dict[str, Path]:
    """Find the servers that are here, by name: Valkey from its package, Redis if the machine has one."""
    found = {"valkey": find_server_binary()}
    if redis_server := shutil.which("redis-server"):
        found["redis"] = Path(redis_server)
    return found


class StoreServer:
    """One store process of a test, on a Unix socket (or a loopback port) in a folder of its own.

    Keeps an append-only file if `keeps_data`, so that `kill` and `start` bring it back with what it acknowledged.
    """

    def __init__(
        self,
        *,
        binary: Path | None = None,
        port: int = 0,
        keeps_data: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Say how to run it; `port` 0 means the Unix socket only, `settings` are further ones of the server."""
        self._settings = dict(settings or {})
        self.directory = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))  # short, as socket paths must be
        self._socket = self.directory / "s"
        self._binary = binary or find_server_binary()
        self.port = port
        self._keeps_data = keeps_data
        self._process: subprocess.Popen[bytes] | None = None
        self._is_frozen = False

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill and clean up."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def url(self) -> str:
        """Address as the configuration would have it."""
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, or start again after `kill`, and wait until it answers."""
        self._socket.unlink(missing_ok=True)
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "unixsocket": self._socket,
            "dir": self.directory,
            "save": "",
            "appendonly": "yes" if self._keeps_data else "no",
            "appendfsync": "no",
            "loglevel": "warning",
            **self._settings,
        }
        options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        self._launch(options)

    def _launch(self, options: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen([self._binary, *options], stdout=subprocess.DEVNULL)
        self._wait_until_ready()

    @property
    def answers(self) -> bool:
        """Whether it runs and is not frozen."""
        return self._process is not None and not self._is_frozen

    def kill(self) -> None:
        """End it at once, as a crash would; also when it is frozen."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._is_frozen = False

    def freeze(self) -> None:
        """Stop it in its tracks: connections are accepted by the kernel, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_frozen = True

    def thaw(self) -> None:
        """Let it go on; it executes what it was sent in between."""
        os.kill(self.pid, signal.SIGCONT)
        self._is_frozen = False

    def flush(self) -> None:
        """Remove all data and scripts and reset the statistics."""
        with self.client() as client:
            client.flushall()
            client.script_flush()
            client.config_resetstat()

    def ask(self, *command: object) -> Any:  # noqa: ANN401  whatever the server answers
        """Send one command and return the reply as it came, text decoded."""
        with self.client() as client:
            client.response_callbacks.clear()
            return _decoded(client.execute_command(*command))

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Open a plain client, for looking in from the side."""
        client = redis.Redis.from_url(self.url, protocol=2)
        try:
            yield client
        finally:
            client.close()
            client.connection_pool.disconnect()

    def calls(self) -> dict[str, int]:
        """How often each command ran since the last flush, by its lower-case name."""
        with self.client() as client:
            statistics = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in statistics.items()}

    def client_address(self) -> dict[str, Any]:
        """Where it listens in any case."""
        return {"unix_socket_path": str(self._socket)}

    def _wait_until_ready(self) -> None:
        patience = redis.retry.Retry(redis.backoff.ConstantBackoff(0.01), int(_READY_SECONDS / 0.01))
        client = redis.Redis(**self.client_address(), protocol=2, retry=patience)
        try:
            client.ping()
        finally:
            client.close()


class StoreCluster:
    """A real cluster of a test: primaries that share all slots, and replicas if it wants some.

    Every node keeps an append-only file, so that `kill` and `start` bring it back; it joins again by itself.
    """

    def __init__(
        self, *, primaries: int = 3, replicas: int = 0, binary: Path | None = None, node_timeout_ms: int = 1000
    ) -> None:
        """Say how many primaries, and how many replicas each has."""
        ports = _free_ports(2 * primaries * (1 + replicas))
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": node_timeout_ms,
            "cluster-replica-validity-factor": 0,
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": 0,
        }
        self.nodes = [
            StoreServer(binary=binary, port=port, keeps_data=True, settings={**settings, "cluster-port": bus})
            for port, bus in zip(ports[::2], ports[1::2], strict=True)
        ]
        self._buses = dict(zip(ports[::2], ports[1::2], strict=True))
        self.primaries = self.nodes[:primaries]
        self.replicas = self.nodes[primaries:]

    def __enter__(self) -> Self:
        """Start all nodes and make them one cluster; returns when all of them say that it is whole."""
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            self._join()
            self._opened = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all nodes and clean up."""
        self._opened.close()

    @property
    def url(self) -> str:
        """Address as the configuration would have it."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.primaries)

    def owner(self, key_or_tag: str) -> StoreServer:
        """Return who serves a key's slot, as the first node says that answers."""
        slot = key_slot(key_or_tag.encode())
        node = self._answering()[0]
        ports = [port for start, end, (_, port, *_), *_ in node.ask("CLUSTER", "SLOTS") if start <= slot <= end]
        assert ports, f"nobody serves slot {slot}"
        return next(each for each in self.nodes if each.port == ports[0])

    async def promote(self, primary: StoreServer) -> StoreServer:
        """Wait until a replica has taken the slots of a primary that was killed or frozen; returns the replica."""
        heirs = self.replicas[self.primaries.index(primary) :: len(self.primaries)]
        await eventually(lambda: any(self._rules(each) for each in heirs), seconds=_ELECTION_SECONDS)
        return next(each for each in heirs if self._rules(each))

    async def hand_over(self, primary: StoreServer) -> StoreServer:
        """Have a replica take the slots of a primary that is well; returns the replica."""
        heir = self.replicas[self.primaries.index(primary)]
        heir.ask("CLUSTER", "FAILOVER")
        return await self.promote(primary)

    async def migrate(self, key_or_tag: str, to: StoreServer) -> None:
        """Move a key's slot with all that is in it, as `redis-cli --cluster reshard` would, while clients go on."""
        slot, source = key_slot(key_or_tag.encode()), self.owner(key_or_tag)
        self.begin_migration(slot, source, to)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            await asyncio.sleep(0)
        for node in (to, source, *self._ruling()):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", _id_of(to))
        await eventually(lambda: self.owner(key_or_tag) is to)

    def begin_migration(self, slot: int, source: StoreServer, to: StoreServer) -> None:
        """Begin to move a slot: what is not there any more, or not yet, is answered with ASK and TRYAGAIN."""
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", _id_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", _id_of(to))

    async def whole(self) -> None:
        """Wait until all nodes that run say that the cluster is well."""
        await eventually(lambda: all(map(_is_well, self._answering())), seconds=_ELECTION_SECONDS)

    def errors(self) -> dict[str, int]:
        """How often each kind of error was answered by the nodes that run, since they started or were flushed."""
        total: Counter[str] = Counter()
        for node in self._answering():
            with node.client() as client:
                for name, entry in client.info("errorstats").items():
                    total[name.removeprefix("errorstat_")] += entry["count"]
        return dict(total)

    def flush(self) -> None:
        """Empty all primaries that run, and reset the statistics."""
        for node in self._ruling():
            node.flush()

    def _join(self) -> None:
        share = -(-_SLOTS // len(self.primaries))
        for number, node in enumerate(self.primaries):
            node.ask("CLUSTER", "ADDSLOTSRANGE", number * share, min((number + 1) * share, _SLOTS) - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        first, *others = self.nodes
        for node in others:
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, self._buses[node.port])
        _at_last(lambda: all(map(self._knows_all, self.nodes)))
        for number, node in enumerate(self.replicas):
            node.ask("CLUSTER", "REPLICATE", _id_of(self.primaries[number % len(self.primaries)]))
        _at_last(lambda: all(map(_is_well, self.nodes)) and all(map(_is_in_step, self.replicas)))
        _at_last(lambda: all(_members(node, "slave") == len(self.replicas) for node in self.nodes))

    def _knows_all(self, node: StoreServer) -> bool:
        return _members(node) == len(self.nodes)

    def _answering(self) -> Sequence[StoreServer]:
        return [node for node in self.nodes if node.answers]

    def _ruling(self) -> Sequence[StoreServer]:
        return [node for node in self._answering() if node.ask("ROLE")[0] == "master"]

    def _rules(self, heir: StoreServer) -> bool:
        """Whether all nodes that answer say that this one is a primary with slots, and the cluster is well."""
        said = [
            any(start <= end and port == heir.port for start, end, (_, port, *_), *_ in node.ask("CLUSTER", "SLOTS"))
            for node in self._answering()
        ]
        return all(said) and all(map(_is_well, self._answering()))


class SentinelGroup:
    """A real service under sentinels: one primary, one replica, three sentinels that agree by two."""

    SERVICE = "tidegate"

    def __init__(self, *, binary: Path | None = None, down_after_ms: int = 500) -> None:
        """Say after how long a primary that does not answer is replaced."""
        ports = _free_ports(5)
        self.servers = [
            StoreServer(binary=binary, port=port, keeps_data=True, settings={"repl-diskless-sync-delay": 0, **more})
            for port, more in zip(ports, ({}, {"replicaof": f"127.0.0.1 {ports[0]}"}), strict=False)
        ]
        self.sentinels = [Sentinel(port=port, binary=binary) for port in ports[2:]]
        self._down_after_ms = down_after_ms

    def __enter__(self) -> Self:
        """Start all; returns when the sentinels know the replica and each other."""
        with ExitStack() as stack:
            for server in (*self.servers, *self.sentinels):
                stack.enter_context(server)
            for sentinel in self.sentinels:
                sentinel.ask("SENTINEL", "DEBUG", "PUBLISH-PERIOD", 200)  # they find each other in 0.2 s, not 2 s
                sentinel.ask("SENTINEL", "MONITOR", self.SERVICE, "127.0.0.1", self.servers[0].port, 2)
                for name, value in (("down-after-milliseconds", self._down_after_ms), ("failover-timeout", 5000)):
                    sentinel.ask("SENTINEL", "SET", self.SERVICE, name, value)
            _at_last(lambda: _is_in_step(self.servers[1]) and all(map(self._is_ready, self.sentinels)))
            self._opened = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all and clean up."""
        self._opened.close()

    @property
    def url(self) -> str:
        """Address as the configuration would have it."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in self.sentinels)}/{self.SERVICE}/0"

    @property
    def primary(self) -> StoreServer:
        """Whom the first sentinel names that runs."""
        return self._named_by(next(each for each in self.sentinels if each.answers))

    async def promote(self) -> StoreServer:
        """Wait until the sentinels have replaced the primary, which was killed or frozen; returns the new one."""
        new = next(each for each in self.servers if each is not self.primary)
        return await self._agreed_on(new)

    async def hand_over(self) -> StoreServer:
        """Have the sentinels replace a primary that is well; returns the new one. The old one may not know for 10 s."""
        new = next(each for each in self.servers if each is not self.primary)
        self.sentinels[0].ask("SENTINEL", "FAILOVER", self.SERVICE)
        return await self._agreed_on(new)

    async def _agreed_on(self, new: StoreServer) -> StoreServer:
        running = [each for each in self.sentinels if each.answers]
        await eventually(lambda: all(self._named_by(each) is new for each in running), seconds=_ELECTION_SECONDS)
        return new

    def _named_by(self, sentinel: StoreServer) -> StoreServer:
        _, port = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)
        return next(each for each in self.servers if each.port == int(port))

    def _is_ready(self, sentinel: StoreServer) -> bool:
        told = sentinel.ask("SENTINEL", "MASTER", self.SERVICE)
        state = dict(zip(told[::2], told[1::2], strict=True))
        return (state["num-slaves"], state["num-other-sentinels"], state["flags"]) == ("1", "2", "master")


class Sentinel(StoreServer):
    """One sentinel; it writes down what it learns in a file of its own."""

    def start(self) -> None:
        """Start, or start again after `kill`, and wait until it answers."""
        file = self.directory / "sentinel.conf"
        if not file.exists():
            file.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\nloglevel warning\n")
        self._launch([file, "--sentinel"])

    def client_address(self) -> dict[str, object]:
        """Where it listens: a sentinel has no Unix socket."""
        return {"host": "127.0.0.1", "port": self.port}


def _decoded(reply: Any) -> Any:  # noqa: ANN401  whatever a server answers
    if isinstance(reply, list):
        return [_decoded(each) for each in reply]
    return reply.decode(errors="replace") if isinstance(reply, bytes) else reply


def _at_last(holds: Callable[[], bool]) -> None:
    """Wait, before a test begins, until servers have found each other."""
    end = time.monotonic() + _ELECTION_SECONDS
    while not holds():
        assert time.monotonic() < end, "the servers do not find each other"
        time.sleep(_LOOK_SECONDS)


def _members(node: StoreServer, role: str = "") -> int:
    """How many nodes this one is connected to, itself among them, and says to have a role."""
    members = [line.split() for line in node.ask("CLUSTER", "NODES").splitlines()]
    return sum(role in flags and link == "connected" for _, _, flags, _, _, _, _, link, *_ in members)


def _id_of(node: StoreServer) -> str:
    return str(node.ask("CLUSTER", "MYID"))


def _is_well(node: StoreServer) -> bool:
    return "cluster_state:ok" in node.ask("CLUSTER", "INFO")


def _is_in_step(replica: StoreServer) -> bool:
    role, *rest = replica.ask("ROLE")
    return role == "slave" and rest[2] == "connected"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class ScriptedStore:
    """A server that answers what the test says, for what a real one does too rarely.

    `answer` is asked for each command, as its words, and gives the reply's bytes, SILENCE or HANG_UP. How PING and TIME
    are answered stands in `manners`; they are not among the `commands`.
    """

    def __init__(self, answer: Callable[[list[bytes]], bytes | None]) -> None:
        """Say what is answered."""
        self.answer = answer
        self.manners: dict[bytes, bytes | None] = {
            b"PING": b"+PONG\r\n",
            b"TIME": b"*2\r\n$1\r\n7\r\n$1\r\n0\r\n",
        }
        self.commands: list[list[bytes]] = []
        self.reads: list[int] = []
        self.connections = 0
        self._directory = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Address as the configuration would have it."""
        return f"unix://{self._directory}/s"

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, f"{self._directory}/s")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up and clean up."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)
        await self._server.wait_closed()
        shutil.rmtree(self._directory, ignore_errors=True)

    def say(self, data: bytes) -> None:
        """Send bytes over all connections that are open, asked or not."""
        for writer in self._writers:
            if not writer.is_closing():
                writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        parser = hiredis.Reader()
        while data := await reader.read(_READ_BYTES):
            parser.feed(data)
            before = len(self.commands)
            while (command := parser.gets()) is not False:
                self._handle(command, writer)
            self.reads.append(len(self.commands) - before)
        writer.close()

    def _handle(self, command: list[bytes], writer: asyncio.StreamWriter) -> None:
        if command[0] == b"CLIENT":
            reply: bytes | None = OK
        elif command[0] in self.manners:
            reply = self.manners[command[0]]
        else:
            reply = self.answer(command)
            self.commands.append(command)
        if reply == HANG_UP:
            writer.close()
        elif reply is not SILENCE and not writer.is_closing():
            writer.write(reply)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[StoreServer]:
    """Run the one server that tests share which only read and write."""
    with StoreServer() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: StoreServer) -> StoreServer:
    """Hand out the shared server, emptied."""
    valkey_server.flush()
    return valkey_server


@pytest.fixture
def own_valkey() -> Iterator[StoreServer]:
    """Run a server of the test's own, to be frozen and killed; it keeps its data."""
    with StoreServer(keeps_data=True) as server:
        yield server


@pytest.fixture
def own_valkey_on_tcp() -> Iterator[StoreServer]:
    """Run a server of the test's own on a loopback port."""
    [port] = _free_ports(1)
    with StoreServer(port=port) as server:
        yield server


@pytest.fixture(params=sorted(server_binaries()))
def any_store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """Run each kind of server that this machine has, empty."""
    with StoreServer(binary=server_binaries()[request.param]) as server:
        yield server
