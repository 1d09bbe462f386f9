"""Warming the cache: requests of a file, sent through the data plane like any client's, and what became of them.

What became of a request is read from its answer: status, and `Cache-Status` (RFC 9211), which this gateway sends. Where
a limit has no room the request waits as long as it is told to, and all others with it. Knows neither how the file is
come by nor how people are told.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.errors import InvalidRequest
from proxy.errors import UpstreamError
from proxy.upstreams.client import AttemptFailed, Failure, UpstreamClient
from proxy.wire.answers import CACHE_NAME
from proxy.wire.sse import EventSplitter, data_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proxy.upstreams.client import UpstreamAnswer

MOST_AT_ONCE: Final = 256
DEFAULT_AT_ONCE: Final = 4
LONGEST_WAIT_SECONDS: Final = 600
"""A request that is told to come back later than this has failed."""
KEPT_ERRORS: Final = 5
"""Of what failed, the first so many are told."""

_OK: Final = 200
_UNAUTHENTICATED: Final = 401
_TOO_MANY: Final = 429
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_SHOWN_CHARACTERS: Final = 300
_DETAIL: Final = "detail="
_UNKNOWN: Final = "unknown"
_PATH: Final = re.compile(r"/[!-~]*")
_KEY: Final = re.compile(r"[!-~]+")
_ERROR: Final = re.compile(rb'\s*\{\s*"error"')


class CannotWarm(Exception):  # noqa: N818  the message says what to do
    """Nothing that is sent would be served: the gateway is not there, or does not know the key."""


class _BatchLine(msgspec.Struct, frozen=True):
    """A line of OpenAI's batch files, or of it what a request has of the same name."""

    body: msgspec.Raw = msgspec.Raw()
    url: str | None = None
    method: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a file: the number of its line, from 1, the path that it is sent to, and its body."""

    number: int
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """Why the request of a line did not come to an answer."""

    line: int
    reason: str


@dataclass(slots=True)
class Tally:
    """What became of the requests so far.

    `stored` were fetched and kept, `known` there already or being fetched; of `streamed` it is not told whether they
    were kept. `bypassed` counts by reason those that the cache has nothing to do with, `unstored` were fetched and
    could not be kept. Of the `failed` the first `errors` are kept. `waiting_until` is a moment of `time.monotonic`.
    """

    stored: int = 0
    known: int = 0
    streamed: int = 0
    unstored: int = 0
    failed: int = 0
    bypassed: Counter[str] = field(default_factory=Counter)
    errors: list[Failed] = field(default_factory=list)
    waiting_until: float = 0.0

    @property
    def done(self) -> int:
        """How many requests there were."""
        return self.stored + self.known + self.streamed + self.unstored + self.failed + self.bypassed.total()

    def fail(self, line: int, reason: str) -> None:
        """Count a request that failed."""
        self.failed += 1
        if len(self.errors) < KEPT_ERRORS:
            self.errors.append(Failed(line, reason[:_SHOWN_CHARACTERS]))

    def describe(self) -> dict[str, Any]:
        """Tell all of it, as JSON values."""
        return {
            "done": self.done,
            "stored": self.stored,
            "known": self.known,
            "streamed": self.streamed,
            "unstored": self.unstored,
            "bypassed": dict(self.bypassed.most_common()),
            "failed": self.failed,
            "errors": [{"line": each.line, "reason": each.reason} for each in self.errors],
        }


def read_lines(raw: Iterable[bytes], default_path: str) -> Iterator[Line | Failed]:
    """Read JSON lines: each a request's body, sent to the default path, or as OpenAI's batch files have it.

    Empty lines are none. What is no request is told in its place.
    """
    for number, text in enumerate(raw, 1):
        stripped = text.strip()
        if not stripped:
            continue
        try:
            yield _read_line(number, stripped, default_path)
        except InvalidRequest as error:
            yield Failed(number, error.message)


def _read_line(number: int, text: bytes, default_path: str) -> Line:
    try:
        line = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"no request: {error}") from None
    if not line.body or line.url is None:
        return Line(number, default_path, text)
    if line.method not in (None, "POST"):
        raise InvalidRequest(f"its method is {line.method!r}; only POST generates")
    if not is_path(line.url):
        raise InvalidRequest(f"its url is {line.url!r}; write a path such as {default_path}")
    return Line(number, line.url, bytes(line.body))


_decode: Final = msgspec.json.Decoder(_BatchLine).decode


def is_path(text: str) -> bool:
    """Tell whether a text is a path that a request can be sent to, with or without a query."""
    return _PATH.fullmatch(text) is not None and "#" not in text


def is_key(text: str) -> bool:
    """Tell whether a text can be sent as an API key."""
    return _KEY.fullmatch(text) is not None


class Warming:
    """One file's requests on their way: `tally` tells at any time what became of those that are done."""

    def __init__(self, base_url: str, key: str, *, at_once: int = DEFAULT_AT_ONCE) -> None:
        """Send to a gateway, by its address without a path, with an API key; so many requests at once."""
        self.tally = Tally()
        self._client = UpstreamClient()
        self._base_url = base_url.rstrip("/")
        self._headers = [("Authorization", f"Bearer {key}"), ("Content-Type", "application/json")]
        self._at_once = at_once

    async def send(self, lines: Iterable[Line | Failed]) -> None:
        """Send every request, and return when all are answered; the next line is read when somebody can send it.

        Raises CannotWarm, and whatever reading the lines does; requests under way are given up then.
        """
        waiting = iter(lines)
        try:
            async with self._client, asyncio.TaskGroup() as senders:
                for _ in range(self._at_once):
                    senders.create_task(self._send_all(waiting))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _send_all(self, lines: Iterator[Line | Failed]) -> None:
        for line in lines:
            if isinstance(line, Failed):
                self.tally.fail(line.line, line.reason)
                await asyncio.sleep(0)
            else:
                await self._send(line)

    async def _send(self, line: Line) -> None:
        """Send one request, again where it has to wait for room."""
        while True:
            await self._wait()
            try:
                answer = await self._post(line)
            except AttemptFailed as error:
                if error.failure in (Failure.UNREACHABLE, Failure.CONNECT_TIMEOUT):
                    raise CannotWarm(f"no gateway answers at {self._base_url} ({error.reason})") from None
                self.tally.fail(line.number, f"no answer came: {error.reason}")
                return
            try:
                if await self._read(line, answer):
                    return
            except UpstreamError as error:
                self.tally.fail(line.number, f"the answer broke off: {error.message}")
                return
            finally:
                answer.close()

    async def _wait(self) -> None:
        while (left := self.tally.waiting_until - time.monotonic()) > 0:  # noqa: ASYNC110  others may put it off
            await asyncio.sleep(left)

    async def _post(self, line: Line) -> UpstreamAnswer:
        address = self._base_url + line.path
        try:
            return await self._client.post(address, self._headers, line.body)
        except AttemptFailed as error:
            if error.failure is not Failure.STALE:
                raise
            return await self._client.post(address, self._headers, line.body, reuses_connection=False)

    async def _read(self, line: Line, answer: UpstreamAnswer) -> bool:
        """Take what came of a request; False if it is to be sent again. Raises CannotWarm and UpstreamError."""
        if answer.status == _OK:
            failure = await _error_in(answer)
            if failure is None:
                self._count(answer)
            else:
                self.tally.fail(line.number, failure)
            return True
        body, _ = await answer.read_whole(_MAX_ANSWER_BYTES)
        told = f"{answer.status}: {_message_of(body)}"
        if answer.status == _UNAUTHENTICATED:
            raise CannotWarm(f"the gateway does not take the API key ({told})")
        wait = _wait_of(answer)
        if wait is None:
            self.tally.fail(line.number, told)
            return True
        self.tally.waiting_until = max(self.tally.waiting_until, time.monotonic() + wait)
        return False

    def _count(self, answer: UpstreamAnswer) -> None:
        """Count by what the gateway says that its cache did."""
        parameters = _verdict_of(answer)
        if "hit" in parameters or "collapsed" in parameters:
            self.tally.known += 1
        elif "stored" in parameters:
            self.tally.stored += 1
        elif "fwd=bypass" in parameters or not parameters:
            details = (each.removeprefix(_DETAIL).strip('"') for each in parameters if each.startswith(_DETAIL))
            self.tally.bypassed[next(details, _UNKNOWN)] += 1
        elif answer.is_stream:
            self.tally.streamed += 1
        else:
            self.tally.unstored += 1


