"""The store goes away and comes back while requests run: nobody but a `deny` limit notices, nothing is booked twice."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from fake_upstream import App
from gateway import Gateway, Settings, bearer, children_of, command_line, eventually, settings
from harness import Resp, call, uniq

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    StartGateway = Callable[[Settings], Gateway]

LIMIT = 100_000_000
TOKENS_EACH = 20
WORST_CASE_TOKENS = 100


def _tokens_a_day(on_store_failure: str) -> Settings:
    limit = {"of": "tokens", "limit": LIMIT, "per": "day", "by": ["user"], "on_store_failure": on_store_failure}
    return {"limits": [limit]}


POLICIES = {name: _tokens_a_day(name) for name in ("local", "allow", "deny")}


@dataclass
class Load:
    """Requests of some users, one after the other for each, until the block ends."""

    gateway: Gateway
    users: tuple[str, ...]
    answers: list[tuple[str, Resp]] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._run, args=(user,), daemon=True) for user in self.users]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)

    def wait_for(self, count: int) -> None:
        """Wait until each user has had `count` more answers."""
        start = len(self.answers)
        assert eventually(
            lambda: all(sum(user == name for name, _ in self.answers[start:]) >= count for user in self.users),
            seconds=30,
        )

    def _run(self, user: str) -> None:
        while not self._stopping.is_set():
            self.answers.append((user, _ask(self.gateway, user)))


def _ask(gateway: Gateway, user: str) -> Resp:
    body = json.dumps({"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 8}).encode()
    return call(gateway.base_url, "POST", "/v1/completions", bearer(user), body)


def _is_ready(gateway: Gateway) -> bool:
    return call(gateway.admin_url, "GET", "/readyz").status == 200


def _charged(gateway: Gateway, user: str) -> int:
    return LIMIT - int(_ask(gateway, user).header("x-ratelimit-remaining-tokens"))


def _check_books(gateway: Gateway, load: Load) -> None:
    """Every answered request left one record, and no more was booked than was used."""
    served = [(user, answer) for user, answer in load.answers if answer.status == 200]
    records = gateway.wait_for_records(len(load.answers), seconds=30)
    ids = [record["request_id"] for record in records]
    assert len(ids) == len(set(ids)), "a record was written twice"
    assert {answer.header("x-request-id") for _, answer in served} <= set(ids), "a record was lost"
    for user in load.users:
        used = sum(TOKENS_EACH for name, _ in served if name == user)
        assert _charged(gateway, user) <= used + WORST_CASE_TOKENS, f"{user} was charged twice"


@pytest.mark.parametrize("outage", ["killed", "frozen"])
def test_a_store_that_goes_and_comes_back_under_load(
    start_gateway: StartGateway, upstream: FakeUpstream, redis_server: StoreServer, outage: str
) -> None:
    upstream.default = App(total_tokens=TOKENS_EACH)
    gateway = start_gateway(
        settings(f"{upstream.url}/v1", users=POLICIES, state=redis_server.url, workers=2, drain_timeout="5s")
    )
    with Load(gateway, ("local", "allow", "deny")) as load:
        load.wait_for(10)
        (redis_server.kill if outage == "killed" else redis_server.freeze)()
        assert eventually(lambda: not _is_ready(gateway))
        load.wait_for(20)
        (redis_server.start if outage == "killed" else redis_server.thaw)()
        assert eventually(lambda: _is_ready(gateway))
        assert eventually(lambda: _ask(gateway, "deny").status == 200)
        load.wait_for(10)

    for user, answer in load.answers:
        assert answer.complete
        assert answer.status == 200 or (user, answer.status) == ("deny", 503)
        if answer.status == 503:
            assert int(answer.header("retry-after")) >= 1
            assert answer.json()["error"]["code"] == "store_unavailable"
    assert [answer.status for user, answer in load.answers if user == "deny"].count(503) >= 1
    _check_books(gateway, load)


def test_the_gateway_brings_its_own_store_back(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    upstream.default = App(total_tokens=TOKENS_EACH)
    gateway = start_gateway(settings(f"{upstream.url}/v1", users=POLICIES))
    with Load(gateway, ("local", "allow")) as load:
        load.wait_for(10)
        for pid in _embedded_stores(gateway):
            os.kill(pid, signal.SIGKILL)
        load.wait_for(10)
        assert eventually(lambda: len(_embedded_stores(gateway)) == 2 and _is_ready(gateway))
        load.wait_for(10)
    assert {answer.status for _, answer in load.answers} == {200}


def _embedded_stores(gateway: Gateway) -> list[int]:
    return [pid for pid in children_of(gateway.pid) if "server" in Path(command_line(pid)[0]).name]


def test_a_gateway_starts_and_serves_without_its_store(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users=POLICIES, state="redis://127.0.0.1:1/0"))
    assert call(gateway.base_url, "GET", "/healthz").status == 200
    assert call(gateway.admin_url, "GET", "/healthz").status == 200
    assert call(gateway.admin_url, "GET", "/readyz").status == 503
    assert [_ask(gateway, user).status for user in ("local", "allow", "deny")] == [200, 200, 503]


def test_what_was_used_during_an_outage_is_recorded_once_it_is_over(
    start_gateway: StartGateway, upstream: FakeUpstream, redis_server: StoreServer
) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users=POLICIES, state=redis_server.url))
    redis_server.kill()
    answers = [_ask(gateway, "allow") for _ in range(5)]
    assert [answer.status for answer in answers] == [200] * 5
    assert not gateway.records()
    redis_server.start()
    records = gateway.wait_for_records(5)
    assert [record["request_id"] for record in records] == [answer.header("x-request-id") for answer in answers]


def test_what_was_used_during_an_outage_survives_the_gateway(
    start_gateway: StartGateway, upstream: FakeUpstream, redis_server: StoreServer
) -> None:
    made = settings(f"{upstream.url}/v1", users=POLICIES, state=redis_server.url, drain_timeout="2s")
    gateway = start_gateway(made)
    redis_server.kill()
    ids = {_ask(gateway, "allow").header("x-request-id") for _ in range(3)}
    assert gateway.terminate() == 0
    redis_server.start()
    with Gateway(gateway.folder, made) as again:
        assert {record["request_id"] for record in again.wait_for_records(3, seconds=10)} == ids
