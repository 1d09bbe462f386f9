"""Clients that take nothing of their answer: given up after `timeouts.client`, and told apart in the books."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import DONE, FakeUpstream, ev, sse_reply, tchunk
from gateway import Gateway, Settings, bearer, eventually, settings
from harness import Raw, call, has_error_event, joined, uniq

if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_upstream import Ops

    StartGateway = Callable[[Settings], Gateway]

PIECE = "x" * 60_000
MANY = 400
"""Pieces of a stream for which there is no room on the way to a client that does not read: 24 MB."""
SOME = 150
CLIENT = {"client": "1s"}


def long_stream(events: int = MANY) -> Ops:
    return sse_reply([ev(tchunk(PIECE))] * events + [ev(tchunk("", finish="stop")), DONE], gap=0)


def is_served(client: Raw) -> bool:
    """Tell whether the gateway still has the connection of a client, which may not know."""
    (_, ours), (_, theirs) = client.s.getsockname(), client.s.getpeername()
    return f":{theirs:04X} 0100007F:{ours:04X}" in Path("/proc/net/tcp").read_text()


def ask(gateway: Gateway, **more: Any) -> Raw:  # noqa: ANN401  any parameter
    client = Raw(gateway.base_url)
    body = {"model": "m", "prompt": uniq(), "stream": True, **more}
    client.request("POST", "/v1/completions", bearer("alice"), json.dumps(body).encode())
    return client


@pytest.mark.parametrize("shared", [False, True], ids=["a fetch of its own", "a flight that it reads alone"])
def test_a_client_that_does_not_read_is_given_up(
    upstream: FakeUpstream, start_gateway: StartGateway, *, shared: bool
) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {}}, timeouts=CLIENT))
    upstream.script(long_stream())
    client = ask(gateway, temperature=0 if shared else 1)
    [record] = gateway.wait_for_records(1)
    assert (record["outcome"], record["error_code"]) == ("client_left", "client_too_slow")
    assert upstream.wait(lambda: upstream.log[0].aborted_at is not None), "the upstream was not told"
    count = 'tidegate_slow_clients_total{model="m"} 1.0'
    assert eventually(lambda: count in call(gateway.admin_url, "GET", "/metrics").body.decode())
    [line] = [json.loads(line) for line in gateway.log.splitlines() if record["request_id"] in line]
    assert (line["outcome"], line["error_code"]) == ("client_left", "client_too_slow")
    client.close()


def test_a_client_that_reads_little_at_a_time_has_all_of_its_answer(
    upstream: FakeUpstream, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {}}, timeouts=CLIENT))
    upstream.script(long_stream(SOME))
    client = ask(gateway, temperature=1)

    def pause(_: object) -> bool:
        time.sleep(0.02)  # what makes it slow: in all it takes several times as long as nothing may be taken
        return False

    answer = client.response(stop=pause)
    client.close()
    assert answer.complete
    assert not has_error_event(answer.body)
    assert len(joined(answer.body)[0]) == SOME * len(PIECE)
    [record] = gateway.wait_for_records(1)
    assert (record["outcome"], record["error_code"]) == ("completed", None)


def test_others_who_read_the_same_go_on_when_one_does_not(upstream: FakeUpstream, start_gateway: StartGateway) -> None:
    more = {"timeouts": CLIENT, "max_flight_bytes": 64 * 2**20, "max_entry_bytes": 64 * 2**20}
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {}}, **more))
    both: list[Raw] = []
    head, *stream = long_stream()
    are_both_here, is_one_gone = (lambda: len(both) == 2), (lambda: not is_served(both[0]))
    *before, done, pause, end = stream  # what follows [DONE] is waited for a second only
    upstream.script([head, ("until", are_both_here), *before, ("until", is_one_gone), done, pause, end])
    asked = {"prompt": uniq(), "temperature": 0}
    stalled, reader = ask(gateway, **asked), ask(gateway, **asked)
    both += [stalled, reader]
    answer = reader.response()
    records = gateway.wait_for_records(2)
    assert answer.complete
    assert len(joined(answer.body)[0]) == MANY * len(PIECE)
    assert len(upstream.served) == 1
    assert sorted((each["outcome"], each["error_code"]) for each in records) == [
        ("client_left", "client_too_slow"),
        ("completed", None),
    ]
    for client in both:
        client.close()
