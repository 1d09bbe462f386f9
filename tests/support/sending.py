"""What tests of the upstream half need: real decisions, a request, a writer in memory, and a settlement that notes.

The scripted upstream of `fake_upstream` is shared by a session and reset for each test.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import UPSTREAM_KEY, FakeUpstream

from policies.cacheability import Bypass, Keyed
from policies.catalog import Deployment, Model, ModelSettings
from policies.charges import WorstCase
from policies.decision import Decision
from policies.merging import merge
from policies.principals import Principal
from policies.requests.asked import Dialect, EffectiveRequest, Endpoint
from policies.requests.dialects import read_request
from proxy.config import Configuration, Timeouts
from proxy.config_upstreams import Upstream
from proxy.errors import ClientLeft
from proxy.exchange import Exchange
from proxy.metrics import Metrics
from proxy.upstreams.client import ClientBounds, UpstreamClient
from proxy.upstreams.live import Upstreams, targets_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from policies.cacheability import CachePlan
    from proxy.exchange import Headers
    from proxy.store.entries import StoredAnswer
    from proxy.upstreams.client import UpstreamAnswer
    from proxy.upstreams.dispatch import Dispatcher

BOUNDS = ClientBounds(connect_seconds=2, first_byte_seconds=5, silence_seconds=5)
KEYED = Keyed(key="k" * 64, ttl_seconds=60)
BYPASS = Bypass("not-deterministic")
ALICE = Principal("org_acme", "proj_research", "alice", "key_alice")


@pytest.fixture(scope="session")
def fake_upstream() -> FakeUpstream:
    return FakeUpstream().start()


@pytest.fixture
def up(fake_upstream: FakeUpstream) -> Iterator[FakeUpstream]:
    fake_upstream.reset()
    yield fake_upstream
    fake_upstream.reset()


class PlainRequest:
    """A request of which only header fields matter."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self.method, self.path, self.query = "POST", "/v1/completions", ""
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}

    def header(self, name: str) -> str | None:
        return self._headers.get(name.lower())

    def headers(self, name: str) -> Sequence[str]:
        value = self.header(name)
        return () if value is None else (value,)

    async def read(self) -> bytes:
        raise AssertionError("the body was read before")


@dataclass
class MemoryWriter:
    """Keeps what it is given. `leaves_after`: the client is gone once so many writes have been taken."""

    leaves_after: int | None = None
    status: int = 0
    fields: Headers = field(default_factory=list)
    writes: list[bytes] = field(default_factory=list)
    is_started: bool = False
    is_finished: bool = False
    is_aborted: bool = False
    has_written: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, status: int, headers: Headers) -> None:
        assert not self.is_started, "a head was sent twice"
        self.status, self.fields, self.is_started = status, headers, True

    async def write(self, data: bytes) -> None:
        assert self.is_started, "a body came before its head"
        assert not self.is_finished, "a body came after its end"
        assert data, "an empty write ends a chunked body"
        if self.leaves_after is not None and len(self.writes) >= self.leaves_after:
            raise ClientLeft
        self.writes.append(data)
        self.has_written.set()

    async def finish(self) -> None:
        assert not self.is_finished, "a body ended twice"
        self.is_finished = True

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        await self.start(status, headers)
        if body:
            await self.write(body)
        await self.finish()

    def abort(self) -> None:
        self.is_aborted = True

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.fields if each.lower() == name.lower()), None)


@dataclass
class Settlement:
    """Notes what is settled, and how far the answer had got by then."""

    writer: MemoryWriter
    exchange: Exchange
    entries: list[StoredAnswer | None] = field(default_factory=list)
    written_before: bytes = b""
    outcome: str = ""
    status: int = 0

    async def __call__(self, entry: StoredAnswer | None) -> None:
        self.entries.append(entry)
        self.written_before = self.writer.body
        self.outcome = self.exchange.outcome.value
        self.status = self.exchange.status


