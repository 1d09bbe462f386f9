"""A cache that fails is a miss, never an error; what was purged is never served, whoever was away (SPEC §6)."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest
from answering import Answering, text_of
from gateway import PROJECT, Gateway, Settings, bearer, eventually, free_port, settings
from harness import Resp, call, uniq
from stores import StoreServer
from valve import Valve

from proxy.metrics import Metrics
from proxy.store.audit import Actor, Event
from proxy.store.connection import Store
from proxy.store.keys import Keys
from proxy.store.purges import Scope, purge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis
    from fake_upstream import FakeUpstream, Op, Ops, Req

    StartGateway = Callable[[Settings], Gateway]

ORGANIZATION = "org_acme"
NO_MEMORY = {"cache_memory_bytes": 0}
UNAVAILABLE = "tidegate;fwd=miss;detail=unavailable"
EVENT = Event("cache.purged", Actor("session", "root"), "", {})
LONG = "word " * 2_000
"""A prompt whose answer is long enough to be stored compressed."""


@pytest.fixture(autouse=True)
def _is_well(upstream: FakeUpstream) -> None:
    upstream.default = Answering()


def ask(gateway: Gateway, prompt: str = "known", *, model: str = "m", user: str = "alice") -> Resp:
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 8}
    return call(gateway.base_url, "POST", "/v1/completions", bearer(user), json.dumps(body).encode())


def serial_of(answer: Resp, prompt: str = "known") -> int:
    """Return which call to the upstream an answer is of; it has to be complete."""
    assert answer.status == 200, answer
    assert answer.complete
    text = answer.text()
    serial = int(text.removeprefix(f"{prompt} answered by call ").partition(",")[0])
    assert text == text_of(prompt, serial)
    return serial


def is_hit(answer: Resp) -> bool:
    assert answer.status == 200, answer
    return (answer.header("cache-status") or "").startswith("tidegate;hit")


def made(upstream: FakeUpstream, state: StoreServer | str, cache: StoreServer, **more: object) -> Settings:
    """Return the settings of a gateway on these stores, whose `usd` limit denies where it cannot count."""
    spending = {"limits": [{"of": "usd", "limit": 1000, "per": "day", "by": ["user"]}]}
    price = {"price": {"input": 1.0, "output": 1.0}}
    base = settings(f"{upstream.url}/v1", users={"alice": {}, "bob": spending}, models={"m": price, "other": price})
    state_url = state if isinstance(state, str) else state.url
    return {**base, "organization": {"id": ORGANIZATION}, "state": state_url, "cache_state": cache.url, **more}


@pytest.fixture
def cache_server() -> Iterator[StoreServer]:
    """Return a server for entries alone."""
    with StoreServer(port=free_port()) as server:
        yield server


@pytest.fixture(scope="module")
def plain(
    _upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, StoreServer, StoreServer]]:
    """Run a gateway that keeps nothing in memory, with its stores: of limits, and of entries."""
    with two_servers(is_shared=False) as (state, cache):
        given = made(_upstream, state, cache, **NO_MEMORY)
        with Gateway(tmp_path_factory.mktemp("gateway"), given) as gateway:
            yield gateway, state, cache


def the_entry(client: redis.Redis) -> str:
    """Return the key of the only entry there is."""
    [key] = client.keys("tidegate:entry:*")
    return key.decode()


# ---------------------------------------------------------------- the cache store fails


def _stop_writes(server: StoreServer) -> None:
    server.ask("CLIENT", "PAUSE", 60_000, "WRITE")


def _go_on(server: StoreServer) -> None:
    server.ask("CLIENT", "UNPAUSE")


@pytest.mark.parametrize(
    ("fail", "recover"),
    [
        pytest.param(StoreServer.kill, StoreServer.start, id="gone"),
        pytest.param(StoreServer.freeze, StoreServer.thaw, id="hung"),
        pytest.param(_stop_writes, _go_on, id="slow to write"),
    ],
)
def test_a_store_that_is_away_is_a_miss(
    start_gateway: StartGateway,
    upstream: FakeUpstream,
    redis_server: StoreServer,
    cache_server: StoreServer,
    fail: Callable[[StoreServer], None],
    recover: Callable[[StoreServer], None],
) -> None:
    gateway = start_gateway(made(upstream, redis_server, cache_server, **NO_MEMORY))
    remembering = start_gateway(made(upstream, redis_server, cache_server))
    assert serial_of(ask(gateway)) == 1
    assert [is_hit(ask(each)) for each in (gateway, remembering)] == [True, True]
    fail(cache_server)
    for serial in range(2, 6):
        answer = ask(gateway, user="bob")
        assert serial_of(answer) == serial
        assert answer.header("cache-status") == UNAVAILABLE
    kept = ask(remembering)
    assert is_hit(kept), "what is in memory needs no store"
    assert serial_of(kept) == 1
    recover(cache_server)
    assert eventually(lambda: is_hit(ask(gateway)))


def test_a_store_that_is_full_is_a_miss(
    start_gateway: StartGateway, upstream: FakeUpstream, redis_server: StoreServer
) -> None:
    with StoreServer(port=free_port(), settings={"maxmemory": "8mb", "maxmemory-policy": "noeviction"}) as cache_server:
        gateway = start_gateway(made(upstream, redis_server, cache_server, **NO_MEMORY))
        ask(gateway)
        with cache_server.client() as client:
            fill(client)
            assert is_hit(ask(gateway)), "what stands there can be read"
            for serial in (2, 3):
                answer = ask(gateway, "new")
                assert serial_of(answer, "new") == serial
                assert answer.header("cache-status") in {"tidegate;fwd=miss", UNAVAILABLE}
            for key in client.scan_iter("junk:*"):
                client.delete(key)
        assert eventually(lambda: is_hit(ask(gateway, "new")))


def fill(client: redis.Redis) -> None:
    """Write until there is no room."""
    for size in (100_000, 1_000, 10):
        for number in range(10_000):
            try:
                client.set(f"junk:{size}:{number}", b"x" * size)
            except Exception as full:  # noqa: BLE001  the client's own
                assert "OOM" in str(full) or "maxmemory" in str(full)  # noqa: PT017
                break


ZSTD = b"\x28\xb5\x2f\xfd"
"""How a frame begins (RFC 8878 §3.1.1)."""


def _bend(packed: bytes) -> bytes:
    """Change one byte of a compressed body; of a plain entry, the first of its values."""
    place = packed.index(ZSTD) + 40 if ZSTD in packed else packed.index(b"\n") + 2
    return packed[:place] + bytes([packed[place] ^ 1]) + packed[place + 1 :]


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "its head alone": lambda packed: packed[: packed.index(b"\n") + 1],
    "half of it": lambda packed: packed[: len(packed) // 2],
    "all but its last byte": lambda packed: packed[:-1],
    "more than it": lambda packed: packed + b"x",
    "an older version": lambda packed: packed.replace(b"tidegate-entry-3", b"tidegate-entry-2", 1),
    "a newer version": lambda packed: packed.replace(b"tidegate-entry-3", b"tidegate-entry-4", 1),
    "no head": lambda packed: packed[packed.index(b"\n") + 1 :],
    "text": lambda _: b"hello",
    "one byte changed": _bend,
    "another value": lambda packed: packed[: packed.index(b"\n") + 1] + b"\x93\x01\x02\x03",
    "another text": lambda packed: packed.replace(b"application/json", b"application/jsOn", 1),
}


@pytest.mark.parametrize("prompt", ["known", LONG], ids=["plain", "compressed"])
def test_an_entry_that_cannot_be_read_is_a_miss(plain: tuple[Gateway, StoreServer, StoreServer], prompt: str) -> None:
    gateway, _, cache_server = plain
    cache_server.flush()
    serial_of(ask(gateway, prompt), prompt)
    with cache_server.client() as client:
        key = the_entry(client)
        assert (b"zstd" in client.get(key)) is (prompt == LONG)
        for serial, (name, spoil) in enumerate(BROKEN.items(), 2):
            before = client.get(key)
            client.set(key, spoil(before))
            assert client.get(key) != before, name
            answer = ask(gateway, prompt)
            assert serial_of(answer, prompt) == serial, name
            assert answer.header("cache-status") == "tidegate;fwd=miss;stored", name
            assert is_hit(ask(gateway, prompt)), name


def _be_list(client: redis.Redis, key: str) -> None:
    client.rpush(key, "x")


def _be_hash(client: redis.Redis, key: str) -> None:
    client.hset(key, "x", "y")


def _be_stream(client: redis.Redis, key: str) -> None:
    client.xadd(key, {"x": "y"})


@pytest.mark.parametrize("become", [_be_list, _be_hash, _be_stream], ids=["a list", "a hash", "a stream"])
def test_what_another_put_under_our_key_is_a_miss(
    plain: tuple[Gateway, StoreServer, StoreServer], become: Callable[[redis.Redis, str], None]
) -> None:
    gateway, _, cache_server = plain
    cache_server.flush()
    ask(gateway)
    with cache_server.client() as client:
        entry = the_entry(client)
        lease = entry.replace("entry", "flight", 1)
        for place, serial in ((entry, 2), (lease, 3)):
            client.delete(entry, lease)
            become(client, place)
            answer = ask(gateway)
            assert serial_of(answer) == serial
            assert answer.header("cache-status").startswith("tidegate;fwd=miss")
            assert is_hit(ask(gateway))


@pytest.mark.parametrize("become", [_be_list, _be_stream], ids=["a list", "a stream"])
def test_what_another_put_where_purges_stand_is_a_miss(
    plain: tuple[Gateway, StoreServer, StoreServer], become: Callable[[redis.Redis, str], None]
) -> None:
    gateway, state, _ = plain
    ask(gateway)
    with state.client() as client:
        client.delete(Keys(ORGANIZATION).cache)
        become(client, Keys(ORGANIZATION).cache)
        for user in ("alice", "bob"):
            assert not is_hit(ask(gateway, user=user))
        client.delete(Keys(ORGANIZATION).cache)
    assert eventually(lambda: is_hit(ask(gateway)))


# ---------------------------------------------------------------- purges


def purge_now(state: StoreServer, *scopes: Scope) -> None:
    """Purge as the control plane does."""

    async def run() -> None:
        store = Store(state.url, name="state", metrics=Metrics())
        await store.start()
        try:
            await purge(store, ORGANIZATION, scopes, EVENT)
        finally:
            await store.close()

    asyncio.run(run())


@contextmanager
def two_servers(*, is_shared: bool) -> Iterator[tuple[StoreServer, StoreServer]]:
    """Run what counts limits, and what keeps entries: one server for both, or two."""
    with StoreServer(port=free_port()) as state:
        if is_shared:
            yield state, state
        else:
            with StoreServer(port=free_port()) as cache:
                yield state, cache


SHARED = pytest.mark.parametrize("is_shared", [True, False], ids=["one server", "two servers"])


def test_what_was_purged_is_not_served_and_the_next_answer_is_kept(
    two_gateways: tuple[StoreServer, list[Gateway]],
) -> None:
    state, gateways = two_gateways
    state.flush()
    for serial in (1, 2, 3):
        assert [serial_of(ask(each)) for each in gateways] == [serial, serial]
        purge_now(state, Scope("all"))


SCOPES = {
    "all": (lambda _: Scope("all"), True),
    "its model": (lambda _: Scope("model", "m"), True),
    "its project": (lambda _: Scope("project", PROJECT), True),
    "the key that paid": (lambda _: Scope("key", "key-alice"), True),
    "itself": (lambda key: Scope("entry", key), True),
    "another model": (lambda _: Scope("model", "other"), False),
    "a key that had it from the cache": (lambda _: Scope("key", "key-bob"), False),
    "another entry": (lambda _: Scope("entry", "f" * 64), False),
}


@pytest.fixture(scope="module")
def two_gateways(
    _upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StoreServer, list[Gateway]]]:
    """Run two gateways on one server."""
    with two_servers(is_shared=True) as (state, cache):
        given = made(_upstream, state, cache)
        with (
            Gateway(tmp_path_factory.mktemp("gateway"), given) as one,
            Gateway(tmp_path_factory.mktemp("gateway"), given) as other,
        ):
            yield state, [one, other]


def gated(gate: threading.Event, reply: Callable[[Req], Ops]) -> Callable[[Req], Iterator[Op]]:
    """Return a reply of which nothing comes before `gate` is set."""

    def answer(req: Req) -> Iterator[Op]:
        ready = reply(req)
        while not gate.is_set():
            yield ("sleep", 0.01)
        yield from ready

    return answer


@pytest.mark.parametrize("is_told", [True, False], ids=["that the gateway is told of", "that nobody is told of"])
@pytest.mark.parametrize(("scope", "is_concerned"), SCOPES.values(), ids=list(SCOPES))
def test_a_purge_while_a_fetch_is_under_way(
    two_gateways: tuple[StoreServer, list[Gateway]],
    upstream: FakeUpstream,
    scope: Callable[[str], Scope],
    *,
    is_concerned: bool,
    is_told: bool,
) -> None:
    state, gateways = two_gateways
    prompt, gate = uniq(), threading.Event()
    with state.client() as client:
        before = set(client.keys("tidegate:entry:*"))
        ask(gateways[0], prompt)
        [key] = set(client.keys("tidegate:entry:*")) - before
    cache_key = key.decode().partition("{")[2].rstrip("}")
    purge_now(state, Scope("entry", cache_key))
    upstream.script(gated(gate, upstream.default))
    with ThreadPoolExecutor() as threads:
        leader = threads.submit(ask, gateways[0], prompt)
        assert upstream.wait(lambda: len(upstream.log) == 2)
        purge_now(state, scope(cache_key))
        if is_concerned:
            assert serial_of(ask(gateways[0], prompt), prompt) == 3, "it joined what is purged already"
            purge_now(state, scope(cache_key))
        if is_told:
            ask(gateways[0], uniq())
        gate.set()
        assert serial_of(leader.result(), prompt) == 2
    expected = 4 + is_told if is_concerned else 2
    assert [serial_of(ask(each, prompt), prompt) for each in gateways] == [expected, expected]
    assert all(is_hit(ask(each, prompt)) for each in gateways)


@SHARED
@pytest.mark.parametrize("how", ["hangs", "refuses"])
def test_a_purge_while_a_worker_is_cut_off(
    start_gateway: StartGateway, upstream: FakeUpstream, how: Literal["hangs", "refuses"], *, is_shared: bool
) -> None:
    gate = threading.Event()
    with two_servers(is_shared=is_shared) as (state, cache), Valve(state.port) as valve:
        near = start_gateway(made(upstream, state, cache))
        far = start_gateway(made(upstream, f"redis://127.0.0.1:{valve.port}/0", cache))
        old = {serial_of(ask(each)) for each in (near, far)}
        upstream.script(gated(gate, upstream.default))
        with ThreadPoolExecutor() as threads:
            under_way = threads.submit(ask, far, "under way")
            assert upstream.wait(lambda: len(upstream.log) == 2)
            assert is_hit(ask(far))
            valve.shut(how)
            purge_now(state, Scope("all"))
            gate.set()
            assert serial_of(under_way.result(), "under way") == 2
        assert serial_of(ask(near)) not in old
        assert serial_of(ask(near, "under way"), "under way") != 2

        # For a moment it may believe to know of all purges.
        assert eventually(lambda: ask(far).header("cache-status") == UNAVAILABLE)
        check_never(far, old, "known", times=5)
        check_never(far, {2}, "under way", times=3)
        valve.open()
        check_never(far, {2}, "under way", times=3)
        assert eventually(lambda: not check_never(far, old, "known") and is_hit(ask(far)))
        check_never(far, old, "known", times=3)
        check_never(near, old, "known")
        check_never(near, {2}, "under way")


def check_never(gateway: Gateway, serials: set[int], prompt: str, *, times: int = 1) -> None:
    """Check that a gateway answers, and with none of these."""
    for _ in range(times):
        assert serial_of(ask(gateway, prompt), prompt) not in serials


def test_a_state_that_was_lost_may_have_held_purges(
    plain: tuple[Gateway, StoreServer, StoreServer], start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    gateway, state, cache = plain
    gateways = [gateway, start_gateway(made(upstream, state, cache))]
    cache.flush()
    assert [serial_of(ask(each)) for each in gateways] == [1, 1]
    state.flush()
    assert 1 not in [serial_of(ask(each)) for each in gateways]
    assert all(is_hit(ask(each)) for each in gateways)


def test_a_cache_that_was_lost_is_fetched_anew(plain: tuple[Gateway, StoreServer, StoreServer]) -> None:
    gateway, _, cache_server = plain
    cache_server.flush()
    ask(gateway)
    cache_server.flush()
    assert serial_of(ask(gateway)) == 2
    assert is_hit(ask(gateway))
