"""One fetch for several requests, in one process: what each of them gets, is charged and leaves behind (SPEC §6)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import pytest
from fake_upstream import DONE, body_reply, ev, head, json_reply, sse_reply, tchunk, usage
from harness import has_error_event, joined, sse_json
from meeting import (
    ASKED,
    COLLAPSED,
    EVENTS,
    STREAMED,
    TEXT,
    TOKENS,
    WHOLE,
    WITH_USAGE,
    Gate,
    Meeting,
    stream_with,
    text_of,
    whole_after,
)
from sending import MemoryWriter, fake_upstream, make_decision, make_exchange, up
from stores import eventually
from whole import configuration, whole_gateway

from policies.usage import Provider
from proxy.answer_cache import LEASE_MILLISECONDS
from proxy.errors import DRAINING
from proxy.fetching import Answering, Follower
from proxy.flights import Flights
from proxy.relay import DEFAULT_BOUNDS
from proxy.store import keys as store_keys
from proxy.store.cache_state import Origin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from fake_upstream import FakeUpstream, Ops
    from stores import StoreServer

    Meet = Callable[..., AbstractAsyncContextManager[Meeting]]

__all__ = ["fake_upstream", "up"]

BOB = "sk-bob"


@pytest.fixture
async def meet(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> Meet:
    """Return a way of opening a gateway for alice and bob of one project; `more` replaces settings."""

    @asynccontextmanager
    async def opened(policy: Mapping[str, Any] | None = None, **more: Any) -> AsyncIterator[Meeting]:  # noqa: ANN401
        keys = [
            {"id": f"key_{user}", "project": "proj", "user": user, "sha256": sha256(key.encode()).hexdigest()}
            for user, key in (("alice", "sk-alice"), ("bob", BOB))
        ]
        more = {"join_wait": "60s", **more}  # nobody here has anything to wait for
        settings = configuration(up.url, tmp_path, policies={"default": dict(policy or {})}, keys=keys, **more)
        async with whole_gateway(settings, valkey.url) as whole:
            yield Meeting(whole, up, valkey)

    return opened


def has_usage(answer: MemoryWriter) -> bool:
    return any(event.get("usage") for event in sse_json(answer.body))


# One call for all


@pytest.mark.parametrize(
    ("first", "others"),
    [
        pytest.param(ASKED, [ASKED] * 19, id="whole"),
        pytest.param(STREAMED, [STREAMED] * 19, id="streamed"),
        pytest.param(ASKED, [STREAMED, WITH_USAGE] * 5, id="streams join a whole answer"),
        pytest.param(STREAMED, [ASKED] * 10, id="whole answers join a stream"),
        pytest.param(STREAMED, [WITH_USAGE, ASKED, STREAMED] * 5, id="a stream is joined by all kinds"),
        pytest.param(WITH_USAGE, [STREAMED, ASKED, WITH_USAGE] * 5, id="a stream with usage is joined by all kinds"),
    ],
)
async def test_the_upstream_is_asked_once_and_all_get_the_answer(
    first: Mapping[str, Any],
    others: list[Mapping[str, Any]],
    meet: Meet,
) -> None:
    async with meet() as at:
        gate = Gate()
        at.up.script(stream_with([*EVENTS[:2], gate, *EVENTS[2:]]) if "stream" in first else whole_after(gate))
        await at.lead(first)
        joiners = await at.join(*others)
        gate.open()
        answers = [await call.answer() for call in at.calls]
        records = await at.records()
    assert len(at.up.served) == 1
    assert {(answer.status, text_of(answer)) for answer in answers} == {(200, TEXT)}
    assert {call.writer.header("cache-status") for call in joiners} == {COLLAPSED}
    for body, answer in zip([first, *others], answers, strict=True):
        if "stream" in body:
            assert answer.body.endswith(DONE)
            assert has_usage(answer) is ("stream_options" in body)
        else:
            assert json.loads(answer.body)["usage"] == usage(TOKENS)
    assert [record["outcome"] for record in records] == ["completed"] * len(answers)
    leader, *rest = records
    assert (leader["cache"], leader["input_tokens"], leader["output_tokens"]) == ("miss", 7, 13)
    assert {(each["cache"], each["input_tokens"], each["output_tokens"]) for each in rest} == {("hit", 0, 0)}
    assert {(each["saved_input_tokens"], each["saved_output_tokens"]) for each in rest} == {(7, 13)}
    assert {(each["provided"][0]["owner"], each["provided"][0]["output_tokens"]) for each in rest} == {("alice", 13)}


async def test_bytes_pass_live_and_late_ones_begin_with_what_has_come(meet: Meet) -> None:
    async with meet() as at:
        gates = [Gate(), Gate(), Gate()]
        at.up.script(stream_with([EVENTS[0], gates[0], EVENTS[1], gates[1], EVENTS[2], gates[2], *EVENTS[3:]]))
        leader = await at.lead(WITH_USAGE)
        await eventually(lambda: leader.writer.body == EVENTS[0])
        [early] = await at.join(WITH_USAGE)
        await eventually(lambda: early.writer.body == EVENTS[0])
        gates[0].open()
        await eventually(lambda: early.writer.body == b"".join(EVENTS[:2]))
        [late] = await at.join(WITH_USAGE)
        await eventually(lambda: late.writer.body == b"".join(EVENTS[:2]))
        gates[1].open()
        gates[2].open()
        answers = [await call.answer() for call in at.calls]
    assert [answer.body for answer in answers] == [b"".join(EVENTS)] * 3
    assert len({answer.header("x-request-id") for answer in answers}) == 3


async def test_a_head_is_each_ones_own(meet: Meet) -> None:
    limits = [{"of": "requests", "limit": 5, "per": "minute", "by": ["user"]}]
    async with meet({"limits": limits}) as at:
        gate = Gate()
        at.up.script([gate.op, *json_reply(WHOLE, headers=[("x-request-id", "theirs"), ("openai-version", "1")])])
        leader = await at.lead(ASKED)
        [joiner] = await at.join(ASKED, key=BOB)
        gate.open()
        mine, others = await leader.answer(), await joiner.answer()
    assert mine.header("cache-status") == "tidegate;fwd=miss;stored"
    assert (mine.header("openai-version"), others.header("openai-version")) == ("1", None)
    assert others.header("x-request-id").startswith("req_")
    assert others.header("cache-control") == "no-store"
    assert others.header("x-ratelimit-remaining-requests") == "4"


# Who does not join


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        pytest.param({}, ({**ASKED, "temperature": 1}, {}), ({**ASKED, "temperature": 1}, {}), id="not deterministic"),
        pytest.param({}, (ASKED, {}), (ASKED, {"Cache_Control": "no-store"}), id="no-store does not join"),
        pytest.param({}, (ASKED, {}), (ASKED, {"Cache_Control": "no-cache"}), id="no-cache does not join"),
        pytest.param({}, (ASKED, {"Cache_Control": "no-store"}), (ASKED, {}), id="nobody joins no-store"),
        pytest.param({}, (ASKED, {"Cache_Control": "no-cache"}), (ASKED, {}), id="nobody joins no-cache"),
        pytest.param({"cache": {"scope": "user"}}, (ASKED, {}), (ASKED, {"key": BOB}), id="another scope"),
        pytest.param({}, (ASKED, {}), ({**ASKED, "max_tokens": 41}, {}), id="another request"),
    ],
)
async def test_these_are_fetched_each_by_itself(
    policy: dict[str, Any],
    first: tuple[Any, Any],
    second: tuple[Any, Any],
    meet: Meet,
) -> None:
    async with meet(policy) as at:
        gate = Gate()
        at.up.script(whole_after(gate), whole_after(gate))
        await at.lead(first[0], **first[1])
        await at.lead(second[0], **second[1])
        gate.open()
        answers = [await call.answer() for call in at.calls]
    assert {(answer.status, text_of(answer)) for answer in answers} == {(200, TEXT)}
    assert not any("collapsed" in (answer.header("cache-status") or "") for answer in answers)


async def test_who_wants_a_stored_answer_only_does_not_wait_for_one(meet: Meet) -> None:
    async with meet() as at:
        gate = Gate()
        at.up.script(whole_after(gate))
        leader = await at.lead(ASKED)
        assert (await at.ask(ASKED, Cache_Control="only-if-cached").answer()).status == 504
        gate.open()
        assert (await leader.answer()).status == 200


async def test_who_comes_after_a_purge_does_not_join_what_was_fetched_before_it(meet: Meet) -> None:
    async with meet() as at:
        before, after = Gate(), Gate()
        changed = {**WHOLE, "choices": [{**WHOLE["choices"][0], "text": "new"}]}
        at.up.script(whole_after(before), whole_after(after, changed))
        old = await at.lead(ASKED)
        [joined_before] = await at.join(ASKED)
        await at.purge()
        new = await at.lead(ASKED)
        [joined_after] = await at.join(STREAMED)
        after.open()
        assert [text_of(await call.answer()) for call in (new, joined_after)] == ["new", "new"]
        before.open()
        assert [text_of(await call.answer()) for call in (old, joined_before)] == [TEXT, TEXT]
        hit = await at.ask(ASKED).answer()
    assert (text_of(hit), len(at.up.served)) == ("new", 2)
    assert hit.header("cache-status").startswith("tidegate;hit")


# Who leaves


@pytest.mark.parametrize("when", ["before the head", "within the stream"])
async def test_the_leader_pays_also_when_its_client_has_left_and_the_others_get_all(when: str, meet: Meet) -> None:
    async with meet() as at:
        gate = Gate()
        ops = stream_with([*EVENTS[:2], gate, *EVENTS[2:]])
        at.up.script([gate.op, *ops] if when == "before the head" else ops)
        leader = await at.lead(STREAMED)
        joiners = await at.join(STREAMED, ASKED, WITH_USAGE)
        if when == "within the stream":
            await eventually(lambda: joined(leader.writer.body) == {0: "one two "})
        leader.task.cancel()
        gate.open()
        answers = [await call.answer() for call in joiners]
        await asyncio.wait([leader.task])
        [request] = at.up.served
        records = at.all_records()
    assert leader.task.cancelled()
    assert [text_of(answer) for answer in answers] == [TEXT] * 3
    assert request.aborted_at is None
    [paid] = [record for record in records if record["outcome"] == "client_left"]
    assert (paid["cache"], paid["input_tokens"], paid["output_tokens"], paid["known"]) == ("miss", 7, 13, "reported")
    others = [record for record in records if record is not paid]
    assert [(each["outcome"], each["cache"], each["output_tokens"]) for each in others] == [("completed", "hit", 0)] * 3


async def test_when_the_last_leaves_the_upstream_is_cancelled_and_nothing_is_stored(meet: Meet) -> None:
    async with meet() as at:
        at.up.script(stream_with([*EVENTS[:2], Gate()]), json_reply(WHOLE))
        leader = await at.lead(STREAMED)
        joiners = await at.join(STREAMED, ASKED)
        leader.task.cancel()
        await joiners[0].leave()
        assert at.up.served[0].aborted_at is None
        await joiners[1].leave()
        await eventually(lambda: at.up.served[0].aborted_at is not None)
        await asyncio.wait([leader.task])
        answer = await at.ask(ASKED).answer()
        await eventually(lambda: len(at.all_records()) == 4)
        outcomes = sorted(record["outcome"] for record in at.all_records())
    assert (text_of(answer), len(at.up.served)) == (TEXT, 2)
    assert outcomes == ["client_left", "client_left", "client_left", "completed"]


async def test_who_leaves_a_joined_stream_was_a_hit(meet: Meet) -> None:
    async with meet() as at:
        gate = Gate()
        at.up.script(stream_with([*EVENTS[:2], gate, *EVENTS[2:]]))
        leader = await at.lead(STREAMED)
        [joiner] = await at.join(STREAMED)
        await eventually(lambda: joined(joiner.writer.body) == {0: "one two "})
        await joiner.leave()
        gate.open()
        assert text_of(await leader.answer()) == TEXT
        _, record = await at.records()
    assert (record["outcome"], record["cache"], record["output_tokens"]) == ("client_left", "hit", 0)


async def test_an_abandoned_fetch_is_finished_for_the_caches_sake_where_the_policy_says_so(meet: Meet) -> None:
    async with meet({"cache": {"finish_abandoned": True}}) as at:
        gate = Gate()
        at.up.script(stream_with([*EVENTS[:2], gate, *EVENTS[2:]]))
        leader = await at.lead(STREAMED)
        leader.task.cancel()
        gate.open()
        await asyncio.wait([leader.task])
        hit = await at.ask(ASKED).answer()
        await eventually(lambda: len(at.all_records()) == 2)
        outcomes = {record["outcome"]: record["output_tokens"] for record in at.all_records()}
    assert (text_of(hit), len(at.up.served)) == (TEXT, 1)
    assert hit.header("cache-status").startswith("tidegate;hit")
    assert outcomes == {"client_left": 13, "completed": 0}


# What goes wrong


@pytest.mark.parametrize("forms", [(ASKED, [ASKED, STREAMED]), (STREAMED, [STREAMED, ASKED])], ids=["whole", "stream"])
@pytest.mark.parametrize("status", [400, 429, 500])
async def test_an_upstreams_error_is_shared_and_costs_nobody(
    status: int, forms: tuple[Mapping[str, Any], list[Mapping[str, Any]]], meet: Meet
) -> None:
    first, others = forms
    limits = [
        {"of": "requests", "limit": 5, "per": "minute", "by": ["project"]},
        {"of": "tokens", "limit": 1000, "per": "minute", "by": ["project"]},
    ]
    error = {"error": {"message": "no", "type": "some_error", "param": None, "code": "some"}}
    async with meet({"limits": limits}) as at:
        gate = Gate()
        at.up.default = whole_after(gate, error, status)
        await at.lead(first)
        await at.join(*others)
        gate.open()
        answers = [await call.answer() for call in at.calls]
        records = await at.records()
        attempts = len(at.up.served)
        at.up.default = json_reply(WHOLE)
        again = await at.ask(ASKED).answer()
    assert [record["attempts"] for record in records] == [attempts, 0, 0]
    assert [(answer.status, json.loads(answer.body)) for answer in answers] == [(status, error)] * 3
    assert {(each["outcome"], each["output_tokens"]) for each in records} == {("upstream_error", 0)}
    assert {each["cache"] for each in records} == {"miss"}
    assert (again.status, text_of(again)) == (200, TEXT)
    assert again.header("x-ratelimit-remaining-tokens") == str(1000 - TOKENS)


async def test_an_answer_that_cannot_be_passed_on_is_refused_alike_for_all(meet: Meet) -> None:
    async with meet() as at:
        gate = Gate()
        at.up.script([gate.op, *body_reply(b"<html>", ctype="text/html")])
        await at.lead(ASKED)
        await at.join(ASKED, STREAMED)
        gate.open()
        answers = [await call.answer() for call in at.calls]
        records = await at.records()
    assert len(at.up.served) == 1
    assert {(answer.status, answer.body) for answer in answers} == {(502, answers[0].body)}
    assert [record["error_code"] for record in records] == ["upstream_unusable"] * 3
    assert {record["outcome"] for record in records} == {"upstream_error"}


async def test_a_stream_that_is_cut_ends_alike_for_all_who_read_it_and_the_others_share_another_fetch(
    meet: Meet,
) -> None:
    async with meet() as at:
        cut, gate = Gate(), Gate()
        at.up.script(stream_with([*EVENTS[:2], cut], end="rst"), whole_after(gate))
        await at.lead(STREAMED)
        readers = await at.join(STREAMED, WITH_USAGE)
        waiting = await at.join(*[ASKED] * 5)
        cut.open()
        broken = [await call.answer() for call in (at.calls[0], *readers)]
        await eventually(lambda: len(at.up.served) == 2)
        await at.all_are_here(5)
        gate.open()
        whole = [await call.answer() for call in waiting]
        records = await at.records()
    assert len(at.up.served) == 2
    assert len({answer.body for answer in broken}) == 1
    assert all(has_error_event(answer.body) and answer.is_finished for answer in broken)
    assert not any(DONE in answer.body for answer in broken)
    assert [text_of(answer) for answer in whole] == [TEXT] * 5
    assert [record["outcome"] for record in records] == ["upstream_error"] * 3 + ["completed"] * 5
    assert sorted(record["cache"] for record in records[3:]) == ["hit"] * 4 + ["miss"]


async def test_what_became_of_a_fetch_is_told_of_those_who_joined_also_when_its_leader_has_left(meet: Meet) -> None:
    async with meet() as at:
        gate = Gate()
        at.up.script(stream_with([*EVENTS[:2], gate], end="rst"))
        leader = await at.lead(STREAMED)
        [joiner] = await at.join(STREAMED)
        await eventually(lambda: joined(joiner.writer.body) == {0: "one two "})
        leader.task.cancel()
        gate.open()
        answer = await joiner.answer()
        await eventually(lambda: len(at.all_records()) == 2)
        records = {record["request_id"]: record for record in at.all_records()}
    mine = records.pop(answer.header("x-request-id"))
    [theirs] = records.values()
    assert has_error_event(answer.body)
    assert (mine["outcome"], mine["error_code"], mine["cache"]) == ("upstream_error", "upstream_broken", "hit")
    assert (theirs["outcome"], theirs["cache"]) == ("client_left", "miss")


async def test_a_filtered_answer_is_for_those_who_joined_in_its_form_and_for_nobody_later(meet: Meet) -> None:
    filtered = {**WHOLE, "choices": [{**WHOLE["choices"][0], "finish_reason": "content_filter"}]}
    async with meet() as at:
        gate = Gate()
        at.up.script(whole_after(gate, filtered))
        at.up.default = json_reply(WHOLE)
        await at.lead(ASKED)
        await at.join(ASKED, ASKED)
        gate.open()
        answers = [await call.answer() for call in at.calls]
        later = await at.ask(ASKED).answer()
    assert [json.loads(answer.body)["choices"][0]["finish_reason"] for answer in answers] == ["content_filter"] * 3
    assert later.header("cache-status") == "tidegate;fwd=miss;stored"
    assert len(at.up.served) == 2


# Long answers and slow readers


async def test_a_flight_whose_beginning_has_gone_since_it_was_found_is_of_no_use() -> None:
    decision = make_decision(STREAMED)
    exchange = make_exchange(decision)
    provider = Provider("proj", "alice", is_service_account=False, key="key_alice")
    flights = Flights(max_bytes=0, max_flight_bytes=0)
    origin = Origin(generation=1, model="m", project="proj", key="key_alice", cache_key="k", deployment="")
    flight = flights.begin("k", exchange, origin, provider=provider, is_stream=True, is_finished_alone=True)
    await flight.write(b"data: 1\n\n")
    writer = MemoryWriter()
    answering = Answering(decision, exchange, cast("Any", None), cast("Any", None), DEFAULT_BOUNDS, cast("Any", None))
    assert not await Follower(flight, answering).answer(writer)
    assert not writer.is_started
    assert not exchange.is_collapsed


def long_stream(events: int, gate: Gate) -> Ops:
    pieces = [ev(tchunk("x" * 1000)) for _ in range(events)]
    return stream_with([pieces[0], gate, *pieces[1:], *EVENTS[3:]])


async def test_an_answer_above_the_bound_is_joined_until_it_passes_it(meet: Meet) -> None:
    async with meet(max_entry_bytes=5_000) as at:
        gate, more = Gate(), Gate()
        pieces = [ev(tchunk("x" * 1000)) for _ in range(8)]
        at.up.script(stream_with([pieces[0], gate, *pieces[1:], more, *EVENTS[3:]]), json_reply(WHOLE))
        await at.lead(STREAMED)
        [early] = await at.join(STREAMED)
        gate.open()
        await eventually(lambda: not at.flight().has_beginning)
        late = await at.ask(ASKED).answer()
        more.open()
        answers = [await call.answer() for call in at.calls[:2]]
    assert [len(text_of(answer)) for answer in answers] == [8_000, 8_000]
    assert early.writer.header("cache-status") == COLLAPSED
    assert late.header("cache-status") == "tidegate;fwd=miss;stored"


async def test_where_flights_keep_too_much_nobody_joins_and_all_are_answered(meet: Meet) -> None:
    async with meet(max_flight_bytes=500) as at:
        gate = Gate()
        at.up.script(long_stream(2, gate), json_reply(WHOLE))
        leader = await at.lead(STREAMED)
        await eventually(lambda: len(leader.writer.body) > 1000)
        other = await at.ask(ASKED).answer()
        gate.open()
        assert len(text_of(await leader.answer())) == 2_000
    assert (text_of(other), len(at.up.served)) == (TEXT, 2)


@dataclass
class SlowWriter(MemoryWriter):
    """A client that takes nothing more after its first bytes until it is told to go on."""

    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, data: bytes) -> None:
        await super().write(data)
        await self.goes_on.wait()


@pytest.mark.parametrize("who", ["leader", "joiner"])
async def test_the_slowest_does_not_slow_the_others_and_is_told_when_it_is_left_behind(who: str, meet: Meet) -> None:
    async with meet(max_entry_bytes=20_000) as at:
        gate, slow = Gate(), SlowWriter()
        at.up.script(long_stream(600, gate))
        await at.lead(STREAMED, writer=slow if who == "leader" else None)
        await at.join(STREAMED, STREAMED, STREAMED)
        if who == "joiner":
            await at.join(STREAMED, writer=slow)
        await slow.has_written.wait()
        gate.open()
        fast = [await call.answer() for call in at.calls if call.writer is not slow]
        slow.goes_on.set()
        for call in at.calls:
            await call.answer()
        records = await at.records()
    assert [len(text_of(answer)) for answer in fast] == [600_000] * len(fast)
    events = sse_json(slow.body)
    assert events[-1]["error"]["code"] == "client_too_slow"
    assert slow.is_finished
    assert not slow.is_aborted
    assert len(events) < 600
    assert len(at.up.served) == 1
    assert sum(record["output_tokens"] for record in records) == 13
    [left] = [record for call, record in zip(at.calls, records, strict=True) if call.writer is slow]
    assert (left["outcome"], left["cache"]) == (("client_left", "miss") if who == "leader" else ("failed", "hit"))


# Limits


async def test_each_is_counted_and_only_the_leader_pays(meet: Meet) -> None:
    limits = [
        {"of": "requests", "limit": 10, "per": "minute", "by": ["project"]},
        {"of": "tokens", "limit": 1000, "per": "minute", "by": ["project"]},
    ]
    async with meet({"limits": limits}) as at:
        gate = Gate()
        at.up.script(whole_after(gate))
        await at.lead(ASKED)
        await at.join(ASKED, STREAMED, ASKED)
        gate.open()
        for call in at.calls:
            await call.answer()
        last = await at.ask(ASKED).answer()
    assert last.header("x-ratelimit-remaining-requests") == "5"
    assert last.header("x-ratelimit-remaining-tokens") == str(1000 - TOKENS)


async def test_where_hits_are_charged_in_full_joiners_are(meet: Meet) -> None:
    limits = [{"of": "tokens", "limit": 1000, "per": "minute", "by": ["project"], "charge_hits": "full"}]
    async with meet({"limits": limits}) as at:
        gate = Gate()
        at.up.script(stream_with([EVENTS[0], gate, *EVENTS[1:]]))
        await at.lead(STREAMED)
        await at.join(STREAMED, ASKED)
        gate.open()
        for call in at.calls:
            await call.answer()
        last = await at.ask(ASKED).answer()
    assert last.header("x-ratelimit-remaining-tokens") == str(1000 - 4 * TOKENS)


def only_one_fits() -> dict[str, Any]:
    """Return a policy whose tokens are enough for one request at its worst."""
    return {"limits": [{"of": "tokens", "limit": 100, "per": "minute", "by": ["project"]}]}


@pytest.mark.parametrize("joiner", [ASKED, STREAMED], ids=["in the same form", "in the other form"])
async def test_who_has_room_for_a_hit_only_joins(joiner: Mapping[str, Any], meet: Meet) -> None:
    async with meet(only_one_fits()) as at:
        gate = Gate()
        at.up.script(whole_after(gate))
        await at.lead(ASKED)
        assert (await at.ask({**ASKED, "prompt": "another"}).answer()).status == 429
        await at.join(joiner)
        gate.open()
        answers = [await at.calls[0].answer(), await at.calls[2].answer()]
    assert [(answer.status, text_of(answer)) for answer in answers] == [(200, TEXT)] * 2


async def test_who_has_room_for_a_hit_only_is_refused_when_nothing_comes_of_the_flight(meet: Meet) -> None:
    async with meet(only_one_fits()) as at:
        cut = Gate()
        at.up.script(stream_with([*EVENTS[:2], cut], end="rst"))
        await at.lead(STREAMED)
        [joiner] = await at.join(ASKED)
        cut.open()
        refused = await joiner.answer()
        _, record = await at.records()
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (record["outcome"], record["cache"]) == ("rejected", "miss")
    assert len(at.up.served) == 1


async def test_who_is_refused_leaves_no_lease_behind_for_which_others_would_wait(meet: Meet) -> None:
    limits = [{"of": "requests", "limit": 1, "per": "minute", "by": ["project"]}]
    async with meet({"limits": limits}) as at:
        gate = Gate()
        at.up.script(whole_after(gate))
        leader = await at.lead(ASKED)
        assert (await at.ask({**ASKED, "prompt": "another"}).answer()).status == 429
        await eventually(lambda: len(at.lease_keys()) == 1, seconds=LEASE_MILLISECONDS / 2_000)
        gate.open()
        assert (await leader.answer()).status == 200


async def test_who_is_refused_takes_the_lease_from_nobody(meet: Meet) -> None:
    limits = [{"of": "requests", "limit": 1, "per": "minute", "by": ["project"]}]
    async with meet({"limits": limits}) as at:
        gate = Gate()
        at.up.script(whole_after(gate))
        leader = await at.lead(ASKED)
        key = store_keys.flight(at.flight().key).encode()
        assert (await at.ask(ASKED).answer()).status == 429
        assert at.lease_keys() == [key]
        with at.store.client() as client:
            client.delete(key)
            await eventually(lambda: at.lease_keys() == [key])  # it is renewed as long as the fetch goes on
        gate.open()
        assert (await leader.answer()).status == 200


async def test_a_lease_lasts_as_long_as_its_fetch(meet: Meet) -> None:
    async with meet() as at:
        gate = Gate()
        at.up.script(whole_after(gate))
        leader = await at.lead(ASKED)
        [joiner] = await at.join(ASKED)
        key = at.flight().key
        assert at.lease_keys() == [store_keys.flight(key).encode()]
        await joiner.leave()
        assert at.lease_keys() == [store_keys.flight(key).encode()]
        gate.open()
        await leader.answer()
        await eventually(lambda: not at.lease_keys())


# The end of a drain


async def test_at_the_end_of_a_drain_all_are_told(meet: Meet) -> None:
    async with meet() as at:
        at.up.script(stream_with([*EVENTS[:2], Gate()]))
        leader = await at.lead(STREAMED)
        [reader, whole] = await at.join(STREAMED, ASKED)
        await eventually(lambda: joined(reader.writer.body) == {0: "one two "})
        for call in at.calls:
            call.task.cancel(DRAINING)
        answers = [await call.answer() for call in at.calls]
        records = await at.records()
    assert [answer.status for answer in answers] == [200, 200, 503]
    for answer in answers[:2]:
        assert sse_json(answer.body)[-1]["error"]["code"] == "draining"
        assert answer.is_finished
    assert json.loads(whole.writer.body)["error"]["code"] == "draining"
    assert {record["error_code"] for record in records} == {"draining"}
    assert len(at.up.served) == 1
    assert leader.task.done()


async def test_at_the_end_of_a_drain_nobody_waits_for_a_slow_client(meet: Meet) -> None:
    async with meet() as at:
        at.up.script(stream_with([*EVENTS[:2], Gate()]))
        slow = SlowWriter()
        leader = await at.lead(STREAMED, writer=slow)
        [reader] = await at.join(STREAMED)
        await slow.has_written.wait()
        for call in at.calls:
            call.task.cancel(DRAINING)
        await leader.answer()
        answer = await reader.answer()
        records = await at.records()
    assert slow.is_aborted
    assert sse_json(answer.body)[-1]["error"]["code"] == "draining"
    assert [(record["outcome"], record["error_code"]) for record in records] == [("failed", "draining")] * 2


async def test_at_the_end_of_a_drain_nobody_waits_for_a_whole_answer(meet: Meet) -> None:
    async with meet() as at:
        at.up.script(whole_after(Gate()))
        await at.lead(ASKED)
        await at.join(ASKED, STREAMED)
        for call in at.calls:
            call.task.cancel(DRAINING)
        answers = [await call.answer() for call in at.calls]
    assert [(answer.status, json.loads(answer.body)["error"]["code"]) for answer in answers] == [(503, "draining")] * 3


async def test_a_fetch_that_nobody_reads_any_more_ends_with_the_drain_too(meet: Meet) -> None:
    async with meet({"cache": {"finish_abandoned": True}}) as at:
        at.up.script(stream_with([*EVENTS[:2], Gate()]))
        leader = await at.lead(STREAMED, writer=MemoryWriter(leaves_after=0))
        await eventually(lambda: at.flight().head is not None and not at.flight()._readers)  # noqa: SLF001
        leader.task.cancel(DRAINING)
        await leader.answer()
        await eventually(lambda: len(at.all_records()) == 1)
        [record] = at.all_records()
    assert record["outcome"] == "client_left"


# An answer that comes to nothing before any of it has left

_HEAD = head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])


@pytest.mark.parametrize(
    ("fields", "first", "calls"),
    [
        pytest.param(STREAMED, [("send", _HEAD), ("rst",)], 2, id="a stream that is reset behind its head"),
        pytest.param(STREAMED, [("send", _HEAD), ("close",)], 2, id="a stream that ends behind its head"),
        pytest.param(ASKED, body_reply(b"{garbage", ctype="application/json"), 2, id="garbage"),
        pytest.param(
            ASKED,
            [("send", head(200, [("Content-Type", "application/json"), ("Content-Length", 99)]) + b"{"), ("close",)],
            2,
            id="a whole answer that is cut",
        ),
    ],
)
async def test_another_deployment_answers_in_place_of_one_that_came_to_nothing(
    fields: Mapping[str, Any], first: Ops, calls: int, up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    upstreams = {name: {"kind": "openai", "base_url": f"{up.url}/{name}"} for name in ("one", "two")}
    models = {"m": {"deployments": [{"upstream": name} for name in upstreams]}}
    whole = json_reply({"choices": [{"index": 0, "text": "good", "finish_reason": "stop"}]})
    up.script(first, sse_reply([ev(tchunk("good", finish="stop")), DONE]) if "stream" in fields else whole)
    settings = configuration(up.url, tmp_path, upstreams=upstreams, models=models)
    async with whole_gateway(settings, valkey.url) as gateway:
        writer, _ = await gateway.ask("POST", "/v1/completions", fields)
    assert writer.status == 200
    assert b"good" in writer.body
    assert not has_error_event(writer.body)
    assert len(up.log) == calls
    assert len({request.target for request in up.log}) == calls


async def test_a_streams_head_is_not_kept_back_where_nobody_else_could_answer(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script([("send", _HEAD), ("rst",)])
    async with whole_gateway(configuration(up.url, tmp_path), valkey.url) as gateway:
        writer, _ = await gateway.ask("POST", "/v1/completions", STREAMED)
    assert (writer.status, writer.header("content-type")) == (200, "text/event-stream")
    assert has_error_event(writer.body)
