from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from redis.asyncio.connection import AbstractConnection
from stores import HANG_UP, NIL, OK, SILENCE, ScriptedStore, StoreServer, eventually
from structlog.testing import capture_logs

from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.connection import CommandRefused, Store
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from proxy.store.connection import Command

HOLD_LEASE = Script("hold_lease")


@asynccontextmanager
async def opened(
    url: str, metrics: Metrics | None = None, timeout_seconds: float = 0.25, probe: Sequence[Command] = ()
) -> AsyncIterator[Store]:
    store = Store(url, name="state", metrics=metrics or Metrics(), timeout_seconds=timeout_seconds, probe=probe)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def errors_of(metrics: Metrics) -> float:
    return metrics.store_errors_total.labels("state").value


async def failure_of(store: Store, *command: str) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        await store.command(*command)
    return caught.value


# What works


async def test_a_transport_that_the_server_has_just_closed_is_a_lost_connection(
    valkey: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = AbstractConnection.send_packed_command
    failures = iter([RuntimeError("unable to perform operation; the handler is closed")])

    async def send(connection: AbstractConnection, *arguments: object, **named: object) -> None:
        for failure in failures:
            raise failure
        await sends(connection, *arguments, **named)

    async with opened(valkey.url) as store:
        monkeypatch.setattr(AbstractConnection, "send_packed_command", send)
        with capture_logs() as logs:
            assert await store.command("GET", "nothing") is None
    assert [line for line in logs if line["log_level"] == "error"] == []


async def test_replies_find_their_callers_on_every_kind_of_server(any_store: StoreServer) -> None:
    async with opened(any_store.url) as store:
        replies = await asyncio.gather(*(store.command("ECHO", f"word {number}") for number in range(500)))
    assert replies == [f"word {number}".encode() for number in range(500)]


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        pytest.param(("SET", "k", b"\x00\xff\r\n"), b"OK", id="bytes are stored as they are"),
        pytest.param(("GETRANGE", "bytes", 0, -1), b"\x00\xff\r\n", id="bytes come back undecoded"),
        pytest.param(("GET", "nothing"), None, id="nothing is None"),
        pytest.param(("INCRBY", "counter", 5), 6, id="integers go as text and come as integers"),
        pytest.param(("LRANGE", "list", 0, -1), [b"\xc3\xbc", b"2.5"], id="text goes as UTF-8, lists come as lists"),
        pytest.param(("set", "k", "v", "PX", 60_000), b"OK", id="a command's case does not matter"),
    ],
)
async def test_arguments_and_replies(valkey: StoreServer, command: tuple[str], reply: object) -> None:
    async with opened(valkey.url) as store:
        await store.command("SET", "bytes", b"\x00\xff\r\n")
        await store.command("INCR", "counter")
        await store.command("RPUSH", "list", "ü", 2.5)
        assert await store.command(*command) == reply


async def test_commands_of_one_tick_leave_as_one_pipeline() -> None:
    async with ScriptedStore(lambda _: OK) as server, opened(server.url) as store:
        server.reads.clear()
        await asyncio.gather(*(store.command("SET", "k", number) for number in range(100)))
        assert server.reads == [100]


async def test_one_caller_sends_several_commands_in_one_trip() -> None:
    async with ScriptedStore(lambda _: OK) as server, opened(server.url) as store:
        server.reads.clear()
        first, second = store.send("SET", "a", 1), store.send_script(HOLD_LEASE, ["lease"], ["me", 1000])
        assert [await first, await second] == [b"OK", b"OK"]
        assert server.reads == [2]


async def test_commands_over_tcp_and_into_a_database(own_valkey_on_tcp: StoreServer) -> None:
    async with opened(own_valkey_on_tcp.url.removesuffix("/0") + "/3") as store:
        await store.command("SET", "k", "v")
        with own_valkey_on_tcp.client() as client:
            assert client.execute_command("INFO", "keyspace").keys() == {"db3"}


@pytest.mark.parametrize(
    ("url", "works"),
    [
        pytest.param("redis://:right%20word@127.0.0.1:{port}/0", True, id="the right password opens"),
        pytest.param("redis://ann:pass@127.0.0.1:{port}/0", True, id="so do a user and its password"),
        pytest.param("redis://:wrong@127.0.0.1:{port}/0", False, id="a wrong one does not"),
        pytest.param("redis://127.0.0.1:{port}/0", False, id="nor does none"),
    ],
)
async def test_credentials(own_valkey_on_tcp: StoreServer, url: str, works: bool) -> None:  # noqa: FBT001
    with own_valkey_on_tcp.client() as client:
        client.acl_setuser("ann", enabled=True, passwords=["+pass"], commands=["+@all"], keys=["*"])
        client.config_set("requirepass", "right word")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    async with opened(url.format(port=own_valkey_on_tcp.port)) as store:
        assert store.is_available is works
        if not works:
            assert "credentials" in str(await failure_of(store, "PING"))


