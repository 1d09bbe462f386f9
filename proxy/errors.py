"""What can go wrong outside, and the one place that renders an answer for it.

    GatewayError                abstract: message, type, code, status, retryable, retry_after_seconds
      UpstreamError
        UpstreamUnusable   502  the upstream answered what cannot be passed on (HTML, redirect, 401, unreadable)
        NoUpstreamLeft     503  no deployment could be reached
        UpstreamTooSlow    504  connect, first byte or silence took longer than its bound
        UpstreamBroken     502  the connection broke before or within the answer
      StoreError
        StoreUnavailable   503  the store is away, hung or answered an error
      BodyTooSlow          408  the client did not send its body in time
      Draining             503  the process is ending

`policies.errors.Rejection` is the core's half of the tree. Foreign exceptions never travel this far: each ends at
the border where it arises.
"""

from __future__ import annotations

from typing import ClassVar


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
    code = "upstream_unusable"


class NoUpstreamLeft(UpstreamError):  # noqa: N818
    """Every deployment was tried or is out of reach."""

    status = 503
    code = "no_upstream_left"


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
    """The process is ending and takes no new requests."""

    status = 503
    code = "draining"
