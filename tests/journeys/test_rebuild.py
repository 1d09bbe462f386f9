"""The state store comes up without its data: what limits had counted is counted anew from usage records, once."""

from __future__ import annotations

import json
import re
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import App
from gateway import Gateway, Settings, bearer, eventually, free_port, settings
from harness import Resp, call, uniq
from stores import StoreServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_upstream import FakeUpstream

    StartGateway = Callable[[Settings], Gateway]

TOKENS_EACH = 20
POLICY = {
    "limits": [
        {"of": "requests", "limit": 100_000, "per": "day", "by": ["user"], "name": "day"},
        {"of": "tokens", "limit": 100_000_000, "per": "month", "by": ["project"], "name": "month"},
        {"of": "requests", "limit": 6, "per": "hour", "burst": 100_000, "by": ["user"], "name": "hour"},
        {"of": "concurrency", "limit": 8, "by": ["key"], "name": "at-once"},
    ]
}


@pytest.fixture
def forgetful() -> Iterator[StoreServer]:
    """Run a store that comes back with nothing."""
    with StoreServer(port=free_port()) as server:
        yield server


@pytest.fixture
def made(upstream: FakeUpstream) -> Settings:
    upstream.default = App(total_tokens=TOKENS_EACH)
    return settings(f"{upstream.url}/v1", users={"alice": POLICY}, drain_timeout="5s")


def ask(gateway: Gateway) -> Resp:
    body = json.dumps({"model": "m", "prompt": uniq(), "temperature": 1, "max_tokens": 8}).encode()
    return call(gateway.base_url, "POST", "/v1/completions", bearer("alice"), body)


def ask_often(gateway: Gateway, count: int) -> None:
    """Have requests served, and their records in the file."""
    before = len(gateway.records())
    assert {ask(gateway).status for _ in range(count)} == {200}
    assert len(gateway.wait_for_records(before + count)) == before + count


