"""Two gateways of two workers each, on one store, are asked the same by many at once (SPEC §6, joining)."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest
from fake_upstream import DONE, FakeUpstream, ev, json_reply, tchunk
from gateway import Gateway, Settings, bearer, eventually, free_port, key_of, settings
from harness import Raw, Resp, has_error_event, joined, sse_json, uniq
from meeting import EVENTS, TEXT, Gate, stream_with, whole_after
from stores import StoreServer

from proxy.config import Organization
from proxy.store.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fake_upstream import Ops

    StartGateway = Callable[[Settings], Gateway]

MANY = 200
PATIENCE_SECONDS = 60


def answer_after(gate: Gate, *, stream: bool) -> Ops:
    return stream_with([EVENTS[0], gate, *EVENTS[1:]]) if stream else whole_after(gate)


def asked(*, stream: bool = False, **more: object) -> dict[str, Any]:
    return {"model": "m", "prompt": uniq(), "temperature": 0, "max_tokens": 40, "stream": stream, **more}


class Client:
    """One request under way, on a thread of its own."""

    def __init__(self, gateway: Gateway, body: Mapping[str, Any], name: str = "") -> None:
        self.answer: Resp | None = None
        self._connection = Raw(gateway.base_url, timeout=PATIENCE_SECONDS)
        headers = [*bearer("alice"), ("X-Client-Request-Id", name)]
        self._connection.request("POST", "/v1/completions", headers, json.dumps(body).encode())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self.answer = self._connection.response()

    def leave(self) -> None:
        """Close the connection, whatever is on its way."""
        with suppress(OSError):
            self._connection.s.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_SECONDS)
        self._connection.close(rst=True)

    def read(self) -> Resp:
        """Return the answer once it is there."""
        self._thread.join(PATIENCE_SECONDS)
        assert self.answer is not None
        self._connection.close()
        return self.answer


@dataclass
class Fleet:
    """Gateways on one store in front of one upstream."""

    upstream: FakeUpstream
    store: StoreServer
    gateways: list[Gateway]
    clients: list[Client] = field(default_factory=list)
    _name: str = field(default_factory=uniq)

    def begin(self) -> None:
        """Forget what was before."""
        self.upstream.reset()
        self.clients = []
        self._name = uniq()

    def ask(self, count: int, body: Mapping[str, Any], *, gateway: Gateway | None = None) -> None:
        """Send the same so many times at once, to all gateways in turn, or to one."""
        at = self.gateways if gateway is None else [gateway]
        self.clients += [Client(at[number % len(at)], body, self._name) for number in range(count)]

    def all_are_here(self) -> None:
        """Wait until all who asked are admitted, wherever they are."""
        with self.store.client() as client:
            key = Keys(Organization().id).leases
            assert eventually(lambda: client.zcard(key) == len(self.clients), seconds=PATIENCE_SECONDS)

    def answers(self) -> list[Resp]:
        return [client.read() for client in self.clients]

    def records(self) -> list[dict[str, Any]]:
        """Return the usage records of all who asked since the beginning."""
        assert eventually(lambda: len(self._records()) == len(self.clients), seconds=PATIENCE_SECONDS)
        return self._records()

    def _records(self) -> list[dict[str, Any]]:
        records = [record for gateway in self.gateways for record in gateway.records()]
        return [record for record in records if record["client_request_id"] == self._name]


def _start(stack: ExitStack, folder: Path, upstream: FakeUpstream, **more: Any) -> Fleet:  # noqa: ANN401  any setting
    store = stack.enter_context(StoreServer(port=free_port(), keeps_data=True))
    made = settings(f"{upstream.url}/v1", users={"alice": {}}, state=store.url, workers=2, **more)
    gateways = [stack.enter_context(Gateway(folder / name, made)) for name in ("a", "b")]
    return Fleet(upstream, store, gateways)


@pytest.fixture(scope="module")
def _fleet(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield _start(stack, tmp_path_factory.mktemp("fleet"), _upstream, join_wait="30s")


@pytest.fixture
def fleet(_fleet: Fleet, upstream: FakeUpstream) -> Fleet:  # noqa: ARG001  its log and script are emptied
    """Return the gateways that these tests share; they wait for one another for as long as it takes."""
    _fleet.begin()
    return _fleet


@pytest.fixture
def own_fleet(upstream: FakeUpstream, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Return a function that starts gateways for one test."""
    with ExitStack() as stack:
        yield lambda **more: _start(stack, tmp_path, upstream, **more)


