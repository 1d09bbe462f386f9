"""Workers die, gateways are stopped: what was under way is finished or settled, and everything is booked once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from fake_upstream import DONE, ev, sse_reply, tchunk
from gateway import ROOT, Gateway, Settings, bearer, eventually, settings
from harness import Raw, Resp, call, joined, uniq

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import FakeUpstream

    StartGateway = Callable[[Settings], Gateway]

ONE_AT_A_TIME = {
    "limits": [
        {"of": "concurrency", "limit": 1, "by": ["key"]},
        {"of": "tokens", "limit": 1000, "per": "hour", "by": ["user"]},
    ]
}
STREAM = {"model": "m", "prompt": "x", "temperature": 1, "max_tokens": 30, "stream": True}


def _ask(gateway: Gateway, user: str = "alice") -> Resp:
    body = json.dumps({"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 8}).encode()
    return call(gateway.base_url, "POST", "/v1/completions", bearer(user), body)


def _metric(gateway: Gateway, name: str) -> float:
    page = call(gateway.admin_url, "GET", "/metrics").body.decode()
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


def _open_stream(gateway: Gateway) -> Raw:
    client = Raw(gateway.base_url, timeout=30)
    client.request("POST", "/v1/completions", bearer("alice"), json.dumps(STREAM).encode())
    return client


def test_a_killed_worker_is_replaced_and_its_hold_is_settled(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": ONE_AT_A_TIME}, lease="5s"))
    (victim,) = gateway.worker_pids
    before = _ask(gateway)
    upstream.script(sse_reply([ev(tchunk("a")), 60.0]))
    client = _open_stream(gateway)
    client.response(stop=lambda answer: b"\n\n" in answer.body)
    os.kill(victim, signal.SIGKILL)
    assert eventually(lambda: gateway.worker_pids and gateway.worker_pids != [victim])
    client.close()

    assert call(gateway.base_url, "GET", "/healthz").status == 200
    assert _ask(gateway).status == 429, "the dead worker's place was given away before its lease ended"
    assert eventually(lambda: _ask(gateway).status == 200, seconds=20)
    orphans = eventually(lambda: [record for record in gateway.records() if record["outcome"] == "orphaned"])
    assert len(orphans) == 1
    assert orphans[0]["output_tokens"] == 30
    assert orphans[0]["known"] == "worst_case"
    assert before.header("x-request-id") in {record["request_id"] for record in gateway.records()}
    assert eventually(lambda: _metric(gateway, "tidegate_reservations_expired_total") == 1)
    assert _metric(gateway, "tidegate_requests_total") >= 3, "what the dead worker counted is gone"


def test_a_stopping_gateway_finishes_what_is_under_way(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {}}, workers=2))
    upstream.script(sse_reply([ev(tchunk("first ")), 1.5, ev(tchunk("last", finish="stop")), DONE]))
    client = _open_stream(gateway)
    answers: list[Resp] = []
    reading = threading.Thread(target=lambda: answers.append(client.response()))
    reading.start()
    assert upstream.wait(lambda: len(upstream.served) == 1)
    assert gateway.terminate() == 0
    reading.join(10)
    client.close()
    assert joined(answers[0].body)[0] == "first last"
    assert answers[0].complete
    assert answers[0].body.endswith(DONE)
    assert [record["outcome"] for record in gateway.records()] == ["completed"]


def test_a_stream_longer_than_the_drain_does_not_look_finished(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    made = settings(f"{upstream.url}/v1", users={"alice": ONE_AT_A_TIME}, drain_timeout="1s")
    gateway = start_gateway(made)
    upstream.script(sse_reply([ev(tchunk("first ")) + ev(tchunk("half"))[:-9], 60.0]))
    client = _open_stream(gateway)
    answers: list[Resp] = []
    reading = threading.Thread(target=lambda: answers.append(client.response()))
    reading.start()
    assert upstream.wait(lambda: len(upstream.served) == 1)
    assert gateway.terminate() == 0
    reading.join(10)
    client.close()

    answer = answers[0]
    assert answer.complete, "the body has to end cleanly: an SDK takes a cut for its network's and sends it all again"
    events = answer.body.split(b"\n\n")
    assert json.loads(events[-2].removeprefix(b"data: "))["error"]["code"] == "draining"
    assert b"half" not in answer.body
    assert DONE not in answer.body
    (record,) = gateway.records()
    assert (record["outcome"], record["error_code"], record["status"]) == ("failed", "draining", 200)
    assert (record["known"], record["output_tokens"]) == ("counted", 2)
    assert upstream.wait(lambda: upstream.log[0].aborted_at)
    with Gateway(gateway.folder, made) as again:
        assert _ask(again).status == 200, "the stream's place is still held"


def test_a_second_gateway_on_the_same_data_is_refused(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {}}))
    second = subprocess.run(
        [sys.executable, "-m", "proxy", "run", "--config", str(gateway.config_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 2
    assert "in use by another gateway" in second.stderr.decode()
    assert len(second.stderr.splitlines()) == 1
    assert _ask(gateway).status == 200


def test_a_restarted_gateway_knows_what_was_spent(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    limited = {"limits": [{"of": "requests", "limit": 3, "per": "hour", "by": ["user"]}]}
    made = settings(f"{upstream.url}/v1", users={"alice": limited})
    gateway = start_gateway(made)
    assert [_ask(gateway).status for _ in range(2)] == [200, 200]
    assert gateway.terminate() == 0
    with Gateway(gateway.folder, made) as again:
        assert [_ask(again).status for _ in range(2)] == [200, 429]
        assert len(again.wait_for_records(4)) == 4
