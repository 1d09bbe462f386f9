from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from stores import ScriptedStore, StoreCluster, eventually

from policies.usage import Provider
from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.audit import Actor, Event
from proxy.store.cache_state import CONTACT_SECONDS, LIFE_MILLISECONDS, POLL_SECONDS, CacheState, Copy, Origin
from proxy.store.connection import Store
from proxy.store.entries import StoredAnswer
from proxy.store.keys import Keys
from proxy.store.purges import Scope, purge
from proxy.store.reservations import Hits, Reservations, probe, read_admit, store_now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stores import StoreServer

KEYS = Keys("org")
EVENT = Event("cache.purged", Actor("session", "root"), "", {})


@dataclass
class Worker:
    """One worker's copy, with what it was told of it."""

    state: CacheState
    store: Store
    told: list[str] = field(default_factory=list)

    async def purge(self, *scopes: Scope) -> int:
        """Purge, behind the back of the copy."""
        return (await purge(self.store, "org", scopes or [Scope("all")], EVENT)).generation

    def fetch(self, **facts: Any) -> Origin:  # noqa: ANN401  facts of an origin
        """Return what is fetched now."""
        return origin(generation=self.state.epoch, **facts)


@asynccontextmanager
async def worker(url: str, *, window_seconds: float = 600) -> AsyncIterator[Worker]:
    store = Store(url, name="state", metrics=Metrics(), probe=probe(KEYS), anchor=KEYS.leases)
    await store.start()
    told: list[str] = []
    state = CacheState(
        store,
        "org",
        window_seconds=window_seconds,
        on_lost=lambda: told.append("lost"),
    )
    await state.start()
    try:
        yield Worker(state, store, told)
    finally:
        await state.close()
        await store.close()


def origin(**facts: Any) -> Origin:  # noqa: ANN401
    return Origin(
        **{
            "generation": 5,
            "model": "m",
            "project": "p",
            "key": "k",
            "cache_key": "0af3",
            "deployment": "u/m:1",
            **facts,
        }
    )


# ---------------------------------------------------------------- what is purged