def _verdict_of(answer: UpstreamAnswer) -> list[str]:
    """Return what this gateway's member of `Cache-Status` says; nothing where there is none."""
    for member in (answer.header("Cache-Status") or "").split(","):
        name, *parameters = [part.strip() for part in member.split(";")]
        if name == CACHE_NAME:
            return parameters
    return []


async def _error_in(answer: UpstreamAnswer) -> str | None:
    """Read an answer to its end; return what it says where that is an error, as the last event of a stream may be."""
    if not answer.is_stream:
        body, _ = await answer.read_whole(_MAX_ANSWER_BYTES)
        return _message_of(body) if _ERROR.match(body) else None
    splitter, last = EventSplitter(), b""
    async with aclosing(answer.chunks()) as chunks:
        async for piece in chunks:
            for event in splitter.feed(piece):
                last = data_of(event) or last
    return _message_of(last) if _ERROR.match(last) else None


def _message_of(body: bytes) -> str:
    """Return the message in an error of OpenAI's shape, else how the body begins."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        message = body.decode(errors="replace")
    return str(message)[:_SHOWN_CHARACTERS]


def _wait_of(answer: UpstreamAnswer) -> int | None:
    """Return the seconds after which a refused request may be sent again; None if it may not, or not so soon."""
    told = answer.header("Retry-After") or ""
    if answer.status != _TOO_MANY or answer.header("x-should-retry") == "false" or not told.isdecimal():
        return None
    seconds = int(told) if len(told) <= len(str(LONGEST_WAIT_SECONDS)) else LONGEST_WAIT_SECONDS + 1
    return seconds if seconds <= LONGEST_WAIT_SECONDS else None
