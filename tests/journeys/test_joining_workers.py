"""Workers that share a store wait for what one of them fetches (SPEC §6, joining): here two of them in one process."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import json_reply
from harness import has_error_event, joined, sse, sse_json
from meeting import ASKED, COLLAPSED, EVENTS, STREAMED, TEXT, Gate, Meeting, stream_with, text_of, whole_after
from stores import eventually
from whole import configuration, whole_gateway

from proxy.errors import DRAINING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    Workers = Callable[..., AbstractAsyncContextManager["Pair"]]

LONG = "60s"
ERROR = {"error": {"message": "no", "type": "some_error", "param": None, "code": "some"}}
ONLY_ONE_FITS = {"limits": [{"of": "tokens", "limit": 100, "per": "minute", "by": ["project"]}]}


@dataclass
class Pair:
    """Two workers: `one` is asked first."""

    one: Meeting
    other: Meeting

    async def wait(self, *bodies: Mapping[str, Any]) -> None:
        """Ask the other worker, and wait until one of those who asked it looks out for what is fetched elsewhere."""
        for body in bodies:
            self.other.ask(body)
        key = self.one.flight().key
        flights = self.other.whole.gateway.snapshot.admissions.flights
        await eventually(lambda: flights.find_lookout(key) is not None)


@pytest.fixture
def workers(upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> Workers:
    """Return a way of opening two workers; `join_wait` is how long they wait for each other."""

    @asynccontextmanager
    async def opened(
        policy: Mapping[str, Any] | None = None, *, join_wait: str = LONG, comment_seconds: float = 60
    ) -> AsyncIterator[Pair]:
        made = [
            configuration(upstream.url, tmp_path / name, policies={"default": dict(policy or {})}, join_wait=join_wait)
            for name in ("one", "other")
        ]
        async with whole_gateway(made[0], valkey.url) as one, whole_gateway(made[1], valkey.url) as other:
            other.gateway.snapshot.admissions.comment_seconds = comment_seconds
            yield Pair(Meeting(one, upstream, valkey), Meeting(other, upstream, valkey))

    return opened


@pytest.mark.parametrize(
    ("first", "others"),
    [(ASKED, ASKED), (STREAMED, STREAMED), (STREAMED, ASKED), (ASKED, STREAMED)],
    ids=["whole", "streamed", "whole answers wait for a stream", "streams wait for a whole answer"],
)
async def test_another_worker_waits_for_the_stored_answer(
    first: Mapping[str, Any], others: Mapping[str, Any], workers: Workers
) -> None:
    async with workers() as at:
        gate = Gate()
        at.one.up.script(stream_with([*EVENTS[:2], gate, *EVENTS[2:]]) if "stream" in first else whole_after(gate))
        await at.one.lead(first)
        await at.wait(*[others] * 20)
        gate.open()
        answers = [await call.answer() for call in (*at.one.calls, *at.other.calls)]
        await eventually(lambda: len(at.one.all_records()) == 21)
        records = at.one.all_records()
    assert len(at.one.up.served) == 1
    assert {text_of(answer) for answer in answers} == {TEXT}
    assert all(answer.header("cache-status").startswith("tidegate;hit") for answer in answers[1:])
    assert sum(record["output_tokens"] for record in records) == 13
    assert [record["saved_output_tokens"] for record in records].count(13) == 20


async def test_when_the_wait_is_over_one_goes_for_all_who_wait_there(workers: Workers) -> None:
    async with workers(join_wait="100ms") as at:
        gate = Gate()
        at.one.up.default = whole_after(gate)
        await at.one.lead(ASKED)
        await at.wait(*[ASKED] * 20)
        await at.other.all_are_here(20)
        gate.open()
        answers = [await call.answer() for call in at.other.calls]
    assert len(at.one.up.served) == 2
    assert {text_of(answer) for answer in answers} == {TEXT}
    assert [answer.header("cache-status") for answer in answers].count(COLLAPSED) == 19


async def test_who_waits_for_what_fails_elsewhere_asks_once_for_all_who_wait_there(workers: Workers) -> None:
    async with workers() as at:
        first, second = Gate(), Gate()
        at.one.up.script(whole_after(first, ERROR, 400), whole_after(second, ERROR, 400))
        leader = await at.one.lead(ASKED)
        await at.wait(*[ASKED] * 20)
        first.open()
        await leader.answer()
        await at.other.all_are_here(20)
        second.open()
        answers = [await call.answer() for call in at.other.calls]
    assert {(answer.status, answer.body) for answer in answers} == {(400, json.dumps(ERROR).encode())}
    assert len(at.one.up.served) == 2


async def test_whoever_looked_out_and_leaves_is_followed_by_another(workers: Workers) -> None:
    async with workers() as at:
        gate = Gate()
        at.one.up.script(whole_after(gate))
        await at.one.lead(ASKED)
        await at.wait(ASKED)
        await at.wait(ASKED, ASKED)
        await at.other.calls[0].leave()
        await at.wait()
        gate.open()
        answers = [await call.answer() for call in at.other.calls[1:]]
    assert {text_of(answer) for answer in answers} == {TEXT}
    assert len(at.one.up.served) == 1


async def test_when_all_leave_the_worker_that_fetches_those_who_wait_elsewhere_fetch(workers: Workers) -> None:
    async with workers() as at:
        gate = Gate()
        at.one.up.script(whole_after(Gate()), whole_after(gate))
        leader = await at.one.lead(ASKED)
        await at.wait(ASKED, ASKED)
        await leader.leave()
        await at.other.all_are_here(2)
        gate.open()
        answers = [await call.answer() for call in at.other.calls]
    assert {text_of(answer) for answer in answers} == {TEXT}
    assert len(at.one.up.served) == 2


async def test_who_waits_joins_a_fetch_that_begins_in_its_own_worker(workers: Workers) -> None:
    async with workers() as at:
        elsewhere, here = Gate(), Gate()
        at.one.up.script(whole_after(elsewhere), whole_after(here))
        await at.one.lead(ASKED)
        await at.wait(ASKED, ASKED, ASKED)
        at.other.whole.gateway.snapshot.admissions.join_wait_seconds = 0
        fourth = await at.other.lead(ASKED)
        await at.other.all_are_here(4)
        here.open()
        answers = [await call.answer() for call in at.other.calls]
        elsewhere.open()
        assert text_of(await at.one.calls[0].answer()) == TEXT
    assert fourth.writer.header("cache-status") == "tidegate;fwd=miss;stored"
    assert {text_of(answer) for answer in answers} == {TEXT}
    assert len(at.one.up.served) == 2


async def test_nobody_joins_where_it_is_not_known_what_was_purged(
    upstream: FakeUpstream, own_valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(configuration(upstream.url, tmp_path), own_valkey.url) as whole:
        at, gate = Meeting(whole, upstream, own_valkey), Gate()
        upstream.default = whole_after(gate)
        leader = await at.lead(ASKED)
        own_valkey.kill()
        await eventually(lambda: not whole.gateway.snapshot.admissions.cache.state.is_current)
        alone = await at.lead(ASKED)
        gate.open()
        answers = [await call.answer() for call in (leader, alone)]
    assert [text_of(answer) for answer in answers] == [TEXT, TEXT]
    assert len(upstream.served) == 2


# Streams that wait


async def test_a_stream_that_waits_gets_comments_and_then_its_answer(workers: Workers) -> None:
    async with workers(comment_seconds=0.01) as at:
        gate = Gate()
        at.one.up.script(whole_after(gate))
        await at.one.lead(ASKED)
        await at.wait(STREAMED, ASKED)
        stream, whole = at.other.calls
        await stream.writer.has_written.wait()
        assert (stream.writer.status, stream.writer.header("content-type")) == (200, "text/event-stream")
        assert stream.writer.header("cache-status") == "tidegate;fwd=miss"
        assert not whole.writer.is_started
        gate.open()
        answers = [await call.answer() for call in at.other.calls]
        records = await at.other.records()
    assert [text_of(answer) for answer in answers] == [TEXT, TEXT]
    assert set(sse(stream.writer.body)[1]) == {" waiting"}
    assert stream.writer.is_finished
    assert [(record["outcome"], record["cache"]) for record in records] == [("completed", "hit")] * 2


async def test_a_stream_that_waited_in_vain_leads_and_is_joined(workers: Workers) -> None:
    async with workers(comment_seconds=0.01) as at:
        first, second = Gate(), Gate()
        cut = stream_with([EVENTS[0], first], end="rst")
        at.one.up.script(cut, stream_with([*EVENTS[:2], second, *EVENTS[2:]]))
        leader = await at.one.lead(STREAMED)
        await at.wait(STREAMED, STREAMED)
        for call in at.other.calls:
            await call.writer.has_written.wait()
        first.open()
        assert has_error_event((await leader.answer()).body)
        await at.other.all_are_here(2)
        second.open()
        answers = [await call.answer() for call in at.other.calls]
    assert [joined(answer.body) for answer in answers] == [{0: TEXT}] * 2
    assert len(at.one.up.served) == 2


async def test_an_error_follows_the_comments_as_an_event(workers: Workers) -> None:
    async with workers(comment_seconds=0.01) as at:
        gate = Gate()
        at.one.up.script(whole_after(gate, ERROR, 400))
        at.one.up.default = json_reply(ERROR, 400)
        leader = await at.one.lead(STREAMED)
        await at.wait(STREAMED, STREAMED)
        for call in at.other.calls:
            await call.writer.has_written.wait()
        gate.open()
        assert (await leader.answer()).status == 400
        answers = [await call.answer() for call in at.other.calls]
    assert [sse_json(answer.body) for answer in answers] == [[ERROR]] * 2
    assert all(answer.is_finished for answer in answers)


async def test_a_refusal_follows_the_comments_as_an_event(workers: Workers) -> None:
    async with workers(ONLY_ONE_FITS, comment_seconds=0.01) as at:
        gate = Gate()
        at.one.up.script(stream_with([EVENTS[0], gate], end="rst"))
        leader = await at.one.lead(STREAMED)
        await at.wait(STREAMED)
        [call] = at.other.calls
        await call.writer.has_written.wait()
        gate.open()
        await leader.answer()
        answer = await call.answer()
        [record] = await at.other.records()
    assert sse_json(answer.body)[-1]["error"]["code"] == "rate_limit_exceeded"
    assert answer.header("x-ratelimit-limit-tokens") == "100"
    assert (record["outcome"], record["status"], record["output_tokens"]) == ("rejected", 200, 0)
    assert len(at.one.up.served) == 1


async def test_a_client_that_leaves_while_it_waits_holds_nothing(workers: Workers) -> None:
    async with workers(ONLY_ONE_FITS, comment_seconds=0.01) as at:
        gate = Gate()
        at.one.up.script(whole_after(gate))
        leader = await at.one.lead(ASKED)
        await at.wait(STREAMED)
        [call] = at.other.calls
        await call.writer.has_written.wait()
        await call.leave()
        gate.open()
        await leader.answer()
        last = await at.other.ask(ASKED).answer()
    assert last.header("x-ratelimit-remaining-tokens") == "80"
    assert len(at.one.up.served) == 1


async def test_at_the_end_of_a_drain_who_waits_is_told(workers: Workers) -> None:
    async with workers(comment_seconds=0.01) as at:
        gate = Gate()
        at.one.up.script(whole_after(gate))
        leader = await at.one.lead(ASKED)
        await at.wait(STREAMED, ASKED)
        stream, whole = at.other.calls
        await stream.writer.has_written.wait()
        for call in at.other.calls:
            call.task.cancel(DRAINING)
        streamed, _ = [await call.answer() for call in at.other.calls]
        gate.open()
        assert text_of(await leader.answer()) == TEXT
    assert sse_json(streamed.body)[-1]["error"]["code"] == "draining"
    assert (whole.writer.status, json.loads(whole.writer.body)["error"]["code"]) == (503, "draining")
