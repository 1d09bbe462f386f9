from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

import msgspec
import pytest
from clockwork import Clockwork
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from opened import opened
from stores import ScriptedStore, eventually

from policies.fingerprints import MOST_KEPT, Sighting, observe, retired
from proxy.errors import StoreUnavailable
from proxy.store.keys import Keys
from proxy.store.reservations import store_now
from proxy.store.sightings import Shown, Sightings, cut, read_fingerprints, written

if TYPE_CHECKING:
    from stores import StoreServer

    from proxy.store.connection import Store

KEYS = Keys("org")
START = 4_000_000_000_000
WINDOW = 600
KEPT = 3
LLAMA = "llama/smollm2:135m"


def seer(store: Store, window_seconds: float = 600) -> tuple[Sightings, list[int]]:
    """Return the sightings of one worker, and the epochs that it is told."""
    heard: list[int] = []
    return Sightings(store, KEYS, window_seconds=window_seconds, heard=lambda epoch, _: heard.append(epoch)), heard


def see_at(lua: Clockwork, fingerprint: str, at: int, *, deployment: str = "u/m", most: int = MOST_KEPT) -> int:
    """Run the script, and return the epoch."""
    arguments = [deployment, "m", fingerprint, at, WINDOW, most]
    epoch: int = lua.run("see_fingerprint", [KEYS.cache, KEYS.fingerprints], arguments)
    return epoch


# ---------------------------------------------------------------- the rule in Lua and in Python


class Both(RuleBasedStateMachine):
    """Random answers of two deployments through the script and the arithmetic: equal at every step."""

    server: ClassVar[StoreServer]

    def __init__(self) -> None:
        super().__init__()
        self._opened = self.server.client()
        self.client = self._opened.__enter__()
        self.client.flushall()
        self.lua = Clockwork(self.client)
        self.lua.at(START)
        self.known: dict[str, tuple[Sighting, ...]] = {"u/m": (), "u/n": ()}
        self.floors: dict[str, int] = {}
        self.retired_in: dict[tuple[str, str], int] = {}
        self.epoch = 0

    def teardown(self) -> None:
        self._opened.__exit__(None, None, None)

    @rule(
        deployment=st.sampled_from(["u/m", "u/m", "u/m", "u/n"]),
        fingerprint=st.sampled_from(["F", "G", "H", "fp_ü:\n", "K"]),
        passes=st.sampled_from([0, 1, 90, 300, 599, 600, 601, 700]),
        ago=st.sampled_from([0, 0, 0, 1, 250, 700, -50]),
    )
    def see(self, deployment: str, fingerprint: str, passes: int, ago: int) -> None:
        """Answer with a fingerprint, which may be told late, and more of them than are kept."""
        self.lua.at(self.lua.now + passes)
        at = min(self.lua.now - ago, self.lua.now)
        told = see_at(self.lua, fingerprint, self.lua.now - ago, deployment=deployment, most=KEPT)
        before = self.known[deployment]
        after = self.known[deployment] = observe(before, fingerprint, at, WINDOW, most=KEPT)
        self._expect(deployment, before, observe(before, fingerprint, at, WINDOW))
        self._forget(deployment, {each.fingerprint for each in after})
        assert told == self.epoch
        self._compare()

    def _expect(self, deployment: str, before: tuple[Sighting, ...], after: tuple[Sighting, ...]) -> None:
        """Let the epoch grow if another is retired, or lives again."""
        gone, back = retired(after) - retired(before), retired(before) - retired(after)
        if not gone | back:
            return
        if not self.epoch:
            self.floors["purged:all"] = self.lua.now
        self.epoch = max(self.epoch + 1, self.lua.now)
        self.retired_in |= {(deployment, each): self.epoch for each in gone}
        for each in back:
            del self.retired_in[deployment, each]

    def _forget(self, deployment: str, kept: set[str]) -> None:
        for name, fingerprint in list(self.retired_in):
            if name == deployment and fingerprint not in kept:
                floor = f"purged:deployment:{deployment}"
                epoch = self.retired_in.pop((name, fingerprint))
                self.floors[floor] = max(self.floors.get(floor, 0), epoch)

    def _compare(self) -> None:
        packed = self.client.hgetall(KEYS.fingerprints)
        decoded = {name.decode(): msgspec.msgpack.decode(value)[1] for name, value in packed.items()}
        assert decoded == {
            name: [list(msgspec.structs.astuple(each)) for each in known] for name, known in self.known.items() if known
        }
        expected = {f"retired:{name}:{each}": epoch for (name, each), epoch in self.retired_in.items()} | self.floors
        if self.epoch:
            expected["epoch"] = self.epoch
        assert {name.decode(): int(value) for name, value in self.client.hgetall(KEYS.cache).items()} == expected


def test_script_and_arithmetic_agree_at_every_step(valkey: StoreServer) -> None:
    machine = type("Agreement", (Both,), {"server": valkey})
    tried = settings(
        max_examples=60, stateful_step_count=30, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=tried)


