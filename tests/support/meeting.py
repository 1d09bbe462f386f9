"""Many who ask the same of a gateway at once: scripted answers that wait at a gate, and requests under way.

Knows a whole gateway in this process (`whole`) and how its requests can be counted; nothing of how they are answered.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fake_upstream import DONE, chunk, ev, json_reply, sse_head, tchunk, usage
from harness import joined
from sending import MemoryWriter
from stores import eventually
from whole import KEY, Sent, Whole

from proxy.purges import event_of, order_purge
from proxy.store.audit import Actor
from proxy.store.purges import purge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fake_upstream import FakeUpstream, Ops
    from stores import StoreServer

    from proxy.flights import Flight

ASKED = {"model": "m", "prompt": "hello", "temperature": 0, "max_tokens": 40}
STREAMED = {**ASKED, "stream": True}
WITH_USAGE = {**STREAMED, "stream_options": {"include_usage": True}}
TOKENS = 20
"""What an answer takes: 7 for its prompt, 13 for its text."""
USAGE_EVENT = ev({**tchunk(""), "choices": [], "usage": usage(TOKENS)})
TEXT = "one two three"
EVENTS = (ev(tchunk("one ")), ev(tchunk("two ")), ev(tchunk("three")), ev(tchunk("", finish="stop")), USAGE_EVENT, DONE)
WHOLE = {
    "id": "c-1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}],
    "usage": usage(TOKENS),
}
COLLAPSED = "tidegate;fwd=miss;collapsed"
"""What `Cache-Status` says to those who join."""


class Gate:
    """Holds a scripted answer up until it is opened."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.open = self._event.set
        self.op = ("until", self._event.is_set)


def whole_after(gate: Gate, answer: Mapping[str, Any] = WHOLE, status: int = 200) -> Ops:
    return [gate.op, *json_reply(answer, status)]


def stream_with(events: Iterable[bytes | Gate], *, end: str = "ok") -> Ops:
    ops: Ops = [("send", sse_head())]
    for event in events:
        ops.append(event.op if isinstance(event, Gate) else ("send", chunk(event)))
    return ops + {"ok": [("send", b"0\r\n\r\n")], "rst": [("rst",)]}[end]


@dataclass
class Call:
    """One request under way."""

    task: asyncio.Task[None]
    writer: MemoryWriter

    async def answer(self) -> MemoryWriter:
        async with asyncio.timeout(10):
            await self.task
        return self.writer

    async def leave(self) -> None:
        """Close the connection, as a client does."""
        self.task.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait([self.task])


@dataclass
class Meeting:
    """A gateway and its upstream, and those who ask for the same."""

    whole: Whole
    up: FakeUpstream
    store: StoreServer
    calls: list[Call] = field(default_factory=list)

    def ask(
        self, body: Mapping[str, Any], *, key: str = KEY, writer: MemoryWriter | None = None, **fields: str
    ) -> Call:
        named = {"Authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in fields.items()}}
        raw = json.dumps(body).encode()
        sent, writer = Sent("POST", "/v1/completions", "", tuple(named.items()), raw), writer or MemoryWriter()
        call = Call(asyncio.create_task(self.whole.gateway.answer(sent, writer)), writer)
        self.calls.append(call)
        return call

    @property
    def here(self) -> int:
        """How many are admitted, and so lead or have joined by now."""
        return len(self.whole.gateway.snapshot.admissions.live)

    async def all_are_here(self, count: int) -> None:
        await eventually(lambda: self.here == count)

    async def lead(self, body: Mapping[str, Any], **more: Any) -> Call:  # noqa: ANN401  as `ask` takes them
        """Ask, and wait until the upstream has got it."""
        served = len(self.up.served)
        call = self.ask(body, **more)
        await eventually(lambda: len(self.up.served) > served)
        return call

    async def join(self, *bodies: Mapping[str, Any], **more: Any) -> list[Call]:  # noqa: ANN401
        """Ask, and wait until all have joined."""
        before = self.here
        calls = [self.ask(body, **more) for body in bodies]
        await self.all_are_here(before + len(bodies))
        return calls

    async def purge(self) -> None:
        """Purge everything, as an administrator does."""
        snapshot = self.whole.gateway.snapshot
        order = order_purge(snapshot.configuration, everything=True)
        event = event_of(order, Actor("api_key", "ops"))
        await purge(snapshot.admissions.state, snapshot.configuration.organization.id, order.selection.scopes, event)

    def flight(self) -> Flight:
        [flight] = self.whole.gateway.snapshot.admissions.flights._by_key.values()  # noqa: SLF001
        return flight

    async def records(self) -> list[dict[str, Any]]:
        """Return the usage records of all who asked, in the order in which they asked."""
        await eventually(lambda: len(self.all_records()) >= len(self.calls))
        by_id = {record["request_id"]: record for record in self.all_records()}
        return [record for call in self.calls if (record := by_id.get(call.writer.header("x-request-id") or ""))]

    def all_records(self) -> list[dict[str, Any]]:
        """Return the usage records so far; those of clients that have left have no answer that names them."""
        with self.store.client() as client:
            found = []
            for key in client.scan_iter(_type="stream"):
                found += [json.loads(value) for _, entry in client.xrange(key) for value in entry.values()]
            return found

    def lease_keys(self) -> list[bytes]:
        with self.store.client() as client:
            return [key for key in client.scan_iter() if b":flight:" in key]


def text_of(answer: MemoryWriter) -> str:
    if (answer.header("content-type") or "").startswith("text/event-stream"):
        return joined(answer.body)[0]
    return str(json.loads(answer.body)["choices"][0]["text"])
