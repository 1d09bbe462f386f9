"""Gateways whose clocks are wrong by seconds, one ahead and one behind, on one store: nothing is any different.

Time is the store's clock (SPEC §5). A launcher of the tests' own sets the clocks wrong, and tells no gateway.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway import ROOT, Gateway, Settings, bearer, eventually, settings
from harness import Resp, call, parallel, uniq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    StartAll = Callable[[Settings], list[Gateway]]

SHIFTED = Path(__file__).parents[1] / "support" / "shifted"
AHEAD_SECONDS = {"right": 0, "ahead": 5, "behind": -5}
DAY_SECONDS = 86_400


@pytest.fixture
def start_all(tmp_path: Path) -> Iterator[StartAll]:
    """Return a function that starts three gateways on one configuration: right, five seconds ahead, and five behind."""
    with ExitStack() as running:

        def start(made: Settings) -> list[Gateway]:
            found = []
            for name, seconds in AHEAD_SECONDS.items():
                environ = {"PYTHONPATH": f"{SHIFTED}:{ROOT}", "CLOCK_AHEAD_SECONDS": str(seconds)}
                found.append(running.enter_context(Gateway(tmp_path / name, made, environ)))
            return found

        yield start


def ask(gateway: Gateway, headers: tuple[tuple[str, str], ...] = (), **changes: object) -> Resp:
    body = {"model": "m", "prompt": [1, 2, 3], "temperature": 1, "max_tokens": 17, **changes}
    sent = [*bearer("alice"), *headers]
    return call(gateway.base_url, "POST", "/v1/completions", sent, json.dumps(body).encode(), timeout=60)


def store_seconds(server: StoreServer) -> float:
    with server.client() as client:
        seconds, microseconds = client.time()
    return seconds + microseconds / 1e6


def zone_at_noon(now: float) -> str:
    """Return a time zone in which it is about noon, so that no day ends while a test runs."""
    hours_ahead = 12 - int(now) % DAY_SECONDS // 3_600
    return f"Etc/GMT{-hours_ahead:+d}" if hours_ahead else "Etc/GMT"  # these names have their signs the other way round


def seconds_of(duration: str) -> int:
    """Read `11h59m3s`."""
    hours, minutes, seconds = (int(part) for part in re.fullmatch(r"(\d+)h(\d+)m(\d+)s", duration).groups())
    return hours * 3_600 + minutes * 60 + seconds


def test_verdicts_windows_and_resets_are_the_stores(
    start_all: StartAll, upstream: FakeUpstream, redis_server: StoreServer
) -> None:
    began = store_seconds(redis_server)
    zone = zone_at_noon(began)
    midnight = began - began % 3_600 + 12 * 3_600  # at this full hour it is noon there
    limits = [{"of": "requests", "limit": 9, "per": "day", "by": ["user"]}]
    limits += [{"of": "tokens", "limit": 10_000, "per": "month", "by": ["user"]}]
    made = settings(
        f"{upstream.url}/v1",
        users={"alice": {"limits": limits}},
        state=redis_server.url,
        organization={"id": "org_skewed", "time_zone": zone},
    )
    gateways = start_all(made)
    told = []
    for number in range(12):
        before = store_seconds(redis_server)
        answer = ask(gateways[number % 3])
        after = store_seconds(redis_server)
        told.append((answer.status, int(answer.header("x-ratelimit-remaining-requests"))))
        reset = seconds_of(answer.header("x-ratelimit-reset-requests"))
        assert midnight - after <= reset < midnight - before + 1  # rounded up
        if answer.status == 429:
            assert int(answer.header("retry-after")) == reset
    assert told == [(200, left) for left in (8, 7, 6, 5, 4, 3, 2, 1, 0)] + [(429, 0)] * 3
    for gateway in gateways:
        before = store_seconds(redis_server)
        requests, tokens = call(gateway.base_url, "GET", "/v1/tidegate/me", bearer("alice")).json()["limits"]
        assert midnight - store_seconds(redis_server) <= requests["reset_seconds"] < midnight - before + 1
        assert (requests["used"], tokens["used"]) == (9, 9 * 20)
    with redis_server.client() as client:
        assert len(client.keys("*:limit:*")) == 2, "one day and one month, whoever was asked"
    assert len(upstream.served) == 9
    for gateway, seconds in zip(gateways, AHEAD_SECONDS.values(), strict=True):
        page = call(gateway.admin_url, "GET", "/metrics").body.decode()
        found = re.search(r'^tidegate_clock_skew_seconds\{store="state"\} (\S+)$', page, re.MULTILINE)
        assert float(found[1]) == pytest.approx(seconds, abs=0.5)


def test_an_admission_is_late_by_the_stores_clock_only(
    start_all: StartAll, upstream: FakeUpstream, redis_server: StoreServer
) -> None:
    """The deadline of an admission is a quarter of a second; by a clock that is behind, none would be in time."""
    limits = [{"of": "concurrency", "limit": 4, "by": ["user"]}]
    users = {"alice": {"limits": limits}}
    gateways = start_all(settings(f"{upstream.url}/v1", users=users, state=redis_server.url))
    with redis_server.client() as client:
        client.config_resetstat()
        answers = [ask(gateway) for gateway in gateways for _ in range(10)]
        scripts = client.info("commandstats")["cmdstat_evalsha"]
    assert [answer.status for answer in answers] == [200] * 30
    assert scripts["calls"] <= 30 + 30 + 6, "each one that came late would have been sent again; the rest is upkeep"
    with redis_server.client() as client:
        holds = [client.hget(key, "state") for key in client.keys("*:hold:*")]
    assert holds == [b"settled"] * 30


def test_no_lease_is_taken_for_over_while_its_owner_lives(
    start_all: StartAll, upstream: FakeUpstream, redis_server: StoreServer
) -> None:
    """A lease of 3 s is less than clocks are apart; each request lasts longer than that."""
    limits = [{"of": "tokens", "limit": 1_000, "per": "52w", "by": ["user"]}]
    users = {"alice": {"limits": limits}}
    gateways = start_all(settings(f"{upstream.url}/v1", users=users, state=redis_server.url, lease="3s"))
    upstream.default.latency = 5
    answers = parallel([lambda gateway=gateway: ask(gateway) for gateway in gateways])
    upstream.default.latency = 0
    assert [answer.status for answer in answers] == [200] * 3
    assert eventually(lambda: sum(len(gateway.records()) for gateway in gateways) >= 3)
    records = [record for gateway in gateways for record in gateway.records()]
    assert [(record["outcome"], record["known"]) for record in records] == [("completed", "reported")] * 3


def test_answers_from_the_cache_have_their_true_age(
    start_all: StartAll, upstream: FakeUpstream, redis_server: StoreServer
) -> None:
    gateways = start_all(settings(f"{upstream.url}/v1", users={"alice": {}}, state=redis_server.url))
    for writer in gateways:
        question: dict[str, Any] = {"prompt": uniq(), "temperature": 0}
        began = store_seconds(redis_server)
        assert ask(writer, **question).status == 200
        for reader in gateways:
            hit = ask(reader, (("Cache-Control", "max-age=4"),), **question)
            assert hit.header("cache-status").startswith("tidegate;hit"), (writer.folder.name, reader.folder.name)
            assert 0 <= int(hit.header("age")) <= store_seconds(redis_server) - began
    assert len(upstream.served) == 3
