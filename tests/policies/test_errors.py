from __future__ import annotations

import pytest

from policies.errors import LimitExceeded, PolicyViolation


@pytest.mark.parametrize(
    ("code", "wait", "retryable"),
    [
        pytest.param("rate_limit_exceeded", 1, True, id="a short wait is worth it"),
        pytest.param("rate_limit_exceeded", 60, True, id="a minute still is"),
        pytest.param("rate_limit_exceeded", 61, False, id="above a minute an SDK would sleep for too long"),
        pytest.param("rate_limit_exceeded", None, False, id="what never fits is not worth a retry"),
        pytest.param("insufficient_quota", 1, False, id="a spent budget is not worth a retry"),
    ],
)
def test_whether_an_sdk_should_retry_a_refusal(code: str, wait: int | None, *, retryable: bool) -> None:
    assert LimitExceeded("no", code=code, retry_after_seconds=wait).retryable is retryable


def test_a_policys_no_stays_no() -> None:
    refused = PolicyViolation("n is 8; policy 'default' allows at most 4.", param="n")
    assert (refused.status_hint, refused.type, refused.code, refused.param, refused.retryable) == (
        400,
        "invalid_request_error",
        "policy_violation",
        "n",
        False,
    )
