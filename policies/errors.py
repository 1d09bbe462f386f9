"""Every way to say no, as values that the core may raise.

    Rejection                 abstract: message, type, code, param, status_hint
      InvalidRequest          400  the request is not what the API takes
        PayloadTooLarge       413  the body is above a bound
        UnsupportedMedia      415  the body is in a form that is not read
      PolicyViolation         400  a rule of a policy refuses the request
      Unauthenticated         401  no key, or none that is known
      Forbidden               403  a known key without access to the model or project
      UnknownModel            404  no model of this name
      UnknownRoute            404  no route of this path
      MethodNotAllowed        405  the route exists, the method does not
      LimitExceeded           429  a limit has no room, now or ever
      NotStored               504  `Cache-Control: only-if-cached`, and nothing is stored

This file knows no HTTP beyond a hint at the status, and renders nothing: `proxy/errors.py` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Rejection(Exception):  # noqa: N818  the specification calls it a rejection, not an error
    """A decision not to serve a request."""

    status_hint: ClassVar[int] = 400
    type: str = "invalid_request_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param

    @property
    def retryable(self) -> bool:
        """Whether sending the same again can help."""
        return False


class InvalidRequest(Rejection):
    """The request is not what the API takes: bad JSON, or a parameter of a wrong type or range."""


class PayloadTooLarge(InvalidRequest):
    """The body, as sent or decompressed, is above its bound."""

    status_hint = 413


class UnsupportedMedia(InvalidRequest):
    """The body's content type, charset or coding is not one that is read."""

    status_hint = 415


class PolicyViolation(Rejection):
    """A policy's rule refuses the request; the message says the bound and the policy's name.

    `policies` are the policies whose rules it breaks, `value` what the parameter was, `bound` which values are let
    through, in words, where a bound is what refuses.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        policies: Sequence[str] = (),
        value: Any = None,  # noqa: ANN401  a JSON value
        bound: str | None = None,
    ) -> None:
        super().__init__(message, code="policy_violation", param=param)
        self.policies = tuple(policies)
        self.value = value
        self.bound = bound


class Unauthenticated(Rejection):
    """No key was sent, or one that is not known."""

    status_hint = 401

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


class Forbidden(Rejection):
    """The key is known and has no access to the model or project it asks for; `policies` are those that say so."""

    status_hint = 403

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, policies: Sequence[str] = ()
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.policies = tuple(policies)


class UnknownModel(Rejection):
    """No model of this name is configured."""

    status_hint = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, code="model_not_found", param="model")


class UnknownRoute(Rejection):
    """No route of this path; nothing goes upstream."""

    status_hint = 404


class MethodNotAllowed(Rejection):
    """The route exists and takes only the methods in `allowed`."""

    status_hint = 405

    def __init__(self, message: str, *, allowed: Sequence[str]) -> None:
        super().__init__(message, code="method_not_allowed")
        self.allowed = tuple(allowed)


class LimitExceeded(Rejection):
    """A limit has no room.

    `retry_after_seconds` is when this very request would fit, rounded up and at least 1; None when it
    can never fit (SPEC §5). `headers` are the limit headers that go out with the refusal.
    """

    status_hint = 429

    def __init__(
        self,
        message: str,
        *,
        code: str,
        retry_after_seconds: int | None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message, code=code)
        self.type = code  # OpenAI says insufficient_quota in both places
        self.retry_after_seconds = retry_after_seconds
        self.headers = tuple(headers)

    @property
    def retryable(self) -> bool:
        """Whether an SDK should retry on its own: not for budgets, nor for waits above a minute (SPEC §5)."""
        wait = self.retry_after_seconds
        return wait is not None and wait <= 60 and self.code != "insufficient_quota"  # noqa: PLR2004  SPEC §5


class NotStored(Rejection):
    """`only-if-cached` was asked and no stored answer fits."""

    status_hint = 504

    def __init__(self, message: str = "No stored answer fits, and the request says only-if-cached.") -> None:
        super().__init__(message, code="not_stored")
