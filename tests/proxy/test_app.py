from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
from fake_upstream import DONE, ev, sse_reply, tchunk
from sending import MemoryWriter, fake_upstream, up
from whole import KEY, Sent, configuration, whole_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer
    from whole import Whole

__all__ = ["fake_upstream", "up"]

STREAM = b'{"model":"m","prompt":"x","stream":true}'


def counted(whole: Whole) -> dict[tuple[str, str], float]:
    """Return requests by status class and outcome."""
    series = whole.metrics.requests_total.series()
    return {(labels[3], labels[4]): value for labels, value in series if not isinstance(value, list)}


def stream_request() -> Sent:
    return Sent("POST", "/v1/completions", fields=[("Authorization", f"Bearer {KEY}")], body=STREAM)


@pytest.mark.parametrize(
    ("method", "target", "label", "counts"),
    [
        ("GET", "/v1/models", "/v1/models", {("2xx", "completed"): 1}),
        ("GET", "/v1/none", "unknown", {("4xx", "rejected"): 1}),
        ("GET", "/v1/completions", "unknown", {("4xx", "rejected"): 1}),
    ],
)
async def test_every_request_is_counted_once_under_its_route(
    method: str, target: str, label: str, counts: dict[tuple[str, str], float], valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        await whole.ask(method, target)
        assert counted(whole) == counts
        assert [labels[0] for labels, _ in whole.metrics.requests_total.series()] == [label]


async def test_a_client_that_leaves_within_a_stream_is_counted_as_such(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script(sse_reply([ev(tchunk("a")), 0.05, ev(tchunk("b")), 0.05, ev(tchunk("", finish="stop")), DONE]))
    async with whole_gateway(configuration(up.url, tmp_path), valkey.url) as whole:
        await whole.gateway.answer(stream_request(), MemoryWriter(leaves_after=1))
        assert counted(whole) == {("2xx", "client_left"): 1}


async def test_a_client_that_leaves_before_the_first_byte_is_counted_as_such(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    up.script([("hold", 30)])
    async with whole_gateway(configuration(up.url, tmp_path), valkey.url) as whole:
        asked = asyncio.create_task(whole.gateway.answer(stream_request(), MemoryWriter()))
        assert await asyncio.to_thread(up.wait, lambda: bool(up.log))
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert counted(whole) == {("none", "client_left"): 1}
        assert await asyncio.to_thread(up.wait, lambda: up.log[0].aborted_at is not None)


async def test_a_prepared_configuration_is_in_force_once_it_is_switched_to(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    new = configuration(up.url, tmp_path, policies={"default": {"models": ["hidden"]}}, join_wait="7s")
    async with whole_gateway(configuration(up.url, tmp_path), valkey.url) as whole:
        before = whole.gateway.snapshot
        prepared = await whole.gateway.prepare(new)
        assert whole.gateway.snapshot is before
        assert (await whole.ask("POST", "/v1/completions", STREAM))[0].status == 200
        whole.gateway.switch(prepared)
        assert (await whole.ask("POST", "/v1/completions", STREAM))[0].status == 403
        assert whole.gateway.snapshot.version == new.version != before.version
        assert whole.gateway.snapshot.admissions is before.admissions
        assert before.admissions.join_wait_seconds == 7


async def test_a_request_keeps_what_it_began_with(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    without = configuration(up.url, tmp_path, models={}, projects=[{"id": "proj"}], upstreams={})
    is_released = threading.Event()
    up.script([*sse_reply([ev(tchunk("a"))])[:-1], ("until", is_released.is_set), *sse_reply([DONE])[1:]])
    async with whole_gateway(configuration(up.url, tmp_path), valkey.url) as whole:
        writer = MemoryWriter()
        asked = asyncio.create_task(whole.gateway.answer(stream_request(), writer))
        assert await asyncio.to_thread(up.wait, lambda: bool(up.log))
        whole.gateway.switch(await whole.gateway.prepare(without))
        assert (await whole.ask("POST", "/v1/completions", STREAM))[0].status == 404
        is_released.set()
        await asked
        assert (writer.status, writer.body.endswith(DONE)) == (200, True)


async def test_of_former_configurations_nothing_is_kept(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    made = configuration(up.url, tmp_path)
    async with whole_gateway(made, valkey.url) as whole:
        former = []
        for _ in range(3):
            await whole.ask("POST", "/v1/completions", STREAM)
            former.append(weakref.ref(whole.gateway.snapshot.rulebook))
            whole.gateway.switch(await whole.gateway.prepare(made))
        gc.collect()
        assert [each for each in former if each() is not None] == []


async def test_requests_get_ids_of_their_own(valkey: StoreServer, tmp_path: Path) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answers = [(await whole.ask("GET", "/healthz"))[0] for _ in range(3)]
    ids = {answer.header("x-request-id") for answer in answers}
    assert len(ids) == 3
    assert all(each.startswith("req_") and len(each) == 36 for each in ids)
