"""What can go wrong outside, and the one place that renders an answer for it.

    GatewayError                abstract: message, type, code, status, retryable, retry_after_seconds
      UpstreamError
        UpstreamUnusable   502  the upstream answered what cannot be passed on (HTML, redirect, 401, unreadable)
          UpstreamUnusableForNow  with a status that may be better next time
        NoUpstreamLeft     503  no deployment could be reached
        UpstreamBusy       503  as many attempts are under way as may be, and the line before them is full or too slow
        UpstreamTooSlow    504  connect, first byte or silence took longer than its bound
        UpstreamBroken     502  the connection broke before or within the answer
      StoreError
        StoreUnavailable   503  the store is away, hung or answered an error
      Draining             503  the process is ending and the answer could not be finished in time
      BodyTooSlow          408  the client did not send its body in time
      ClientLeft            -   the client closed its connection; nobody is there to be answered

`policies.errors.Rejection` is the core's half of the tree. Foreign exceptions never travel this far: each ends at
the border where it arises.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import msgspec

from policies.errors import LimitExceeded, MethodNotAllowed, Rejection, Unauthenticated
from proxy.exchange import Outcome

if TYPE_CHECKING:
    from proxy.exchange import Exchange, Headers


class GatewayError(Exception):
    """Something outside failed; the class says the status, the instance what happened."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class UpstreamError(GatewayError):
    """An upstream could not be used."""


class UpstreamUnusable(UpstreamError):  # noqa: N818
    """The upstream answered, but with something that cannot be passed on."""

    status = 502
    retryable = False
    code = "upstream_unusable"


class UpstreamUnusableForNow(UpstreamUnusable):
    """The same with a status that may be better next time, such as the page of a balancer that has nobody behind it."""

    retryable = True


class NoUpstreamLeft(UpstreamError):  # noqa: N818
    """Every deployment was tried or is out of reach."""

    status = 503
    code = "no_upstream_left"


class UpstreamBusy(UpstreamError):  # noqa: N818
    """Every upstream has as many attempts under way as it may have; nothing was sent, and none of them is at fault."""

    status = 503
    code = "upstream_busy"


class UpstreamTooSlow(UpstreamError):  # noqa: N818
    """A bound on connecting, the first byte or silence between bytes was passed."""

    status = 504
    code = "upstream_timeout"


class UpstreamBroken(UpstreamError):  # noqa: N818
    """The connection to the upstream broke: reset, or ended before the answer did."""

    status = 502
    code = "upstream_broken"


class StoreError(GatewayError):
    """The state or cache store failed."""


class StoreUnavailable(StoreError):  # noqa: N818
    """The store is away, hung, or answered an error."""

    status = 503
    code = "store_unavailable"


class BodyTooSlow(GatewayError):  # noqa: N818
    """The client did not send its body within the bound."""

    status = 408
    code = "request_timeout"


class Draining(GatewayError):  # noqa: N818
    """The process is ending, and the answer could not be finished within its drain time-out."""

    status = 503
    code = "draining"


STOPPED = "The gateway is being stopped; send the request again."
"""What is said at the end of a drain to those who have got nothing yet."""
DRAINING = "draining"
"""The reason with which handlers are cancelled at the end of a drain; a client that leaves cancels without one."""
CLIENT_TOO_SLOW = "client_too_slow"
"""The reason where the client was given up, since it took nothing of its answer for too long; also its error code."""


def is_draining(cancelled: asyncio.CancelledError) -> bool:
    """Tell whether a cancellation is the end of a drain, so that somebody is still there to be told."""
    return cancelled.args == (DRAINING,)


def take_drain(cancelled: asyncio.CancelledError) -> None:
    """Take the end of a drain for a notice: what is awaited afterwards is not cancelled. Raises what is none."""
    task = asyncio.current_task()
    if task is None or not is_draining(cancelled):
        raise cancelled
    task.uncancel()


class ClientLeft(ConnectionError):  # noqa: N818
    """The client closed its connection while it was being answered."""


def note_error(exchange: Exchange, error: BaseException) -> None:
    """Write into an exchange how an exception ends it, for its record, log line and metrics."""
    if isinstance(error, Rejection | GatewayError):
        exchange.status = exchange.status or status_of(error)
        exchange.error_code = error.code or error.type
    if isinstance(error, Rejection):
        exchange.outcome = Outcome.REJECTED
    elif isinstance(error, UpstreamError):
        exchange.outcome = Outcome.UPSTREAM_ERROR
    elif isinstance(error, asyncio.CancelledError) and is_draining(error):
        exchange.status = exchange.status or Draining.status
        exchange.error_code = Draining.code
    elif isinstance(error, asyncio.CancelledError | ClientLeft):
        if exchange.outcome is Outcome.FAILED and exchange.error_code is None:
            exchange.outcome = Outcome.CLIENT_LEFT
        if error.args == (CLIENT_TOO_SLOW,):
            exchange.error_code = exchange.error_code or CLIENT_TOO_SLOW
    elif not isinstance(error, GatewayError):  # a fault of ours: the front door answers 500
        exchange.status = exchange.status or GatewayError.status
        exchange.error_code = GatewayError.code


_DEFAULT_RETRY_AFTER_SECONDS = 1
_UNAVAILABLE = 503


def status_of(error: Rejection | GatewayError) -> int:
    """Return the HTTP status that an error is answered with (SPEC §9)."""
    return error.status_hint if isinstance(error, Rejection) else error.status


def error_object(error: Rejection | GatewayError) -> bytes:
    """Write an error in OpenAI's shape, all four members present."""
    return msgspec.json.encode(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param if isinstance(error, Rejection) else None,
                "code": error.code,
            }
        }
    )


def error_headers(error: Rejection | GatewayError) -> Headers:
    """Return the header fields that go out with an error; SDKs are told not to retry what a retry cannot mend."""
    headers: Headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
    wait = error.retry_after_seconds if isinstance(error, LimitExceeded | GatewayError) else None
    if wait is None and status_of(error) == _UNAVAILABLE:
        wait = _DEFAULT_RETRY_AFTER_SECONDS
    if wait is not None:
        headers.append(("Retry-After", str(wait)))
    if not error.retryable:
        headers.append(("x-should-retry", "false"))
    if isinstance(error, Unauthenticated):
        headers.append(("WWW-Authenticate", 'Bearer realm="tidegate"'))
    if isinstance(error, MethodNotAllowed):
        headers.append(("Allow", ", ".join(error.allowed)))
    if isinstance(error, LimitExceeded):
        headers.extend(error.headers)
    return headers
