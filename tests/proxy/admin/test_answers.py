"""What leaves the control plane: JSON that nobody keeps, and errors in one shape."""

from __future__ import annotations

import json

from policies.errors import InvalidRequest
from proxy.admin.answers import error_answer, json_answer, refusal_of
from proxy.errors import StoreUnavailable
from proxy.named_principal import CannotAnswer, UnknownName


def test_an_answer_is_json_that_no_cache_keeps() -> None:
    answer = json_answer({"status": "not ready"}, status=503)
    assert (answer.status, answer.body) == (503, b'{"status":"not ready"}')
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_refusal_has_openais_shape_and_its_own_status() -> None:
    answer = error_answer(InvalidRequest("request is missing.", param="request"))
    assert answer.status == 400
    assert json.loads(answer.body) == {
        "error": {"message": "request is missing.", "type": "invalid_request_error", "param": "request", "code": None}
    }
    assert answer.headers["x-should-retry"] == "false"


def test_what_passes_by_itself_says_when_to_ask_again() -> None:
    answer = error_answer(StoreUnavailable("The store is away."))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


def test_what_cannot_be_answered_is_refused_and_what_is_not_configured_is_not_found() -> None:
    wrong = error_answer(refusal_of(CannotAnswer("as", "say one"), "key"))
    unknown = error_answer(refusal_of(UnknownName("as", "no key has this id; there is a"), "key"))
    assert (wrong.status, json.loads(wrong.body)["error"]["message"]) == (400, "key: say one.")
    assert (unknown.status, json.loads(unknown.body)["error"]) == (
        404,
        {
            "message": "key: no key has this id; there is a",
            "type": "invalid_request_error",
            "param": "key",
            "code": "not_found",
        },
    )
