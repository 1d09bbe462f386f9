from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from fake_upstream import DONE, FakeUpstream, chunk, ev, head, json_reply, sse_head, sse_reply, tchunk, usage
from meeting import Gate
from sending import series
from stores import eventually
from whole import Whole, configuration, whole_gateway

from policies.catalog import Deployment
from proxy import hedging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from fake_upstream import Ops
    from sending import MemoryWriter
    from stores import StoreServer

LIMIT = 100_000
ORGANIZATION = "org_default"
ASKED = {"model": "m", "prompt": "x", "max_tokens": 20, "temperature": 0}
SOON = "20ms"
NEVER = "10m"
FIRST = 1_000_000_000
"""A weight by which a deployment is the first to be tried, as good as always."""

Servers = list[FakeUpstream]


@pytest.fixture(scope="session")
def three() -> Servers:
    return [FakeUpstream().start() for _ in range(3)]


@pytest.fixture
def ups(three: Servers) -> Iterator[Servers]:
    """Return the servers of a model's three deployments, in the order in which they are tried."""
    for each in three:
        each.reset()
    yield three
    for each in three:
        each.reset()


def answered(text: str) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": "stop"}
    used = usage(20, prompt=7)
    return {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": used}


def answer(text: str, *, stream: bool = False) -> Ops:
    if not stream:
        return json_reply(answered(text))
    used = ev({**tchunk(""), "choices": [], "usage": usage(20, prompt=7)})
    return sse_reply([ev(tchunk(text)), ev(tchunk("", 0, "stop")), used, DONE], gap=0)


def refused(status: int) -> Ops:
    return json_reply({"error": {"message": "no"}}, status, [("x-should-retry", "false")])


CUT: Ops = [("send", head(200, [("Content-Type", "application/json"), ("Content-Length", 9)]) + b"{"), ("rst",)]
BROKEN: Ops = [("close",)]


@asynccontextmanager
async def gateway(
    ups: Sequence[FakeUpstream],
    valkey: StoreServer,
    folder: Path,
    *,
    after: str = SOON,
    model: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401  any setting
) -> AsyncIterator[Whole]:
    """Open a gateway whose model is hedged; whatever happens in it, nothing may be left of it in the end."""
    names = "abc"[: len(ups)]
    upstreams = {name: {"kind": "openai", "base_url": f"{up.url}/v1"} for name, up in zip(names, ups, strict=True)}
    deployments = [{"upstream": name, "weight": FIRST ** (2 - at)} for at, name in enumerate(names)]
    served = {
        "deployments": deployments,
        "price": {"input": 1, "output": 2},
        "hedge_after": after,
        **(model or {}),
    }
    limits = [{"of": "tokens", "limit": LIMIT, "per": "day", "by": ["key"]}]
    settings = {
        "policies": {"default": {"limits": limits, "cache": {"mode": "off"}}},
        "models": {"m": served},
        "upstreams": upstreams,
        **more,
    }
    async with whole_gateway(configuration(ups[0].url, folder, **settings), valkey.url) as whole:
        yield whole
        await eventually(lambda: not whole.gateway.snapshot.admissions.live)
        await eventually(lambda: not any(series(whole.metrics, "upstream_outstanding").values()))
    assert not any(series(whole.metrics, "open_streams").values())


async def ask(whole: Whole, **more: object) -> MemoryWriter:
    answer, _ = await whole.ask("POST", "/v1/completions", {**ASKED, **more})
    return answer


def begin(whole: Whole, **more: object) -> asyncio.Task[MemoryWriter]:
    return asyncio.create_task(ask(whole, **more))


def results(whole: Whole) -> dict[str, float]:
    """Return how many hedges ended how."""
    return {result: n for (model, result), n in series(whole.metrics, "hedges_total").items() if model == "m"}


def calls(ups: Servers) -> list[int]:
    """Return how often each server was asked."""
    return [len(each.log) for each in ups]


async def was_cut(up: FakeUpstream) -> bool:
    """Tell whether the server's only request was given up."""
    return await asyncio.to_thread(up.wait, lambda: up.log[0].aborted_at)


def records(valkey: StoreServer) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the records of the only client's request and of its hedge."""
    with valkey.client() as client:
        entries = [entry for key in client.scan_iter(match="*:outbox") for _, entry in client.xrange(key)]
    found = [json.loads(value) for entry in entries for value in entry.values()]
    by_origin = {each["origin"]: each for each in found}
    assert len(by_origin) == len(found)
    return by_origin["client"], by_origin.get("hedge")


def told(record: dict[str, Any] | None) -> tuple[Any, ...]:
    """Return what a record says of its attempt and its charge."""
    assert record is not None
    names = ("upstream", "outcome", "attempts", "attempts_of_unknown_cost", "output_tokens", "known")
    return tuple(record[name] for name in names)


FORMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "a stream"])