def test_a_repeated_call_changes_nothing(any_store: StoreServer) -> None:
    with any_store.client() as client:
        lua = Clockwork(client)
        lua.at(START + 2_000)
        calls = (("F", START), ("G", START + 10), ("G", START + 700))
        for done, (fingerprint, at) in enumerate(calls, 1):
            told = see_at(lua, fingerprint, at)
            before = client.hgetall(KEYS.fingerprints), client.hgetall(KEYS.cache)
            for call in calls[:done]:
                assert see_at(lua, *call) == told
                assert (client.hgetall(KEYS.fingerprints), client.hgetall(KEYS.cache)) == before
        assert client.hget(KEYS.cache, "retired:u/m:F") == str(told).encode() == str(START + 2_000).encode()


@pytest.mark.parametrize(
    ("shown", "kept", "floor"),
    [
        pytest.param([(1, "F"), (2, "G"), (3, "H")], "GH", None, id="it lived: nothing is known of it any more"),
        pytest.param(
            [(1, "F"), (2, "G"), (602, "G"), (603, "H")], "GH", 602, id="it was retired: what is older stays stale"
        ),
        pytest.param(
            [(1, "F"), (2, "G"), (603, "F"), (1_203, "F"), (1_204, "H")], "FH", 1_203, id="the retired one goes first"
        ),
        pytest.param(
            # G is retired at 1_205 and goes when H comes; H is retired at 1_907 and goes when G comes again
            [(1, "F"), (2, "G"), (605, "F"), (1_205, "F"), (1_206, "H"), (1_300, "F"), (1_907, "F"), (1_908, "G")],
            "FG",
            1_907,
            id="of two that went the later one counts",
        ),
        pytest.param([(10, "F"), (20, "G"), (1, "H")], "GH", None, id="not the one that has come, though it is older"),
    ],
)
def test_what_is_followed_no_longer(
    any_store: StoreServer, shown: list[tuple[int, str]], kept: str, floor: int | None
) -> None:
    with any_store.client() as client:
        lua = Clockwork(client)
        for at, fingerprint in shown:
            lua.at(max(lua.now, START + at))
            see_at(lua, fingerprint, START + at, most=2)
        [_model, known] = msgspec.msgpack.decode(client.hget(KEYS.fingerprints, "u/m"))
        assert {each[0] for each in known} == set(kept)
        told = client.hget(KEYS.cache, "purged:deployment:u/m")
        assert (None if told is None else int(told)) == (None if floor is None else START + floor)
        assert not [name for name in client.hkeys(KEYS.cache) if name.startswith(b"retired:")]


@pytest.mark.parametrize("odd", [KEYS.cache, KEYS.fingerprints], ids=["state", "fingerprints"])
async def test_a_key_of_the_wrong_type_changes_nothing(any_store: StoreServer, odd: str) -> None:
    async with opened(any_store.url) as store:
        with any_store.client() as client:
            client.set(odd, "junk")
            sightings, heard = seer(store)
            sightings.see(LLAMA, "m", "F")
            await store.command("PING")
            assert client.keys() == [odd.encode()]
    assert heard == []


def test_what_cannot_be_read_is_begun_anew(any_store: StoreServer) -> None:
    with any_store.client() as client:
        lua = Clockwork(client)
        lua.at(START)
        for junk in (b"junk", b"", b"\x93", msgspec.msgpack.encode(["m"])):
            client.hset(KEYS.fingerprints, "u/m", junk)
            see_at(lua, "F", START)
            assert msgspec.msgpack.decode(client.hget(KEYS.fingerprints, "u/m")) == ["m", [["F", START, START, 0, 0]]]


# ---------------------------------------------------------------- what a worker tells


async def calls(store: Store, server: StoreServer) -> int:
    """Return how often the script ran, once all that was sent has been done."""
    await store.command("PING")
    return server.calls().get("evalsha", 0)


async def test_what_is_seen_is_known_to_all(any_store: StoreServer) -> None:
    async with opened(any_store.url) as store:
        sightings, heard = seer(store)
        sightings.see(LLAMA, "smollm2", "fp_ü:1")
        sightings.see(LLAMA, "small", "b10062\n")
        sightings.see("openai/gpt", "gpt", "fp_1")
        await store.command("PING")
        shown = await read_fingerprints(store, "org")
    assert [(each.deployment, each.model) for each in shown] == [(LLAMA, "small"), ("openai/gpt", "gpt")]
    assert [each.fingerprint for each in shown[0].sightings] == ["fp_ü:1", "b10062\n"]
    assert all(each.first == each.last > 0 == each.retired for each in shown[0].sightings)
    assert heard == [0, 0, 0]


