from __future__ import annotations

import asyncio
import json

import pytest

from policies.errors import LimitExceeded, PolicyViolation, Unauthenticated
from proxy.errors import (
    CLIENT_TOO_SLOW,
    DRAINING,
    ClientLeft,
    GatewayError,
    StoreUnavailable,
    UpstreamBroken,
    UpstreamUnusable,
    error_headers,
    error_object,
    note_error,
)
from proxy.exchange import Exchange, Outcome


def exchange(**facts: object) -> Exchange:
    made = Exchange(request_id="req_1", started_at=1.0, started=1.0)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("error", "facts", "outcome", "status", "code"),
    [
        pytest.param(PolicyViolation("x"), {}, Outcome.REJECTED, 400, "policy_violation", id="a rejection"),
        pytest.param(UpstreamBroken("x"), {}, Outcome.UPSTREAM_ERROR, 502, "upstream_broken", id="an upstream's fault"),
        pytest.param(StoreUnavailable("x"), {}, Outcome.FAILED, 503, "store_unavailable", id="a store's fault"),
        pytest.param(UpstreamBroken("x"), {"status": 200}, Outcome.UPSTREAM_ERROR, 200, "upstream_broken", id="sent"),
        pytest.param(ClientLeft(), {}, Outcome.CLIENT_LEFT, 0, None, id="the client left"),
        pytest.param(asyncio.CancelledError(), {}, Outcome.CLIENT_LEFT, 0, None, id="it left while nobody wrote"),
        pytest.param(
            asyncio.CancelledError(CLIENT_TOO_SLOW), {}, Outcome.CLIENT_LEFT, 0, "client_too_slow", id="it was given up"
        ),
        pytest.param(
            asyncio.CancelledError(CLIENT_TOO_SLOW),
            {"outcome": Outcome.UPSTREAM_ERROR, "error_code": "upstream_broken"},
            Outcome.UPSTREAM_ERROR,
            0,
            "upstream_broken",
            id="it was given up after something else went wrong",
        ),
        pytest.param(asyncio.CancelledError(DRAINING), {}, Outcome.FAILED, 503, "draining", id="the drain was over"),
        pytest.param(
            ClientLeft(), {"outcome": Outcome.COMPLETED}, Outcome.COMPLETED, 0, None, id="it left with all it asked for"
        ),
        pytest.param(
            ClientLeft(),
            {"error_code": "draining"},
            Outcome.FAILED,
            0,
            "draining",
            id="it left once it had been told why",
        ),
        pytest.param(ZeroDivisionError(), {}, Outcome.FAILED, 500, "internal_error", id="a fault of ours"),
    ],
)
def test_how_an_error_ends_an_exchange(
    error: BaseException, facts: dict[str, object], outcome: Outcome, status: int, code: str | None
) -> None:
    noted = exchange(**facts)
    note_error(noted, error)
    assert (noted.outcome, noted.status, noted.error_code) == (outcome, status, code)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            PolicyViolation("n is 8", param="n"),
            {"message": "n is 8", "type": "invalid_request_error", "param": "n", "code": "policy_violation"},
        ),
        (
            LimitExceeded("spent", code="insufficient_quota", retry_after_seconds=None),
            {"message": "spent", "type": "insufficient_quota", "param": None, "code": "insufficient_quota"},
        ),
        (
            GatewayError("x"),
            {"message": "x", "type": "server_error", "param": None, "code": "internal_error"},
        ),
    ],
    ids=["a rejection", "a budget", "a failure"],
)
def test_all_four_members_are_always_there(error: GatewayError, shown: dict[str, object]) -> None:
    assert json.loads(error_object(error)) == {"error": shown}


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (Unauthenticated("x"), "WWW-Authenticate", 'Bearer realm="tidegate"'),
        (StoreUnavailable("x", retry_after_seconds=3), "Retry-After", "3"),
        (StoreUnavailable("x"), "Retry-After", "1"),
        (UpstreamUnusable("x"), "x-should-retry", "false"),
        (PolicyViolation("x"), "Cache-Control", "no-store"),
    ],
)
def test_the_fields_that_say_what_to_do(error: GatewayError, name: str, value: str) -> None:
    assert (name, value) in error_headers(error)
