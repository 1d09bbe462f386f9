"""Random requests under random policies on four levels, through a running gateway, each judged by a second reading.

The same with more rounds, for people to run: `python tests/benchmarks/run_oracle.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from judging import Findings, run_round
from oracle import Asked, Oracle, Received
from random_requests import ALIASES, MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from oracle_rules import Level

REQUESTS = 200
KINDS_OF_RULES = {
    "max",
    "min",
    "allowed",
    "default",
    "force",
    "forbid",
    "add",
    "strip",
    "pseudonymise",
    "models",
    "unknown_parameters",
    "prompts",
    "candidates",
    "prompt_tokens",
    "worst_case_tokens",
    "ceiling",
    "limits",
}


@pytest.mark.parametrize("seed", [1, 2])
def test_what_goes_upstream_is_what_the_rules_make_of_the_clients_bytes(seed: int, tmp_path: Path) -> None:
    findings = Findings()
    run_round(tmp_path, seed, REQUESTS, findings)
    assert not findings.complaints, str(findings)
    assert not findings.faults, str(findings)
    assert findings.asked == REQUESTS
    assert {"200", "400 policy_violation"} <= set(findings.statuses)
    assert len(KINDS_OF_RULES & set(findings.kinds)) > len(KINDS_OF_RULES) // 2, "rules of most kinds spoke"


# ---------------------------------------------------------------- the oracle itself
BODY = b'{"model":"m","prompt":"x","n":8,"seed":null,"x":[1,1e-7]}'
SENT = b'{"model":"m","prompt":"x","n":4,"seed":null,"x":[1,1e-7]}'
HEADER = "n;from=8;to=4;rule=clamp"
CAP = ("careful", {"parameters": {"n": {"max": 4, "on_violation": "clamp"}}})
TOKENS = {"of": "tokens", "limit": 10**13, "per": "day", "by": ["key"]}
HOLDING = ("holding", {"limits": [TOKENS]})
WATCHING = ("watching", {"limits": [{**TOKENS, "mode": "observe"}, {**TOKENS, "hold": "none"}]})
OPEN = b'{"model":"m","prompt":"x"}'
CLOSED = b'{"model":"m","prompt":"x","max_tokens":16}'
ASSUMED = "max_tokens;to=16;rule=default"
REJECT = ("strict", {"parameters": {"n": {"max": 4}}})


def _refused(
    param: str, message: str = "n is 8; policy 'strict' allows at most 4", code: str = "policy_violation"
) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return json.dumps({"error": error}).encode()


def _complaints(level: Level, body: bytes, sent: bytes | None, header: str = "", answer: bytes = b"") -> list[str]:
    headers = {"x-tidegate-adjusted": header, "x-request-id": "req_1", "x-should-retry": "false"}
    asked = Asked("key", (level,), "alice", "completions", "/v1/completions", body)
    status, path = (400, None) if sent is None else (200, "/v1/completions")
    return Oracle(MODELS, ALIASES).judge(asked, Received(status, headers, answer, path, sent or b""))


@pytest.mark.parametrize(
    ("level", "body", "sent", "header", "answer"),
    [
        pytest.param(CAP, BODY, SENT, HEADER, b"", id="a clamp that is told"),
        pytest.param(REJECT, BODY, None, "", _refused("n"), id="a refusal that names parameter and policy"),
        pytest.param(HOLDING, OPEN, CLOSED, ASSUMED, b"", id="a ceiling that is written for a limit"),
        pytest.param(WATCHING, OPEN, OPEN, "", b"", id="an open ceiling where limits hold nothing"),
        pytest.param(
            ("", {}), b'{"a":1,"a":1}', None, "", _refused("", "twice", ""), id="a duplicate key that is refused"
        ),
    ],
)
def test_the_oracle_is_content_with(level: Level, body: bytes, sent: bytes | None, header: str, answer: bytes) -> None:
    assert _complaints(level, body, sent, header, answer) == []


@pytest.mark.parametrize(
    ("level", "body", "sent", "header", "answer"),
    [
        pytest.param(CAP, BODY, BODY, "", b"", id="a value above its bound"),
        pytest.param(HOLDING, OPEN, OPEN, "", b"", id="an open ceiling where a limit holds"),
        pytest.param(WATCHING, OPEN, CLOSED, ASSUMED, b"", id="a ceiling that is written for limits that hold nothing"),
        pytest.param(REJECT, BODY, SENT, HEADER, b"", id="a clamp where the rule rejects"),
        pytest.param(CAP, BODY, SENT.replace(b'"n":4', b'"n":3'), HEADER, b"", id="a clamp below the bound"),
        pytest.param(
            CAP, BODY, SENT.replace(b"[1,", b"[1.0,"), HEADER, b"", id="another type, deep in an unknown field"
        ),
        pytest.param(CAP, BODY, SENT.replace(b"1e-7", b"0"), HEADER, b"", id="another value of a real"),
        pytest.param(CAP, BODY, SENT.replace(b'"seed":null,', b""), HEADER, b"", id="a null that got lost"),
        pytest.param(CAP, BODY, SENT.replace(b'"x":[', b'"y":1,"x":['), HEADER, b"", id="a member that nobody sent"),
        pytest.param(CAP, BODY, SENT, "", b"", id="a clamp that is not told"),
        pytest.param(
            CAP, BODY, SENT, HEADER + ", top_p;to=1;rule=default", b"", id="a change that is told and was none"
        ),
        pytest.param(CAP, BODY, SENT, "n;from=8;to=5;rule=clamp", b"", id="a change that is told wrongly"),
        pytest.param(CAP, BODY, None, "", _refused("n"), id="a refusal where the rule clamps"),
        pytest.param(REJECT, BODY, None, "", _refused("top_p"), id="a refusal that names another parameter"),
        pytest.param(REJECT, BODY, None, "", _refused("n", "n is 8"), id="a refusal without the policy's name"),
        pytest.param(REJECT, BODY, None, "", b"<html>", id="a refusal in no shape"),
        pytest.param(
            CAP, b'{"model":"m","n":1,"n":2}', b'{"model":"m","n":2}', "", b"", id="a duplicate key that is resolved"
        ),
        pytest.param(CAP, b'{"model":"m","n":true}', b'{"model":"m","n":true}', "", b"", id="true as a number"),
    ],
)
def test_the_oracle_complains_of(level: Level, body: bytes, sent: bytes | None, header: str, answer: bytes) -> None:
    assert _complaints(level, body, sent, header, answer)
