from __future__ import annotations

import json

import pytest
from fake_upstream import DONE, ev, tchunk
from sending import MemoryWriter

from policies.requests.asked import Endpoint
from proxy.renamed_answers import RenamedAnswer

STREAM = [("Content-Type", "text/event-stream; charset=utf-8")]
JSON = [("Content-Type", "application/json")]
CHUNK = {**tchunk('a text about a "model"'), "model": "theirs"}


def renamed() -> tuple[RenamedAnswer, MemoryWriter]:
    memory = MemoryWriter()
    return RenamedAnswer(memory, "ours", Endpoint.COMPLETIONS), memory


def ours(answer: bytes) -> bytes:
    assert b'"theirs"' in answer
    return answer.replace(b'"theirs"', b'"ours"')


async def test_a_stream_is_renamed_event_by_event() -> None:
    writer, memory = renamed()
    await writer.start(200, STREAM)
    assert writer.is_started
    for piece in (ev(CHUNK), ev(CHUNK) + ev(CHUNK), DONE):
        await writer.write(piece)
    await writer.finish()
    assert memory.writes == [ours(ev(CHUNK)), ours(ev(CHUNK) * 2), DONE]
    assert (memory.fields, memory.is_finished) == (STREAM, True)


async def test_a_long_answer_is_renamed_wherever_it_is_cut() -> None:
    body = json.dumps(CHUNK).encode()
    for at in range(1, len(body)):
        writer, memory = renamed()
        await writer.start(200, JSON)
        for piece in (body[:at], body[at:]):
            await writer.write(piece)
        assert memory.body == ours(body)


async def test_a_piece_of_which_nothing_stays_is_not_written() -> None:
    writer, memory = renamed()
    await writer.start(200, JSON)
    for byte in json.dumps(CHUNK).encode():
        await writer.write(bytes([byte]))
    assert memory.body == ours(json.dumps(CHUNK).encode())  # the writer refuses empty pieces


@pytest.mark.parametrize(
    ("headers", "body"),
    [(JSON, json.dumps(CHUNK).encode()), (STREAM, ev(CHUNK) * 3 + DONE)],
    ids=["an object", "a stored stream"],
)
async def test_an_answer_that_is_there_is_renamed_as_a_whole(headers: list[tuple[str, str]], body: bytes) -> None:
    writer, memory = renamed()
    await writer.respond(200, headers, body)
    assert (memory.status, memory.fields, memory.body) == (200, headers, ours(body))


@pytest.mark.parametrize("headers", [JSON, STREAM], ids=["an object", "events"])
async def test_an_error_stays_as_it_is(headers: list[tuple[str, str]]) -> None:
    body = b'{"error": {"message": "no"}, "model": "theirs"}'
    writer, memory = renamed()
    await writer.respond(404, headers, body)
    assert memory.body == body
    writer, memory = renamed()
    await writer.start(500, headers)
    await writer.write(body)
    assert memory.body == body


async def test_breaking_off_is_passed_on() -> None:
    writer, memory = renamed()
    writer.abort()
    assert memory.is_aborted