async def test_a_script_that_the_server_does_not_know_is_taught(any_store: StoreServer) -> None:
    async with opened(any_store.url) as store:
        results = await asyncio.gather(*(store.run(HOLD_LEASE, ["l"], [f"{n}", 9000]) for n in range(8)))
        assert sorted(results) == [0] * 7 + [1]
        await store.command("SCRIPT", "FLUSH")
        assert await store.run(HOLD_LEASE, ["m"], ["me", 9000]) == 1
        assert await store.run(HOLD_LEASE, ["m"], ["you", 9000]) == 0


async def test_a_script_is_sent_by_its_hash_once_it_is_known(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        for _ in range(5):
            await store.run(HOLD_LEASE, ["l"], ["me", 9000])
    calls = valkey.calls()
    assert (calls["eval"], calls["evalsha"]) == (1, 5)


async def test_the_clock_of_the_store_is_told_against_ours() -> None:
    reply = b"*2\r\n$10\r\n4102444800\r\n$6\r\n500000\r\n"
    server = ScriptedStore(lambda _: OK)
    server.manners[b"TIME"] = reply
    async with server, opened(server.url) as store:
        store.note_time([b"2000", b"250000"], left=0.0)  # a trip of decades: worth less than the first
        assert store.clock_offset_seconds() > 1e8
    assert Store(server.url, name="state", metrics=Metrics()).clock_offset_seconds() == 0.0


async def test_the_clock_is_that_of_the_server_that_is_there_now() -> None:
    hang_ups: list[bytes] = []
    async with ScriptedStore(lambda _: hang_ups.pop() if hang_ups else OK) as server, opened(server.url) as store:
        assert store.clock_offset_seconds() < -1e9  # its clock stands in 1970
        server.manners[b"TIME"] = b"*2\r\n$10\r\n9000000000\r\n$1\r\n0\r\n"
        hang_ups.append(HANG_UP)
        await failure_of(store, "ECHO", "a primary that is replaced")
        await eventually(lambda: server.connections == 2 and store.is_available)
        assert store.clock_offset_seconds() > 1e9


async def test_the_eviction_policy_is_told(any_store: StoreServer) -> None:
    async with opened(any_store.url) as store:
        assert await store.eviction_policy() == "noeviction"


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("localhost:6379", id="no scheme"),
        pytest.param("http://localhost:6379", id="another scheme"),
        pytest.param("redis://localhost:port/0", id="a port that is no number"),
        pytest.param("redis://localhost/0?colour=blue", id="an unknown option"),
        pytest.param("redis://localhost/0?health_check_interval=soon", id="an option of the wrong type"),
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_starts(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|option|port|[Ii]nvalid"):
        Store(url, name="state", metrics=Metrics())


# What the server refuses


@pytest.mark.parametrize(
    ("error", "is_for_good"),
    [
        pytest.param(b"-ERR unknown command\r\n", True, id="an unknown command is for good"),
        pytest.param(b"-WRONGTYPE not that kind\r\n", False, id="a key that the operator can mend is not"),
        pytest.param(b"-OOM command not allowed\r\n", False, id="a full memory passes"),
        pytest.param(b"-MISCONF cannot write to disk\r\n", False, id="so does a full disk"),
        pytest.param(b"-BUSY running a script\r\n", False, id="and a busy script"),
        pytest.param(b"-NOPERM no permission\r\n", False, id="and a permission that the operator can give"),
        pytest.param(b"-CLUSTERDOWN hash slot not served\r\n", False, id="and a cluster that is down"),
    ],
)
async def test_an_error_reply_concerns_one_command(error: bytes, is_for_good: bool) -> None:  # noqa: FBT001
    metrics = Metrics()
    async with (
        ScriptedStore(lambda words: error if words == [b"GET", b"bad"] else OK) as server,
        opened(server.url, metrics) as store,
    ):
        bad, good = await asyncio.gather(
            store.command("GET", "bad"), store.command("GET", "good"), return_exceptions=True
        )
        assert isinstance(bad, StoreUnavailable)
        assert isinstance(bad, CommandRefused) is is_for_good
        assert bad.retry_after_seconds == 1
        assert good == b"OK"
        assert store.is_available
        assert server.connections == 1
        assert errors_of(metrics) == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"-READONLY You can't write against a read only replica.\r\n", id="a primary that was demoted"),
        pytest.param(b"-LOADING the dataset in memory\r\n", id="a server that is loading"),
        pytest.param(b"?what\r\n", id="bytes that are no protocol"),
    ],
)
async def test_a_server_that_cannot_serve_is_left_and_tried_anew(reply: bytes) -> None:
    replies = [reply]
    async with ScriptedStore(lambda _: replies.pop() if replies else OK) as server, opened(server.url) as store:
        await failure_of(store, "XADD", "k", "*", "a", "b")
        assert await store.command("SET", "k", "v") == b"OK"
        assert server.connections == 2


