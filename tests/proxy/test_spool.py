from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from proxy import spool as spooling
from proxy.errors import StoreUnavailable
from proxy.spool import Spool, SpooledRecord
from proxy.store.connection import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]


def cut_the_end(directory: Path, size: int) -> None:
    path = next(directory.glob("*.spool"))
    os.truncate(path, path.stat().st_size - size)


def insert_a_line(directory: Path, line: bytes) -> None:
    path = next(directory.glob("*.spool"))
    before, after = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([before, line, after, b""]))


class Receiver:
    """Takes what is told, until it is told to fail at some payload."""

    def __init__(self, fails: dict[str, BaseException] | None = None) -> None:
        """Say at which payload what goes wrong."""
        self.told: list[SpooledRecord] = []
        self.batches: list[int] = []
        self.fails = fails or {}

    async def __call__(self, records: Sequence[SpooledRecord]) -> list[BaseException | None]:
        """Take records, those behind one that fails not."""
        await asyncio.sleep(0)
        self.batches.append(len(records))
        failures: list[BaseException | None] = []
        for record in records:
            failures.append(failure := self.fails.get(record.payload))
            if failure is None:
                self.told.append(record)
            elif isinstance(failure, asyncio.CancelledError):
                raise failure
            elif not isinstance(failure, CommandRefused):
                break
        return failures

    @property
    def payloads(self) -> list[str]:
        """What was told, in order."""
        return [record.payload for record in self.told]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", 0)
    yield spool
    spool.close()


async def test_records_are_told_in_order_once_and_then_gone(spool: Spool, tmp_path: Path) -> None:
    for number in range(200):
        spool.append("settle", f"{number}")
    assert len(spool) == 200
    receiver = Receiver()
    assert await spool.deliver(receiver) == 200
    assert await spool.deliver(receiver) == 0
    assert receiver.payloads == [f"{number}" for number in range(200)]
    assert len(spool) == 0
    assert receiver.batches == [64, 64, 64, 8]
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param("", id="nothing"),
        pytest.param('{"a":"line\nbreak"}', id="line breaks"),
        pytest.param("ü\x00\u2028", id="odd characters"),
        pytest.param("x" * 100_000, id="much"),
    ],
)
async def test_a_payload_comes_out_as_it_went_in(spool: Spool, payload: str) -> None:
    kept = spool.append("record", payload)
    receiver = Receiver()
    await spool.deliver(receiver)
    assert receiver.told == [kept]
    assert (kept.kind, kept.payload) == ("record", payload)


async def test_delivery_ends_where_the_store_is_away_and_goes_on_there(spool: Spool) -> None:
    for number in range(10):
        spool.append("settle", f"{number}")
    receiver = Receiver({"4": StoreUnavailable("away")})
    with pytest.raises(StoreUnavailable):
        await spool.deliver(receiver)
    assert (receiver.payloads, len(spool)) == (["0", "1", "2", "3"], 6)
    spool.append("settle", "10")
    receiver.fails.clear()
    assert await spool.deliver(receiver) == 7
    assert receiver.payloads == [f"{number}" for number in range(11)]


async def test_what_comes_during_delivery_is_told_in_the_same_one(spool: Spool) -> None:
    told: list[str] = []

    async def tell(records: Sequence[SpooledRecord]) -> list[None]:
        told.extend(record.payload for record in records)
        if len(told) < 5:
            spool.append("settle", f"{len(told)}")
        assert await spool.deliver(tell) == 0  # no second delivery beside this one
        return [None] * len(records)

    spool.append("settle", "0")
    assert await spool.deliver(tell) == 5
    assert told == ["0", "1", "2", "3", "4"]