def make_decision(
    fields: Mapping[str, Any] | None = None,
    *,
    model: str = "m",
    deployments: Sequence[Deployment] = (Deployment(upstream="llama"),),
    endpoint: Endpoint = Endpoint.COMPLETIONS,
    dialect: Dialect = Dialect.OPENAI,
    api_version: str | None = None,
    cache: CachePlan = BYPASS,
) -> Decision:
    """Return a decision to send these fields to these deployments."""
    body = {"model": model, **({"prompt": "x"} if fields is None else fields)}
    in_path = dialect is not Dialect.OPENAI and endpoint is not Endpoint.RESPONSES
    if in_path:
        del body["model"]
    asked = read_request(
        endpoint=endpoint, dialect=dialect, fields=body, path_model=model if in_path else None, api_version=api_version
    )
    return Decision(
        asked=asked,
        principal=ALICE,
        model=Model(model, ModelSettings(deployments=tuple(deployments))),
        policy=merge(()),
        effective=EffectiveRequest(endpoint, asked.fields, asked.view),
        adjustments=(),
        observed=(),
        advisories=(),
        worst_case=WorstCase(1, 16, 0),
        limits=(),
        cache=cache,
        candidates=tuple(deployments),
    )


def make_exchange(decision: Decision) -> Exchange:
    """Return an exchange that has just been admitted."""
    return Exchange("req_1", 1_700_000_000.0, 0.0, principal=ALICE, decision=decision)


def make_upstream(base_url: str, *, kind: str = "openai", **settings: Any) -> Upstream:  # noqa: ANN401  any setting
    """Return an upstream's settings with the key that the scripted upstream knows."""
    return Upstream.model_validate({"kind": kind, "base_url": base_url, "api_key": UPSTREAM_KEY, **settings})


@contextmanager
def busy_port() -> Iterator[int]:
    """Listen on a port where nobody takes up a connection, and no more find room to wait."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as server:
        waiting = [socket.socket() for _ in range(3)]
        try:
            for each in waiting:
                each.setblocking(False)  # noqa: FBT003  the socket's own signature
                each.connect_ex(server.getsockname())
            yield server.getsockname()[1]
        finally:
            for each in waiting:
                each.close()


@asynccontextmanager
async def dispatching(
    upstreams: Mapping[str, Upstream], *, bounds: ClientBounds = BOUNDS
) -> AsyncIterator[tuple[Dispatcher, Metrics]]:
    """Open a dispatcher over these upstreams, with its metrics."""
    metrics = Metrics()
    timeouts = Timeouts.model_validate(
        {
            "connect": bounds.connect_seconds,
            "first_byte": bounds.first_byte_seconds,
            "silence": bounds.silence_seconds,
        }
    )
    model = ModelSettings(deployments=tuple(Deployment(upstream=name) for name in upstreams))
    configuration = Configuration(upstreams=dict(upstreams), models={"m": model}, timeouts=timeouts)
    async with (
        UpstreamClient() as client,
        Upstreams(client, metrics=metrics, worker=0, workers=1) as live,
    ):
        yield dispatcher_of(live, configuration), metrics


def dispatcher_of(live: Upstreams, configuration: Configuration) -> Dispatcher:
    """Let a configuration hold, and return what sends requests under it."""
    targets = targets_of(configuration, {})
    live.adopt(configuration, targets)
    return live.dispatcher(configuration, targets)


async def first_answer(
    dispatcher: Dispatcher, decision: Decision, exchange: Exchange, request: PlainRequest
) -> UpstreamAnswer:
    """Return the first answer that is worth passing on."""
    async with dispatcher.begin(decision, exchange, request) as sending:
        return await sending.answer()


def series(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Return the counters of one metric by label values."""
    family = next(family for family in metrics.families if family.name == name)
    return {tuple(labels): data for labels, data in family.series() if not isinstance(data, list)}
