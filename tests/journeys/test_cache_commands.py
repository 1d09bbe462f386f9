"""An operator and the cache: warm it, look into it, purge it, see how it does; by the command and the control plane."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import openai
import pytest
from fake_upstream import json_reply
from gateway import ADMIN_KEY, PROJECT, ROOT, Gateway, Settings, bearer, eventually, key_of, settings
from harness import call

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import FakeUpstream, Req
    from harness import Answer

    StartGateway = Callable[[Settings], Gateway]

REQUEST = {"model": "m", "prompt": "Hi", "temperature": 0, "max_tokens": 8}
CACHED = {"cache": {"ttl": "1h"}}
LIMITED = {"limits": [{"of": "requests", "limit": 60, "burst": 2, "per": "minute", "by": ["key"]}], **CACHED}


def answer(request: Req) -> list[Any]:
    """Answer every prompt with itself, by one configuration of the model."""
    asked = request.json()
    prompts = asked["prompt"] if isinstance(asked["prompt"], list) else [asked["prompt"]]
    choices = [
        {"index": index, "text": f"re: {prompt}", "logprobs": None, "finish_reason": "stop"}
        for index, prompt in enumerate(prompts)
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    return json_reply(
        {
            "object": "text_completion",
            "model": "m-2026",
            "choices": choices,
            "usage": usage,
            "system_fingerprint": "fp_1",
        }
    )


@pytest.fixture
def gateway(start_gateway: StartGateway, upstream: FakeUpstream) -> Gateway:
    upstream.default = answer
    users = {"alice": CACHED, "bob": CACHED, "hasty": LIMITED}
    return start_gateway(settings(f"{upstream.url}/v1", users=users, workers=2))


def ask(gateway: Gateway, user: str = "alice", **changes: object) -> str:
    """Send a request and return what the cache did for it."""
    body = json.dumps({**REQUEST, **changes}).encode()
    sent = call(gateway.base_url, "POST", "/v1/completions", bearer(user), body)
    assert sent.status == 200
    return sent.header("Cache-Status") or ""


def page(gateway: Gateway, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    fields = [("Authorization", f"Bearer {ADMIN_KEY}"), ("Content-Type", "application/json"), *headers.items()]
    return call(gateway.admin_url, method, f"/v1/tidegate/cache/{path}", fields, body)


def purge(gateway: Gateway, **members: object) -> dict[str, Any]:
    sent = page(gateway, "POST", "purge", json.dumps(members).encode())
    assert sent.status == 200
    told: dict[str, Any] = sent.json()
    return told


def command(gateway: Gateway, *words: str, given: str = "") -> tuple[int, dict[str, Any]]:
    """Run the command line in the folder where the gateway was started, and return its status and its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "cache", *words, "--json"],
        cwd=gateway.folder,
        env={"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "TIDEGATE_API_KEY": key_of("alice")},
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def get(gateway: Gateway, *words: str, **changes: object) -> tuple[int, dict[str, Any]]:
    return command(gateway, "get", "-", "--as", "key-bob", *words, given=json.dumps({**REQUEST, **changes}))


def test_what_the_cache_has_for_a_request_is_told(gateway: Gateway) -> None:
    status, told = get(gateway)
    assert (status, told["verdict"], told["entries"][0]["stored_bytes"]) == (1, "miss", 0)
    ask(gateway, "alice")
    status, told = get(gateway, "--body")
    assert (status, told["verdict"]) == (0, "hit")
    [entry] = told["entries"]
    assert entry["key"] == told["cache"]["key"]
    assert json.loads(entry["body"])["choices"][0]["text"] == "re: Hi"
    assert (entry["deployment"], entry["model"], entry["fingerprint"]) == ("only/m", "m-2026", "fp_1")
    assert (entry["provider"]["key"], entry["usage"]["output_tokens"]) == ("key-alice", 5)
    assert 0 < entry["left_seconds"] <= 3_600

    question = {"request": REQUEST, "as": "key-bob", "body": True}
    by_page = page(gateway, "POST", "entry", json.dumps(question).encode()).json()
    assert (by_page["verdict"], by_page["entries"][0]["body"]) == ("hit", entry["body"])


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param({"all": True}, id="everything"),
        pytest.param({"models": ["m"]}, id="the model"),
        pytest.param({"projects": [PROJECT]}, id="the project"),
        pytest.param({"keys": ["key-alice"]}, id="the key that paid"),
    ],
)
def test_what_is_purged_is_served_no_more_by_any_worker(gateway: Gateway, scope: dict[str, Any]) -> None:
    assert "fwd=miss" in ask(gateway)
    assert all("hit" in ask(gateway, "bob") for _ in range(20))  # of both workers, and their memories
    told = purge(gateway, **scope, reason="new weights")
    verdicts = [ask(gateway, "bob") for _ in range(20)]
    assert "hit" not in verdicts[0]
    assert sum("hit" not in each for each in verdicts) == 1
    _, entry = get(gateway)
    assert entry["entries"][0]["generation"] >= told["generation"]


