"""What is to be made of an upstream's answer by its head: may it be passed on, what does it say of who sent it.

Knows statuses, types and what upstreams ask for; what follows for the request is `policies.retries`' business, what
follows for the deployment that of `policies.breakers`.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from policies.retries import Cause, Failed, asked_wait_milliseconds, is_retryable
from proxy.errors import UpstreamUnusable, UpstreamUnusableForNow

if TYPE_CHECKING:
    from policies.decision import Decision
    from proxy.upstreams.client import UpstreamAnswer

ERRORS: Final = 400
_OWN_CREDENTIAL: Final = {401, 403, 407}
_REDIRECTS: Final = range(300, 400)
_ANSWERS: Final = range(200, 600)
_TOO_MANY_REQUESTS: Final = 429
_HTML: Final = ("text/html", "application/xhtml+xml")
_MOST_COOL_DOWN_MILLISECONDS: Final = 300_000
_COOL_DOWN_MILLISECONDS: Final = 1_000
"""For who is busy and does not say how long."""


def find_fault(answer: UpstreamAnswer, decision: Decision) -> str | None:
    """Say why an answer cannot be passed on; None when it can.

    A whole answer to a request for a stream can: that is what the upstream said, and clients look at the type. So can
    a refusal of the client's own credential, where that is what went upstream.
    """
    status = answer.status
    if status in _OWN_CREDENTIAL and not (decision.model.settings.auth == "passthrough" and status in {401, 403}):
        return f"it refused the gateway's own credential with {status}"
    if status in _REDIRECTS:
        return f"it redirects ({status}), which is not followed"
    if status not in _ANSWERS:
        return f"its status {status} is none that ends a request"
    if answer.media_type in _HTML:
        return "it is an HTML page"
    if status < ERRORS and answer.is_stream and not decision.effective.view.is_stream:
        return "it is an event stream, which was not asked for"
    return None


def is_failure(answer: UpstreamAnswer, fault: str | None) -> bool:
    """Tell whether an answer speaks against the deployment; that it is busy, or refuses a request, does not."""
    return fault is not None or (is_retryable(answer.status) and answer.status != _TOO_MANY_REQUESTS)


def cool_down_seconds(answer: UpstreamAnswer, decision: Decision) -> float | None:
    """Return how long an upstream that refuses wants to be left alone; None where it says nothing of that.

    What it says of a bad request is for who sent that, and not for everybody; so is what it says to a client's own
    credential.
    """
    is_of_client = decision.model.settings.auth == "passthrough" and answer.status == _TOO_MANY_REQUESTS
    if is_of_client or not is_retryable(answer.status):
        return None
    asked = _asked_wait(answer)
    if asked is None:
        asked = _COOL_DOWN_MILLISECONDS if answer.status == _TOO_MANY_REQUESTS else 0
    return min(asked, _MOST_COOL_DOWN_MILLISECONDS) / 1000 if asked else None


def refusal(answer: UpstreamAnswer, candidate: int) -> Failed:
    """Return what an answer of a status that may be better next time is for the next attempt."""
    return Failed(
        candidate,
        Cause.REFUSED,
        _asked_wait(answer),
        may_repeat=answer.header("x-should-retry") != "false",
    )


def kind_of(status: int) -> str:
    """Return how an error is counted: an upstream that is busy is no client's mistake, as other 4xx mostly are."""
    return str(status) if status == _TOO_MANY_REQUESTS else f"{status // 100}xx"


def unusable(answer: UpstreamAnswer, fault: str) -> UpstreamUnusable:
    """Return the error of an answer that cannot be passed on; a retry may mend it where its status says so."""
    message = f"The upstream's answer cannot be passed on: {fault}. The operator's log says more."
    if not is_retryable(answer.status):
        return UpstreamUnusable(message)
    asked = _asked_wait(answer)
    return UpstreamUnusableForNow(message, retry_after_seconds=None if asked is None else ceil(asked / 1000))


def _asked_wait(answer: UpstreamAnswer) -> int | None:
    return asked_wait_milliseconds(answer.header("retry-after-ms"), answer.header("Retry-After"), answer.header("Date"))
