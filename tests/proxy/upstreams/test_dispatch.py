from __future__ import annotations

import asyncio
import json
import socket
import traceback
from contextlib import closing
from typing import TYPE_CHECKING, Any

import meeting
import pytest
from fake_upstream import DONE, FakeUpstream, body_reply, ev, head, json_reply, sse_reply, tchunk
from msgspec.structs import replace
from sending import (
    PlainRequest,
    busy_port,
    dispatching,
    fake_upstream,
    first_answer,
    make_decision,
    make_exchange,
    make_upstream,
    series,
    up,
)

from policies.catalog import Deployment, Model, ModelSettings
from policies.requests.asked import Endpoint
from proxy.errors import NoUpstreamLeft, UpstreamBroken, UpstreamBusy, UpstreamError, UpstreamTooSlow, UpstreamUnusable
from proxy.upstreams.client import ClientBounds
from proxy.upstreams.gates import enter_first

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.decision import Decision
    from proxy.config_upstreams import Upstream
    from proxy.exchange import Exchange
    from proxy.metrics import Metrics
    from proxy.upstreams.dispatch import Dispatcher

__all__ = ["fake_upstream", "up"]

OK = json_reply({"ok": 1})
REFUSED = json_reply({"error": {"message": "no"}}, 503)
BUSY = json_reply({"error": {"message": "busy"}}, 429, headers=[("Retry-After", "7")])
STREAM: dict[str, Any] = {"prompt": "x", "stream": True}
TWO = (Deployment(upstream="one"), Deployment(upstream="two"))
QUICK = ClientBounds(connect_seconds=0.5, first_byte_seconds=0.5, silence_seconds=0.5)


def two(up: FakeUpstream, **settings: Any) -> dict[str, Upstream]:  # noqa: ANN401  any setting
    return {name: make_upstream(f"{up.url}/{name}", **settings) for name in ("one", "two")}


def by_name(replies: Mapping[str, list[Any]]) -> Any:  # noqa: ANN401  the support file is untyped
    """Let each of `two` answer in its own way."""
    return lambda request: replies[request.target.split("/")[1]]


def nobody() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/v1"


async def send(
    upstreams: Mapping[str, Upstream],
    decision: Decision,
    **fields: Any,  # noqa: ANN401  any header field
) -> tuple[int, bytes, Exchange, Metrics]:
    exchange = make_exchange(decision)
    async with dispatching(upstreams, bounds=QUICK) as (dispatcher, metrics):
        answer = await first_answer(dispatcher, decision, exchange, PlainRequest(fields))
        body, _ = await answer.read_whole(1_000_000)
        answer.close()
    return answer.status, body, exchange, metrics


# What is sent -----------------------------------------------------------------------------------------------------


async def test_a_deployment_may_have_a_name_of_its_own(up: FakeUpstream) -> None:
    decision = make_decision(deployments=(Deployment(upstream="llama", name="smol"),))
    _, _, exchange, _ = await send({"llama": make_upstream(up.url + "/v1")}, decision)
    assert up.log[0].json()["model"] == "smol"
    assert (exchange.upstream, exchange.deployment) == ("llama", "smol")


async def test_a_stream_of_responses_is_asked_for_nothing_besides(up: FakeUpstream) -> None:
    decision = make_decision({"input": "x", "stream": True}, endpoint=Endpoint.RESPONSES)
    up.script(sse_reply([DONE]))
    await send({"llama": make_upstream(up.url + "/v1")}, decision)
    assert up.log[0].json() == {"model": "m", "input": "x", "stream": True}


async def test_an_azure_upstream_without_any_version_is_unusable(up: FakeUpstream) -> None:
    with pytest.raises(UpstreamUnusable, match=r"upstreams\.llama\.api_version"):
        await send({"llama": make_upstream(up.url, kind="azure")}, make_decision())
    assert not up.log


