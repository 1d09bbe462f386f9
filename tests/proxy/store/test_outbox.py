from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stores import StoreServer, eventually

from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store import outbox
from proxy.store.connection import Store
from proxy.store.keys import Keys
from proxy.store.outbox import BATCH_RECORDS, Drainer, UsageFile, line_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

ROOT = Path(__file__).parents[3]
KEYS = Keys("org_acme")


@asynccontextmanager
async def opened(server: StoreServer) -> AsyncIterator[Store]:
    store = Store(server.url, name="state", metrics=Metrics())
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def fill(server: StoreServer, numbers: Iterable[int]) -> None:
    with server.client() as client, client.pipeline(transaction=False) as pipeline:
        for number in numbers:
            pipeline.xadd(KEYS.outbox, {"record": json.dumps({"request_id": f"r{number}"})})
        pipeline.execute()


def waiting_in(server: StoreServer) -> int:
    with server.client() as client:
        return int(client.xlen(KEYS.outbox))


def requests_in(path: Path) -> list[str]:
    return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]


def has_grown(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


def expected(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        pytest.param([b"record", b'{"a":1}'], b'{"outbox_id":"5-0","a":1}\n', id="a record is led by its id"),
        pytest.param([b"record", b"{}"], b'{"outbox_id":"5-0"}\n', id="an empty record is still a line"),
        pytest.param([b"record", b' {\n"a": 1\n}\n'], b'{"outbox_id":"5-0","a": 1 }\n', id="lines are joined"),
        pytest.param([b"other", b"x"], b'{"outbox_id":"5-0","unreadable":{"other": "x"}}\n', id="no record is kept"),
        pytest.param(
            [b"record", b"\xff\n"],
            b'{"outbox_id":"5-0","unreadable":{"record": "\\ufffd\\n"}}\n',
            id="what is no object is kept as text",
        ),
    ],
)
def test_lines(fields: list[bytes], line: bytes) -> None:
    assert line_of([b"5-0", fields]) == line
    assert json.loads(line)["outbox_id"] == "5-0"


async def test_records_go_to_the_file_in_order_and_leave_the_outbox(any_store: StoreServer, tmp_path: Path) -> None:
    fill(any_store, range(3 * BATCH_RECORDS + 7))
    async with opened(any_store) as store, Drainer(store, tmp_path / "usage.jsonl", KEYS):
        await eventually(lambda: waiting_in(any_store) == 0)
    assert requests_in(tmp_path / "usage.jsonl") == expected(3 * BATCH_RECORDS + 7)


async def test_what_comes_while_it_ends_is_drained_too(valkey: StoreServer, tmp_path: Path) -> None:
    async with opened(valkey) as store, Drainer(store, tmp_path / "usage.jsonl", KEYS):
        fill(valkey, range(10))
    assert requests_in(tmp_path / "usage.jsonl") == expected(10)
    with valkey.client() as client:
        assert client.exists(KEYS.drainer) == 0