@FORMS
async def test_the_hedge_answers_where_the_first_is_silent(
    ups: Servers, valkey: StoreServer, tmp_path: Path, *, stream: bool
) -> None:
    ups[0].script([("hold", 20)])
    ups[1].script(answer("b", stream=stream))
    async with gateway(ups, valkey, tmp_path) as whole:
        got = await ask(whole, stream=stream)
        assert await was_cut(ups[0])
        await eventually(lambda: results(whole) == {"won": 1})
        again = await ask(whole, stream=stream, prompt="y")
    assert b'"text": "b"' in got.body
    assert got.header("x-ratelimit-remaining-tokens") is not None
    assert int(again.header("x-ratelimit-remaining-tokens") or 0) <= LIMIT - 20, "the client paid for its answer"
    assert ups[0].log[0].json() == ups[1].log[0].json()
    assert ups[1].log[0].header("x-client-request-id") != ups[0].log[0].header("x-client-request-id")


@FORMS
async def test_each_is_booked_for_what_it_is(
    ups: Servers, valkey: StoreServer, tmp_path: Path, *, stream: bool
) -> None:
    ups[0].script([("hold", 20)])
    ups[1].script(answer("b", stream=stream))
    async with gateway(ups, valkey, tmp_path) as whole:
        await ask(whole, stream=stream)
        await eventually(lambda: results(whole) == {"won": 1})
    client, lost = records(valkey)
    assert told(client) == ("b", "completed", 1, 0, 13, "reported")
    # An answer that nobody saw: a whole one is booked at its worst case, of a stream no event had come.
    assert told(lost) == ("a", "client_left", 1, 1, *((0, "counted") if stream else (20, "worst_case")))
    assert lost is not None
    assert (lost["organization"], lost["project"], lost["key"], lost["cache_reason"]) == (ORGANIZATION, "", "", "hedge")
    assert (client["upstream_status"], lost["upstream_status"]) == (200, None)


@FORMS
async def test_a_hedge_is_given_up_when_the_first_answers(
    ups: Servers, valkey: StoreServer, tmp_path: Path, *, stream: bool
) -> None:
    gate = Gate()
    ups[0].script([gate.op, *answer("a", stream=stream)])
    ups[1].script([("hold", 20)])
    async with gateway(ups, valkey, tmp_path) as whole:
        asked = begin(whole, stream=stream)
        await eventually(lambda: calls(ups) == [1, 1, 0])
        gate.open()
        got = await asked
        assert await was_cut(ups[1])
        await eventually(lambda: results(whole) == {"lost": 1})
    assert b'"text": "a"' in got.body
    client, lost = records(valkey)
    assert told(client) == ("a", "completed", 1, 0, 13, "reported")
    assert told(lost) == ("b", "client_left", 1, 1, *((0, "counted") if stream else (20, "worst_case")))