async def test_the_users_key_and_name_stay_here(up: FakeUpstream) -> None:
    names = ("Authorization", "Cookie", "X-Api-Key", "api-key", "Proxy-Authorization", "OpenAI-Organization")
    await send({"llama": make_upstream(up.url + "/v1")}, make_decision(), **dict.fromkeys(names, "of-the-user"))
    assert not [value for _, value in up.log[0].headers if "of-the-user" in value]
    assert up.log[0].header("X-Client-Request-Id") == "req_1"
    assert up.log[0].header("Accept-Encoding") == "identity"


# Usage on streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "settings", "options"),
    [
        pytest.param(STREAM, {}, {"include_usage": True}, id="asked for on streams"),
        pytest.param({"prompt": "x"}, {}, None, id="not where nothing is streamed"),
        pytest.param(STREAM, {"stream_usage": "off"}, None, id="not where it is off"),
        pytest.param(
            {**STREAM, "stream_options": {"x": 1, "include_usage": False}},
            {},
            {"x": 1, "include_usage": True},
            id="other options stay",
        ),
        pytest.param(
            {**STREAM, "stream_options": {"include_usage": True}},
            {"stream_usage": "off"},
            {"include_usage": True},
            id="the client's own wish passes",
        ),
    ],
)
async def test_usage_is_asked_for(
    up: FakeUpstream, fields: dict[str, Any], settings: dict[str, Any], options: dict[str, Any] | None
) -> None:
    await send({"llama": make_upstream(up.url + "/v1", **settings)}, make_decision(fields))
    assert up.log[0].json().get("stream_options") == options


async def test_an_upstream_that_refuses_the_option_is_asked_without_it_from_then_on(up: FakeUpstream) -> None:
    def reply(request: Any) -> list[Any]:  # noqa: ANN401  the support file is untyped
        if "stream_options" in request.json():
            return json_reply({"error": {"message": "unknown field: stream_options"}}, 400)
        return sse_reply([ev(tchunk("a", finish="stop")), DONE])

    up.default = reply
    decision = make_decision(STREAM)
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, _):
        for _ in range(2):
            answer = await first_answer(dispatcher, decision, make_exchange(decision), PlainRequest())
            assert answer.status == 200
            assert not answer.is_usage_added
            answer.close()
    assert ["stream_options" in request.json() for request in up.log] == [True, False, False]


async def test_a_400_that_only_speaks_of_the_option_is_not_remembered(up: FakeUpstream) -> None:
    refusal = json_reply({"error": {"message": "bad prompt: 'what are stream_options?'"}}, 400)
    up.script(refusal, refusal, sse_reply([ev(tchunk("a", finish="stop")), DONE]))
    decision = make_decision(STREAM)
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, _):
        statuses = []
        for _ in range(2):
            answer = await first_answer(dispatcher, decision, make_exchange(decision), PlainRequest())
            statuses.append(answer.status)
            answer.close()
    assert statuses == [400, 200]
    assert ["stream_options" in request.json() for request in up.log] == [True, False, True]


async def test_another_400_is_passed_on_whole(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({"error": {"message": "bad prompt"}}, 400)
    status, body, _, _ = await send({"llama": make_upstream(up.url + "/v1")}, make_decision(STREAM))
    assert (status, json.loads(body)) == (400, {"error": {"message": "bad prompt"}})
    assert len(up.log) == 1


# Attempts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replies", "status", "sent"),
    [
        pytest.param([OK], 200, 1, id="the first answer is good"),
        pytest.param([REFUSED, OK], 200, 2, id="a 503, then another attempt"),
        pytest.param([REFUSED, REFUSED, OK], 200, 3, id="two of them"),
        pytest.param([REFUSED] * 9, 503, 3, id="three attempts, then the last answer"),
        pytest.param([BUSY, OK], 429, 1, id="a long Retry-After is the client's business"),
        pytest.param([json_reply({}, 400), OK], 400, 1, id="a 400 is an answer"),
        pytest.param([json_reply({}, 404), OK], 404, 1, id="a 404 is an answer"),
        pytest.param([json_reply({}, 500, headers=[("x-should-retry", "false")]), OK], 500, 1, id="told not to repeat"),
        pytest.param([json_reply({}, 408, headers=[("retry-after-ms", "5")]), OK], 200, 2, id="a short wait"),
    ],
)
async def test_attempts_at_one_deployment(up: FakeUpstream, replies: list[Any], status: int, sent: int) -> None:
    up.script(*replies)
    got, _, exchange, metrics = await send({"llama": make_upstream(up.url + "/v1")}, make_decision())
    assert got == status
    assert len(up.log) == exchange.attempts == sent
    assert exchange.upstream_status == status
    assert sum(series(metrics, "upstream_retries_total").values()) == sent - 1