async def test_one_of_several_drainers_is_elected_and_another_takes_over(valkey: StoreServer, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    async with opened(valkey) as store:
        async with Drainer(store, first, KEYS):
            fill(valkey, range(5))
            await eventually(lambda: waiting_in(valkey) == 0)
            other = Drainer(store, second, KEYS)
            fill(valkey, range(5, 10))
            assert await other.drain() == 0
        fill(valkey, range(10, 12))
        assert await other.drain() == 2
    assert (requests_in(first), requests_in(second)) == (expected(10), ["r10", "r11"])


@pytest.mark.parametrize(
    ("torn", "kept"),
    [
        pytest.param(b"", 3, id="a whole file is left as it is"),
        pytest.param(b'{"outbox_id":"9', 3, id="a torn line is cut"),
        pytest.param(b'{"request_id":"r9"}', 3, id="a line without its newline is torn"),
    ],
)
async def test_the_end_of_a_file_after_a_crash(valkey: StoreServer, tmp_path: Path, torn: bytes, kept: int) -> None:
    path = tmp_path / "usage.jsonl"
    fill(valkey, range(kept))
    async with opened(valkey) as store:
        await Drainer(store, path, KEYS).drain()
        path.write_bytes(path.read_bytes() + torn)
        fill(valkey, range(kept, kept + 2))
        with valkey.client() as client:
            client.delete(KEYS.drainer)
        await Drainer(store, path, KEYS).drain()
    assert requests_in(path) == expected(kept + 2)


async def test_records_written_but_not_yet_removed_are_not_written_again(valkey: StoreServer, tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    fill(valkey, range(20))
    with valkey.client() as client:
        lines = [
            line_of([identifier, [b"record", fields[b"record"]]]) for identifier, fields in client.xrange(KEYS.outbox)
        ]
    path.write_bytes(b"".join(lines[:12]))
    async with opened(valkey) as store:
        assert await Drainer(store, path, KEYS).drain() == 20
    assert path.read_bytes() == b"".join(lines)


async def test_a_store_that_dies_between_writing_and_removing_costs_no_record_and_doubles_none(
    own_valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usage.jsonl"
    fill(own_valkey, range(30))
    append = UsageFile.append

    def append_and_kill(file: UsageFile, lines: list[bytes]) -> None:
        append(file, lines)
        own_valkey.kill()

    async with opened(own_valkey) as store:
        monkeypatch.setattr(UsageFile, "append", append_and_kill)
        drainer = Drainer(store, path, KEYS)
        with pytest.raises(StoreUnavailable):
            await drainer.drain()
        monkeypatch.undo()
        own_valkey.start()
        await eventually(lambda: store.is_available)
        assert await drainer.drain() == 30
    assert waiting_in(own_valkey) == 0
    assert requests_in(path) == expected(30)


async def test_a_drainer_stays_elected_while_its_disk_is_slow(
    valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = UsageFile.append
    lives: list[int] = []

    def append_slowly(file: UsageFile, lines: list[bytes]) -> None:
        with valkey.client() as client:
            client.pexpire(KEYS.drainer, 50)
            for _ in range(400):
                if (life := client.pttl(KEYS.drainer)) > 50:
                    lives.append(life)
                    break
                time.sleep(0.005)  # between two looks at the server, from a thread that stands for a slow disk
        append(file, lines)

    monkeypatch.setattr(outbox, "RENEWAL_SECONDS", 0.01)
    monkeypatch.setattr(UsageFile, "append", append_slowly)
    fill(valkey, range(3))
    async with opened(valkey) as store:
        assert await Drainer(store, tmp_path / "usage.jsonl", KEYS).drain() == 3
    assert len(lives) == 1
    assert requests_in(tmp_path / "usage.jsonl") == expected(3)


async def test_a_full_disk_keeps_the_records_in_the_outbox(
    valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usage.jsonl"
    fill(valkey, range(4))

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    async with opened(valkey) as store:
        drainer = Drainer(store, path, KEYS)
        monkeypatch.setattr(outbox.os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            await drainer.drain()
        assert waiting_in(valkey) == 4
        monkeypatch.undo()
        path.write_bytes(path.read_bytes()[:-5])
        assert await drainer.drain() == 4
    assert requests_in(path) == expected(4)


async def test_a_file_that_was_moved_away_is_begun_anew(valkey: StoreServer, tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    async with opened(valkey) as store:
        drainer = Drainer(store, path, KEYS)
        fill(valkey, range(2))
        await drainer.drain()
        path.rename(tmp_path / "usage.1.jsonl")
        fill(valkey, range(2, 3))
        await drainer.drain()
    assert requests_in(path) == ["r2"]


async def test_a_drainer_outlasts_a_store_that_is_away(own_valkey: StoreServer, tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    async with opened(own_valkey) as store, Drainer(store, path, KEYS):
        own_valkey.kill()
        await eventually(lambda: not store.is_available)
        own_valkey.start()
        fill(own_valkey, range(5))
        await eventually(lambda: waiting_in(own_valkey) == 0)
    assert requests_in(path) == expected(5)


async def test_a_drainer_killed_again_and_again_loses_and_doubles_nothing(
    own_valkey: StoreServer, tmp_path: Path
) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from proxy.metrics import Metrics\n"
        "from proxy.store.connection import Store\n"
        "from proxy.store.keys import Keys\n"
        "from proxy.store import outbox\n"
        "outbox.BATCH_RECORDS, outbox.LEASE_MILLISECONDS = 50, 100\n"
        "async def main():\n"
        "    store = Store(sys.argv[1], name='state', metrics=Metrics())\n"
        "    await store.start()\n"
        "    async with outbox.Drainer(store, pathlib.Path(sys.argv[2]), Keys('org_acme')):\n"
        "        print('draining', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "usage.jsonl"
    count = 500
    fill(own_valkey, range(count))
    kills = 0
    while waiting_in(own_valkey):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, own_valkey.url, str(path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        size = path.stat().st_size if path.exists() else 0
        await eventually(lambda size=size: not waiting_in(own_valkey) or has_grown(path, size))
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        kills += 1
    assert kills > 0
    assert requests_in(path) == expected(count)


def test_the_tail_is_read_whole_however_long_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_TAIL_BYTES", 16)
    lines = [b'{"outbox_id":"%d","filler":"%s"}\n' % (number, b"x" * number) for number in range(300)]
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b"".join(lines))
    UsageFile(path).append([*lines, b'{"outbox_id":"300"}\n'])
    assert path.read_bytes() == b"".join(lines) + b'{"outbox_id":"300"}\n'


def test_only_the_owner_may_read_usage(tmp_path: Path) -> None:
    UsageFile(tmp_path / "usage.jsonl").append([b"{}\n"])
    assert (tmp_path / "usage.jsonl").stat().st_mode & 0o777 == 0o600
