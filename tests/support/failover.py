"""Clients that go on asking while an upstream falls ill, and what they, the upstreams and the gateway tell of it.

Requests come when they are due, whether or not earlier ones were answered (an open loop). Knows how to ask and what to
look at; what ails which upstream when is told elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gateway import bearer
from harness import call, has_error_event
from swarm import read_head, read_pieces, request_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ailing_upstream import UpstreamProcess

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CLIENT_SECONDS: Final = 30.0
"""How long a client waits for the whole of an answer."""
SAMPLE_SECONDS: Final = 0.2
_STATE = re.compile(r"^tidegate_upstream_breaker_state\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

_numbers = count(1)


@dataclass
class Asked:
    """One request of a client and what became of it; times in seconds, `status` 0 where no answer came."""

    began: float
    is_stream: bool
    status: int = 0
    took: float = 0.0
    body: bytes = b""
    error: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether the answer is waited for."""
        return self.took == 0.0

    @property
    def has_failed(self) -> bool:
        """Whether the client did not get a whole good answer."""
        return self.error is not None

    @property
    def has_begun(self) -> bool:
        """Whether its stream had begun to reach the client: nothing can take that back."""
        return self.status == 200 and self.is_stream


class Clients:
    """Clients of one model that keep their connections and share them."""

    def __init__(self, base_url: str, *, model: str, user: str) -> None:
        self.asked: list[Asked] = []
        self._where = urlsplit(base_url)
        self._model = model
        self._headers = bearer(user)
        self._idle: list[Streams] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def wait_since_before(self, moment: float) -> bool:
        """Tell whether somebody who asked before then waits still."""
        return any(each.is_open and each.began < moment for each in self.asked)

    def begin(self, *, is_stream: bool, prompt: str | None = None) -> None:
        """Ask in the background; without a prompt, what was not asked before."""
        asked = Asked(time.monotonic(), is_stream)
        self.asked.append(asked)
        prompt = prompt or f"number {next(_numbers)}"
        body = {"model": self._model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
        raw = json.dumps({**body, "stream": is_stream}).encode()
        task = asyncio.create_task(self._ask(asked, request_bytes("/v1/completions", self._headers, raw)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def all_have_ended(self) -> None:
        """Wait for whoever still waits."""
        await asyncio.gather(*self._tasks)
        for _, writer in self._idle:
            writer.close()

    async def leave(self) -> None:
        """Have all who still wait close their connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, asked: Asked, request: bytes) -> None:
        try:
            async with asyncio.timeout(CLIENT_SECONDS):
                await self._exchange(asked, request)
            asked.error = _fault_in(asked)
        except TimeoutError:
            asked.error = "no whole answer in time"
        except (OSError, asyncio.IncompleteReadError) as error:
            asked.error = f"the gateway broke the connection ({type(error).__name__})"
        asked.took = time.monotonic() - asked.began

    async def _exchange(self, asked: Asked, request: bytes) -> None:
        streams = self._take_idle() or await asyncio.open_connection(self._where.hostname, self._where.port)
        reader, writer = streams
        is_whole = False
        try:
            writer.write(request)
            asked.status, asked.headers = await read_head(reader)
            async for piece in read_pieces(reader, asked.headers):
                asked.body += piece
            is_whole = asked.headers.get("connection", "").lower() != "close"
        finally:
            if is_whole:
                self._idle.append(streams)
            else:
                writer.close()

    def _take_idle(self) -> Streams | None:
        """Take a connection that was kept, but none that the gateway has closed since."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return None


def _fault_in(asked: Asked) -> str | None:
    """Say what is wrong with an answer that came to its end."""
    if asked.status != 200:
        return f"{asked.status} {_code_in(asked.body)}"
    if asked.is_stream:
        if has_error_event(asked.body):
            return "an error event"
        return None if asked.body.endswith(b"data: [DONE]\n\n") else "a stream without its end"
    return None if b'"finish_reason": "stop"' in asked.body else "an answer that is none"


def _code_in(body: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["code"])
    return "without a code"


@asynccontextmanager
async def load(clients: Clients, *, rate: float, seed: int) -> AsyncIterator[None]:
    """Have `rate` requests a second come at random, about half of them for streams; wait for the last at the end."""

    async def arrive() -> None:
        draw = random.Random(seed)  # noqa: S311  arrivals that can be repeated
        due = time.monotonic()
        while True:
            due += draw.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            clients.begin(is_stream=draw.random() < 0.5)

    arriving = asyncio.create_task(arrive())
    try:
        yield
    finally:
        arriving.cancel()
        with suppress(asyncio.CancelledError):
            await arriving
        await clients.all_have_ended()


@dataclass(frozen=True)
class Sample:
    """How things stood at a moment: calls so far and the state of the breaker, by upstream."""

    at: float
    calls: Mapping[str, int]
    states: Mapping[str, str]


class Watch:
    """Looks at upstreams and breakers again and again."""

    def __init__(self, admin_url: str, upstreams: Sequence[UpstreamProcess], *, model: str) -> None:
        self.samples: list[Sample] = []
        self._admin_url = admin_url
        self._upstreams = upstreams
        self._model = model

    def state(self, upstream: str) -> str:
        """Return the latest state of an upstream's breaker, as far as it is known."""
        return self.samples[-1].states.get(upstream, "closed") if self.samples else "closed"

    async def look(self) -> Sample:
        """Look once."""
        page = (await asyncio.to_thread(call, self._admin_url, "GET", "/metrics")).body.decode()
        told = [dict(_LABEL.findall(labels)) for labels, value in _STATE.findall(page) if float(value) > 0]
        states = {labels["upstream"]: labels["state"] for labels in told if labels["model"] == self._model}
        sample = Sample(time.monotonic(), {each.name: each.calls for each in self._upstreams}, states)
        self.samples.append(sample)
        return sample

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Look every now and then while inside."""

        async def repeat() -> None:
            while True:
                began = time.monotonic()
                await self.look()
                await asyncio.sleep(max(0.0, SAMPLE_SECONDS - (time.monotonic() - began)))

        task = asyncio.create_task(repeat())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