@pytest.mark.parametrize(
    ("first", "status", "upstream"),
    [
        pytest.param(REFUSED, 200, "two", id="from a 503"),
        pytest.param(BUSY, 200, "two", id="from a 429 that asks for a long wait"),
        pytest.param(json_reply({}, 400), 400, "one", id="not from a 400"),
    ],
)
async def test_fail_over_to_the_next_deployment(up: FakeUpstream, first: list[Any], status: int, upstream: str) -> None:
    up.script(first, OK)
    upstreams = {name: make_upstream(f"{up.url}/{name}") for name in ("one", "two")}
    got, _, exchange, _ = await send(upstreams, make_decision(deployments=TWO))
    assert (got, exchange.upstream) == (status, upstream)
    assert [request.target for request in up.log][-1] == f"/{upstream}/completions"


async def test_fail_over_from_one_that_is_away(up: FakeUpstream) -> None:
    upstreams = {"one": make_upstream(nobody()), "two": make_upstream(up.url + "/v1")}
    status, _, exchange, metrics = await send(upstreams, make_decision(deployments=TWO))
    assert (status, exchange.upstream, exchange.attempts) == (200, "two", 2)
    assert series(metrics, "upstream_errors_total") == {("one", "connect"): 1.0}
    assert series(metrics, "upstream_retries_total") == {("two",): 1.0}


async def test_an_answer_is_better_than_none(up: FakeUpstream) -> None:
    up.default = lambda _: BUSY
    upstreams = {"one": make_upstream(up.url + "/v1"), "two": make_upstream(nobody())}
    status, body, exchange, _ = await send(upstreams, make_decision(deployments=TWO))
    assert (status, exchange.upstream, exchange.upstream_status) == (429, "one", 429)
    assert b"busy" in body
    assert len(up.log) == 1


async def test_repetitions_add_a_bounded_load(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({}, 500, headers=[("retry-after-ms", "1")])
    decision = make_decision()
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, _):
        for _ in range(60):
            (await first_answer(dispatcher, decision, make_exchange(decision), PlainRequest())).close()
    assert 60 < len(up.log) <= 60 + 10 + 6


ABOVE_ITS_LENGTH = [("send", head(200, [("Content-Length", 9)]) + b'{"text": "secret"}')]


