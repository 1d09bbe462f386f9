"""Answers of a configuration that a deployment has left are not served any more; silence retires none (SPEC §6)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from answering import Answering, text_of
from gateway import Gateway, Settings, bearer, eventually, settings
from harness import Resp, call, sse_json, uniq
from stepped import SteppedClock
from whole import configuration, whole_gateway

from proxy.store.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    StartGateway = Callable[[Settings], Gateway]

ORGANIZATION = "org_acme"
RETIRED = "tidegate;fwd=stale;stored;detail=fingerprint"
USERS = {"alice": {}, "bob": {"cache": {"fingerprint": "ignore"}}}
WINDOW_SECONDS = 1.0
LONG_AGO, SECOND, HOUR = 4_000_000_000_000, 1_000, 3_600_000
"""Unix milliseconds, far from the end of any window."""


def ask(gateway: Gateway, prompt: str | Sequence[str], *, user: str = "alice", **more: object) -> Resp:
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}
    return call(gateway.base_url, "POST", "/v1/completions", bearer(user), json.dumps(body).encode())


def is_hit(answer: Resp) -> bool:
    assert answer.status == 200
    return (answer.header("cache-status") or "").startswith("tidegate;hit")


def epoch_of(store: StoreServer) -> int:
    with store.client() as client:
        return int(client.hget(Keys(ORGANIZATION).cache, "epoch"))


def observed(gateway: Gateway, upstream: FakeUpstream, fingerprint: str) -> Callable[[], None]:
    """Return what has the deployment answer something new with a fingerprint."""

    def observe() -> None:
        upstream.default.fingerprint = fingerprint
        assert not is_hit(ask(gateway, uniq()))

    return observe


@pytest.fixture
def gateway(start_gateway: StartGateway, upstream: FakeUpstream) -> Gateway:
    upstream.default = Answering("fp_a")
    made = settings(f"{upstream.url}/v1", users=USERS, workers=2, fingerprint_window=f"{WINDOW_SECONDS:g}s")
    return start_gateway(made)


def test_what_a_deployment_said_before_it_changed_is_not_served_after_it(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    serials = dict.fromkeys(f"prompt {number}" for number in range(12))
    for serial, prompt in enumerate(serials, 1):
        assert ask(gateway, prompt).text() == text_of(prompt, serial)
        serials[prompt] = serial
    first, second, third, fourth, *others = serials
    observe = observed(gateway, upstream, "fp_b")
    observe()
    assert all(is_hit(ask(gateway, prompt)) for prompt in serials), "one other answer has retired a fingerprint at once"

    probe = eventually(lambda: observe() or next((each for each in [ask(gateway, first)] if not is_hit(each)), None))
    assert probe.header("cache-status") == RETIRED
    assert probe.json()["system_fingerprint"] == "fp_b"
    assert is_hit(ask(gateway, first)), "what was fetched anew is not kept"

    ignoring = ask(gateway, second, user="bob")
    assert is_hit(ignoring)
    assert ignoring.json()["system_fingerprint"] == "fp_a"
    stream = ask(gateway, second, stream=True)
    assert stream.header("cache-status") == "tidegate;fwd=stale;detail=fingerprint"
    assert {event["system_fingerprint"] for event in sse_json(stream.body)} == {"fp_b"}
    array = ask(gateway, [first, third, second])
    assert array.header("cache-status") == 'tidegate;fwd=partial;stored;detail="2 of 3 items hit"'
    assert upstream.log[-1].json()["prompt"] == [third]
    assert ask(gateway, fourth).header("cache-status") == RETIRED
    for prompt in others[:4]:
        assert not is_hit(ask(gateway, prompt)), "one worker goes on serving what is retired"

    observed(gateway, upstream, "fp_a")()
    assert eventually(lambda: is_hit(ask(gateway, others[4], max_tokens=8)))
    assert is_hit(ask(gateway, others[5])), "what is shown again does not live again"


def test_two_fingerprints_in_turn_do_not_thrash(
    start_gateway: StartGateway, upstream: FakeUpstream, own_valkey: StoreServer
) -> None:
    upstream.default = Answering("fp_a")
    made = settings(f"{upstream.url}/v1", users=USERS, state=own_valkey.url, fingerprint_window=f"{WINDOW_SECONDS:g}s")
    gateway = start_gateway({**made, "organization": {"id": ORGANIZATION}})
    show = [observed(gateway, upstream, name) for name in ("fp_a", "fp_b")]
    kept = ["of the first", "of the second"]
    for observe, prompt in zip(show, kept, strict=True):
        observe()
        ask(gateway, prompt)
    epoch, begin = epoch_of(own_valkey), time.monotonic()
    hits, longest = [], 0.0
    while (now := time.monotonic()) < begin + 2.5 * WINDOW_SECONDS:
        for observe in show:
            observe()
        hits += [is_hit(ask(gateway, prompt)) for prompt in kept]
        longest = max(longest, time.monotonic() - now)
    if longest < WINDOW_SECONDS / 2:  # else this machine has stood still for so long that one was not shown
        assert all(hits)
        assert epoch_of(own_valkey) == epoch


async def test_an_hour_of_nothing_but_hits_retires_nothing(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.default = Answering("fp_a")
    made = configuration(upstream.url, tmp_path, fingerprint_window="10m", organization={"id": ORGANIZATION})
    asked = {"model": "m", "prompt": "known", "temperature": 0, "max_tokens": 8}
    with valkey.client() as client:
        clock = SteppedClock.begin(client, monkeypatch, LONG_AGO)
        async with whole_gateway(made, valkey.url) as whole:
            await whole.ask("POST", "/v1/completions", asked)
            clock.set(LONG_AGO + SECOND)
            upstream.default.fingerprint = "fp_b"
            await whole.ask("POST", "/v1/completions", {**asked, "prompt": "another"})
            epoch = epoch_of(valkey)
            for minutes in range(0, 61, 10):
                clock.set(LONG_AGO + 2 * SECOND + minutes * HOUR // 60)
                answer, _ = await whole.ask("POST", "/v1/completions", asked)
                assert answer.header("cache-status").startswith("tidegate;hit")
                assert int(answer.header("age")) >= minutes * 60
            assert epoch_of(valkey) == epoch
    assert len(upstream.log) == 2