def standing(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """Return how the limits stand, by their names."""
    answer = call(gateway.base_url, "GET", "/v1/tidegate/me", bearer("alice"))
    return {} if answer.status != 200 else {limit["name"]: limit for limit in answer.json()["limits"]}


def used(gateway: Gateway) -> dict[str, int]:
    return {name: limit["used"] for name, limit in standing(gateway).items()}


def rebuilds(gateway: Gateway) -> int:
    page = call(gateway.admin_url, "GET", "/metrics").body.decode()
    found = re.search(r"^tidegate_rebuilds_total (\S+)$", page, re.MULTILINE)
    return int(float(found[1])) if found else 0


def counts(requests: int) -> dict[str, int]:
    """Return what so many requests have used, while none of the hour's has come back."""
    return {"day": requests, "month": TOKENS_EACH * requests, "hour": requests, "at-once": 0}


def check_counts(gateway: Gateway, requests: int) -> None:
    assert eventually(lambda: used(gateway) == counts(requests)), used(gateway)
    for limit in standing(gateway).values():
        assert limit["left"] >= 0
        assert limit["held"] == 0


def test_counts_outlive_a_store_that_comes_back_empty_twice(
    start_gateway: StartGateway, made: Settings, forgetful: StoreServer
) -> None:
    gateway = start_gateway({**made, "state": forgetful.url, "workers": 2})
    assert rebuilds(gateway) == 0
    for round_number in (1, 2):
        ask_often(gateway, 9)
        forgetful.kill()
        forgetful.start()
        assert eventually(lambda: rebuilds(gateway) == round_number)  # noqa: B023  it is asked at once
        check_counts(gateway, 9 * round_number)
    assert "limits were counted anew from usage records" in gateway.log
    ask_often(gateway, 1)
    check_counts(gateway, 19)

    gateway.terminate()
    with Gateway(gateway.folder, gateway.settings) as again:
        ask_often(again, 1)
        check_counts(again, 20)
        assert rebuilds(again) == 0


@pytest.mark.parametrize("is_frozen", [False, True], ids=["killed", "frozen and killed"])
def test_under_load_limits_and_usage_records_say_the_same(
    start_gateway: StartGateway, made: Settings, forgetful: StoreServer, *, is_frozen: bool
) -> None:
    gateway = start_gateway({**made, "state": forgetful.url, "workers": 2})
    ending, statuses = threading.Event(), set()

    def run() -> None:
        while not ending.is_set():
            statuses.add(ask(gateway).status)

    clients = [threading.Thread(target=run) for _ in range(4)]
    for client in clients:
        client.start()
    for round_number in (1, 2):
        assert gateway.wait_for_records(100 * round_number)
        if is_frozen:
            forgetful.freeze()
            assert eventually(lambda: call(gateway.admin_url, "GET", "/readyz").status == 503)
            forgetful.thaw()  # it carries out what it was sent, and nobody is told
        forgetful.kill()
        forgetful.start()
        assert eventually(lambda: rebuilds(gateway) == round_number)  # noqa: B023  it is asked at once
    ending.set()
    for client in clients:
        client.join(20)
    assert statuses == {200}
    assert eventually(lambda: told_by_limits(gateway) == told_by_records(gateway)), told_by_limits(gateway)


def told_by_limits(gateway: Gateway) -> tuple[int, int]:
    """Return requests and tokens that calendar windows have counted."""
    found = used(gateway)
    return found["day"], found["month"]


def told_by_records(gateway: Gateway) -> tuple[int, int]:
    """Return likewise what the usage file holds, each request once."""
    by_id = {record["request_id"]: record for record in gateway.records()}
    return len(by_id), sum(record["input_tokens"] + record["output_tokens"] for record in by_id.values())


def test_a_request_under_way_across_the_loss_is_counted_once(
    start_gateway: StartGateway, made: Settings, forgetful: StoreServer, upstream: FakeUpstream
) -> None:
    gateway = start_gateway({**made, "state": forgetful.url})
    ask_often(gateway, 3)
    upstream.default = App(total_tokens=TOKENS_EACH, latency=2)
    served_before = len(upstream.served)
    answers: list[Resp] = []
    asking = threading.Thread(target=lambda: answers.append(ask(gateway)))
    asking.start()
    assert eventually(lambda: used(gateway).get("at-once") == 0 and standing(gateway)["at-once"]["held"] == 1)
    forgetful.kill()
    forgetful.start()
    asking.join(20)
    assert [answer.status for answer in answers] == [200]
    assert len(upstream.served) == served_before + 1
    assert len(gateway.wait_for_records(4)) == 4
    assert eventually(lambda: rebuilds(gateway) == 1)
    check_counts(gateway, 4)


def test_requests_that_are_served_while_the_store_is_away_count_too(
    start_gateway: StartGateway, made: Settings, forgetful: StoreServer
) -> None:
    gateway = start_gateway({**made, "state": forgetful.url})
    ask_often(gateway, 3)
    forgetful.kill()
    assert {ask(gateway).status for _ in range(4)} == {200}
    forgetful.start()
    assert len(gateway.wait_for_records(7)) == 7
    assert eventually(lambda: rebuilds(gateway) == 1)
    check_counts(gateway, 7)


def test_two_gateways_on_one_store_add_what_each_has_written_down(
    start_gateway: StartGateway, made: Settings, forgetful: StoreServer
) -> None:
    first = start_gateway({**made, "state": forgetful.url})
    ask_often(first, 4)
    first.terminate()
    second = start_gateway({**made, "state": forgetful.url})
    ask_often(second, 2)
    assert (len(first.records()), len(second.records())) == (4, 2)
    with Gateway(first.folder, first.settings) as first_again:
        forgetful.kill()
        forgetful.start()
        assert eventually(lambda: rebuilds(first_again) == rebuilds(second) == 1)
        check_counts(second, 6)


def test_counts_outlive_the_embedded_store_and_are_not_added_to_one_that_kept_them(
    start_gateway: StartGateway, made: Settings
) -> None:
    gateway = start_gateway(made)
    ask_often(gateway, 5)
    check_counts(gateway, 5)
    gateway.terminate()
    with Gateway(gateway.folder, gateway.settings) as kept:
        check_counts(kept, 5)
        assert rebuilds(kept) == 0
    shutil.rmtree(gateway.data_dir / "state")
    with Gateway(gateway.folder, gateway.settings) as emptied:
        assert eventually(lambda: rebuilds(emptied) == 1)
        check_counts(emptied, 5)
