"""A team is out of budget and gets it back: by the control plane and by the command, each with its audit record."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import openai
import pytest
from fake_upstream import json_reply
from gateway import ADMIN_KEY, PROJECT, ROOT, Gateway, Settings, bearer, settings
from harness import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_upstream import FakeUpstream
    from harness import Answer

    StartGateway = Callable[[Settings], Gateway]

POLICY = {
    "limits": [
        {"of": "requests", "limit": 2, "per": "month", "by": ["user"]},
        {"of": "tokens", "limit": 100, "per": "month", "by": ["user"], "name": "tokens"},
    ]
}
REQUEST = {"model": "m", "prompt": "Hi", "temperature": 1, "max_tokens": 10}
ANSWER = {
    "object": "text_completion",
    "choices": [{"index": 0, "text": "!", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
}


@pytest.fixture
def gateway(start_gateway: StartGateway, upstream: FakeUpstream) -> Gateway:
    upstream.script(*[json_reply(ANSWER)] * 10)
    return start_gateway(settings(f"{upstream.url}/v1", users={"alice": POLICY, "bob": POLICY}))


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """Return the official client as an administrator opens it."""
    with openai.OpenAI(
        base_url=f"{gateway.admin_url}/v1", api_key="none", admin_api_key=ADMIN_KEY, max_retries=0
    ) as made:
        yield made


def ask(gateway: Gateway, user: str) -> int:
    answer = call(gateway.base_url, "POST", "/v1/completions", bearer(user), json.dumps(REQUEST).encode())
    return answer.status


def reset(gateway: Gateway, **members: object) -> Answer:
    headers = [("Authorization", f"Bearer {ADMIN_KEY}"), ("Content-Type", "application/json")]
    return call(gateway.admin_url, "POST", "/v1/tidegate/limits/reset", headers, json.dumps(members).encode())


def command(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in the folder where the gateway was started."""
    return subprocess.run(
        [sys.executable, "-m", "proxy", "limits", *words],
        cwd=gateway.folder,
        env={"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )


def details(record: Any) -> dict[str, Any]:  # noqa: ANN401  the client has no type for what only we record
    found: dict[str, Any] = record.to_dict()["limits.reset"]
    return found


def test_who_is_out_gets_everything_back_and_nobody_else_does(gateway: Gateway, client: openai.OpenAI) -> None:
    assert [ask(gateway, "alice") for _ in range(3)] == [200, 200, 429]
    assert [ask(gateway, "bob") for _ in range(3)] == [200, 200, 429]

    answer = reset(gateway, key="key-alice", reason="billed twice")
    assert answer.status == 200
    told = answer.json()
    assert [(each["before"]["used"], each["after"]["used"]) for each in told["limits"]] == [(2, 0), (16, 0)]
    assert [ask(gateway, "alice") for _ in range(3)] == [200, 200, 429]
    assert ask(gateway, "bob") == 429

    done = command(gateway, "reset", "--project", PROJECT, "--user", "bob", "--limit", "tokens", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [each["name"] for each in json.loads(done.stdout)["limits"]] == ["tokens"]
    assert ask(gateway, "bob") == 429  # the requests are as many as they were

    by_command, by_page = client.admin.organization.audit_logs.list().data
    assert (by_page.id, by_page.type, by_page.effective_at > 0) == (told["audit_log"], "limits.reset", True)
    assert by_page.actor is not None
    assert by_page.actor.api_key is not None
    assert by_page.actor.api_key.id == "tests"
    assert by_page.project is not None
    assert by_page.project.id == PROJECT
    assert details(by_page)["reason"] == "billed twice"
    assert details(by_page)["principal"]["key"] == "key-alice"
    assert [(each["used"], each["held"]) for each in details(by_page)["limits"]] == [(2, 0), (16, 0)]
    assert by_command.actor is not None
    assert by_command.actor.session is not None
    assert by_command.actor.session.user is not None
    assert by_command.actor.session.user.id == pwd.getpwuid(os.getuid()).pw_name
    assert [(each["name"], each["used"]) for each in details(by_command)["limits"]] == [("tokens", 16)]


def test_the_official_client_reads_page_by_page_and_by_filters(gateway: Gateway, client: openai.OpenAI) -> None:
    ids = [reset(gateway, key=f"key-{name}").json()["audit_log"] for name in ("alice", "bob", "alice", "bob", "alice")]
    logs = client.admin.organization.audit_logs
    assert [record.id for record in logs.list(limit=2)] == ids[::-1]
    page = logs.list(limit=2, after=ids[2])
    assert ([record.id for record in page.data], page.has_more) == ([ids[1], ids[0]], False)
    assert [record.id for record in logs.list(limit=2, before=ids[1]).data] == [ids[3], ids[2]]
    newest = page.data[0].effective_at
    assert len(logs.list(actor_ids=["tests", "root"], effective_at={"gte": newest - 60, "lte": newest + 60}).data) == 5
    assert logs.list(actor_ids=["root"]).data == []
    assert logs.list(event_types=["project.created"]).data == []
    assert logs.list(effective_at={"lt": newest - 60}).data == []


def test_what_cannot_be_reset_is_said_and_leaves_no_record(gateway: Gateway, client: openai.OpenAI) -> None:
    assert reset(gateway, key="key-alise").status == 404
    assert reset(gateway, key="key-alice", limits=["token"]).status == 404
    assert reset(gateway).status == 400
    assert command(gateway, "reset", "--as", "key-alice", "--limit", "token").returncode == 2
    assert client.admin.organization.audit_logs.list().data == []


def test_how_full_limits_are_is_a_metric(gateway: Gateway) -> None:
    assert [ask(gateway, "alice") for _ in range(2)] == [200, 200]
    page = call(gateway.admin_url, "GET", "/metrics").body.decode()
    ratios = re.findall(r'^tidegate_limit_utilization_ratio\{limit="([^"]+)",.*\} (\S+)$', page, re.MULTILINE)
    # Two of two requests; of 100 tokens 8 that were used, and 36 that the second request held.
    expected = [("requests-per-month-by-user", 1), ("tokens", 0.44)]
    assert sorted((name, float(ratio)) for name, ratio in ratios) == expected