@pytest.mark.parametrize(
    ("reply", "error", "kind", "upstreams_asked"),
    [
        pytest.param([("hold", 3)], UpstreamTooSlow, "timeout", 1, id="no first byte: it may be at work"),
        pytest.param([("rst",)], UpstreamBroken, "broken", 2, id="a reset without an answer"),
        pytest.param([("close",)], UpstreamBroken, "broken", 2, id="an end without an answer"),
        pytest.param(ABOVE_ITS_LENGTH, UpstreamUnusable, "unusable", 2, id="a body above its length"),
    ],
)
async def test_what_may_be_billed_is_not_sent_to_the_same_again(
    up: FakeUpstream,
    reply: list[Any],
    error: type[UpstreamError],
    kind: str,
    upstreams_asked: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    up.default = lambda _: reply
    decision = make_decision(deployments=TWO)
    exchange = make_exchange(decision)
    async with dispatching(two(up), bounds=QUICK) as (dispatcher, metrics):
        with pytest.raises(error) as raised:
            await first_answer(dispatcher, decision, exchange, PlainRequest())
    asked = ["one", "two"][:upstreams_asked]
    assert [request.target for request in up.log] == [f"/{name}/completions" for name in asked]
    assert all(f"upstream {name}: no answer" in caplog.text for name in asked)
    assert "secret" not in caplog.text + "".join(traceback.format_exception(raised.value))
    assert exchange.upstream_status is None
    assert exchange.attempts_of_unknown_cost == upstreams_asked
    assert series(metrics, "upstream_errors_total") == {(name, kind): 1.0 for name in asked}
    assert series(metrics, "upstream_unknown_cost_total") == {(name,): 1.0 for name in asked}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        pytest.param(400, "4xx", id="what the client asked was wrong"),
        pytest.param(429, "429", id="the upstream is busy"),
        pytest.param(500, "5xx", id="the upstream failed"),
    ],
)
async def test_an_error_is_counted_by_whose_it_is(up: FakeUpstream, status: int, kind: str) -> None:
    up.default = lambda _: json_reply({"error": {"message": "no"}}, status)
    *_, metrics = await send({"llama": make_upstream(up.url)}, make_decision())
    assert set(series(metrics, "upstream_errors_total")) == {("llama", kind)}


async def test_nobody_is_left() -> None:
    with pytest.raises(NoUpstreamLeft, match="'m'"):
        await send({"llama": make_upstream(nobody())}, make_decision())


UNUSABLE = [
    pytest.param(json_reply({"error": {"message": "bad key"}}, 401), id="our key is bad"),
    pytest.param([("send", head(302, [("Location", "/v1/other"), ("Content-Length", 0)]))], id="a redirect"),
    pytest.param(body_reply(b"<html>", ctype="text/html"), id="a page"),
    pytest.param(ABOVE_ITS_LENGTH, id="no HTTP"),
    pytest.param([("rst",)], id="a reset"),
]


@pytest.mark.parametrize("reply", UNUSABLE)
async def test_what_only_another_deployment_can_mend_goes_there(up: FakeUpstream, reply: list[Any]) -> None:
    up.default = by_name({"one": reply, "two": OK})
    status, _, exchange, metrics = await send(two(up), make_decision(deployments=TWO))
    assert (status, exchange.upstream, exchange.attempts) == (200, "two", 2)
    assert series(metrics, "upstream_retries_total") == {("two",): 1.0}


async def test_an_answer_that_turned_out_to_be_none_is_followed_by_anothers(up: FakeUpstream) -> None:
    up.default = lambda _: OK
    decision = make_decision(deployments=TWO)
    async with (
        dispatching(two(up)) as (dispatcher, metrics),
        dispatcher.begin(decision, make_exchange(decision), PlainRequest()) as sending,
    ):
        for name in ("one", "two"):
            answer = await sending.answer()
            assert sending.current == Deployment(upstream=name)
            error = answer.failure = UpstreamUnusable("garbage")
            answer.close()
            assert sending.goes_on_after(error) is (name == "one")
    assert series(metrics, "upstream_errors_total") == {("one", "unusable"): 1.0, ("two", "unusable"): 1.0}


@pytest.mark.parametrize(
    ("error", "goes_on", "unknown"),
    [
        pytest.param(UpstreamUnusable("garbage"), True, 0, id="it was of no use"),
        pytest.param(UpstreamBroken("cut"), True, 1, id="it was cut"),
        pytest.param(UpstreamTooSlow("silent"), False, 1, id="it fell silent: it may be at work"),
    ],
)
async def test_what_follows_an_answer_that_ended_badly(
    up: FakeUpstream, error: UpstreamError, *, goes_on: bool, unknown: int
) -> None:
    up.default = lambda _: OK
    decision = make_decision(deployments=TWO)
    exchange = make_exchange(decision)
    async with (
        dispatching(two(up)) as (dispatcher, _),
        dispatcher.begin(decision, exchange, PlainRequest()) as sending,
    ):
        (await sending.answer()).close()
        assert sending.goes_on_after(error) is goes_on
    assert exchange.attempts_of_unknown_cost == unknown