def ways(answers: Iterable[Resp]) -> dict[str, int]:
    """Count the answers by how they were come by."""
    found: dict[str, int] = {}
    for answer in answers:
        status = (answer.header("cache-status") or "none").removeprefix("tidegate;").split(";ttl=")[0]
        found[status] = found.get(status, 0) + 1
    return found


# One call for all


@pytest.mark.parametrize(
    ("first", "others"),
    [
        pytest.param(False, [False], id="whole"),
        pytest.param(True, [True], id="streamed"),
        pytest.param(True, [False, True], id="a stream for whole answers too"),
        pytest.param(False, [True, False], id="a whole answer for streams too"),
    ],
)
def test_two_hundred_at_once_are_one_call(fleet: Fleet, *, first: bool, others: list[bool]) -> None:
    gate, body = Gate(), asked(stream=first)
    fleet.upstream.default = answer_after(gate, stream=first)
    fleet.ask(1, body)
    assert fleet.upstream.wait(lambda: fleet.upstream.log)
    for number in range(MANY - 1):
        fleet.ask(1, {**body, "stream": others[number % len(others)]}, gateway=fleet.gateways[number // 2 % 2])
    fleet.all_are_here()
    gate.open()
    answers = fleet.answers()
    assert len(fleet.upstream.log) == 1
    assert {(answer.status, answer.complete, answer.text()) for answer in answers} == {(200, True, TEXT)}
    by_way = ways(answers)
    assert set(by_way) <= {"fwd=miss", "fwd=miss;stored", "fwd=miss;collapsed", "hit"}
    assert by_way["fwd=miss;collapsed"] >= 1, "some are in the worker that fetches"
    assert by_way["hit"] >= MANY / 2, "at least half are in another process, and wait for what it stores"
    records = fleet.records()
    assert [record["cache"] for record in records].count("hit") == MANY - 1
    assert sum(record["output_tokens"] for record in records) == 13
    assert sum(record["saved_output_tokens"] for record in records) == 13 * (MANY - 1)
    assert {record["outcome"] for record in records} == {"completed"}


def test_two_hundred_at_temperature_one_are_two_hundred_calls(fleet: Fleet) -> None:
    gate = Gate()
    fleet.upstream.default = answer_after(gate, stream=False)
    fleet.ask(MANY, asked(temperature=1))
    fleet.all_are_here()
    gate.open()
    answers = fleet.answers()
    assert len(fleet.upstream.log) == MANY
    assert ways(answers) == {"fwd=bypass;detail=not-deterministic": MANY}
    assert {(answer.status, answer.text()) for answer in answers} == {(200, TEXT)}


def test_an_error_before_the_first_byte_is_shared_by_a_worker_and_the_others_ask_themselves(fleet: Fleet) -> None:
    gate, body = Gate(), asked()
    error = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "some"}}
    fleet.upstream.default = [gate.op, *json_reply(error, 400)]
    fleet.ask(40, body)
    fleet.all_are_here()
    gate.open()
    answers = fleet.answers()
    assert {(answer.status, answer.body) for answer in answers} == {(400, json.dumps(error).encode())}
    assert len(fleet.upstream.log) <= 4, "more than one call of each worker"
    assert sum(record["output_tokens"] for record in fleet.records()) == 0


# What each of the others receives


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_leaders_client_goes_and_the_others_get_all(fleet: Fleet, *, stream: bool) -> None:
    gate, body = Gate(), asked(stream=stream)
    fleet.upstream.default = answer_after(gate, stream=stream)
    fleet.ask(1, body)
    assert fleet.upstream.wait(lambda: fleet.upstream.log)
    fleet.ask(39, body)
    fleet.all_are_here()
    leader, *others = fleet.clients
    leader.leave()
    gate.open()
    answers = [client.read() for client in others]
    assert {(answer.status, answer.complete, answer.text()) for answer in answers} == {(200, True, TEXT)}
    [request] = fleet.upstream.log
    assert request.aborted_at is None
    records = fleet.records()
    paid = [record for record in records if record["cache"] == "miss"]
    assert [(record["outcome"], record["output_tokens"]) for record in paid] == [("client_left", 13)]
    assert [record["cache"] for record in records].count("hit") == 39