async def test_what_tells_nothing_is_not_told(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        sightings, _ = seer(store)
        sightings.see(LLAMA, "m", "teaches the script")
        await store.command("PING")
        before = await calls(store, valkey)
        for _ in range(500):
            for fingerprint in "FG":
                sightings.see(LLAMA, "m", fingerprint)
        sightings.tell_the_rest()
        assert await calls(store, valkey) == before + 2


async def test_what_was_kept_back_is_told_in_time_as_of_then(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        sightings, heard = seer(store, window_seconds=0.5)  # told every 50 ms
        for _ in range(2):
            sightings.see(LLAMA, "m", "F")
        seen_by = store_now(store)

        def is_told() -> bool:
            sightings.tell_the_rest()
            return len(heard) > 1

        await eventually(is_told)
        [shown] = await read_fingerprints(store, "org")
        assert shown.sightings[0].last <= seen_by  # not when it was told, 50 ms later
        until = time.monotonic() + 0.1

        def is_over() -> bool:
            sightings.tell_the_rest()
            return time.monotonic() > until

        await eventually(is_over)
        await store.command("PING")
        assert len(heard) == 2  # there was nothing more to tell


async def test_another_window_is_told_with_what_is_seen_from_then_on(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        sightings, heard = seer(store)
        sightings.see(LLAMA, "m", "F")
        sightings.adopt(0.01)  # told every millisecond
        until = time.monotonic() + 0.01

        def is_told() -> bool:
            if time.monotonic() > until:
                sightings.see(LLAMA, "m", "F")
            return len(heard) > 1

        await eventually(is_told)


async def test_a_server_that_shows_another_one_each_time_is_not_followed(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        sightings, heard = seer(store)
        for number in range(500):
            sightings.see(LLAMA, "m", f"fp_{number}")
        sightings.see("u/other", "m", "F")
        await store.command("PING")
        llama, other = await read_fingerprints(store, "org")
    assert len(llama.sightings) == MOST_KEPT
    assert len(other.sightings) == 1
    assert len(heard) == MOST_KEPT + 1


async def test_one_that_comes_later_takes_the_place_of_what_is_not_shown_any_more(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        sightings, heard = seer(store, window_seconds=0.1)
        for number in range(MOST_KEPT):
            sightings.see(LLAMA, "m", f"fp_{number}")

        def is_followed() -> bool:
            sightings.see(LLAMA, "m", "new")
            return len(heard) > MOST_KEPT

        await eventually(is_followed)
        [shown] = await read_fingerprints(store, "org")
    assert "new" in {each.fingerprint for each in shown.sightings}
    assert len(shown.sightings) == MOST_KEPT


async def test_what_the_store_did_not_hear_is_told_later() -> None:
    answers = iter([b"-OOM no memory\r\n", b":5\r\n"])
    async with (
        ScriptedStore(lambda command: next(answers) if command[0] == b"EVALSHA" else b"+OK\r\n") as server,
        opened(server.url) as store,
    ):
        sightings, heard = seer(store, window_seconds=0.01)
        sightings.see(LLAMA, "m", "F")

        def is_told() -> bool:
            sightings.tell_the_rest()
            return heard == [5]

        await eventually(is_told)
        told = [command for command in server.commands if command[0] == b"EVALSHA"]
    assert len(told) == 2
    assert told[0] == told[1]  # as of when it was seen


async def test_a_store_that_is_away_is_no_error_for_who_sees_and_one_for_who_asks() -> None:
    async with opened("unix:///nowhere") as store:
        sightings, heard = seer(store)
        sightings.see(LLAMA, "m", "F")
        sightings.tell_the_rest()
        with pytest.raises(StoreUnavailable):
            await read_fingerprints(store, "org")
    assert heard == []


async def test_what_another_put_there_is_no_deployment(valkey: StoreServer) -> None:
    sighting = ["F", 1, 2, 0, 0]
    with valkey.client() as client:
        for name, value in (
            ("a", b"junk"),
            (b"\xff", b"\x80"),
            ("u%2Fm%3A1", msgspec.msgpack.encode(["m", [sighting]])),
        ):
            client.hset(KEYS.fingerprints, name, value)
    async with opened(valkey.url) as store:
        assert await read_fingerprints(store, "org") == (Shown("u/m:1", "m", (Sighting("F", 1, 2),)),)


@pytest.mark.parametrize(
    ("fingerprint", "expected"),
    [
        pytest.param("fp_44709d6fcb", "fp_44709d6fcb", id="as servers write them"),
        pytest.param("x" * 128, "x" * 128, id="a long one"),
        pytest.param("x" * 10_000, "x" * 127 + "…", id="a longer one is cut"),
        pytest.param("a\ud800\0\n", "a\\ud800\0\n", id="whatever is no text"),
    ],
)
def test_a_fingerprint_is_bounded_text(fingerprint: str, expected: str) -> None:
    assert cut(fingerprint) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("u/a:b", "u/a%3Ab", id="a colon and what stands for it"),
        pytest.param("u/ä", "u/a", id="an umlaut"),
    ],
)
def test_deployments_are_told_apart_and_have_no_colon(one: str, other: str) -> None:
    assert written(one) != written(other)
    assert ":" not in written(one) + written(other)