async def test_a_connection_that_was_gone_keeps_no_request_from_being_hedged(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    ups[0].script(json_reply(answered("a")), [("rst",)], [("hold", 20)])
    ups[1].script(answer("b", stream=False))
    async with gateway(ups, valkey, tmp_path, after="200ms") as whole:  # the connection is gone sooner
        await ask(whole)
        got = await ask(whole, prompt="y")
        await eventually(lambda: results(whole) == {"won": 1})
    assert b'"text": "b"' in got.body
    assert calls(ups) == [3, 1, 0]


NOT_HEDGED: dict[str, dict[str, Any]] = {
    "answers are there in time": {"after": NEVER},
    "there is one deployment": {"model": {"deployments": [{"upstream": "a"}]}},
    "one attempt may be made": {"model": {"max_attempts": 1}},
    "nobody wants it": {"model": {"hedge_after": None}},
}


@pytest.mark.parametrize("settings", NOT_HEDGED.values(), ids=list(NOT_HEDGED))
async def test_nothing_is_hedged_where(
    ups: Servers, valkey: StoreServer, tmp_path: Path, settings: dict[str, Any]
) -> None:
    ups[0].script([("sleep", 0.1), *answer("a")])
    async with gateway(ups, valkey, tmp_path, **settings) as whole:
        got = await ask(whole)
        assert results(whole) == {}
    assert b'"text": "a"' in got.body
    assert calls(ups) == [1, 0, 0]


async def test_what_is_drawn_anew_each_time_is_not_hedged(ups: Servers, valkey: StoreServer, tmp_path: Path) -> None:
    ups[0].script([("sleep", 0.1), *answer("a")])
    async with gateway(ups, valkey, tmp_path) as whole:
        await ask(whole, temperature=1)
    assert calls(ups) == [1, 0, 0]


async def test_a_request_that_was_refused_is_tried_again_and_not_hedged(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    ups[0].script(refused(500))
    ups[1].script([("sleep", 0.3), *answer("b")])
    async with gateway(ups, valkey, tmp_path, after="100ms") as whole:
        got = await ask(whole)
        assert results(whole) == {}
    assert b'"text": "b"' in got.body
    assert calls(ups) == [1, 1, 0]
    client, lost = records(valkey)
    assert told(client) == ("b", "completed", 2, 0, 13, "reported")
    assert lost is None


FIRST_FAILS: dict[str, tuple[Ops, tuple[Any, ...]]] = {
    "with an error": (refused(500), ("a", "upstream_error", 1, 0, 0, "none")),
    "with a refusal": (refused(400), ("a", "upstream_error", 1, 0, 0, "none")),
    "by breaking": (BROKEN, ("a", "upstream_error", 1, 1, 0, "none")),
}


@pytest.mark.parametrize(("reply", "expected"), FIRST_FAILS.values(), ids=list(FIRST_FAILS))
async def test_a_hedge_is_waited_for_when_the_first_fails(
    ups: Servers, valkey: StoreServer, tmp_path: Path, reply: Ops, expected: tuple[Any, ...]
) -> None:
    first, second = Gate(), Gate()
    ups[0].script([first.op, *reply])
    ups[1].script([second.op, *answer("b")])
    async with gateway(ups, valkey, tmp_path) as whole:
        asked = begin(whole)
        await eventually(lambda: calls(ups) == [1, 1, 0])
        first.open()
        await asyncio.to_thread(ups[0].wait, lambda: ups[0].log[0].done)
        assert not asked.done()
        second.open()
        got = await asked
        await eventually(lambda: results(whole) == {"won": 1})
    assert b'"text": "b"' in got.body
    assert calls(ups) == [1, 1, 0], "a third deployment was asked"
    client, lost = records(valkey)
    assert told(client) == ("b", "completed", 1, 0, 13, "reported")
    assert told(lost) == expected


HEDGE_FAILS: dict[str, tuple[Ops, tuple[Any, ...]]] = {
    "with an error": (refused(500), ("b", "upstream_error", 1, 0, 0, "none")),
    "with a refusal": (refused(400), ("b", "upstream_error", 1, 0, 0, "none")),
    "by breaking": (BROKEN, ("b", "upstream_error", 1, 1, 0, "none")),
    "with an answer of no use": (refused(401), ("b", "upstream_error", 1, 0, 0, "none")),
}


@pytest.mark.parametrize(("reply", "expected"), HEDGE_FAILS.values(), ids=list(HEDGE_FAILS))
async def test_the_first_is_waited_for_when_a_hedge_fails(
    ups: Servers, valkey: StoreServer, tmp_path: Path, reply: Ops, expected: tuple[Any, ...]
) -> None:
    gate = Gate()
    ups[0].script([gate.op, *answer("a")])
    ups[1].script(reply)
    async with gateway(ups, valkey, tmp_path) as whole:
        asked = begin(whole)
        await eventually(lambda: results(whole) == {"lost": 1})
        gate.open()
        got = await asked
    assert b'"text": "a"' in got.body
    assert calls(ups) == [1, 1, 0]
    client, lost = records(valkey)
    assert told(client) == ("a", "completed", 1, 0, 13, "reported")
    assert told(lost) == expected


NOT_NOW = json_reply({"error": {"message": "no"}}, 503)
BOTH_FAIL: dict[str, tuple[tuple[Ops, Ops, Ops], int, list[int], int, bytes]] = {
    "a third one is asked": ((refused(500), refused(503), answer("c")), 3, [1, 1, 1], 200, b'"text": "c"'),
    "unless that is too many": ((refused(500), refused(503), answer("c")), 2, [1, 1, 0], 500, b'"no"'),
    "or the first was refused for good": ((refused(400), refused(503), answer("c")), 3, [1, 1, 0], 400, b'"no"'),
    "the first again at last": ((NOT_NOW, refused(503), refused(503)), 4, [2, 1, 1], 200, b'"text": "a"'),
    "also after a third that broke": ((NOT_NOW, refused(503), CUT), 4, [2, 1, 1], 200, b'"text": "a"'),
}


@pytest.mark.parametrize("is_first_first", [True, False], ids=["the first first", "the hedge first"])
@pytest.mark.parametrize(("replies", "most", "asked", "status", "text"), BOTH_FAIL.values(), ids=list(BOTH_FAIL))
async def test_when_both_fail_the_request_goes_on_as_any_other(
    ups: Servers,
    valkey: StoreServer,
    tmp_path: Path,
    replies: tuple[Ops, Ops, Ops],
    most: int,
    asked: list[int],
    status: int,
    text: bytes,
    *,
    is_first_first: bool,
) -> None:
    gates = [Gate(), Gate()]
    ups[0].script([gates[0].op, *replies[0]], answer("a"))
    ups[1].script([gates[1].op, *replies[1]])
    ups[2].script(replies[2])
    async with gateway(ups, valkey, tmp_path, model={"max_attempts": most}) as whole:
        under_way = begin(whole)
        await eventually(lambda: calls(ups) == [1, 1, 0])
        order = (0, 1) if is_first_first else (1, 0)
        for at in order:
            gates[at].open()
            await asyncio.to_thread(ups[at].wait, lambda at=at: ups[at].log[0].done)
        got = await under_way
        await eventually(lambda: results(whole) == {"lost": 1})
    assert (got.status, calls(ups)) == (status, asked)
    assert text in got.body


async def test_a_time_out_of_the_first_is_told_once_the_hedge_has_failed(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    gate = Gate()
    ups[0].script([("hold", 20)])
    ups[1].script([gate.op, *refused(500)])
    async with gateway(ups, valkey, tmp_path, timeouts={"first_byte": "200ms"}) as whole:
        asked = begin(whole)
        assert await asyncio.to_thread(ups[0].wait, lambda: calls(ups)[0] and ups[0].log[0].aborted_at)
        gate.open()
        got = await asked
    assert got.status == 504
    assert calls(ups) == [1, 1, 0]


async def test_a_hedge_without_room_is_dropped_and_counts_as_no_attempt(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    gate = Gate()
    ups[0].script([gate.op, *refused(500)])
    ups[1].script(answer("b"))
    limit = {"of": "requests", "limit": 1, "per": "day", "by": ["organization"], "on_exceed": "wait"}
    policies = {"default": {"cache": {"mode": "off"}}, "all": {"limits": [limit]}}
    organization = {"id": ORGANIZATION, "policy": "all"}
    async with gateway(ups, valkey, tmp_path, policies=policies, organization=organization) as whole:
        asked = begin(whole)
        await eventually(lambda: results(whole) == {"dropped": 1})
        gate.open()
        got = await asked
    assert b'"text": "b"' in got.body, "which the request itself went on to"
    client, lost = records(valkey)
    assert told(client) == ("b", "completed", 2, 0, 13, "reported")
    assert lost is None


async def test_what_is_too_much_at_once_is_dropped(
    ups: Servers, valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedging, "_MOST_AT_ONCE", 0)
    ups[0].script([("sleep", 0.1), *answer("a")])
    async with gateway(ups, valkey, tmp_path) as whole:
        await ask(whole)
        assert results(whole) == {"dropped": 1}
    assert calls(ups) == [1, 0, 0]


async def test_a_busy_deployment_is_not_hedged_with(ups: Servers, valkey: StoreServer, tmp_path: Path) -> None:
    held, gate = Gate(), Gate()
    ups[1].script([held.op, *answer("b")])
    ups[0].script([gate.op, *answer("a")])
    urls = [f"{each.url}/v1" for each in ups]
    upstreams = {
        "a": {"kind": "openai", "base_url": urls[0]},
        "b": {"kind": "openai", "base_url": urls[1], "concurrency": 1},
        "c": {"kind": "openai", "base_url": urls[2]},
    }
    two = [{"upstream": "a", "weight": FIRST}, {"upstream": "b"}]
    models = {
        "m": {"deployments": two, "hedge_after": SOON},
        "hidden": {"deployments": [{"upstream": "b"}]},
    }
    projects = [{"id": "proj", "policy": "default", "models": ["m", "hidden"]}]
    async with gateway(ups, valkey, tmp_path, upstreams=upstreams, models=models, projects=projects) as whole:
        other = begin(whole, model="hidden")
        await eventually(lambda: calls(ups) == [0, 1, 0])
        asked = begin(whole)
        await asyncio.sleep(0.1)  # longer than it takes to be hedged
        assert calls(ups) == [1, 1, 0]
        gate.open()
        held.open()
        await asked
        await other
        assert results(whole) == {}


async def test_a_deployment_that_is_too_small_is_not_hedged_with(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    ups[0].script([("sleep", 0.1), *answer("a")])
    small = {"context_window": 10}
    deployments = [{"upstream": "a", "weight": FIRST, "context_window": 1000}, {"upstream": "b", **small}]
    async with gateway(ups, valkey, tmp_path, model={"deployments": deployments}) as whole:
        await ask(whole)
        assert results(whole) == {}
    assert calls(ups) == [1, 0, 0]


async def test_a_client_that_leaves_ends_both(ups: Servers, valkey: StoreServer, tmp_path: Path) -> None:
    for each in ups[:2]:
        each.script([("hold", 20)])
    async with gateway(ups, valkey, tmp_path) as whole:
        asked = begin(whole)
        await eventually(lambda: calls(ups) == [1, 1, 0])
        asked.cancel()
        async with asyncio.timeout(1):
            assert [await was_cut(each) for each in ups[:2]] == [True, True]
        await eventually(lambda: results(whole) == {"lost": 1})
        with pytest.raises(asyncio.CancelledError):
            await asked
    client, lost = records(valkey)
    assert told(client) == ("a", "client_left", 1, 1, 20, "worst_case")
    assert told(lost) == ("b", "client_left", 1, 1, 20, "worst_case")


async def test_another_deployment_is_asked_when_the_hedges_answer_breaks_before_any_of_it_left(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    ups[0].script([("hold", 20)])
    ups[1].script(CUT)
    ups[2].script(answer("c"))
    async with gateway(ups, valkey, tmp_path) as whole:
        got = await ask(whole)
        await eventually(lambda: results(whole) == {"won": 1})
    assert b'"text": "c"' in got.body
    assert calls(ups) == [1, 1, 1]
    client, lost = records(valkey)
    assert told(client) == ("c", "completed", 2, 1, 13, "reported")
    assert told(lost) == ("a", "client_left", 1, 1, 20, "worst_case")


async def test_a_third_is_asked_when_the_first_fails_and_then_the_hedges_answer_breaks(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    first, second = Gate(), Gate()
    ups[0].script([first.op, *refused(500)])
    ups[1].script([second.op, *CUT])
    ups[2].script(answer("c"))
    async with gateway(ups, valkey, tmp_path) as whole:
        asked = begin(whole)
        await eventually(lambda: calls(ups) == [1, 1, 0])
        first.open()
        await asyncio.to_thread(ups[0].wait, lambda: ups[0].log[0].done)
        second.open()
        got = await asked
    assert b'"text": "c"' in got.body
    assert calls(ups) == [1, 1, 1]


async def test_nobody_else_is_asked_when_the_hedge_falls_silent_within_its_answer(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    ups[0].script([("hold", 20)])
    ups[1].script([*CUT[:-1], ("hold", 20)])
    async with gateway(ups, valkey, tmp_path, timeouts={"silence": "100ms"}) as whole:
        got = await ask(whole)
    assert (got.status, calls(ups)) == (504, [1, 1, 0])


async def test_what_comes_of_the_last_is_told_when_the_hedges_answer_broke(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    ups[0].script([("hold", 20)])
    ups[1].script(CUT)
    ups[2].script(refused(500))
    async with gateway(ups, valkey, tmp_path) as whole:
        got = await ask(whole)
    assert (got.status, calls(ups)) == (500, [1, 1, 1])


async def test_no_more_attempts_than_allowed_are_made_when_the_hedges_answer_breaks(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    ups[0].script([("hold", 20)])
    ups[1].script(CUT)
    async with gateway(ups, valkey, tmp_path, model={"max_attempts": 2}) as whole:
        got = await ask(whole)
    assert (got.status, calls(ups)) == (502, [1, 1, 0])


async def test_a_hedge_that_was_given_up_counts_and_its_deployment_is_asked_when_the_first_answer_breaks(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    gate = Gate()
    ups[0].script([gate.op, *CUT])
    ups[1].script([("hold", 20)], refused(500))
    ups[2].script(answer("c"))
    async with gateway(ups, valkey, tmp_path) as whole:
        asked = begin(whole)
        await eventually(lambda: calls(ups) == [1, 1, 0])
        gate.open()
        got = await asked
    assert (got.status, calls(ups)) == (500, [1, 2, 0]), "three attempts"


async def test_a_hedges_stream_that_breaks_is_the_clients(ups: Servers, valkey: StoreServer, tmp_path: Path) -> None:
    ups[0].script([("hold", 20)])
    ups[1].script([("send", sse_head()), ("send", chunk(ev(tchunk("b")))), ("rst",)])
    async with gateway(ups, valkey, tmp_path) as whole:
        got = await ask(whole, stream=True)
    assert (b'"text": "b"' in got.body, b"upstream_broken" in got.body, got.is_finished) == (True, True, True)
    client, lost = records(valkey)
    assert told(client)[:3] == ("b", "upstream_error", 1)
    assert told(lost)[:4] == ("a", "client_left", 1, 1)


async def test_of_two_that_answer_at_once_the_hedge_is_given_up(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    gate = Gate()
    for each, text in zip(ups, "ab", strict=False):
        each.script([gate.op, *answer(text, stream=True)])
    async with gateway(ups, valkey, tmp_path) as whole:
        asked = begin(whole, stream=True)
        await eventually(lambda: calls(ups) == [1, 1, 0])
        gate.open()
        assert all(each.wait(lambda each=each: each.log[0].done) for each in ups[:2]), "meanwhile the loop stands still"
        got = await asked
        await eventually(lambda: results(whole) == {"lost": 1})
    assert b'"text": "a"' in got.body
    _, lost = records(valkey)
    assert told(lost)[:4] == ("b", "client_left", 1, 1)


async def test_an_answer_that_comes_as_its_client_leaves_is_closed_and_counted() -> None:
    comes, closed, counted = asyncio.get_running_loop().create_future(), [], []
    came = SimpleNamespace(status=200, close=lambda: closed.append(1))
    sending = SimpleNamespace(
        answer=lambda: _wait_for(comes), current=Deployment(upstream="a"), note_unknown_cost=counted.append
    )
    none: Any = None
    asked = asyncio.create_task(hedging.Hedged(none, cast("Any", sending), none, 60).answer())
    await asyncio.sleep(0)  # it has begun
    await asyncio.sleep(0)  # and so has its attempt
    comes.set_result(came)
    await asyncio.sleep(0)  # the attempt has its answer, of which nobody knows yet
    asked.cancel()
    await asyncio.wait([asked])
    assert (asked.cancelled(), len(closed) > 0, counted) == (True, True, ["a"])


async def _wait_for(comes: asyncio.Future[Any]) -> Any:  # noqa: ANN401  what it is set to
    return await comes


async def test_those_who_join_get_the_hedges_answer(ups: Servers, valkey: StoreServer, tmp_path: Path) -> None:
    gate = Gate()
    ups[0].script([("hold", 20)])
    ups[1].script([gate.op, *answer("b", stream=True)])
    policies = {"default": {}}
    async with gateway(ups, valkey, tmp_path, policies=policies) as whole:
        asked = [begin(whole, stream=True) for _ in range(3)]
        await eventually(lambda: calls(ups) == [1, 1, 0])
        gate.open()
        got = await asyncio.gather(*asked)
        await eventually(lambda: results(whole) == {"won": 1})
    assert [b'"text": "b"' in each.body and each.body.endswith(DONE) for each in got] == [True] * 3
    assert calls(ups) == [1, 1, 0]


async def test_whoever_answers_first_each_client_gets_one_answer_and_all_is_booked(
    ups: Servers, valkey: StoreServer, tmp_path: Path
) -> None:
    rounds, at_once = 5, 20
    for each, text in zip(ups, "abc", strict=True):
        each.default = lambda _, text=text: [("sleep", 0.02), *answer(text)]
    async with gateway(ups, valkey, tmp_path) as whole:
        for number in range(rounds):
            asked = [begin(whole, prompt=f"{number}/{at}") for at in range(at_once)]
            got = [json.loads((await each).body) for each in asked]
            assert [each["choices"][0]["text"] in "ab" for each in got] == [True] * at_once
    assert set(results(whole)) <= {"won", "lost"}
    with valkey.client() as client:
        entries = [entry for key in client.scan_iter(match="*:outbox") for _, entry in client.xrange(key)]
        held = [int(client.hget(key, "held") or 0) for key in client.scan_iter(match="*:limit:*")]
    origins = [json.loads(value)["origin"] for entry in entries for value in entry.values()]
    assert origins.count("client") == rounds * at_once
    assert calls(ups)[1] <= origins.count("hedge") <= sum(results(whole).values())  # some are over before they leave
    assert not any(held)
