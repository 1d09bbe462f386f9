"""Comments of our own: when they come, and that they never come anywhere else."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from sending import MemoryWriter, make_decision, make_exchange
from structlog.testing import capture_logs

from proxy.early_streams import EarlyStream
from proxy.errors import ClientLeft
from proxy.heartbeats import kept_alive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.exchange import Writer

SECONDS = 0.005
PATIENCE_SECONDS = 10
COMMENT = b": keep-alive\n\n"
STREAM = [("Content-Type", "text/event-stream")]
JSON = [("Content-Type", "application/json")]
EVENT = b"data: {}\n\n"


async def beats(writer: MemoryWriter, count: int = 1) -> None:
    """Return once so many more comments have been written."""
    for _ in range(count):
        writer.has_written.clear()
        await writer.has_written.wait()
        assert writer.writes[-1] == COMMENT


@contextmanager
def stream() -> Iterator[tuple[Writer, MemoryWriter]]:
    memory = MemoryWriter()
    with kept_alive(memory, SECONDS) as writer:
        yield writer, memory


async def some_beats_pass() -> None:
    """Return once another stream, begun now, has had comments: by then one was due in any that began before."""
    with stream() as (writer, memory):
        await writer.start(200, STREAM)
        await beats(memory, 3)


async def test_a_silent_stream_has_comments_again_and_again() -> None:
    with stream() as (writer, memory):
        await writer.start(200, STREAM)
        await beats(memory, 2)
        await writer.write(EVENT)
        await beats(memory)
        await writer.finish()
    assert memory.body.replace(COMMENT, b"") == EVENT
    assert memory.is_finished


async def test_without_the_setting_the_writer_is_as_it_was() -> None:
    memory = MemoryWriter()
    with kept_alive(memory, None) as writer:
        assert writer is memory


@pytest.mark.parametrize(
    "written",
    [b"data: {}\n\n", b"data: {}\r\n\r\n", b"data: {}\r\r", b"data: {}\n\r\n", b"data: {}\r\n\r"],
    ids=["LF", "CRLF", "CR", "of both kinds", "CRLF, of which a half is on its way"],
)
async def test_an_events_end_is_known_in_every_spelling(written: bytes) -> None:
    with stream() as (writer, memory):
        await writer.start(200, STREAM)
        await writer.write(written)
        await beats(memory)
    assert memory.body.startswith(written + COMMENT)


@pytest.mark.parametrize(
    "written",
    [[b"data: {"], [b"data: {}\n"], [b"data: {}\r\n"], [b"data: {}\n\n", b"data"], [b"data: {}\n\n", b"x\r", b"\n"]],
    ids=["within a line", "after a line", "after CRLF", "in the second event", "after CRLF in pieces"],
)
async def test_no_comment_comes_within_an_event(written: list[bytes]) -> None:
    with stream() as (writer, memory):
        await writer.start(200, STREAM)
        for piece in written:
            await writer.write(piece)
        await some_beats_pass()
        assert memory.writes == written
        await writer.write(b"}\n\n")
        await beats(memory)


async def test_none_comes_before_the_head_nor_after_the_end() -> None:
    with stream() as (writer, memory):
        await some_beats_pass()
        assert not writer.is_started
        await writer.start(200, STREAM)
        await writer.write(EVENT)
        await writer.finish()
        await some_beats_pass()
    assert memory.writes == [EVENT]


@pytest.mark.parametrize("ends", ["finish", "abort", "block"])
async def test_none_comes_after_any_end_though_one_was_due_that_moment(ends: str) -> None:
    with stream() as (writer, memory):
        await writer.start(200, STREAM)
        await beats(memory)
        while not asyncio.all_tasks() - {asyncio.current_task()}:  # noqa: ASYNC110  a comment is due, and unwritten
            await asyncio.sleep(0)
        if ends == "finish":
            await writer.finish()
        elif ends == "abort":
            writer.abort()
    written = list(memory.writes)
    await some_beats_pass()
    assert memory.writes == written


async def test_none_comes_into_answers_that_are_no_streams() -> None:
    with stream() as (writer, memory):
        await writer.start(200, JSON)
        await some_beats_pass()
        await writer.write(b"{}")
        await some_beats_pass()
        assert memory.writes == [b"{}"]
    with stream() as (writer, memory):
        await writer.respond(200, STREAM, EVENT)
        await some_beats_pass()
        assert memory.writes == [EVENT]


async def test_none_comes_into_a_write_that_waits_for_the_client() -> None:
    class Slow(MemoryWriter):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            if data != COMMENT:
                await may_go_on.wait()

    may_go_on, memory = asyncio.Event(), Slow()
    with kept_alive(memory, SECONDS) as writer:
        await writer.start(200, STREAM)
        writing = asyncio.create_task(writer.write(EVENT))
        await some_beats_pass()
        assert memory.writes == [EVENT]
        may_go_on.set()
        await writing
        await beats(memory)


async def test_a_comment_that_waits_for_the_client_is_the_only_one() -> None:
    class Stalled(MemoryWriter):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            await asyncio.Event().wait()

    memory = Stalled()
    with kept_alive(memory, SECONDS) as writer:
        await writer.start(200, STREAM)
        await memory.has_written.wait()
        await some_beats_pass()
        assert memory.writes == [COMMENT]


async def test_a_client_that_left_ends_the_comments_and_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    memory = MemoryWriter(leaves_after=1)
    with kept_alive(memory, SECONDS) as writer:
        await writer.start(200, STREAM)
        await beats(memory)
        await some_beats_pass()
        with pytest.raises(ClientLeft):
            await writer.write(EVENT)
    assert memory.writes == [COMMENT]
    assert not caplog.records


async def test_a_comment_that_waits_for_the_client_ends_with_the_block() -> None:
    class Stalled(MemoryWriter):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            try:
                await asyncio.Event().wait()
            finally:
                has_ended.set()

    has_ended, memory = asyncio.Event(), Stalled()
    with kept_alive(memory, SECONDS) as writer:
        await writer.start(200, STREAM)
        await memory.has_written.wait()
        assert not has_ended.is_set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await has_ended.wait()


async def test_a_fault_of_ours_ends_the_comments_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryWriter):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            if data == COMMENT:
                raise RuntimeError("It broke.")

    memory = Broken()
    with capture_logs() as logged:
        with kept_alive(memory, SECONDS) as writer:
            await writer.start(200, STREAM)
            await memory.has_written.wait()
            await some_beats_pass()
            await writer.write(EVENT)
            await some_beats_pass()
            await writer.finish()
        del writer
        gc.collect()  # what nobody has heard of is told when it is thrown away
    assert memory.writes == [COMMENT, EVENT]
    assert [bool(line["exc_info"]) for line in logged] == [True]
    assert not caplog.records


@pytest.mark.parametrize("is_silent", [True, False], ids=["behind a comment", "at once"])
async def test_a_mark_of_the_byte_order_stands_at_the_beginning_or_nowhere(*, is_silent: bool) -> None:
    marked = b"\xef\xbb\xbf" + EVENT
    with stream() as (writer, memory):
        await writer.start(200, STREAM)
        if is_silent:
            await beats(memory)
        await writer.write(marked)
        await writer.write(marked)
        await writer.finish()
    assert memory.body.replace(COMMENT, b"") == (EVENT if is_silent else marked) + marked


async def test_a_stream_that_began_early_is_kept_alive_until_its_answer_comes() -> None:
    decision = make_decision({"prompt": "x", "stream": True})
    with stream() as (writer, memory):
        async with EarlyStream(writer, make_exchange(decision), decision.effective) as early:
            await early.comment([])
            await beats(memory, 2)
            await early.start(200, STREAM)
            await early.write(b"\xef\xbb\xbf" + EVENT)
            await early.finish()
    assert memory.body.replace(COMMENT, b"") == b": waiting\n\n" + EVENT
