"""How limits stand while they are used: told alike to the key's owner, on the control plane and by the command."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import json_reply
from gateway import ADMIN_KEY, PROJECT, ROOT, Gateway, Settings, bearer, eventually, settings
from harness import Raw, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import FakeUpstream

    StartGateway = Callable[[Settings], Gateway]

# Within so long a window next to nothing refills while a test runs.
POLICY = {
    "limits": [
        {"of": "requests", "limit": 10, "per": "52w", "by": ["user"]},
        {"of": "tokens", "limit": 100, "per": "52w", "by": ["user", "model"]},
        {"of": "usd", "limit": 1, "per": "month", "by": ["project"]},
        {"of": "concurrency", "limit": 2, "by": ["key"]},
    ]
}
REQUEST = {"model": "m", "prompt": "Hi", "temperature": 1, "max_tokens": 10}  # 26 + 10 tokens at worst
ANSWER = {
    "object": "text_completion",
    "choices": [{"index": 0, "text": "!", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
}
LEVELS = ("used", "held", "left")


def told_me(gateway: Gateway) -> dict[str, Any]:
    answer = call(gateway.base_url, "GET", "/v1/tidegate/me", bearer("alice"))
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    return found


def told_operators(gateway: Gateway) -> dict[str, Any]:
    headers = [("Authorization", f"Bearer {ADMIN_KEY}")]
    answer = call(gateway.admin_url, "GET", "/v1/tidegate/limits?key=key-alice", headers)
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    return found


def printed(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask the command line, in the folder where the gateway was started."""
    return subprocess.run(
        [sys.executable, "-m", "proxy", "limits", *words],
        cwd=gateway.folder,
        env={"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )


def timeless(told: dict[str, Any]) -> dict[str, Any]:
    """Return what was told without what every second changes."""
    for limit in told["limits"]:
        del limit["reset_seconds"]
    return told


def levels(told: dict[str, Any]) -> list[list[float]]:
    return [[limit[name] for name in LEVELS] for limit in told["limits"]]


@pytest.fixture
def gateway(start_gateway: StartGateway, upstream: FakeUpstream) -> Gateway:
    models = {"m": {"price": {"input": 1_000, "output": 1_000}}}  # a thousandth of a USD a token
    return start_gateway(settings(f"{upstream.url}/v1", users={"alice": POLICY, "bob": {}}, models=models))


def test_what_is_used_held_and_left_is_told_on_all_three_roads(gateway: Gateway, upstream: FakeUpstream) -> None:
    assert levels(told_me(gateway)) == [[0, 0, 10], [0, 0, 100], [0, 0, 1], [0, 0, 2]]

    upstream.script(json_reply(ANSWER), [("hold", 60)])
    body = json.dumps(REQUEST).encode()
    assert call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), body).status == 200
    under_way = Raw(gateway.base_url)
    under_way.request("POST", "/v1/completions", bearer("alice"), body)
    assert upstream.wait(lambda: len(upstream.served) == 2)

    mine = told_me(gateway)
    assert levels(mine) == [[2, 0, 8], [8, 36, 56], [0.008, 0.036, 0.956], [0, 1, 1]]
    assert mine["principal"]["key"] == "key-alice"
    assert mine["limits"][1]["scope"] == {"user": "alice", "model": "m"}
    assert mine["limits"][2]["scope"] == {"project": PROJECT}
    done = printed(gateway, "--as", "key-alice", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert timeless(json.loads(done.stdout)) == timeless(told_operators(gateway)) == timeless(mine)

    under_way.close()
    assert eventually(lambda: levels(told_me(gateway))[3] == [0, 0, 2])


def test_asking_leaves_no_record_and_sends_nothing(gateway: Gateway, upstream: FakeUpstream) -> None:
    for _ in range(3):
        assert levels(told_me(gateway)) == levels(told_operators(gateway))
    assert printed(gateway, "--project", PROJECT, "--user", "alice").returncode == 0
    assert (upstream.log, gateway.records()) == ([], [])


def test_the_command_prints_for_people_and_says_when_no_gateway_runs(gateway: Gateway) -> None:
    done = printed(gateway, "--as", "key-alice")
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in done.stdout.splitlines() if "user alice and model m" in line]
    assert " ".join(line.split()) == "tokens-per-52w-by-user-model user alice and model m 0 0 100 0 s"
    gateway.terminate()
    done = printed(gateway, "--as", "key-alice")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tidegate limits: no gateway runs on data_dir {gateway.data_dir}; start it\n"