# Which one is tried --------------------------------------------------------------------------------------------------


def decision_under(fields: dict[str, Any] | None = None, **settings: Any) -> Decision:  # noqa: ANN401  of a model
    decision = make_decision(fields, deployments=TWO)
    model = Model("m", ModelSettings.model_validate({"deployments": TWO, **settings}))
    return replace(decision, model=model)


async def send_often(dispatcher: Dispatcher, decision: Decision, times: int) -> list[int]:
    statuses = []
    for _ in range(times):
        answer = await first_answer(dispatcher, decision, make_exchange(decision), PlainRequest())
        statuses.append(answer.status)
        answer.close()
    return statuses


async def test_an_open_breaker_puts_a_deployment_last(up: FakeUpstream) -> None:
    up.default = by_name({"one": REFUSED, "two": OK})
    decision = decision_under(breaker={"failures": 2, "open_for": 60})
    async with dispatching(two(up)) as (dispatcher, metrics):
        assert await send_often(dispatcher, decision, 5) == [200] * 5
    assert [request.target.split("/")[1] for request in up.log] == ["one", "two", "one", "two", "two", "two", "two"]
    assert series(metrics, "upstream_breaker_state")["m", "one", "m", "open"] == 1


async def test_with_one_deployment_nothing_is_withheld_because_its_breaker_is_open(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({}, 500, headers=[("x-should-retry", "false")])
    decision = make_decision()
    async with dispatching({"llama": make_upstream(up.url)}) as (dispatcher, metrics):
        assert await send_often(dispatcher, decision, 20) == [500] * 20
    assert len(up.log) == 20
    assert series(metrics, "upstream_breaker_state")["m", "llama", "m", "open"] == 1


async def test_fail_fast_refuses_when_no_deployment_is_available(up: FakeUpstream) -> None:
    up.default = lambda _: json_reply({}, 500, headers=[("x-should-retry", "false")])
    decision = decision_under(breaker={"failures": 1, "open_for": 60, "fail_fast": True})
    async with dispatching(two(up)) as (dispatcher, _):
        assert await send_often(dispatcher, decision, 1) == [500]
        with pytest.raises(NoUpstreamLeft, match="left alone") as raised:
            await send_often(dispatcher, decision, 1)
    assert raised.value.retry_after_seconds == 60
    assert len(up.log) == 2


async def test_who_asks_to_be_left_alone_is_asked_last(up: FakeUpstream) -> None:
    up.default = by_name({"one": BUSY, "two": OK})
    async with dispatching(two(up)) as (dispatcher, _):
        assert await send_often(dispatcher, decision_under(), 3) == [200] * 3
    assert [request.target.split("/")[1] for request in up.log] == ["one", "two", "two", "two"]


async def test_the_fewest_requests_under_way_come_first(up: FakeUpstream) -> None:
    up.default = lambda _: sse_reply([ev(tchunk("a")), DONE])
    decision = decision_under(STREAM, routing="least_outstanding")
    async with dispatching(two(up)) as (dispatcher, _):
        answers = [await first_answer(dispatcher, decision, make_exchange(decision), PlainRequest()) for _ in range(4)]
        for answer in answers:
            answer.close()
    assert sorted(request.target.split("/")[1] for request in up.log) == ["one", "one", "two", "two"]


async def test_a_full_upstream_is_passed_by_and_then_waited_for(up: FakeUpstream) -> None:
    up.default = lambda _: OK
    decision = decision_under()
    async with dispatching(two(up, concurrency=1)) as (dispatcher, _):
        first, second = [
            await first_answer(dispatcher, decision, make_exchange(decision), PlainRequest()) for _ in range(2)
        ]
        third = asyncio.create_task(first_answer(dispatcher, decision, make_exchange(decision), PlainRequest()))
        await asyncio.sleep(0)  # it begins, and waits
        assert not third.done()
        second.close()
        (await third).close()
        first.close()
    assert [request.target.split("/")[1] for request in up.log] == ["one", "two", "two"]


async def test_a_refusal_that_is_kept_back_is_no_longer_under_way(up: FakeUpstream) -> None:
    up.default = by_name({"one": REFUSED, "two": sse_reply([ev(tchunk("a")), DONE])})
    decision = decision_under(STREAM)
    async with (
        dispatching(two(up)) as (dispatcher, metrics),
        dispatcher.begin(decision, make_exchange(decision), PlainRequest()) as sending,
    ):
        answer = await sending.answer()
        standing = dispatcher.upstreams.standing(decision.model, TWO[0], 0)
        assert (answer.status, standing.outstanding) == (200, 0)
        assert series(metrics, "upstream_outstanding") == {("one",): 0, ("two",): 1}
        answer.close()


async def test_a_request_of_the_gateways_own_stands_in_no_line(up: FakeUpstream) -> None:
    up.default = lambda _: OK
    decision = make_decision()
    async with dispatching({"llama": make_upstream(up.url, concurrency=1)}) as (dispatcher, _):
        answer = await first_answer(dispatcher, decision, make_exchange(decision), PlainRequest())
        own = make_exchange(decision)
        own.origin = "shadow"
        with pytest.raises(UpstreamBusy):
            await first_answer(dispatcher, decision, own, PlainRequest())
        answer.close()


async def test_nor_does_its_second_attempt_without_the_option_for_usage(up: FakeUpstream) -> None:
    decision = make_decision(STREAM)
    async with dispatching({"llama": make_upstream(up.url, concurrency=1)}) as (dispatcher, _):
        gate = dispatcher.upstreams.gate("llama")
        held = meeting.Gate()
        up.script([held.op, *json_reply({"error": {"message": "no stream_options here"}}, 400)])
        own = make_exchange(decision)
        own.origin = "shadow"
        begun = asyncio.create_task(first_answer(dispatcher, decision, own, PlainRequest()))
        assert await asyncio.to_thread(up.wait, lambda: up.log, 3)
        client = asyncio.create_task(enter_first([gate]))
        await asyncio.sleep(0)  # the client stands in line
        held.open()
        with pytest.raises(UpstreamBusy):
            await asyncio.wait_for(begun, 3)
        await client
        gate.leave()
    assert len(up.log) == 1


async def test_a_full_line_does_not_hide_what_an_attempt_came_to(up: FakeUpstream) -> None:
    up.default = by_name({"one": [("rst",)], "two": OK})
    decision = decision_under()
    upstreams = {**two(up), "two": make_upstream(f"{up.url}/two", concurrency=1, queue={"length": 0})}
    async with dispatching(upstreams) as (dispatcher, _):
        gate = dispatcher.upstreams.gate("two")
        assert gate.try_enter()
        exchange = make_exchange(decision)
        with pytest.raises(UpstreamBroken):
            await first_answer(dispatcher, decision, exchange, PlainRequest())
        gate.leave()
    assert exchange.attempts_of_unknown_cost == 1


async def test_a_refusal_that_is_kept_back_takes_up_no_room(up: FakeUpstream) -> None:
    up.script(REFUSED, OK)
    upstreams = {"llama": make_upstream(up.url, concurrency=1, queue={"length": 0})}
    status, _, _, _ = await send(upstreams, make_decision())
    assert status == 200


async def fill_pool(dispatcher: Dispatcher, decision: Decision, connections: int = 1) -> None:
    """Leave so many connections behind that have served and are kept."""
    sent = [first_answer(dispatcher, decision, make_exchange(decision), PlainRequest()) for _ in range(connections)]
    for answer in await asyncio.gather(*sent):
        await answer.read_whole(100_000)
        answer.close()


async def test_stale_connections_are_nobodys_business(up: FakeUpstream) -> None:
    up.default = lambda _: OK
    decision = make_decision()
    exchange = make_exchange(decision)
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, metrics):
        await fill_pool(dispatcher, decision, 3)
        up.kill_reused = True
        answer = await first_answer(dispatcher, decision, exchange, PlainRequest())
        answer.close()
    assert answer.status == 200
    assert [request.dropped for request in up.log] == [False] * 3 + [True, False]
    assert (exchange.attempts, exchange.is_sent_upstream) == (2, True)
    assert series(metrics, "upstream_errors_total") == {}
    assert series(metrics, "upstream_retries_total") == {("llama",): 1.0}