@pytest.mark.parametrize(
    ("purged", "is_purged"),
    [
        pytest.param({"all": 6}, True, id="everything, after it was fetched"),
        pytest.param({"all": 5}, False, id="everything, before"),
        pytest.param({"model:m": 6}, True, id="its model"),
        pytest.param({"model:n": 6}, False, id="another model"),
        pytest.param({"model:m": 5, "model:n": 9}, False, id="its model before, and another after"),
        pytest.param({"project:p": 6}, True, id="the project of who paid"),
        pytest.param({"project:q": 6}, False, id="another project"),
        pytest.param({"key:k": 6}, True, id="the key of who paid"),
        pytest.param(
            {"key:p": 6, "project:k": 6, "entry:m": 6, "model:0af3": 6}, False, id="other things of these names"
        ),
        pytest.param({"entry:0af3": 6}, True, id="this very answer"),
        pytest.param({"entry:0af4": 6}, False, id="another answer"),
        pytest.param({"deployment:u/m%3A1": 6}, True, id="what its deployment showed before"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_purges_concern_what_was_fetched_before(purged: dict[str, int], is_purged: bool) -> None:  # noqa: FBT001
    fields = [("epoch", 10), *((f"purged:{name}", value) for name, value in purged.items())]
    copy = Copy.read([str(text).encode() for row in fields for text in row])
    assert copy.is_purged(origin()) is is_purged


@pytest.mark.parametrize(
    ("facts", "is_purged"),
    [
        pytest.param({"generation": 6}, False, id="fetched after it"),
        pytest.param({"project": None, "key": None}, True, id="it may have been any that paid"),
        pytest.param({"project": None, "key": None, "generation": 6}, False, id="but it was fetched after it"),
        pytest.param({"generation": 11}, True, id="an epoch that nobody knows: it may have been lost"),
        pytest.param({"generation": 10}, False, id="the present one"),
    ],
)
def test_a_purge_of_another_project(facts: dict[str, Any], is_purged: bool) -> None:  # noqa: FBT001
    copy = Copy.read([b"epoch", b"10", b"purged:project:q", b"6"])
    assert copy.is_purged(origin(**facts)) is is_purged


def test_what_another_put_there_is_left_out() -> None:
    copy = Copy.read([b"epoch", b"x", b"purged:all", b"-5", b"\xff\xfe", b"\xff", b"purged:model:m", b"9" * 5_000])
    assert (copy.epoch, copy.newest_purge, copy.retired) == (0, 0, frozenset())


def test_the_origin_of_a_stored_answer() -> None:
    facts: dict[str, Any] = {"generation": 7, "deployment": "u/d", "asked_model": "m"}
    facts |= {"content_type": "application/json", "body": b"{}", "created_milliseconds": 1}
    paid = StoredAnswer(is_stream=False, provider=Provider("p", "alice", is_service_account=False, key="k"), **facts)
    free = StoredAnswer(is_stream=False, **facts)
    assert Origin.of(paid, "0af3") == Origin(7, "m", "p", "k", "0af3", "u/d")
    assert Origin.of(free, "0af3") == Origin(7, "m", None, None, "0af3", "u/d")


# ---------------------------------------------------------------- how old the copy is


async def test_a_worker_begins_with_all_that_is_known(any_store: StoreServer) -> None:
    async with worker(any_store.url) as first:
        kept, gone = first.fetch(model="kept"), first.fetch(model="gone")
        generation = await first.purge(Scope("model", "gone"))
        async with worker(any_store.url) as second:
            assert second.state.epoch == generation
            assert second.state.is_current
            assert not second.state.is_purged(kept)
            assert second.state.is_purged(gone)


async def test_a_copy_is_behind_until_it_has_read_what_was_told(any_store: StoreServer) -> None:
    async with worker(any_store.url) as at:
        answer = at.fetch()
        generation = await at.purge()
        at.state.note(generation, time.monotonic())
        assert (at.state.is_behind, at.state.is_current, at.state.is_purged(answer)) == (True, False, False)
        await at.state.catch_up()
        assert (at.state.is_behind, at.state.is_current, at.state.is_purged(answer)) == (False, True, True)
        assert at.state.epoch == generation
        assert at.told == []


async def test_admissions_tell_what_is_to_be_read(valkey: StoreServer) -> None:
    async with worker(valkey.url) as at:
        reservations = Reservations(at.store, KEYS, UTC, lease_seconds=30)

        async def admit(name: str) -> int | None:
            left, now = time.monotonic(), reservations.now()
            reply = await reservations.send_admit(name, (), hits=Hits.NO, deadline=now + 1_000, record=b"")
            at.state.note(read_admit(reply).epoch, left)
            return read_admit(reply).epoch

        assert await admit("a") == at.state.epoch
        assert not at.state.is_behind
        generation = await at.purge()
        assert await admit("a") == await admit("b") == generation
        assert at.state.is_behind


async def test_all_who_wait_share_one_reading(valkey: StoreServer) -> None:
    async with worker(valkey.url) as at:
        before = valkey.calls()["evalsha"]
        at.state.note(await at.purge(), time.monotonic())
        waiting = [asyncio.create_task(at.state.catch_up()) for _ in range(50)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # it is nobody's own
        await asyncio.gather(*waiting[1:])
        assert waiting[0].cancelled()
        await at.state.catch_up()
        assert valkey.calls()["evalsha"] == before + 2  # the purge, and one reading


class Scripted:
    """A store whose answers to readings the test gives, one by one."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.known: list[int] = []

    def answer(self, command: list[bytes]) -> bytes | None:
        if command[0] != b"EVALSHA":
            return b"+OK\r\n"
        self.known.append(int(command[-1]))
        text = str(self.epochs.pop(0)).encode()
        return b"*3\r\n:0\r\n$5\r\nepoch\r\n$%d\r\n%s\r\n" % (len(text), text)


@asynccontextmanager
async def scripted(*epochs: int) -> AsyncIterator[tuple[CacheState, Scripted]]:
    """Open a copy, of which nothing goes on in the background, over a store that answers so."""
    script = Scripted()
    script.epochs = list(epochs)
    async with ScriptedStore(script.answer) as server:
        store = Store(server.url, name="state", metrics=Metrics())
        await store.start()
        try:
            yield CacheState(store, "org", window_seconds=600), script
        finally:
            await store.close()


async def test_a_reading_that_is_older_than_what_was_told_meanwhile_is_followed_by_another() -> None:
    async with scripted(300, 310) as (state, script):
        reading = asyncio.create_task(state.catch_up())
        await asyncio.sleep(0)
        state.note(310, time.monotonic())
        await reading
    assert (state.epoch, state.is_behind) == (310, False)
    assert script.known == [0, 310]


async def test_what_was_told_before_the_copy_was_read_makes_it_no_older() -> None:
    """Admissions that were answered before a purge, and are looked at after the reading that came behind it."""
    async with scripted(310, 310) as (state, script):
        await state.catch_up()
        state.note(300, time.monotonic())
        assert state.is_behind  # the store may have lost what it knew
        await state.catch_up()
        assert (state.epoch, state.is_behind) == (310, False)
    assert script.known == [0, 310]


async def test_an_epoch_that_does_not_stand_still_is_not_waited_for() -> None:
    async with scripted(*range(300, 400)) as (state, script):

        async def tell() -> None:
            while True:
                state.note(1_000, time.monotonic())  # what no reading comes up to
                await asyncio.sleep(0)

        telling = asyncio.create_task(tell())
        with pytest.raises(StoreUnavailable, match="stand still"):
            await state.catch_up()
        telling.cancel()
        assert (state.is_behind, state.is_current) == (True, False)
    assert len(script.known) == 5


async def test_who_asked_before_makes_the_copy_no_older() -> None:
    async with scripted(300) as (state, _script):
        await state.catch_up()
        state.note(300, time.monotonic() - 2 * CONTACT_SECONDS)
        assert state.is_current


async def test_an_epoch_that_cannot_be_read_is_asked_for_each_time() -> None:
    async with scripted(300, 300) as (state, _script):
        await state.catch_up()
        state.note(None, time.monotonic())
        assert (state.is_behind, state.is_current) == (True, False)
        await state.catch_up()
        assert state.is_current


# ---------------------------------------------------------------- a store that is away, or has lost its data


async def test_a_quiet_worker_hears_of_purges_and_stays_current(valkey: StoreServer) -> None:
    async with worker(valkey.url) as at:
        answer = at.fetch()
        await at.purge()
        await eventually(lambda: at.state.is_purged(answer))
        heard = valkey.calls()["hget"]
        await eventually(lambda: valkey.calls()["hget"] > heard + 4)  # longer than it may go without
        assert at.state.is_current
        assert at.told == []


async def test_a_busy_worker_need_not_ask(valkey: StoreServer) -> None:
    async with worker(valkey.url) as at:
        until = time.monotonic() + 2 * POLL_SECONDS
        at.state.note(at.state.epoch, until + 60)  # as if admissions were told all the time
        before = valkey.calls().get("hget", 0)
        await eventually(lambda: time.monotonic() > until)
        assert valkey.calls().get("hget", 0) == before


@pytest.mark.parametrize("how", ["freeze", "kill"])
async def test_a_worker_that_is_cut_off_says_so_within_a_second_and_once(own_valkey: StoreServer, how: str) -> None:
    async with worker(own_valkey.url) as at:
        answer = at.fetch()
        getattr(own_valkey, how)()
        gone = time.monotonic()
        await eventually(lambda: "lost" in at.told)
        assert not at.state.is_current
        at.state.note(at.state.epoch + 1, gone - CONTACT_SECONDS)  # an answer that has been long on its way
        with pytest.raises(StoreUnavailable):
            await at.state.catch_up()
        if how == "freeze":
            own_valkey.thaw()
        else:
            own_valkey.start()
        await eventually(lambda: at.state.is_current)
        assert at.told == ["lost"]
        assert at.state.is_purged(answer)  # by what was told, and was lost


async def test_what_was_purged_while_a_worker_was_cut_off_is_known_before_it_is_current(
    own_valkey: StoreServer,
) -> None:
    async with worker(own_valkey.url) as at, worker(own_valkey.url) as other:
        answer = at.fetch()
        assert at.state._follower is not None  # noqa: SLF001
        at.state._follower.cancel()  # noqa: SLF001  it hears nothing any more
        await eventually(lambda: at.told == ["lost"])
        assert not at.state.is_current
        generation = await other.purge()
        at.state.note(generation, time.monotonic())  # its first admission
        assert not at.state.is_current
        await at.state.catch_up()
        assert at.state.is_current
        assert at.state.is_purged(answer)
        await eventually(lambda: at.told == ["lost", "lost"])  # it is watched again


async def test_a_store_that_is_away_at_first_is_waited_for(own_valkey: StoreServer) -> None:
    own_valkey.kill()
    async with worker(own_valkey.url) as at:
        assert (at.state.is_behind, at.state.is_current, at.state.epoch) == (True, False, 0)
        own_valkey.start()
        await eventually(lambda: at.state.is_current)
        assert at.state.epoch > 0


async def test_a_store_that_lost_its_data_makes_all_that_is_older_doubtful(any_store: StoreServer) -> None:
    async with worker(any_store.url) as at, worker(any_store.url) as other:
        answer = at.fetch()
        before = at.state.epoch
        any_store.flush()
        at.state.note(0, time.monotonic())
        await at.state.catch_up()
        assert at.state.epoch > before
        assert at.state.is_purged(answer)
        assert not at.state.is_purged(at.fetch())
        await eventually(lambda: other.state.is_purged(answer))
        assert other.state.epoch == at.state.epoch  # one of them found it out


@pytest.mark.parametrize(
    ("lost_epoch", "is_lost"),
    [
        pytest.param(-1, True, id="an older one, as a replica had it"),
        pytest.param(0, False, id="the same one"),
        pytest.param(1, False, id="a newer one"),
    ],
)
async def test_a_store_that_goes_back_is_found_out_by_those_who_know_better(
    any_store: StoreServer, lost_epoch: int, *, is_lost: bool
) -> None:
    async with worker(any_store.url) as at:
        generation = await at.purge(Scope("model", "other"))
        at.state.note(generation, time.monotonic())
        await at.state.catch_up()
        answer = at.fetch()
        with any_store.client() as client:
            client.hset(KEYS.cache, "epoch", generation + lost_epoch)
        at.state.note(generation + lost_epoch, time.monotonic())
        await at.state.catch_up()
        assert at.state.is_purged(answer) is is_lost
        assert at.state.epoch > generation or lost_epoch == 0


async def test_what_was_told_and_never_read_is_missed_too(any_store: StoreServer) -> None:
    """The purge was heard of, and lost before it was read: nobody knows what it was."""
    async with worker(any_store.url) as at:
        answer, lost = at.fetch(), at.state.epoch + 10**9  # the clock was later then
        at.state.note(lost, time.monotonic())
        await at.state.catch_up()
        assert at.state.epoch > lost
        assert at.state.is_purged(answer)
        assert at.state.is_purged(answer._replace(generation=lost))


async def test_an_epoch_of_zero_is_none(any_store: StoreServer) -> None:
    with any_store.client() as client:
        client.hset(KEYS.cache, "epoch", 0)
    async with worker(any_store.url) as at:
        assert at.state.is_current
        assert at.state.epoch > 0


async def test_a_key_of_the_wrong_type_is_a_cache_that_is_away(any_store: StoreServer) -> None:
    async with worker(any_store.url) as at:
        with any_store.client() as client:
            client.set(KEYS.cache, "junk")
        at.state.note(None, time.monotonic())
        with pytest.raises(StoreUnavailable):
            await at.state.catch_up()
        assert not at.state.is_current
        with any_store.client() as client:
            client.delete(KEYS.cache)
        await eventually(lambda: at.state.is_current)


# ---------------------------------------------------------------- fingerprints


async def test_a_retired_fingerprint_is_known_to_all_workers_and_lives_again_when_it_is_shown(
    any_store: StoreServer,
) -> None:
    async with worker(any_store.url, window_seconds=0.05) as at, worker(any_store.url) as other:

        def is_retired_elsewhere_while_shown(shown: str) -> bool:
            at.state.see("u/m:1", "m", shown)
            return other.state.is_retired("u/m:1", "fp:ü")

        assert not is_retired_elsewhere_while_shown("fp:ü")
        await eventually(lambda: is_retired_elsewhere_while_shown("G"))
        assert not other.state.is_retired("u/m:1", "G")
        assert not other.state.is_retired("u/m", "fp:ü")
        assert not other.state.is_retired("u/m:1", None)
        await eventually(lambda: not is_retired_elsewhere_while_shown("fp:ü"))


async def test_hits_retire_nothing(valkey: StoreServer) -> None:
    """Nothing is seen, however long: only answers are."""
    async with worker(valkey.url, window_seconds=0.01) as at:
        for fingerprint in ("F", None, ""):
            at.state.see("u/m", "m", fingerprint)
        await eventually(lambda: valkey.calls().get("hget", 0) > 4)
        assert not at.state.is_retired("u/m", "F")
        with valkey.client() as client:
            assert len(client.hgetall(KEYS.fingerprints)) == 1


async def test_what_a_worker_kept_to_itself_is_told_by_and_by(valkey: StoreServer) -> None:
    async with worker(valkey.url, window_seconds=0.5) as at:
        at.state.see("u/m", "m", "F")
        first = last = store_now(at.store)
        while last == first:
            last = store_now(at.store)
        at.state.see("u/m", "m", "F")  # which need not be told for 50 ms

        def last_told() -> int:
            with valkey.client() as client:
                packed = client.hget(KEYS.fingerprints, "u/m")
            return 0 if packed is None else msgspec.msgpack.decode(packed)[1][0][2]

        await eventually(lambda: last_told() >= last)


async def test_all_of_it_works_on_a_cluster() -> None:
    with StoreCluster() as cluster:
        async with worker(cluster.url, window_seconds=0.05) as at:
            answer = at.fetch()
            await at.purge(Scope("key", "k"))
            await eventually(lambda: at.state.is_purged(answer))
            at.state.see("u/m", "m", "F")

            def is_retired() -> bool:
                at.state.see("u/m", "m", "G")
                return at.state.is_retired("u/m", "F")

            await eventually(is_retired)
        assert not cluster.errors().keys() & {"MOVED", "CROSSSLOT"}


async def test_what_is_known_lives_on_while_a_worker_does(valkey: StoreServer) -> None:
    async with worker(valkey.url, window_seconds=600) as at:
        at.state.see("u/d", "m", "fp_a")
        with valkey.client() as client:
            for key in (KEYS.cache, KEYS.fingerprints):
                await eventually(lambda key=key: client.exists(key))
                client.pexpire(key, 60_000)
            at.state._prolonged_at = float("-inf")  # noqa: SLF001  an hour has passed
            for key in (KEYS.cache, KEYS.fingerprints):
                await eventually(lambda key=key: client.pttl(key) > 0.9 * LIFE_MILLISECONDS)