async def test_a_record_that_is_refused_for_good_is_set_aside(spool: Spool, tmp_path: Path) -> None:
    for payload in ("good", "bad", "better"):
        spool.append("settle", payload)
    receiver = Receiver({"bad": CommandRefused("WRONGTYPE")})
    await spool.deliver(receiver)
    assert receiver.payloads == ["good", "better"]
    aside = (tmp_path / "spool" / "refused.jsonl").read_text().splitlines()
    assert [json.loads(line)["payload"] for line in aside] == ["bad"]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(b"-no json", id="no JSON"),
        pytest.param(b'-{"id":1}', id="another record"),
        pytest.param(b"-\xff\x00", id="no text"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_a_line_that_cannot_be_read_is_set_aside(tmp_path: Path, odd: bytes) -> None:
    first = Spool(tmp_path, 0)
    first.append("settle", "before")
    first.append("settle", "after")
    first.close()
    insert_a_line(tmp_path, odd)
    spool = Spool(tmp_path, 0)
    receiver = Receiver()
    await spool.deliver(receiver)
    assert (receiver.payloads, len(spool)) == (["before", "after"], 0)
    assert (tmp_path / "refused.jsonl").read_bytes() == odd.removeprefix(b"-") + b"\n"


async def test_what_is_told_again_after_a_crash_begins_behind_what_was_marked(tmp_path: Path) -> None:
    first = Spool(tmp_path, 0)
    for number in range(150):
        first.append("settle", f"{number}")
    with pytest.raises(StoreUnavailable):
        await first.deliver(Receiver({"100": StoreUnavailable("away")}))
    first.close()
    second = Spool(tmp_path, 0)
    receiver = Receiver()
    assert (len(second), await second.deliver(receiver)) == (50, 50)
    assert receiver.payloads == [f"{number}" for number in range(100, 150)]


async def test_what_others_left_is_looked_through_beside_the_event_loop(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Spool(tmp_path / "spool", 1)
    left.append("settle", "left")
    left.close()
    learn, threads = spooling._SpoolFile._learn, []  # noqa: SLF001  where the work is done is what is tested

    def note_thread(file: Any) -> None:  # noqa: ANN401  a private class
        threads.append(threading.current_thread())
        learn(file)

    monkeypatch.setattr(spooling._SpoolFile, "_learn", note_thread)  # noqa: SLF001
    assert await spool.deliver(Receiver()) == 1
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_files_that_were_adopted_for_somebody_who_left_are_told_by_the_next(spool: Spool, tmp_path: Path) -> None:
    left = Spool(tmp_path / "spool", 1)
    left.append("settle", "left")
    left.close()
    receiver = Receiver()
    leaving = asyncio.create_task(spool.deliver(receiver))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert (leaving.cancelled(), await spool.deliver(receiver)) == (True, 1)


async def test_a_file_that_is_being_made_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Spool(tmp_path, 0), Spool(tmp_path, 1)
    lock = spooling.fcntl.flock
    adopted: list[int] = []

    def look_before_locking(descriptor: int, how: int) -> None:
        monkeypatch.undo()
        adopted.append(len(spooling._adopt_files(tmp_path, frozenset())))  # noqa: SLF001  as another worker would
        lock(descriptor, how)

    monkeypatch.setattr(spooling.fcntl, "flock", look_before_locking)
    first.append("settle", "mine")
    assert (adopted, len(first), len(second)) == ([0], 1, 0)


async def test_what_a_worker_left_is_told_by_the_next_before_its_own(tmp_path: Path) -> None:
    first = Spool(tmp_path, 0)
    for payload in ("a", "b", "c"):
        first.append("settle", payload)
    with pytest.raises(StoreUnavailable):
        await first.deliver(Receiver({"b": StoreUnavailable("away")}))
    first.close()
    second = Spool(tmp_path, 1)
    assert len(second) == 2
    second.append("settle", "d")
    receiver = Receiver()
    await second.deliver(receiver)
    assert receiver.payloads == ["b", "c", "d"]


async def test_the_records_of_a_living_worker_are_its_own(tmp_path: Path) -> None:
    first, second = Spool(tmp_path, 0), Spool(tmp_path, 1)
    first.append("settle", "mine")
    receiver = Receiver()
    assert await second.deliver(receiver) == 0
    assert (len(first), len(second)) == (1, 0)
    first.close()
    assert await second.deliver(receiver) == 1
    second.close()


async def test_records_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys\n"
        "from proxy.spool import Spool\n"
        "spool = Spool(pathlib.Path(sys.argv[1]), 0)\n"
        "for number in range(100):\n"
        "    spool.append('settle', str(number))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False)  # noqa: ASYNC221
    spool = Spool(tmp_path, 0)
    receiver = Receiver()
    assert await spool.deliver(receiver) == 100
    assert receiver.payloads == [f"{number}" for number in range(100)]


async def test_records_that_were_under_way_at_a_crash_are_told_again_with_their_ids(tmp_path: Path) -> None:
    first = Spool(tmp_path, 0)
    kept = [first.append("settle", payload) for payload in ("a", "b")]
    receiver = Receiver({"b": asyncio.CancelledError()})  # as a crash would end it
    with pytest.raises(asyncio.CancelledError):
        await first.deliver(receiver)
    first.close()
    receiver.fails.clear()
    second = Spool(tmp_path, 0)
    await second.deliver(receiver)
    assert receiver.told[-2:] == kept


@pytest.mark.parametrize("cut", range(1, 40, 6))
async def test_a_torn_last_line_is_overwritten(tmp_path: Path, cut: int) -> None:
    first = Spool(tmp_path, 0)
    first.append("settle", "whole")
    first.append("settle", "torn")
    first.close()
    cut_the_end(tmp_path, cut)
    spool = Spool(tmp_path, 0)
    receiver = Receiver()
    assert len(spool) == 1
    await spool.deliver(receiver)
    assert receiver.payloads == ["whole"]


async def test_a_full_disk_keeps_records_in_memory_and_in_order(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.append("settle", "0")
    write = os.pwrite

    def write_half(descriptor: int, data: bytes, offset: int) -> int:
        return write(descriptor, data[: len(data) // 2], offset)

    monkeypatch.setattr(spooling.os, "pwrite", write_half)
    spool.append("settle", "1")
    monkeypatch.undo()
    spool.append("settle", "2")
    assert len(spool) == 3
    receiver = Receiver()
    await spool.deliver(receiver)
    assert receiver.payloads == ["0", "1", "2"]
    spool.append("settle", "3")
    await spool.deliver(receiver)
    assert receiver.payloads[-1] == "3"


async def test_what_a_full_disk_did_not_take_is_written_at_the_end_or_said_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _data: bytes, _offset: int) -> int:
        raise OSError("no space left")

    for is_freed in (True, False):
        spool = Spool(tmp_path, 0)
        with monkeypatch.context() as full, capture_logs() as logs:
            full.setattr(spooling.os, "pwrite", refuse)
            spool.append("settle", f"freed {is_freed}")
            if is_freed:
                full.undo()
            spool.close()
        lost = [line["records"] for line in logs if line["event"].startswith("records are lost")]
        assert lost == ([] if is_freed else [1])
    receiver = Receiver()
    await Spool(tmp_path, 1).deliver(receiver)
    assert receiver.payloads == ["freed True"]


def test_only_the_owner_may_read_the_spool(spool: Spool, tmp_path: Path) -> None:
    spool.append("settle", "secret")
    modes = [path.stat().st_mode & 0o777 for path in [tmp_path / "spool", *(tmp_path / "spool").iterdir()]]
    assert modes == [0o700, 0o600]