def test_a_purge_of_others_leaves_an_answer_alone_and_one_of_its_key_does_not(gateway: Gateway) -> None:
    ask(gateway)
    _, told = get(gateway)
    purge(gateway, keys=["key-bob"], entries=["0" * 64])
    assert "hit" in ask(gateway)
    status, done = command(gateway, "purge", "--entry", told["cache"]["key"])
    assert (status, done["entries"]) == (0, [told["cache"]["key"]])
    assert "hit" not in ask(gateway)


def test_purges_leave_audit_records_that_the_official_client_reads(gateway: Gateway) -> None:
    by_page = purge(gateway, models=["m"], reason="new weights")["audit_log"]
    _, told = command(gateway, "purge", "--key", "key-alice")
    with openai.OpenAI(base_url=f"{gateway.admin_url}/v1", api_key="none", admin_api_key=ADMIN_KEY) as client:
        second, first = client.admin.organization.audit_logs.list().data
    assert (first.id, first.type, first.project) == (by_page, "cache.purged", None)
    assert first.actor is not None
    assert first.actor.api_key is not None
    assert first.actor.api_key.id == "tests"
    assert first.to_dict()["cache.purged"]["reason"] == "new weights"
    assert (second.id, second.project and second.project.id) == (told["audit_log"], PROJECT)
    assert second.actor is not None
    assert second.actor.session is not None
    assert second.actor.session.user is not None
    assert second.actor.session.user.id == pwd.getpwuid(os.getuid()).pw_name


def test_a_file_is_warmed_by_the_command(gateway: Gateway, upstream: FakeUpstream) -> None:
    lines = [{**REQUEST, "prompt": str(number % 10)} for number in range(20)]
    lines += [{**REQUEST, "temperature": 1}, {**REQUEST, "n": "x"}]
    batch = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {**REQUEST, "prompt": ["0", "new"]}}
    (gateway.folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, batch]))
    status, told = command(gateway, "warm", "requests.jsonl", "--url", gateway.base_url, "--concurrency", "3")
    assert (status, told["requests"], told["done"]) == (1, 23, 23)
    assert (told["stored"], told["known"], told["failed"]) == (11, 10, 1)
    assert told["bypassed"] == {"not-deterministic": 1}
    assert told["errors"][0]["line"] == 22
    assert len(upstream.log) == 12
    assert all("hit" in ask(gateway, "bob", prompt=prompt) for prompt in [str(number) for number in range(10)])
    assert "hit" in ask(gateway, "bob", prompt="new")


def test_who_warms_waits_for_room_in_the_limits(gateway: Gateway) -> None:
    lines = "".join(json.dumps({**REQUEST, "prompt": str(number)}) + "\n" for number in range(4))
    told = page(gateway, "POST", "warm", lines.encode(), **{"x-tidegate-api-key": key_of("hasty")})
    end = [json.loads(line) for line in told.body.splitlines()][-1]
    assert (end["event"], end["done"], end["stored"], end["failed"]) == ("end", 4, 4, 0)
    assert eventually(lambda: [each["key"] for each in gateway.records() if each["status"] == 429])


def test_status_tells_of_fingerprints_purges_and_both_workers(gateway: Gateway) -> None:
    ask(gateway)
    assert all("hit" in ask(gateway) for _ in range(20))
    purge(gateway, models=["m"])
    assert eventually(lambda: page(gateway, "GET", "status").json()["fingerprints"])
    status, told = command(gateway, "status", "--admin-url", gateway.admin_url)
    assert status == 0
    [fingerprint] = told["fingerprints"]
    assert (fingerprint["deployment"], fingerprint["model"], fingerprint["fingerprint"]) == ("only/m", "m", "fp_1")
    assert fingerprint["state"] == "live"
    assert ("model", "m") in [(each["kind"], each["name"]) for each in told["purges"]]
    assert told["workers"]["lookups"] == {"hit": 20, "miss": 1}
    assert (told["workers"]["stored"], told["store"]["entries"]) == (1, 1)
    by_page = page(gateway, "GET", "status").json()
    assert by_page["workers"]["lookups"] == told["workers"]["lookups"]