@pytest.mark.parametrize("begins", ["before it is connected", "afterwards"])
@pytest.mark.parametrize("error", [b"-READONLY a replica\r\n", b"-OOM no room\r\n", b"-MISCONF no disk\r\n"])
async def test_a_store_that_answers_and_refuses_its_probe_is_away_until_it_does_not(error: bytes, begins: str) -> None:
    replies = {b"SET": error if begins == "before it is connected" else OK}
    async with ScriptedStore(lambda words: replies[words[0]]) as server:
        with capture_logs() as logs:
            async with opened(server.url, probe=[("SET", "k", 1)]) as store:
                assert store.is_available is (replies[b"SET"] == OK)
                replies[b"SET"] = error
                await eventually(lambda: not store.is_available)
                await eventually(lambda: server.connections >= 4)
                replies[b"SET"] = OK
                await eventually(lambda: store.is_available)
    told = [line["event"] for line in logs if line["event"] != "store refused a command"]
    assert told == ["store is away", "store is back"]


async def test_an_argument_that_is_none_is_a_mistake_of_the_caller(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        with pytest.raises(TypeError):
            await store.command("SET", "k", None)  # type: ignore[arg-type]
        assert await store.command("PING") == b"PONG"


# Connections that end


@pytest.mark.parametrize(
    ("command", "times"),
    [
        pytest.param(("GET", "k"), 2, id="a look-up is sent again"),
        pytest.param(("EVALSHA",), 2, id="a script is sent again: it is idempotent"),
        pytest.param(("XADD", "k", "*", "a", "b"), 1, id="a command that may not be repeated is not"),
        pytest.param(("SET", "k", "v", "NX"), 1, id="nor is one that may mean something else the second time"),
    ],
)
async def test_a_connection_that_is_lost_before_the_answer(command: tuple[str, ...], times: int) -> None:
    hang_ups = [HANG_UP]
    async with ScriptedStore(lambda _: hang_ups.pop() if hang_ups else OK) as server, opened(server.url) as store:
        waiting = store.run(HOLD_LEASE, ["l"], ["me", 1]) if command == ("EVALSHA",) else store.command(*command)
        result = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert [words[0].decode() for words in server.commands] == [command[0]] * times
        assert (result == b"OK") is (times == 2)
        assert await store.command("GET", "other") == b"OK"


async def test_a_command_is_repeated_once_and_no_more() -> None:
    async with (
        ScriptedStore(lambda words: HANG_UP if words[0] == b"GET" else OK) as server,
        opened(server.url) as store,
    ):
        await failure_of(store, "GET", "k")
        assert len(server.commands) <= 2


async def test_an_idle_connection_that_was_closed_is_renewed_unnoticed(own_valkey: StoreServer) -> None:
    async with opened(own_valkey.url) as store:
        with own_valkey.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert await store.command("PING") == b"PONG"


async def test_a_server_that_hangs_up_at_once_is_not_run_against_in_a_loop() -> None:
    async with ScriptedStore(lambda _: HANG_UP) as server, opened(server.url) as store:
        server.manners[b"TIME"] = HANG_UP
        await failure_of(store, "ECHO", "hello")
        await eventually(lambda: not store.is_available)
        before = server.connections
        await asyncio.gather(*(failure_of(store, "ECHO", "hello") for _ in range(50)))
        assert server.connections - before <= 1


# Stores that are away, and the breaker


async def test_a_store_that_is_away_at_start_is_waited_for_in_the_background(own_valkey: StoreServer) -> None:
    own_valkey.kill()
    async with opened(own_valkey.url) as store:
        assert not store.is_available
        error = await failure_of(store, "GET", "k")
        assert (error.status, error.retry_after_seconds) == (503, 1)
        own_valkey.start()
        await eventually(lambda: store.is_available)
        assert await store.command("GET", "k") is None


async def test_a_killed_store_fails_all_callers_and_comes_back_with_its_data(own_valkey: StoreServer) -> None:
    metrics = Metrics()
    async with opened(own_valkey.url, metrics) as store:
        await store.command("SET", "k", "v")
        own_valkey.kill()
        assert "cannot be reached" in str(await failure_of(store, "GET", "k"))
        assert not store.is_available
        own_valkey.start()
        await eventually(lambda: store.is_available)
        assert await store.command("GET", "k") == b"v"
        assert errors_of(metrics) >= 1


async def test_a_frozen_store_sees_one_round_of_commands_and_then_none(own_valkey: StoreServer) -> None:
    async with opened(own_valkey.url) as store:
        own_valkey.flush()
        own_valkey.freeze()
        await asyncio.gather(*(failure_of(store, "GET", "k") for _ in range(10)))
        for _ in range(100):
            await failure_of(store, "GET", "k")
        own_valkey.thaw()
        await eventually(lambda: store.is_available)
        assert own_valkey.calls().get("get", 0) <= 10
        assert await store.command("GET", "k") is None


async def test_a_frozen_store_is_noticed_when_nobody_asks_it(own_valkey: StoreServer) -> None:
    async with opened(own_valkey.url) as store:
        own_valkey.freeze()
        await eventually(lambda: not store.is_available)
        own_valkey.thaw()
        await eventually(lambda: store.is_available)


async def test_patient_and_bulky_commands_fail_at_once_too_while_the_store_is_away(own_valkey: StoreServer) -> None:
    async with opened(own_valkey.url) as store:
        await store.command("PING", timeout_seconds=30)
        own_valkey.freeze()
        await failure_of(store, "GET", "k")
        async with asyncio.timeout(10):  # far less than the 30 s that they would wait
            with pytest.raises(StoreUnavailable):
                await store.command("GET", "k", timeout_seconds=30)
            with pytest.raises(StoreUnavailable):
                await store.command("SET", "k", b"x" * 100_000)


async def test_messages_name_the_store_and_no_address(own_valkey: StoreServer) -> None:
    own_valkey.kill()
    async with opened(own_valkey.url) as store:
        message = str(await failure_of(store, "GET", "k"))
    assert "state store" in message
    assert str(own_valkey.directory) not in message


# Callers that leave, and time-outs


async def test_a_caller_that_leaves_takes_nobody_along() -> None:
    async with (
        ScriptedStore(lambda words: SILENCE if words[0] == b"ECHO" else OK) as server,
        opened(server.url, timeout_seconds=10) as store,
    ):
        callers = [asyncio.create_task(store.command("ECHO", number)) for number in range(20)]
        await eventually(lambda: len(server.commands) == 20)
        for caller in callers[::2]:
            caller.cancel()
        await asyncio.gather(*callers[::2], return_exceptions=True)
        server.say(b"".join(b":%d\r\n" % number for number in range(20)))
        assert await asyncio.gather(*callers[1::2]) == list(range(1, 20, 2))
        assert await store.command("SET", "after", 1) == b"OK"
        assert server.connections == 1


async def test_a_command_whose_caller_left_before_it_did_is_never_sent() -> None:
    async with ScriptedStore(lambda _: OK) as server, opened(server.url) as store:
        left = store.send("SET", "left", 1)
        stays = store.send("SET", "stays", 1)
        left.cancel()
        assert await stays == b"OK"
        assert server.commands == [[b"SET", b"stays", b"1"]]


async def test_a_patient_command_holds_up_nobody_and_outwaits_the_usual_bound() -> None:
    held: list[bytes] = []

    def answer(words: list[bytes]) -> bytes | None:
        held.append(words[0])
        return SILENCE if words[0] == b"XRANGE" else OK

    async with ScriptedStore(answer) as server, opened(server.url, timeout_seconds=0.05) as store:
        patient = asyncio.create_task(store.command("XRANGE", "s", "-", "+", timeout_seconds=0.3))
        await eventually(lambda: b"XRANGE" in held)
        for _ in range(20):
            assert await store.command("GET", "k") == b"OK"
        assert not patient.done()
        with pytest.raises(StoreUnavailable):
            await patient
        assert store.is_available


async def test_a_caller_less_patient_than_the_store_fails_alone() -> None:
    async with (
        ScriptedStore(lambda words: SILENCE if words[0] == b"ECHO" else OK) as server,
        opened(server.url, timeout_seconds=10) as store,
    ):
        patient = store.send("ECHO", "patient")
        with pytest.raises(StoreUnavailable):
            await store.command("ECHO", "impatient", timeout_seconds=0.01)
        assert store.is_available
        server.say(b"+patient\r\n+impatient\r\n")
        assert await patient == b"patient"
        assert await store.command("GET", "k") == b"OK"


async def test_large_commands_travel_beside_the_small_ones() -> None:
    async with ScriptedStore(lambda words: NIL if words[0] == b"GET" else OK) as server, opened(server.url) as store:
        assert await asyncio.gather(store.command("SET", "k", b"x" * 1_000_000), store.command("GET", "k")) == [
            b"OK",
            None,
        ]
        assert server.connections == 2


async def test_a_stall_of_our_own_loop_is_not_taken_for_the_stores(valkey: StoreServer) -> None:
    import time  # noqa: PLC0415 - a stall is what this test is about

    async with opened(valkey.url, timeout_seconds=0.05) as store:
        waiting = [store.send("ECHO", "a") for _ in range(5)]
        await asyncio.sleep(0)
        time.sleep(0.2)  # noqa: ASYNC251  the stall itself: the loop is blocked, and nothing in it could be awaited
        assert await asyncio.gather(*waiting) == [b"a"] * 5
        assert store.is_available


# Beginning and end


async def test_commands_before_the_start_and_after_the_end_fail(valkey: StoreServer) -> None:
    store = Store(valkey.url, name="state", metrics=Metrics())
    assert "not started" in str(await failure_of(store, "PING"))
    await store.start()
    await store.close()
    assert "closed" in str(await failure_of(store, "PING"))
    assert not store.is_available


async def test_closing_waits_for_what_is_under_way(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        waiting = [store.send("INCR", "k") for _ in range(50)]
    assert [reply.result() for reply in waiting] == list(range(1, 51))


async def test_closing_does_not_wait_for_a_store_that_hangs(own_valkey: StoreServer) -> None:
    async with opened(own_valkey.url) as store:
        own_valkey.freeze()
        waiting = store.send("INCR", "k")
        await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await waiting


async def test_being_available_begins_anew_with_each_connection(valkey: StoreServer) -> None:
    async with opened(valkey.url) as store:
        await eventually(lambda: store.available_seconds() > 0.05)
        with valkey.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await eventually(lambda: store.available_seconds() < 0.05)
        await eventually(lambda: store.available_seconds() > 0)
    assert store.available_seconds() == 0


@pytest.mark.parametrize(
    ("memory", "is_nearly_full"),
    [
        pytest.param("used_memory:81\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction", True, id="above its mark"),
        pytest.param("used_memory:80\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction", False, id="at its mark"),
        pytest.param("used_memory:81\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction", False, id="without a bound"),
        pytest.param("used_memory:99\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lfu", False, id="evicting"),
        pytest.param("# Memory", False, id="a server that does not say"),
    ],
)
async def test_whether_a_server_is_nearly_full(memory: str, is_nearly_full: bool) -> None:  # noqa: FBT001
    reply = b"$%d\r\n%s\r\n" % (len(memory), memory.encode())
    async with ScriptedStore(lambda _: reply) as server, opened(server.url) as store:
        await store.look_at_memory()
        assert store.is_nearly_full is is_nearly_full


async def test_durations_are_told_by_store(valkey: StoreServer) -> None:
    metrics = Metrics()
    async with opened(valkey.url, metrics) as store:
        for _ in range(7):
            await store.command("PING")
    assert sum(metrics.store_duration_seconds.labels("state").counts) == 7
    assert errors_of(metrics) == 0


# Under fire


@pytest.mark.parametrize("seed", range(3))
async def test_many_callers_get_their_own_reply_or_an_error_while_the_store_dies_and_returns(
    own_valkey: StoreServer, seed: int
) -> None:
    strike: list[Callable[[], None]] = [own_valkey.kill, own_valkey.start, own_valkey.freeze, own_valkey.thaw]
    wrong: list[tuple[str, object]] = []
    answered = 0

    async def ask(store: Store, caller: int) -> None:
        nonlocal answered
        for number in range(60):
            word = f"{seed}-{caller}-{number}"
            try:
                reply = await store.command("ECHO", word)
            except StoreUnavailable:
                await asyncio.sleep(0.01)
            else:
                answered += 1
                if reply != word.encode():
                    wrong.append((word, reply))

    async with opened(own_valkey.url) as store:
        callers = [asyncio.create_task(ask(store, caller)) for caller in range(16)]
        for blow in strike:
            await asyncio.sleep(0.02)
            blow()
        await asyncio.gather(*callers)
        await eventually(lambda: store.is_available)
    assert wrong == []
    assert answered > 0
