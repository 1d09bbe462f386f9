"""One exchange: the facts of a request under way, written where they arise and read by everyone who tells them.

Log line, metrics, usage record and response headers are made from this value; it makes none of them itself. It also
declares what the path needs of a server: a request value and a writer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from policies.usage import CLIENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.catalog import Model
    from policies.charges import Charged
    from policies.decision import Decision
    from policies.principals import Principal
    from policies.requests.asked import Adjustment, AskedRequest
    from policies.usage import Saved, Usage
    from proxy.durations import Durations
    from proxy.wire.choice_texts import ChoiceTexts

_MICROSECOND_DIGITS = 6

Headers = list[tuple[str, str]]
"""Header fields in order; names as they are to be sent, compared without regard to case."""


class Request(Protocol):
    """What the path may know of a request."""

    @property
    def method(self) -> str:
        """In capitals, as sent."""

    @property
    def path(self) -> str:
        """Raw path, percent-encoding untouched, without the query."""

    @property
    def query(self) -> str:
        """Raw query string without the question mark."""

    def header(self, name: str) -> str | None:
        """First value of a header (name in any case), or None."""

    def headers(self, name: str) -> Sequence[str]:
        """All values of a header in order."""

    async def read(self) -> bytes:
        """Read the whole body, decompressed, within the bounds of SPEC §3.

        Raises PayloadTooLarge, UnsupportedMedia, InvalidRequest or BodyTooSlow.
        """


class Writer(Protocol):
    """Where an answer goes. `start` once, then `write` any number of times, then `finish`."""

    @property
    def is_started(self) -> bool:
        """Whether the head has left."""

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""

    async def write(self, data: bytes) -> None:
        """Send bytes of the body at once; waits while the client is too slow to take them (back pressure)."""

    async def finish(self) -> None:
        """End the body cleanly."""

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer, with its Content-Length, in one go."""

    def abort(self) -> None:
        """Break the connection, so that an answer that has begun cannot be taken for a whole one."""


def new_request_id() -> str:
    """Return an id of the gateway's own: whatever a client sends for one is only recorded (SPEC §5)."""
    return f"req_{uuid4().hex}"


class Outcome(StrEnum):
    """How an exchange ended, for metrics, log and usage record."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    UPSTREAM_ERROR = "upstream_error"
    INCOMPLETE = "incomplete"
    CLIENT_LEFT = "client_left"
    FAILED = "failed"


class CacheResult(StrEnum):
    """Verdict of the cache, as the metric's label."""

    HIT = "hit"
    MISS = "miss"
    BYPASS = "bypass"
    STALE = "stale"
    PARTIAL = "partial"
    """Of several items some were served from the cache, and the others fetched."""


@dataclass(slots=True)
class Observed:
    """What was seen of an answer while it passed.

    `usage` is the upstream's own report, None when it made none. `content_events` and `content_bytes` count what was
    generated, for answers that ended without a report; `choices_with_text` does so of a whole answer, and `texts` keeps
    it where a tokenizer can count it. `token_gaps` are the times between pieces of a stream, None until there are two;
    they are counted and not listed, as there may be very many. `is_complete` is the cache's condition: the transport
    ended well, every choice has a finish_reason, and `[DONE]` came where the kind ends with it.
    """

    usage: Usage | None = None
    model: str | None = None
    fingerprint: str | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)
    content_events: int = 0
    content_bytes: int = 0
    choices_with_text: int = 0
    texts: ChoiceTexts | None = None
    is_complete: bool = False
    token_gaps: Durations | None = None


@dataclass(slots=True)
class Exchange:
    """Facts of one request. Times are `time.monotonic()` seconds but `started_at`: Unix seconds of the store's clock.

    `origin` is who sent the request: a client, or the gateway itself.
    `is_recorded`: the request is one that leaves a usage record, as all do that generate and whose principal is known.
    `asked` and `model` are known of a request that could be read, whatever is decided; `model` is None for one that is
    not configured.
    `request_facts` are what records say of a request that was decided on; they are made once.
    `observed_refusals` tells of limits that are observed and would have refused it.
    `waited_seconds`: how long it stood in line for room in its limits.
    `saved` is what the cache saved the request: one for each stored answer that served it, or an item of it.
    `is_collapsed`: it joined the fetch of another request; `items_known`: how many of how many items of its array were
    served from the cache.
    `attempts_of_unknown_cost`: how many attempts an upstream may be billing although they brought no answer.
    `is_sent_upstream`: the latest attempt's request has been written, so that its upstream may have begun to generate.
    """

    request_id: str
    started_at: float
    started: float
    configuration_version: str = ""
    route: str = "unknown"
    origin: str = CLIENT
    is_recorded: bool = False
    client_request_id: str | None = None
    principal: Principal | None = None
    asked: AskedRequest | None = None
    model: Model | None = None
    decision: Decision | None = None
    request_facts: dict[str, Any] | None = None
    observed_refusals: tuple[Adjustment, ...] = ()
    waited_seconds: float = 0.0
    charged: Charged | None = None
    status: int = 0
    outcome: Outcome = Outcome.FAILED
    error_code: str | None = None
    cache: CacheResult = CacheResult.BYPASS
    cache_reason: str | None = None
    saved: tuple[Saved, ...] = ()
    is_stored: bool = False
    is_collapsed: bool = False
    items_known: tuple[int, int] | None = None
    deployment: str | None = None
    upstream: str | None = None
    upstream_request_id: str | None = None
    upstream_status: int | None = None
    is_sent_upstream: bool = False
    attempts: int = 0
    attempts_of_unknown_cost: int = 0
    answer: Observed = field(default_factory=Observed)
    first_byte: float | None = None
    ended: float | None = None

    def unix_milliseconds(self, moment: float) -> int:
        """Return Unix milliseconds of a moment of `time.monotonic()`, by the clock that `started_at` was read from."""
        return round((self.started_at + moment - self.started) * 1000)

    @property
    def duration_seconds(self) -> float | None:
        """From the request's head to the end of its answer; None until then."""
        return _span_seconds(self.started, self.ended)

    @property
    def time_to_first_token_seconds(self) -> float | None:
        """From the request's head to the first token of a stream; whole answers and stored ones have none."""
        return _span_seconds(self.started, self.first_byte) if self.answer.content_events else None


def _span_seconds(started: float, then: float | None) -> float | None:
    return None if then is None else round(then - started, _MICROSECOND_DIGITS)
