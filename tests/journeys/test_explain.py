"""Asked about a request while the gateway runs: what is used and held at that moment, told on both roads."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import json_reply
from gateway import ADMIN_KEY, ROOT, Gateway, Settings, bearer, eventually, key_of, settings
from harness import Raw, Resp, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import FakeUpstream

    StartGateway = Callable[[Settings], Gateway]

# Within so long a window next to nothing refills while a test runs.
POLICY = {
    "parameters": {"n": {"max": 4, "on_violation": "clamp"}},
    "limits": [
        {"of": "tokens", "limit": 100, "per": "52w", "by": ["user"]},
        {"of": "concurrency", "limit": 2, "by": ["key"]},
    ],
}
REQUEST = {"model": "m", "prompt": "Hi", "temperature": 1, "max_tokens": 10}  # 26 + 10 tokens at worst
ANSWER = {
    "object": "text_completion",
    "choices": [{"index": 0, "text": "!", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
}


def by_command(gateway: Gateway, body: dict[str, Any], *words: str) -> tuple[int, dict[str, Any]]:
    """Ask the command line, in the folder where the gateway was started, and return its status and its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "explain", "-", "--json", "--live", *words],
        cwd=gateway.folder,
        env={"PYTHONPATH": str(ROOT)},
        input=json.dumps(body).encode(),
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    return done.returncode, json.loads(done.stdout)


def by_control_plane(gateway: Gateway, question: dict[str, Any]) -> Resp:
    headers = [("Authorization", f"Bearer {ADMIN_KEY}"), ("Content-Type", "application/json")]
    return call(gateway.admin_url, "POST", "/v1/tidegate/explain", headers, json.dumps(question).encode())


def timeless(told: dict[str, Any]) -> dict[str, Any]:
    """Return what was told without what every second changes."""
    for limit in told["limits"]:
        del limit["now"]["reset_seconds"]
    return told


@pytest.fixture
def gateway(start_gateway: StartGateway, upstream: FakeUpstream) -> Gateway:
    return start_gateway(settings(f"{upstream.url}/v1", users={"alice": POLICY, "bob": {}}))


def test_what_is_used_and_what_is_held_is_told_on_both_roads(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.script(json_reply(ANSWER), [("hold", 60)])
    body = json.dumps(REQUEST).encode()
    assert call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), body).status == 200
    under_way = Raw(gateway.base_url)
    under_way.request("POST", "/v1/completions", bearer("alice"), body)
    assert upstream.wait(lambda: len(upstream.served) == 2)

    status, told = by_command(gateway, REQUEST, "--as", key_of("alice"))
    tokens, concurrency = told["limits"]
    assert (status, told["verdict"]) == (0, "served")
    assert [tokens["now"][name] for name in ("used", "held", "left", "fits")] == [8, 36, 56, True]
    assert [concurrency["now"][name] for name in ("used", "held", "left", "fits")] == [0, 1, 1, True]

    larger = {**REQUEST, "max_tokens": 40}  # 66 of which 56 are left
    status, told = by_command(gateway, larger, "--as", "key-alice")
    assert (status, told["status"], told["refused_by"]["limit"]) == (1, 429, "tokens-per-52w-by-user")
    answer = by_control_plane(gateway, {"request": larger, "as": "key-alice", "live": True})
    assert (answer.status, timeless(answer.json())) == (200, timeless(told))

    under_way.close()
    ask = partial(by_control_plane, gateway, {"request": REQUEST, "as": "key-alice", "live": True})
    assert eventually(lambda: ask().json()["limits"][1]["now"]["left"] == 2)


def test_asking_takes_nothing_and_sends_nothing(gateway: Gateway, upstream: FakeUpstream) -> None:
    for _ in range(3):
        status, told = by_command(gateway, REQUEST, "--project", "proj_tests", "--user", "alice")
        assert status == 0
        assert [limit["now"]["left"] for limit in told["limits"]] == [100, 2]
        answer = by_control_plane(gateway, {"request": REQUEST, "project": "proj_tests", "user": "alice", "live": True})
        assert timeless(answer.json()) == timeless(told)
    assert upstream.log == []
    assert gateway.records() == []


def test_what_is_explained_is_what_happens(gateway: Gateway, upstream: FakeUpstream) -> None:
    body = {**REQUEST, "n": 9, "max_tokens": 1, "x": [1e-7, 2**70]}
    told = by_control_plane(gateway, {"request": body, "as": "key-alice"}).json()
    sent = call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), json.dumps(body).encode())
    assert sent.status == 200
    [forwarded] = upstream.log
    assert forwarded.json() == {**told["effective_request"], "model": "m"}
    assert sent.header("x-tidegate-adjusted") == "n;from=9;to=4;rule=clamp"
    [adjustment] = told["adjustments"]
    assert [adjustment[name] for name in ("parameter", "from", "to", "rule")] == ["n", 9, 4, "clamp"]


def test_a_refusal_is_explained_in_the_words_that_the_client_gets(gateway: Gateway) -> None:
    body = {**REQUEST, "max_tokens": 75}
    told = by_control_plane(gateway, {"request": body, "as": "key-alice"}).json()
    sent = call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), json.dumps(body).encode())
    assert (sent.status, sent.json()["error"]) == (told["status"], told["error"])


def test_a_gateway_that_has_ended_is_told_in_one_line(gateway: Gateway) -> None:
    assert gateway.terminate() == 0
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "explain", "-", "--live", "--as", "key-alice"],
        cwd=gateway.folder,
        env={"PYTHONPATH": str(ROOT)},
        input=json.dumps(REQUEST).encode(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == (
        f"tidegate explain: --live: no gateway runs on data_dir {gateway.data_dir}; start it\n"
    )
