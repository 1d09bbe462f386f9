"""Finders: whom they ask, in which order, and where they send the next connection."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from stores import SILENCE, ScriptedStore, SentinelGroup, StoreCluster, eventually

from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.addresses import Node, parse
from proxy.store.connection import Store
from proxy.store.finders import Dialer, Finder, Member, Named, NoPrimary, Owner, Seeds, Watched, finder_of, slot_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio.connection import AbstractConnection
    from stores import StoreServer

A, B, C = (Node(host, 1) for host in "abc")
TAG = "{org}"
KEY = f"{TAG}:k"


@asynccontextmanager
async def opened(url: str, *, anchor: str | None = TAG, timeout_seconds: float = 0.25) -> AsyncIterator[Store]:
    store = Store(
        url,
        name="state",
        metrics=Metrics(),
        anchor=anchor,
        timeout_seconds=timeout_seconds,
        probe=[("SET", f"{TAG}:probe", 1)],
    )
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def says(store: Store, *command: str | int) -> object:
    """Return a reply, or the error in its place."""
    return (await asyncio.gather(store.command(*command), return_exceptions=True))[0]


async def until_it_takes(store: Store, *command: str | int) -> object:
    """Send a command again and again until it is carried out."""
    async with asyncio.timeout(20):
        while isinstance(reply := await says(store, *command), StoreUnavailable):  # noqa: ASYNC110  a fail-over sends us no event
            await asyncio.sleep(0.01)
    return reply


async def until_it_writes_to(store: Store, server: StoreServer) -> None:
    """Write again and again until what is written stands on this server."""
    async with asyncio.timeout(20):
        for number in count():
            await says(store, "SET", KEY, number)
            if server.ask("GET", KEY) == str(number):
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        pytest.param("123456789", 0x31C3, id="the checksum's own example"),
        pytest.param("{123456789}:limit:x", 0x31C3, id="a tag decides alone"),
        pytest.param("a{123456789}b{c}", 0x31C3, id="the first one"),
        pytest.param(b"{123456789}", 0x31C3, id="bytes likewise"),
    ],
)
def test_a_key_has_a_slot(key: str | bytes, slot: int) -> None:
    assert slot_of(key) == slot


def test_an_empty_tag_is_none() -> None:
    assert slot_of("{}a") != slot_of("{}b")


# Whom one asks


class Town:
    """Nodes a, b and c, each of which answers GREET with its own name, or as the test says."""

    def __init__(self, servers: dict[Node, ScriptedStore]) -> None:
        self.servers = servers

    def dial(self, node: Node) -> AbstractConnection:
        return Dialer(parse(self.servers[node].url), 1.0).to_server()

    @property
    def asked(self) -> str:
        """Who was asked since, each once."""
        heard = "".join(node.host for node, server in self.servers.items() if server.commands)
        for server in self.servers.values():
            server.commands.clear()
        return heard


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    def named(node: Node) -> ScriptedStore:
        return ScriptedStore(lambda _: b"+%s\r\n" % node.host.encode())

    async with named(A) as a, named(B) as b, named(C) as c:
        yield Town({A: a, B: b, C: c})


async def greet(_node: Node, connection: AbstractConnection) -> bytes:
    await connection.send_command("GREET", check_health=False)
    return bytes(await connection.read_response())


async def test_seeds_are_asked_in_order_until_one_answers(town: Town) -> None:
    seeds = Seeds([A, B, C], town.dial)
    assert (await seeds.ask(greet), town.asked) == (b"a", "a")
    assert (await seeds.ask(greet), town.asked) == (b"a", "a")


@pytest.mark.parametrize(
    "answer",
    [pytest.param(SILENCE, id="says nothing"), pytest.param(b"-LOADING its data\r\n", id="answers with an error")],
)
async def test_a_seed_that_is_no_help_is_asked_last_from_then_on(town: Town, answer: bytes | None) -> None:
    seeds = Seeds([A, B, C], town.dial)
    town.servers[A].answer = lambda _: answer
    assert (await seeds.ask(greet), town.asked) == (b"b", "ab")
    assert (await seeds.ask(greet), town.asked) == (b"b", "b")
    town.servers[B].answer = town.servers[C].answer = lambda _: answer
    with pytest.raises((TimeoutError, RedisError)):
        await seeds.ask(greet)
    assert town.asked == "abc"


async def test_a_seed_whose_word_was_old_is_asked_last(town: Town) -> None:
    seeds = Seeds([A, B], town.dial)
    seeds.put_last()
    assert await seeds.ask(greet) == b"b"


async def test_seeds_that_are_learned_come_after_those_that_are_configured_and_go_again(town: Town) -> None:
    seeds = Seeds([A], town.dial)
    seeds.learn([B, A, C])
    town.servers[A].answer = town.servers[B].answer = lambda _: b"-ERR no\r\n"
    assert (await seeds.ask(greet), town.asked) == (b"c", "abc")
    seeds.learn([B])
    with pytest.raises(ResponseError):
        await seeds.ask(greet)
    assert town.asked == "ab"


async def test_a_caller_that_has_waited_long_enough_begins_with_another_the_next_time(town: Town) -> None:
    seeds = Seeds([A, B], town.dial)
    town.servers[A].answer = lambda _: SILENCE
    waiting = asyncio.ensure_future(seeds.ask(greet))
    await eventually(lambda: bool(town.servers[A].commands))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    town.servers[A].commands.clear()
    assert (await seeds.ask(greet), town.asked) == (b"b", "b")


# What makes a store go elsewhere


def finder(kind: type[Finder]) -> Finder:
    dialer = Dialer(parse("redis://h"), 1.0)
    if kind is Member:
        return Member(dialer, A, lambda: None)
    if kind is Watched:
        return Watched(dialer, parse("redis+sentinel://h/s"))
    return Owner(dialer, parse("redis+cluster://h"), 1) if kind is Owner else Named(dialer)


@pytest.mark.parametrize(
    ("error", "leaving"),
    [
        pytest.param(ReadOnlyError("a replica"), {Named, Member, Watched, Owner}, id="READONLY"),
        pytest.param(MasterDownError("a link"), {Named, Member, Watched, Owner}, id="MASTERDOWN"),
        pytest.param(MovedError("1 h:2"), {Owner}, id="MOVED"),
        pytest.param(ClusterDownError("not served"), {Owner}, id="CLUSTERDOWN"),
        pytest.param(AskError("1 h:2"), set(), id="ASK passes"),
        pytest.param(TryAgainError("keys are on both"), set(), id="TRYAGAIN passes"),
        pytest.param(ResponseError("whatever"), set(), id="what the command is to blame for"),
    ],
)
def test_which_refusals_end_a_connection(error: ResponseError, leaving: set[type[Finder]]) -> None:
    kinds = (Named, Member, Watched, Owner)
    assert {kind for kind in kinds if finder(kind).is_left_for(error)} == leaving


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        pytest.param(MovedError("1 h:2"), True, id="MOVED"),
        pytest.param(ClusterDownError("not served"), True, id="CLUSTERDOWN"),
        pytest.param(AskError("1 h:2"), False, id="ASK"),
    ],
)
def test_a_member_tells_that_the_map_is_old(error: ResponseError, is_told: bool) -> None:  # noqa: FBT001  a row's column
    told = asyncio.Event()
    Member(Dialer(parse("redis://h"), 1.0), A, told.set).is_left_for(error)
    assert told.is_set() is is_told


def test_a_cluster_needs_to_be_told_which_slot() -> None:
    with pytest.raises(ValueError, match="where one server was meant"):
        finder_of("redis+cluster://h", 1.0, None)
    assert isinstance(finder_of("redis+cluster://h", 1.0, TAG), Owner)
    assert isinstance(finder_of("redis+sentinel://h/s", 1.0, None), Watched)
    assert isinstance(finder_of("redis://h", 1.0, None), Named)


@pytest.mark.parametrize("url", ["redis+sentinel://h/s?colour=blue", "rediss+cluster://:hidden@h?ssl_cert_reqs=maybe"])
def test_an_option_that_no_connection_has_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="an option that is not known or not right") as caught:
        finder_of(url, 1.0, TAG)
    assert "hidden" not in str(caught.value)


# Sentinels


@pytest.fixture
def sentinels() -> Iterator[SentinelGroup]:
    with SentinelGroup() as group:
        yield group


async def test_a_store_behind_sentinels_follows_its_primary(sentinels: SentinelGroup) -> None:
    first = sentinels.primary
    async with opened(sentinels.url) as store:
        assert await store.command("SET", KEY, "v") == b"OK"
        assert first.ask("GET", KEY) == "v"
        await until_it_writes_to(store, await sentinels.hand_over())


async def test_a_primary_that_was_lost_is_replaced_though_a_sentinel_hangs(sentinels: SentinelGroup) -> None:
    async with opened(sentinels.url) as store:
        sentinels.primary.kill()
        sentinels.sentinels[0].freeze()
        assert isinstance(await says(store, "GET", KEY), StoreUnavailable)
        assert not store.is_available
        sentinels.sentinels[0].thaw()
        new = await sentinels.promote()
        assert await until_it_takes(store, "SET", KEY, "w") == b"OK"
        assert new.ask("GET", KEY) == "w"


async def test_a_primary_that_does_not_know_it_was_replaced_is_left(sentinels: SentinelGroup) -> None:
    first = sentinels.primary
    second = next(server for server in sentinels.servers if server is not first)
    async with opened(sentinels.url) as store:
        second.ask("REPLICAOF", "NO", "ONE")  # two primaries, as in a network that is cut in two
        second.flush()
        for sentinel in sentinels.sentinels:
            sentinel.ask("SENTINEL", "REMOVE", sentinels.SERVICE)
            sentinel.ask("SENTINEL", "MONITOR", sentinels.SERVICE, "127.0.0.1", second.port, 2)
        await until_it_writes_to(store, second)
        assert first.ask("ROLE")[0] == "master"


@pytest.mark.parametrize(
    ("service", "said"),
    [
        pytest.param("another", "do not know the service", id="a service that the sentinels do not know"),
        pytest.param("replica", "is not, or not yet, its primary", id="a server that is a replica"),
    ],
)
async def test_what_sentinels_cannot_help_with_is_said(sentinels: SentinelGroup, service: str, said: str) -> None:
    replica = next(server for server in sentinels.servers if server is not sentinels.primary)
    sentinels.sentinels[0].ask("SENTINEL", "MONITOR", "replica", "127.0.0.1", replica.port, 2)
    first = f"redis+sentinel://127.0.0.1:{sentinels.sentinels[0].port}/{service}/0"
    async with opened(first, timeout_seconds=2) as store:
        error = await says(store, "GET", KEY)
    assert isinstance(error, StoreUnavailable)
    assert said in error.message
    assert "127.0.0.1" not in error.message


# A slot of a cluster


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[StoreCluster]:
    with StoreCluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared_cluster: StoreCluster) -> StoreCluster:
    for node in shared_cluster.nodes:
        if not node.answers:
            node.start()
    await shared_cluster.whole()
    shared_cluster.flush()
    return shared_cluster


async def test_a_store_on_a_cluster_is_the_primary_of_its_slot(cluster: StoreCluster) -> None:
    async with opened(cluster.url) as store:
        assert await store.command("SET", KEY, "v") == b"OK"
        assert cluster.owner(TAG).ask("GET", KEY) == "v"
    assert cluster.errors().keys().isdisjoint({"MOVED", "CROSSSLOT"})


async def test_a_store_follows_a_slot_that_moves(cluster: StoreCluster) -> None:
    source = cluster.owner(TAG)
    other = next(node for node in cluster.primaries if node is not source)
    async with opened(cluster.url) as store:
        await store.command("SET", KEY, "v")
        await cluster.migrate(TAG, other)
        assert await until_it_takes(store, "GET", KEY) == b"v"
        assert other.calls()["get"] == 1
        await cluster.migrate(TAG, source)
        assert await until_it_takes(store, "GET", KEY) == b"v"


async def test_a_slot_on_its_way_refuses_what_is_in_neither_place_and_says_no_address(cluster: StoreCluster) -> None:
    source = cluster.owner(TAG)
    other = next(node for node in cluster.primaries if node is not source)
    async with opened(cluster.url) as store:
        cluster.begin_migration(slot_of(TAG), source, other)
        asked, torn = await says(store, "GET", KEY), await says(store, "DEL", KEY, f"{TAG}:other")
        assert isinstance(asked, StoreUnavailable)
        assert isinstance(torn, StoreUnavailable)
        assert "127.0.0.1" not in asked.message
        await cluster.migrate(TAG, other)
        assert await until_it_takes(store, "GET", KEY) is None
        await cluster.migrate(TAG, source)


async def test_a_store_follows_to_the_replica_of_a_primary_that_was_killed(cluster: StoreCluster) -> None:
    first = cluster.owner(TAG)
    async with opened(cluster.url) as store:
        await store.command("SET", KEY, "v")
        await store.command("WAIT", 1, 1000, timeout_seconds=2)
        first.kill()
        assert isinstance(await says(store, "GET", KEY), StoreUnavailable)
        await eventually(lambda: cluster.owner(TAG) is not first, seconds=30)
        assert await until_it_takes(store, "GET", KEY) == b"v"
        first.start()
        await cluster.whole()


async def test_a_cluster_that_is_not_there_and_one_that_lacks_the_slot_say_so() -> None:
    with StoreCluster(primaries=1) as small:
        small.primaries[0].ask("CLUSTER", "DELSLOTSRANGE", 0, 16_383)
        async with opened(small.url, timeout_seconds=2) as store:
            error = await says(store, "GET", KEY)
        assert "no node of its cluster has what it is needed for" in str(error)
    async with opened(small.url) as store:
        assert "cannot be reached" in str(await says(store, "GET", KEY))


async def test_a_node_that_does_not_know_its_own_host_is_where_it_was_asked() -> None:
    with StoreCluster(primaries=1) as small:
        small.primaries[0].ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
        async with opened(small.url) as store:
            assert await store.command("SET", KEY, "v") == b"OK"


async def test_a_server_that_is_no_cluster_is_no_use_as_one(own_valkey_on_tcp: object) -> None:
    url = str(own_valkey_on_tcp.url)  # type: ignore[attr-defined]
    async with opened(url.replace("redis://", "redis+cluster://").removesuffix("/0")) as store:
        assert isinstance(await says(store, "GET", KEY), StoreUnavailable)


def test_nobody_to_ask_is_an_error_of_ours() -> None:
    with pytest.raises(NoPrimary):
        asyncio.run(Seeds([], lambda _: pytest.fail("nobody")).ask(greet))


def test_what_is_lost_on_the_way_is_no_answer() -> None:
    def dial(_node: Node) -> AbstractConnection:
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        asyncio.run(Seeds([A], dial).ask(greet))