async def test_an_attempt_that_nobody_read_is_none_of_three(up: FakeUpstream) -> None:
    up.script(OK, OK, OK, REFUSED, REFUSED, [("rst",)], REFUSED)
    decision = make_decision()
    exchange = make_exchange(decision)
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, metrics):
        await fill_pool(dispatcher, decision, 3)
        answer = await first_answer(dispatcher, decision, exchange, PlainRequest())
        answer.close()
    assert (answer.status, exchange.attempts, len(up.log)) == (503, 4, 7)
    assert series(metrics, "upstream_errors_total") == {("llama", "5xx"): 3.0}


async def test_what_was_read_and_then_lost_is_not_sent_again(up: FakeUpstream) -> None:
    up.script(OK, [("sleep", 0.8), ("rst",)])
    decision = make_decision()
    exchange = make_exchange(decision)
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, metrics):
        await fill_pool(dispatcher, decision)
        with pytest.raises(UpstreamBroken):
            await first_answer(dispatcher, decision, exchange, PlainRequest())
    assert len(up.log) == 2
    assert (exchange.attempts, exchange.is_sent_upstream) == (1, True)
    assert series(metrics, "upstream_errors_total") == {("llama", "broken"): 1.0}


# Answers that nobody should see --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [STREAM, {"prompt": "x"}], ids=["stream", "whole"])
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(json_reply({"error": {"message": "bad key sk-secret"}}, 401), id="401"),
        pytest.param(json_reply({"error": {"message": "no"}}, 403), id="403"),
        pytest.param([("send", head(302, [("Location", "/v1/other"), ("Content-Length", 0)]))], id="a redirect"),
        pytest.param([("send", head(304, []))], id="not modified"),
        pytest.param(body_reply(b"<html>", ctype="text/html; charset=utf-8"), id="HTML with status 200"),
        pytest.param(body_reply(b"<html>", 404, ctype="text/html"), id="HTML with status 404"),
        pytest.param([("send", head(401, [("Content-Length", 99)])), ("hold", 5)], id="401 and no body"),
        pytest.param(body_reply(b'{"text": "secret"}', ctype="text/html"), id="a completion that calls itself HTML"),
        pytest.param(json_reply({}, 407), id="407"),
        pytest.param(json_reply({}, 600), id="600"),
        pytest.param(json_reply({}, 999), id="999"),
        pytest.param([("send", head(101, [("Upgrade", "x"), ("Connection", "Upgrade")]))], id="101"),
    ],
)
async def test_answers_that_are_not_the_clients_business(
    up: FakeUpstream, fields: dict[str, Any], reply: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    up.default = lambda _: reply
    decision = make_decision(fields)
    exchange = make_exchange(decision)
    async with dispatching({"llama": make_upstream(up.url + "/v1")}, bounds=QUICK) as (dispatcher, metrics):
        with pytest.raises(UpstreamUnusable) as raised:
            await first_answer(dispatcher, decision, exchange, PlainRequest())
    assert "secret" not in raised.value.message
    assert "upstream llama answered" in caplog.text
    assert '"text"' not in caplog.text
    assert len(up.log) == 1
    assert series(metrics, "upstream_errors_total")[("llama", "unusable")] == 1
    assert metrics.open_streams.value == 0


async def test_a_stream_that_was_not_asked_for_is_unusable(up: FakeUpstream, caplog: pytest.LogCaptureFixture) -> None:
    up.script(sse_reply([ev(tchunk("secret", finish="stop")), DONE]))
    with pytest.raises(UpstreamUnusable, match="event stream"):
        await send({"llama": make_upstream(up.url + "/v1")}, make_decision())
    assert "upstream llama answered 200" in caplog.text
    assert "secret" not in caplog.text


async def test_html_from_a_balancer_is_unusable_after_all_attempts(up: FakeUpstream) -> None:
    up.default = lambda _: body_reply(b"<html>", 502, ctype="text/html")
    with pytest.raises(UpstreamUnusable):
        await send({"llama": make_upstream(up.url + "/v1")}, make_decision())
    assert len(up.log) == 3


async def test_a_cancelled_sending_cancels_the_upstream(up: FakeUpstream) -> None:
    up.default = lambda _: [("hold", 30)]
    decision = make_decision()
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, _):
        task = asyncio.create_task(first_answer(dispatcher, decision, make_exchange(decision), PlainRequest()))
        assert await asyncio.to_thread(up.wait, lambda: up.log, 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(up.wait, lambda: up.log[0].aborted_at, 3)


async def test_a_client_that_leaves_while_a_refusal_is_read_cancels_the_upstream(up: FakeUpstream) -> None:
    fields = [("Content-Type", "text/event-stream"), ("Content-Length", 99)]
    up.default = lambda _: [("send", head(400, fields) + b"data: "), ("hold", 30)]
    decision = make_decision(STREAM)
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, metrics):
        task = asyncio.create_task(first_answer(dispatcher, decision, make_exchange(decision), PlainRequest()))
        assert await asyncio.to_thread(up.wait, lambda: metrics.open_streams.value, 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert metrics.open_streams.value == 0
        assert await asyncio.to_thread(up.wait, lambda: up.log[0].aborted_at, 3)


HELD = [("hold", 30)]


@pytest.mark.parametrize(
    ("replies", "takes_up", "is_sent"),
    [
        pytest.param([HELD], [True], True, id="sent, and not answered yet"),
        pytest.param([REFUSED, HELD], [True, True], True, id="sent to the second one"),
        pytest.param([], [False], False, id="not taken up"),
        pytest.param([REFUSED], [True, False], False, id="refused by one, not taken up by the other"),
    ],
)
async def test_a_client_that_leaves_leaves_told_whether_its_request_is_upstream(
    up: FakeUpstream, replies: list[Any], takes_up: list[bool], *, is_sent: bool
) -> None:
    up.script(*replies)
    with busy_port() as busy:
        addresses = [up.url if does else f"http://127.0.0.1:{busy}" for does in takes_up]
        upstreams = {f"u{number}": make_upstream(address) for number, address in enumerate(addresses)}
        decision = make_decision(deployments=[Deployment(upstream=name) for name in upstreams])
        exchange = make_exchange(decision)
        async with dispatching(upstreams) as (dispatcher, _):
            task = asyncio.create_task(first_answer(dispatcher, decision, exchange, PlainRequest()))
            assert await asyncio.to_thread(
                up.wait, lambda: (exchange.attempts, len(up.log)) == (len(takes_up), len(replies)), 5
            )
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert exchange.is_sent_upstream is is_sent


async def test_open_streams_are_counted(up: FakeUpstream) -> None:
    up.script(sse_reply([ev(tchunk("a")), DONE]))
    decision = make_decision(STREAM)
    async with dispatching({"llama": make_upstream(up.url + "/v1")}) as (dispatcher, metrics):
        answer = await first_answer(dispatcher, decision, make_exchange(decision), PlainRequest())
        assert metrics.open_streams.value == 1
        answer.close()
        assert metrics.open_streams.value == 0
        assert answer.is_usage_added
