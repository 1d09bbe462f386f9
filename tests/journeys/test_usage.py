"""Every finished request leaves one record, and `tidegate usage` sums them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import App, json_reply
from gateway import ROOT, Gateway, Settings, bearer, settings
from harness import Resp, call, uniq

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import FakeUpstream

    StartGateway = Callable[[Settings], Gateway]

PRICE = {"price": {"input": 1.0, "output": 2.0}}
INPUT_TOKENS, OUTPUT_TOKENS = 7, 13
COST_MICRODOLLARS = INPUT_TOKENS + 2 * OUTPUT_TOKENS


def _ask(gateway: Gateway, user: str = "alice", **changes: object) -> Resp:
    body = {"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 20, **changes}
    return call(gateway.base_url, "POST", "/v1/completions", bearer(user), json.dumps(body).encode())


def _usage(gateway: Gateway, *arguments: str) -> list[dict[str, Any]]:
    told = subprocess.run(
        [sys.executable, "-m", "proxy", "usage", "--data-dir", str(gateway.data_dir), "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        timeout=30,
        check=True,
    )
    return [json.loads(line) for line in told.stdout.splitlines()]


@pytest.fixture
def gateway(start_gateway: StartGateway, upstream: FakeUpstream) -> Gateway:
    upstream.default = App(total_tokens=INPUT_TOKENS + OUTPUT_TOKENS)
    forbid = {"parameters": {"suffix": {"forbid": "reject"}, "n": {"max": 2, "on_violation": "clamp"}}}
    users = {"alice": forbid, "bob": {}}
    return start_gateway(settings(f"{upstream.url}/v1", users=users, models={"m": PRICE, "m-b": PRICE}, workers=2))


def test_every_request_leaves_one_record_and_the_sums_are_right(gateway: Gateway, upstream: FakeUpstream) -> None:
    question = {"prompt": "the same", "temperature": 0}
    answers = [
        _ask(gateway),
        _ask(gateway, stream=True),
        _ask(gateway, "bob", model="m-b"),
        _ask(gateway, **question),
        _ask(gateway, "bob", **question),
        _ask(gateway, suffix="no"),
        _ask(gateway, model="nobody"),
    ]
    upstream.script(json_reply({"error": {"message": "no", "type": "x", "param": None, "code": None}}, 400))
    answers.append(_ask(gateway, "bob"))
    assert [answer.status for answer in answers] == [200] * 5 + [400, 404, 400]

    records = gateway.wait_for_records(len(answers))
    by_id = {record["request_id"]: record for record in records}
    assert len(by_id) == len(records) == len(answers)
    told = [by_id[answer.header("x-request-id")] for answer in answers]
    assert [record["status"] for record in told] == [answer.status for answer in answers]
    assert [record["owner"] for record in told] == ["alice", "alice", "bob", "alice", "bob", "alice", "alice", "bob"]
    spent = [INPUT_TOKENS, INPUT_TOKENS, INPUT_TOKENS, INPUT_TOKENS, 0, 0, 0, 0]
    assert [record["input_tokens"] for record in told] == spent
    assert [record["cost_microdollars"] for record in told] == [COST_MICRODOLLARS * bool(tokens) for tokens in spent]
    assert [record["cache"] for record in told[3:5]] == ["miss", "hit"]
    assert told[4]["saved_microdollars"] == COST_MICRODOLLARS

    by_user = {row["user"]: row for row in _usage(gateway, "--by", "user")}
    assert {user: row["requests"] for user, row in by_user.items()} == {"alice": 5, "bob": 3}
    assert by_user["alice"]["input_tokens"] == 3 * INPUT_TOKENS
    assert by_user["alice"]["cost_microdollars"] == 3 * COST_MICRODOLLARS
    assert (by_user["bob"]["hits"], by_user["bob"]["saved_microdollars"]) == (1, COST_MICRODOLLARS)
    by_model = {row["model"]: row["output_tokens"] for row in _usage(gateway, "--by", "model")}
    assert (by_model["m"], by_model["m-b"]) == (3 * OUTPUT_TOKENS, OUTPUT_TOKENS)
    assert sum(row["requests"] for row in _usage(gateway, "--by", "project,day")) == len(answers)


def test_a_record_tells_what_policy_did_and_no_text(gateway: Gateway) -> None:
    answer = _ask(gateway, prompt="a secret prompt", n=8, x_field="private")
    assert "n;from=8;to=2;rule=clamp" in answer.header("x-tidegate-adjusted")
    (record,) = gateway.wait_for_records(1)
    text = json.dumps(record)
    assert '"n"' in text
    assert "clamp" in text
    assert "x_field" in text
    assert "a secret prompt" not in text
    assert "private" not in text
    assert "a secret prompt" not in gateway.log


def test_requests_without_a_known_key_leave_no_record(gateway: Gateway) -> None:
    assert call(gateway.base_url, "POST", "/v1/completions", [("api-key", "nobody")], b"{}").status == 401
    assert _ask(gateway).status == 200
    assert [record["status"] for record in gateway.wait_for_records(1)] == [200]