def test_an_upstream_that_breaks_in_the_middle(fleet: Fleet) -> None:
    gate, body = Gate(), asked(stream=True)
    fleet.upstream.script(stream_with([*EVENTS[:2], gate], end="rst"))
    fleet.upstream.default = stream_with(EVENTS)
    fleet.ask(40, body)
    fleet.all_are_here()
    gate.open()
    answers = fleet.answers()
    assert {(answer.status, answer.complete) for answer in answers} == {(200, True)}
    broken = [answer for answer in answers if has_error_event(answer.body)]
    whole = [answer for answer in answers if not has_error_event(answer.body)]
    assert broken, "the leader at least"
    assert {answer.body for answer in broken} == {broken[0].body}, "those in the leader's worker get the same"
    assert joined(broken[0].body) == {0: "one two "}
    assert DONE not in broken[0].body
    assert whole, "who waits in another process is not harmed"
    assert {answer.text() for answer in whole} == {TEXT}
    assert len(fleet.upstream.log) == 2, "one of those fetches it for all of them"
    assert [record["outcome"] for record in fleet.records()].count("upstream_error") == len(broken)


def test_an_answer_that_takes_longer_than_others_wait_is_fetched_once_by_each_worker(
    own_fleet: Callable[..., Fleet],
) -> None:
    fleet, gate = own_fleet(join_wait="100ms"), Gate()
    fleet.upstream.default = answer_after(gate, stream=True)
    fleet.ask(60, asked(stream=True))
    fleet.all_are_here()
    assert fleet.upstream.wait(lambda: len(fleet.upstream.log) > 1), "another worker goes itself"
    gate.open()
    answers = fleet.answers()
    assert {(answer.status, answer.complete, answer.text()) for answer in answers} == {(200, True, TEXT)}
    calls = len(fleet.upstream.log)
    assert 2 <= calls <= 4
    by_way = ways(answers)
    assert by_way["fwd=miss"] == calls
    assert by_way["fwd=miss;collapsed"] == 60 - calls - by_way.get("hit", 0)


def test_the_leaders_worker_is_killed(own_fleet: Callable[..., Fleet]) -> None:
    fleet, gate, body = own_fleet(join_wait="30s"), Gate(), asked(stream=True)
    fleet.upstream.script(stream_with([*EVENTS[:2], Gate()]), answer_after(gate, stream=True))
    fleet.ask(1, body, gateway=fleet.gateways[0])
    assert fleet.upstream.wait(lambda: fleet.upstream.log)
    [leading] = [pid for pid in fleet.gateways[0].worker_pids if _is_connected(pid, fleet.upstream.port)]
    fleet.ask(39, body)
    fleet.all_are_here()
    os.kill(leading, signal.SIGKILL)
    assert fleet.upstream.wait(lambda: len(fleet.upstream.log) == 2), "somebody else fetches it"
    gate.open()
    answers = fleet.answers()
    broken = [answer for answer in answers if not answer.complete]
    whole = [answer for answer in answers if answer.complete]
    assert broken[0] is answers[0]
    assert {answer.status for answer in broken} <= {0, 200}
    assert all(TEXT.startswith(joined(answer.body).get(0, "")) for answer in broken)
    assert {(answer.status, answer.text()) for answer in whole} == {(200, TEXT)}
    assert len(whole) >= 19, "the other gateway's at least"
    assert len(fleet.upstream.log) == 2


def _is_connected(pid: int, port: int) -> bool:
    """Tell whether a process has a connection to a loopback port."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if int(row[2].split(":")[1], 16) == port}
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return bool(found & sockets)


def test_a_stream_that_waits_for_another_gateway_is_kept_alive_and_the_official_client_reads_it(fleet: Fleet) -> None:
    gate, body = Gate(), asked(stream=False)
    fleet.upstream.script(whole_after(gate))
    fleet.ask(1, body, gateway=fleet.gateways[0])
    assert fleet.upstream.wait(lambda: fleet.upstream.log)
    with openai.OpenAI(base_url=f"{fleet.gateways[1].base_url}/v1", api_key=key_of("alice"), max_retries=0) as client:
        stream = client.completions.create(**{**body, "stream": True})  # its head is there before the answer
        assert stream.response.headers["cache-status"] == "tidegate;fwd=miss"
        gate.open()
        assert "".join(choice.text for chunk in stream for choice in chunk.choices) == TEXT
    assert fleet.answers()[0].text() == TEXT
    assert len(fleet.upstream.log) == 1


# Slow readers


def test_the_slowest_reader_does_not_slow_the_others(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {}}, workers=1))
    gate, body = Gate(), asked(stream=True)
    pieces = [ev(tchunk("x" * 60_000)) for _ in range(130)]  # more than a socket keeps of what nobody reads
    upstream.default = stream_with([EVENTS[0], gate, *pieces, *EVENTS[3:]])
    slow = _slow_client(gateway, body)
    assert upstream.wait(lambda: upstream.log)
    fast = [Client(gateway, body) for _ in range(5)]
    assert eventually(lambda: _waiting(gateway) == 6, seconds=30)
    gate.open()
    with ThreadPoolExecutor(len(fast)) as readers:
        answers = list(readers.map(Client.read, fast))
    assert {(answer.complete, len(answer.text())) for answer in answers} == {(True, 130 * 60_000 + 4)}
    read = slow.response()
    slow.close()
    assert (read.status, read.complete, read.error) == (200, True, None)
    events = sse_json(read.body)
    assert events[-1]["error"]["code"] == "client_too_slow"
    assert len(events) < 130
    assert len(upstream.log) == 1


def _slow_client(gateway: Gateway, body: Mapping[str, Any]) -> Raw:
    """Ask, and read nothing yet."""
    connection = Raw(gateway.base_url, timeout=PATIENCE_SECONDS)
    connection.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    connection.request("POST", "/v1/completions", bearer("alice"), json.dumps(body).encode())
    return connection


# The end of a gateway


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_gateway_that_is_to_end_finishes_what_is_shared(
    start_gateway: StartGateway, upstream: FakeUpstream, *, stream: bool
) -> None:
    gateway = start_gateway(settings(f"{upstream.url}/v1", users={"alice": {}}, workers=1))
    gate, body = Gate(), asked(stream=stream)
    upstream.default = answer_after(gate, stream=stream)
    clients = [Client(gateway, body) for _ in range(10)]
    assert upstream.wait(lambda: upstream.log)
    mixed = [Client(gateway, {**body, "stream": not stream}) for _ in range(10)]
    assert eventually(lambda: _waiting(gateway) == 20, seconds=30)
    clients[0].leave()
    gateway.process.terminate()
    gate.open()
    answers = [client.read() for client in (*clients[1:], *mixed)]
    assert gateway.process.wait(30) == 0
    assert {(answer.status, answer.complete, answer.text()) for answer in answers} == {(200, True, TEXT)}
    assert len(upstream.log) == 1


def test_past_the_drains_time_out_all_who_share_a_fetch_are_told(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    made = settings(f"{upstream.url}/v1", users={"alice": {}}, workers=1, drain_timeout="300ms")
    gateway = start_gateway(made)
    body = asked(stream=True)
    upstream.default = answer_after(Gate(), stream=True)
    clients = [Client(gateway, body) for _ in range(10)]
    assert upstream.wait(lambda: upstream.log)
    mixed = [Client(gateway, {**body, "stream": False}) for _ in range(10)]
    assert eventually(lambda: _waiting(gateway) == 20, seconds=30)
    gateway.process.terminate()
    streamed, whole = [client.read() for client in clients], [client.read() for client in mixed]
    assert gateway.process.wait(30) == 0
    assert {(answer.status, answer.complete) for answer in streamed} == {(200, True)}
    assert {sse_json(answer.body)[-1]["error"]["code"] for answer in streamed} == {"draining"}
    assert {(answer.status, answer.json()["error"]["code"]) for answer in whole} == {(503, "draining")}
    assert len(upstream.log) == 1


def _waiting(gateway: Gateway) -> int:
    """Count the requests that are admitted and not settled, as the metrics page tells."""
    page = Raw(gateway.admin_url)
    page.request("GET", "/metrics")
    rows = page.response().body.decode().splitlines()
    page.close()
    [row] = [row for row in rows if row.startswith("tidegate_reservations_outstanding ")]
    return int(float(row.rsplit(" ", 1)[1]))
