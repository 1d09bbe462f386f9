"""Each end that an answer can come to, streamed or not, at the first attempt or at a later one (SPEC §7, §8).

Each row is an exchange over real sockets. It says what SPEC wants of it: status, body or event, what is charged,
whether the cache has it, what is counted, and how often each upstream was asked.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import (
    DONE,
    FakeUpstream,
    body_reply,
    chunk,
    ev,
    head,
    json_reply,
    sse_head,
    sse_reply,
    tchunk,
    usage,
)
from gateway import eventually, free_port
from sending import busy_port
from served_gateway import Got, ServedGateway, served_gateway
from stores import StoreServer
from whole import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fake_upstream import Op, Req

PATH = "/v1/completions"
QUICK = {"connect": "300ms", "first_byte": "400ms", "silence": "400ms", "client": "2s"}
ALMOST_ALWAYS = 10**9
"""The weight of a deployment that is to be tried first."""


# ---------------------------------------------------------------- ends
@dataclass(frozen=True)
class End:
    """What an upstream does, and what the client, the books and the operator have of it where nothing follows.

    `body` is what the client gets; with a `code` the gateway's own error, in a stream as one event behind `body`.
    `kind` is how the attempt is counted among the failed ones; `costs_unknown`: it counts as one that may be billed.
    `target` is who it is that is asked. `is_followed`: another deployment is asked, if there is one; `yields`: a
    refusal from before it is passed on in its stead. `with_others` is the end where another deployment is left, so that
    a stream's head waits for its first bytes.
    """

    does: Sequence[Op] = ()
    status: int = 200
    body: bytes = b""
    code: str | None = None
    outcome: str = "upstream_error"
    error_code: str | None = None
    tokens: tuple[int, int] = (0, 0)
    known: str = "none"
    is_stored: bool = False
    kind: str | None = None
    costs_unknown: bool = False
    target: str = "faulty"
    is_followed: bool = False
    yields: bool = False
    fields: tuple[tuple[str, str | None], ...] = ()
    with_others: End | None = None


ONE, TWO, STOP = ev(tchunk("one ")), ev(tchunk("two ")), ev(tchunk("", finish="stop"))
USAGE = ev({"id": "cmpl-x", "object": "text_completion", "created": 1, "model": "m", "choices": [], "usage": usage(20)})
REPORTED = {"tokens": (7, 13), "known": "reported"}
ANSWER = {"model": "m", "choices": [{"index": 0, "text": "one two ", "finish_reason": "stop"}], "usage": usage(20)}
API_ERROR = {"error": {"message": "no", "type": "x", "param": None, "code": "y"}}
HTML = b"<html><body>bad gateway</body></html>"
JSON_TYPE = ("Content-Type", "application/json")
HALF = json.dumps(ANSWER).encode()[:30]


def counted(output: int) -> dict[str, Any]:
    """Charge a prompt of 12 bytes at four bytes a token, and so much output."""
    return {"tokens": (3, output), "known": "counted"}


def stream(*pieces: bytes | float, end: str = "ok") -> list[Op]:
    return sse_reply(pieces, end=end, gap=0.02)


def refused(status: int, kind: str, reply: list[Op] | None = None, **more: Any) -> End:  # noqa: ANN401  any of End's
    """Make the end of an answer with an error status: it passes as it is."""
    is_retried = status in {408, 429} or status >= 500
    return End(
        json_reply(API_ERROR, status) if reply is None else reply,
        status,
        json.dumps(API_ERROR).encode(),
        error_code="upstream_status",
        kind=kind,
        is_followed=is_retried,
        **more,
    )


def said(status: int, kind: str, reply: list[Op], message: str, type_: str) -> End:
    """Make the end of an error status without an object that says why: it gets one."""
    error = {"message": message, "type": type_, "param": None, "code": "upstream_error"}
    compact = json.dumps({"error": error}, separators=(",", ":")).encode()
    return replace(refused(status, kind, reply), body=compact)


UNUSABLE = End(
    status=502,
    code="upstream_unusable",
    error_code="upstream_unusable",
    kind="unusable",
    is_followed=True,
    yields=True,
    fields=(("x-should-retry", "false"),),
)
UNUSABLE_FOR_NOW = replace(UNUSABLE, yields=False, fields=(("x-should-retry", None),))
BROKEN = End(
    status=502,
    code="upstream_broken",
    error_code="upstream_broken",
    kind="broken",
    costs_unknown=True,
    is_followed=True,
)
TOO_SLOW = End(status=504, code="upstream_timeout", error_code="upstream_timeout", kind="timeout", costs_unknown=True)

BEFORE_THE_FIRST_BYTE: dict[str, End] = {
    "nobody listens": End(
        target="nobody",
        status=503,
        code="no_upstream_left",
        error_code="no_upstream_left",
        kind="connect",
        is_followed=True,
        yields=True,
        fields=(("Retry-After", "1"),),
    ),
    "nobody takes the connection up": End(
        target="busy",
        status=504,
        code="upstream_timeout",
        error_code="upstream_timeout",
        kind="connect_timeout",
        is_followed=True,
        yields=True,
    ),
    "reset before the answer": replace(BROKEN, does=[("rst",)]),
    "closed before the answer": replace(BROKEN, does=[("close",)]),
    "closed within the head": replace(BROKEN, does=[("send", b"HTTP/1.1 200 OK\r\nContent-"), ("close",)]),
    "silence before the answer": replace(TOO_SLOW, does=[("hold", 5)]),
    "garbage instead of HTTP": replace(
        UNUSABLE, does=[("send", b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), ("close",)], costs_unknown=True
    ),
    "400": refused(400, "4xx"),
    "404": refused(404, "4xx"),
    "408": refused(408, "4xx"),
    "422": refused(422, "4xx"),
    "429 with Retry-After": refused(
        429,
        "429",
        json_reply(API_ERROR, 429, [("Retry-After", "7"), ("x-ratelimit-limit-tokens", "9")]),
        fields=(("Retry-After", "7"), ("x-upstream-ratelimit-limit-tokens", "9")),
    ),
    "500": refused(500, "5xx"),
    "503 with Retry-After": refused(
        503, "5xx", json_reply(API_ERROR, 503, [("Retry-After", "7")]), fields=(("Retry-After", "7"),)
    ),
    "400 with text": said(
        400,
        "4xx",
        body_reply(b"bad prompt", 400, ctype="text/plain"),
        "The upstream answered 400: bad prompt",
        "invalid_request_error",
    ),
    "400 with nothing": said(
        400, "4xx", body_reply(b"", 400), "The upstream answered 400 without saying why.", "invalid_request_error"
    ),
    "404 of another type": said(
        404,
        "4xx",
        body_reply(b"<x/>", 404, ctype="application/xml"),
        "The upstream answered 404 with a body that is no JSON object.",
        "invalid_request_error",
    ),
    "500 with nothing": said(
        500, "5xx", body_reply(b"", 500), "The upstream answered 500 without saying why.", "server_error"
    ),
    "503 with JSON that is no object": said(
        503,
        "5xx",
        body_reply(b"[]", 503),
        "The upstream answered 503 with a body that is no JSON object.",
        "server_error",
    ),
    "401": replace(UNUSABLE, does=json_reply(API_ERROR, 401)),
    "403": replace(UNUSABLE, does=json_reply(API_ERROR, 403)),
    "404 with HTML": replace(UNUSABLE, does=body_reply(HTML, 404, ctype="text/html")),
    "500 with HTML": replace(UNUSABLE_FOR_NOW, does=body_reply(HTML, 500, ctype="text/html; charset=utf-8")),
    "503 with HTML": replace(UNUSABLE_FOR_NOW, does=body_reply(HTML, 503, ctype="text/html")),
    "a redirect": replace(UNUSABLE, does=body_reply(b"", 302, [("Location", "http://127.0.0.1:9/")])),
    "200 with HTML": replace(UNUSABLE, does=body_reply(HTML, ctype="text/html")),
    "200 with garbage": replace(UNUSABLE, does=body_reply(b"tru"), yields=False),
    "200 with JSON that is no object": replace(UNUSABLE, does=body_reply(b"[1, 2]"), yields=False),
    "200 with nothing": replace(UNUSABLE, does=body_reply(b""), yields=False),
    "200 with an error object": End(json_reply(API_ERROR), 200, json.dumps(API_ERROR).encode()),
    "a whole answer that is reset": replace(
        BROKEN, does=[("send", head(200, [JSON_TYPE, ("Content-Length", 999)]) + HALF), ("rst",)]
    ),
    "a whole answer without its last chunk": replace(
        BROKEN, does=[("send", head(200, [JSON_TYPE, ("Transfer-Encoding", "chunked")]) + chunk(HALF)), ("close",)]
    ),
    "a whole answer that falls silent": replace(
        TOO_SLOW, does=[("send", head(200, [JSON_TYPE, ("Content-Length", 999)]) + HALF), ("hold", 5)]
    ),
}

WHOLE: dict[str, End] = {
    **BEFORE_THE_FIRST_BYTE,
    "complete": End(
        json_reply(ANSWER), 200, json.dumps(ANSWER).encode(), outcome="completed", is_stored=True, **REPORTED
    ),
    "complete, without usage": End(
        # `one two ` is 8 bytes
        json_reply({**ANSWER, "usage": None}),
        200,
        json.dumps({**ANSWER, "usage": None}).encode(),
        outcome="completed",
        is_stored=True,
        **counted(2),
    ),
    "a choice unfinished": End(
        json_reply({**ANSWER, "choices": [{"index": 0, "text": "one two ", "finish_reason": None}]}),
        200,
        json.dumps({**ANSWER, "choices": [{"index": 0, "text": "one two ", "finish_reason": None}]}).encode(),
        outcome="completed",
        **REPORTED,
    ),
    "a stream that was not asked for": replace(UNUSABLE, does=stream(ONE, STOP, DONE)),
}

BROKEN_STREAM = End(code="upstream_broken", error_code="upstream_broken", kind="broken")
FOLLOWED = End(kind="broken", costs_unknown=True, is_followed=True)

STREAMED: dict[str, End] = {
    **BEFORE_THE_FIRST_BYTE,
    "complete": End(
        stream(ONE, TWO, STOP, USAGE, DONE),
        body=ONE + TWO + STOP + DONE,
        outcome="completed",
        is_stored=True,
        **REPORTED,
    ),
    "complete, without usage": End(
        stream(ONE, TWO, STOP, DONE),
        body=ONE + TWO + STOP + DONE,
        outcome="completed",
        is_stored=True,
        **counted(2),
    ),
    "complete, then a reset": End(
        stream(ONE, TWO, STOP, USAGE, DONE, end="rst"),
        body=ONE + TWO + STOP + DONE,
        outcome="completed",
        kind="broken",
        **REPORTED,
    ),
    "a clean end without [DONE]": End(
        stream(ONE, TWO, STOP, USAGE), body=ONE + TWO + STOP, outcome="incomplete", **REPORTED
    ),
    "a clean end without [DONE] and usage": End(
        stream(ONE, TWO, STOP), body=ONE + TWO + STOP, outcome="incomplete", **counted(2)
    ),
    "a clean end with a choice unfinished": End(
        stream(ONE, TWO, DONE), body=ONE + TWO + DONE, outcome="incomplete", **counted(2)
    ),
    "a clean end within an event": End(stream(ONE, TWO[:40]), body=ONE + TWO[:40], outcome="incomplete", **counted(1)),
    "a clean end before the first event": End(stream(), outcome="incomplete", **counted(0)),
    "reset between events": replace(BROKEN_STREAM, does=stream(ONE, TWO, end="rst"), body=ONE + TWO, **counted(2)),
    "reset within an event": replace(BROKEN_STREAM, does=stream(ONE, TWO[:40], end="rst"), body=ONE, **counted(1)),
    "the last chunk is missing": replace(BROKEN_STREAM, does=stream(ONE, TWO, end="fin"), body=ONE + TWO, **counted(2)),
    "the last chunk is missing, within an event": replace(
        BROKEN_STREAM, does=stream(ONE, TWO[:40], end="fin"), body=ONE, **counted(1)
    ),
    "a chunk that is none": replace(
        BROKEN_STREAM, does=[*stream(ONE)[:-1], ("send", b"zz\r\n"), ("hold", 5)], body=ONE, **counted(1)
    ),
    "reset before the first event": replace(BROKEN_STREAM, does=stream(end="rst"), with_others=FOLLOWED),
    "usage, then a reset": replace(BROKEN_STREAM, does=stream(ONE, TWO, USAGE, end="rst"), body=ONE + TWO, **REPORTED),
    "gzip that ends too early": replace(
        BROKEN_STREAM,
        does=[("send", sse_head([("Content-Encoding", "gzip")]) + b"0\r\n\r\n")],
        with_others=FOLLOWED,
    ),
    "silence between events": End(
        stream(ONE, TWO, 5.0),
        body=ONE + TWO,
        code="upstream_timeout",
        error_code="upstream_timeout",
        kind="timeout",
        **counted(2),
    ),
    "silence within an event": End(
        stream(ONE, TWO[:40], 5.0),
        body=ONE,
        code="upstream_timeout",
        error_code="upstream_timeout",
        kind="timeout",
        **counted(1),
    ),
    "silence before the first event": End(
        stream(5.0),
        code="upstream_timeout",
        error_code="upstream_timeout",
        kind="timeout",
        with_others=End(
            status=504, code="upstream_timeout", error_code="upstream_timeout", kind="timeout", costs_unknown=True
        ),
    ),
    "an error event": End(stream(ONE, TWO, ev(API_ERROR)), body=ONE + TWO + ev(API_ERROR), **counted(2)),
    "an error event first": End(stream(ev(API_ERROR)), body=ev(API_ERROR)),
    "an error event, then a reset": replace(
        BROKEN_STREAM, does=stream(ONE, ev(API_ERROR), end="rst"), body=ONE + ev(API_ERROR), **counted(1)
    ),
    "a whole answer": End(json_reply(ANSWER), 200, json.dumps(ANSWER).encode(), outcome="completed", **REPORTED),
}

ENDS = [
    pytest.param(end, is_stream, id=f"{name}-{'stream' if is_stream else 'whole'}")
    for is_stream, ends in ((False, WHOLE), (True, STREAMED))
    for name, end in ends.items()
]


# ---------------------------------------------------------------- ways to an end
@dataclass(frozen=True)
class Way:
    """What comes before the attempt that ends so: who is asked, how that fails, and what is kept of it.

    `errors` are the failed attempts that are counted before, `refusal` the answer that is passed on where the end
    yields to it.
    """

    errors: dict[tuple[str, str], int]
    asked: dict[str, int]
    retries: int = 1
    refusal: End | None = None
    is_cacheable: bool = True


REFUSAL = {"error": {"message": "overloaded", "type": "server_error", "param": None, "code": None}}
REFUSED_FIRST = End(status=500, body=json.dumps(REFUSAL).encode(), error_code="upstream_status")

WAYS = {
    "first": Way({}, {}, retries=0),
    "not-cached": Way({}, {}, retries=0, is_cacheable=False),
    "after-500": Way({("refusing", "5xx"): 1}, {"refusing": 1}, refusal=REFUSED_FIRST),
    "after-refused": Way({("nobody", "connect"): 1}, {}),
    "after-401": Way({("locked", "unusable"): 1}, {"locked": 1}),
    "again": Way({("faulty", "5xx"): 1}, {"faulty": 1}, refusal=replace(REFUSED_FIRST, status=503)),
}
FIRST = {"after-500": "refusing", "after-refused": "nobody", "after-401": "locked"}


@dataclass
class World:
    """A gateway, and all whom it may ask."""

    gateway: ServedGateway
    faulty: FakeUpstream
    others: dict[str, FakeUpstream]
    sent: int = 0

    def asked(self) -> Counter[str]:
        """Count the requests that have come to each upstream."""
        counts = {name: len(each.log) for name, each in {**self.others, "faulty": self.faulty}.items()}
        return Counter({name: count for name, count in counts.items() if count})

    def forget(self) -> None:
        """Forget all requests so far."""
        for each in self.others.values():
            each.log.clear()
        self.faulty.log.clear()


def models() -> dict[str, Any]:
    """Return a model for each way to each target, and one for each end before another deployment.

    They have as many attempts as it takes; breakers stay closed, but a deployment may be left alone for a while.
    """
    made: dict[str, Any] = {
        "plain": {"deployments": [{"upstream": "healthy"}]},
        "thrice": {"deployments": [{"upstream": "faulty"}]},
    }
    for target, way in itertools.product(("faulty", "nobody", "busy"), WAYS):
        before = [{"upstream": FIRST[way], "weight": ALMOST_ALWAYS, "name": "before"}] if way in FIRST else []
        made[f"{target}-{way}"] = {
            "deployments": [*before, {"upstream": target}],
            "max_attempts": 1 + WAYS[way].retries,
        }
    for number, row in enumerate(ENDS):
        end: Any = row.values[0]
        first = {"upstream": end.target, "weight": ALMOST_ALWAYS}
        made[f"then-{number}"] = {"deployments": [first, {"upstream": "healthy"}], "max_attempts": 2}
    return {name: {"breaker": {"failures": 10**6}, "max_output_tokens": 64, **each} for name, each in made.items()}


@pytest.fixture(scope="module")
def others() -> dict[str, FakeUpstream]:
    """Start the upstreams that do the same each time."""
    started = {name: FakeUpstream().start() for name in ("refusing", "locked", "healthy")}
    started["refusing"].default = lambda _: json_reply(REFUSAL, 500)
    started["locked"].default = lambda _: json_reply(API_ERROR, 401)
    return started


@contextmanager
def opened_world(
    faulty: FakeUpstream, others: dict[str, FakeUpstream], store: StoreServer, data_dir: Path, **more: object
) -> Iterator[World]:
    """Open a gateway; `more` are further settings."""
    with busy_port() as busy:
        urls = {name: f"{each.url}/v1" for name, each in {**others, "faulty": faulty}.items()}
        urls |= {"nobody": f"http://127.0.0.1:{free_port()}/v1", "busy": f"http://127.0.0.1:{busy}/v1"}
        made = configuration(
            faulty.url,
            data_dir,
            timeouts=QUICK,
            upstreams={name: {"kind": "openai", "base_url": url} for name, url in urls.items()},
            models=models(),
            projects=[{"id": "proj", "policy": "default", "models": ["*"]}],
            **more,
        )
        with served_gateway(made, store) as gateway:
            yield World(gateway, faulty, others)


@pytest.fixture(scope="module")
def _world(
    _upstream: FakeUpstream, others: dict[str, FakeUpstream], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with StoreServer() as store, opened_world(_upstream, others, store, tmp_path_factory.mktemp("gateway")) as world:
        yield world


@pytest.fixture
def world(_world: World, upstream: FakeUpstream) -> World:
    """Hand out the world; nobody has been asked anything, and the faulty one keeps no connection from before."""
    upstream.default = closing
    ask(_world, body_of("faulty-first", is_stream=False))
    _world.forget()
    return _world


def closing(req: Req) -> list[Op]:
    """Answer well, and close the connection."""
    fields = [("Connection", "close"), ("Content-Length", len(json.dumps(ANSWER)))]
    if req.json()["stream"]:
        return [("send", head(200, [("Content-Type", "text/event-stream")]) + ONE + STOP + DONE), ("close",)]
    return [("send", head(200, [JSON_TYPE, *fields]) + json.dumps(ANSWER).encode()), ("close",)]


_numbers = itertools.count(100_000_000_000)


def body_of(model: str, *, is_stream: bool, is_cacheable: bool = True) -> dict[str, Any]:
    """Return a request with a prompt of 12 bytes that was never sent before."""
    return {
        "model": model,
        "prompt": f"{next(_numbers)}",
        "max_tokens": 64,
        "temperature": 0 if is_cacheable else 1,
        "stream": is_stream,
    }


@dataclass
class Told:
    """What the operator's counters gained by one request."""

    requests: Counter[str]
    errors: Counter[tuple[str, str]]
    retries: Counter[str]
    unknown: Counter[str]


def counters(gateway: ServedGateway) -> Told:
    """Read the counters."""
    requests: Counter[str] = Counter()
    for labels, count in gateway.series("requests_total").items():
        requests[labels[-1]] += int(count)
    errors = Counter({(name, kind): int(n) for (name, kind), n in gateway.series("upstream_errors_total").items()})
    retries = Counter({name: int(n) for (name,), n in gateway.series("upstream_retries_total").items()})
    unknown = Counter({name: int(n) for (name,), n in gateway.series("upstream_unknown_cost_total").items()})
    return Told(requests, errors, retries, unknown)


def gained(gateway: ServedGateway, before: Told) -> Told:
    """Return what was counted since then."""
    now = counters(gateway)
    return Told(
        now.requests - before.requests,
        now.errors - before.errors,
        now.retries - before.retries,
        now.unknown - before.unknown,
    )


def ask(world: World, body: dict[str, Any]) -> Got:
    """Send a request, and return its answer once it has been counted."""
    with world.gateway.client() as client:
        client.ask(PATH, body)
        got = client.answer()
    world.sent += 1
    assert eventually(lambda: counters(world.gateway).requests.total() == world.sent)
    return got


def check_answer(end: End, got: Got, *, is_stream: bool) -> None:
    """Compare what the client got with what it is to get."""
    assert got.error is None
    assert got.complete
    assert got.status == end.status
    for name, value in end.fields:
        assert got.header(name) == value
    if end.code is None:
        assert got.body == end.body
        return
    error = got.body
    if is_stream and end.status == 200:
        assert got.body.startswith(end.body + b'data: {"error":')
        assert got.body.endswith(b"\n\n")
        assert b"[DONE]" not in got.body
        error = got.body[len(end.body) + 6 :]
    told = json.loads(error)["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert (told["type"], told["code"]) == ("server_error", end.code)


def check_record(end: End, got: Got, world: World, *, attempts: int, unknown: int) -> None:
    record = world.gateway.records()[got.header("x-request-id") or ""]
    check_told(end, record, attempts=attempts, unknown=unknown)


def check_told(end: End, record: dict[str, Any], *, attempts: int, unknown: int) -> None:
    """Compare a usage record with what it is to say."""
    told = {
        "status": record["status"],
        "outcome": record["outcome"],
        "error_code": record["error_code"],
        "tokens": (record["input_tokens"], record["output_tokens"]),
        "known": record["known"],
        "attempts": record["attempts"],
        "attempts_of_unknown_cost": record["attempts_of_unknown_cost"],
    }
    assert told == {
        "status": end.status,
        "outcome": end.outcome,
        "error_code": end.error_code,
        "tokens": end.tokens,
        "known": end.known,
        "attempts": attempts,
        "attempts_of_unknown_cost": unknown,
    }


def is_out_of_reach(end: Any) -> bool:  # noqa: ANN401  a column of a row
    """Tell whether nobody can be reached, who then cannot have refused before."""
    return bool(end.target != "faulty")


LAST_ATTEMPTS = [
    pytest.param(way, *row.values, id=f"{way}-{row.id}")
    for way in WAYS
    for row in ENDS
    if not (way == "again" and is_out_of_reach(row.values[0]))
]


@pytest.mark.parametrize(("way", "end", "is_stream"), LAST_ATTEMPTS)
def test_an_end_at_the_last_attempt(way: str, end: End, world: World, *, is_stream: bool) -> None:
    """Nothing can follow: the answer is as SPEC says, and what it was is booked, counted, and kept where it may be."""
    before = WAYS[way]
    if way == "again":
        earn_retries(world)
        busy = json_reply(REFUSAL, 503, [("Connection", "close")])
        world.faulty.script([*busy, ("close",)], list(end.does))
    else:
        world.faulty.script(list(end.does))
    then = end if before.refusal is None or not end.yields else before.refusal
    body = body_of(f"{end.target}-{way}", is_stream=is_stream, is_cacheable=before.is_cacheable)
    seen = counters(world.gateway)
    got = ask(world, body)
    check_answer(then, got, is_stream=is_stream)
    attempts, unknown = 1 + before.retries, int(end.costs_unknown)
    check_record(then, got, world, attempts=attempts, unknown=unknown)
    told = gained(world.gateway, seen)
    asked = Counter(before.asked) + Counter({"faulty": 1} if end.target == "faulty" else {})
    assert world.asked() == asked
    assert told.requests == {then.outcome: 1}
    assert told.errors == Counter(before.errors) + Counter({(end.target, end.kind): 1} if end.kind else {})
    assert told.retries == ({end.target: 1} if before.retries else {})
    assert told.unknown == ({end.target: 1} if unknown else {})
    is_hit = (ask(world, body).header("Cache-Status") or "").startswith("tidegate;hit")
    assert is_hit is (end.is_stored and before.is_cacheable)


@pytest.mark.parametrize(
    ("number", "end", "is_stream"),
    [pytest.param(number, *row.values, id=row.id) for number, row in enumerate(ENDS)],
)
def test_an_end_before_another_deployment(number: int, end: End, world: World, *, is_stream: bool) -> None:
    """A healthy deployment is left: the client gets its answer wherever none has left and none may be coming."""
    world.faulty.script(list(end.does))
    end = end.with_others or end
    body = body_of(f"then-{number}", is_stream=is_stream)
    seen = counters(world.gateway)
    got = ask(world, body)
    told = gained(world.gateway, seen)
    unknown = int(end.costs_unknown)
    asked = Counter({"faulty": 1} if end.target == "faulty" else {})
    assert told.errors == ({(end.target, end.kind): 1} if end.kind else {})
    assert told.unknown == ({end.target: 1} if unknown else {})
    if end.is_followed:
        assert (got.status, got.complete) == (200, True)
        assert b"serial-" in got.body
        check_record(End(outcome="completed", **REPORTED), got, world, attempts=2, unknown=unknown)
        assert world.asked() == asked + Counter({"healthy": 1})
        assert told.requests == {"completed": 1}
        assert told.retries == {"healthy": 1}
    else:
        check_answer(end, got, is_stream=is_stream)
        check_record(end, got, world, attempts=1, unknown=unknown)
        assert world.asked() == asked
        assert told.requests == {end.outcome: 1}
        assert told.retries == {}


def test_a_connection_that_went_stale_is_tried_anew_and_counts_for_nothing(world: World) -> None:
    """The request was not read: it is sent once more to the same deployment, over another connection."""
    world.faulty.script(json_reply(ANSWER), [("rst",)], json_reply(ANSWER))
    ask(world, body_of("faulty-first", is_stream=False))
    seen = counters(world.gateway)
    got = ask(world, body_of("faulty-first", is_stream=False))
    check_record(End(outcome="completed", **REPORTED), got, world, attempts=2, unknown=0)
    told = gained(world.gateway, seen)
    assert (told.errors, told.retries, told.unknown) == ({}, {"faulty": 1}, {})
    assert world.asked() == {"faulty": 3}


REPEATED = {
    "three times 503: the last is passed on": ([json_reply(API_ERROR, 503)] * 3, 503, 3),
    "twice 503, then an answer": ([json_reply(API_ERROR, 503)] * 2 + [json_reply(ANSWER)], 200, 3),
    "408, then an answer": ([json_reply(API_ERROR, 408), json_reply(ANSWER)], 200, 2),
    "429 that asks for a short wait": (
        [json_reply(API_ERROR, 429, [("retry-after-ms", "20")]), json_reply(ANSWER)],
        200,
        2,
    ),
    "429 that asks for more than the gateway waits": ([json_reply(API_ERROR, 429, [("Retry-After", "2")])], 429, 1),
    "500 that speaks against it": ([json_reply(API_ERROR, 500, [("x-should-retry", "false")])], 500, 1),
    "400": ([json_reply(API_ERROR, 400)], 400, 1),
    "503, then no answer": (
        [[*json_reply(API_ERROR, 503, [("Connection", "close")]), ("close",)], [("close",)]],
        502,
        2,
    ),
}


@pytest.mark.parametrize(("replies", "status", "attempts"), REPEATED.values(), ids=REPEATED.keys())
def test_how_often_one_deployment_is_asked(replies: list[list[Op]], status: int, attempts: int, world: World) -> None:
    """Three times at most, and only what may be better next time; `retry_max_wait` is a second."""
    earn_retries(world, 20)
    world.faulty.script(*replies)
    seen = counters(world.gateway)
    got = ask(world, body_of("thrice", is_stream=False))
    assert got.status == status
    assert world.asked() == {"faulty": attempts}
    assert gained(world.gateway, seen).retries == ({"faulty": attempts - 1} if attempts > 1 else {})
    record = world.gateway.records()[got.header("x-request-id") or ""]
    assert (record["status"], record["attempts"]) == (status, attempts)


# ---------------------------------------------------------------- clients that leave, and the end of the process
EARLY, LATE = "before the first byte", "after it"
AT_WORST = {"tokens": (36, 64), "known": "worst_case"}
"""12 bytes, 8 and 16 of overhead, and the ceiling: nobody saw what was generated."""
LEFT = {
    (EARLY, False): End(status=0, outcome="client_left", costs_unknown=True, **AT_WORST),
    (EARLY, True): End(status=0, outcome="client_left", costs_unknown=True, **counted(0)),
    (LATE, True): End(outcome="client_left", **counted(1)),
}
FORMS: dict[object, str] = {True: "stream", False: "whole"}
WAYS_TO_LEAVE = ("first", "not-cached", "after-500")


def name_of(value: object) -> str:
    """Name a column of a row."""
    return FORMS.get(value, str(value))


def begun(*, is_early: bool, goes_on: Sequence[Op]) -> list[Op]:
    """Return what an upstream does that has answered nothing yet, or one event, and what then."""
    return list(goes_on) if is_early else [("send", sse_head() + chunk(ONE)), *goes_on]


@pytest.mark.parametrize(("when", "is_stream"), LEFT, ids=name_of)
@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
def test_a_client_that_leaves(way: str, when: str, world: World, *, is_stream: bool) -> None:
    """The upstream is cancelled within a second, and what was generated is charged as far as it is known."""
    end, before = LEFT[when, is_stream], WAYS[way]
    world.faulty.script(begun(is_early=when == EARLY, goes_on=[("hold", 10)]))
    body = body_of(f"faulty-{way}", is_stream=is_stream, is_cacheable=before.is_cacheable)
    seen = counters(world.gateway)
    with world.gateway.client() as client:
        client.ask(PATH, body, X_Client_Request_Id=body["prompt"])
        assert world.faulty.wait(lambda: world.faulty.log)
        if when == LATE:
            got = Got()
            client.read_head(got)
            assert next(client.chunks()) == ONE
    world.sent += 1
    assert world.faulty.wait(lambda: world.faulty.log[-1].aborted_at, 1)
    assert eventually(lambda: counters(world.gateway).requests.total() == world.sent)
    (record,) = [each for each in world.gateway.records().values() if each["client_request_id"] == body["prompt"]]
    check_told(end, record, attempts=1 + before.retries, unknown=int(end.costs_unknown))
    told = gained(world.gateway, seen)
    assert told.requests == {"client_left": 1}
    assert told.errors == before.errors
    assert told.unknown == ({"faulty": 1} if end.costs_unknown else {})
    assert world.asked() == Counter(before.asked) + Counter({"faulty": 1})
    is_hit = (ask(world, body).header("Cache-Status") or "").startswith("tidegate;hit")
    assert not is_hit


def test_a_client_that_reads_nothing_is_given_up(world: World) -> None:
    """What it takes no more of slows the upstream; past `timeouts.client` the connection is broken."""
    endless = [("send", sse_head()), *[("send", chunk(ONE * 1000))] * 2000, ("send", b"0\r\n\r\n")]
    world.faulty.script(endless)
    body = body_of("faulty-not-cached", is_stream=True, is_cacheable=False)
    with world.gateway.client() as client:
        client.ask(PATH, body, X_Client_Request_Id=body["prompt"])
        world.sent += 1
        assert eventually(lambda: counters(world.gateway).requests.total() == world.sent, seconds=30)
    (record,) = [each for each in world.gateway.records().values() if each["client_request_id"] == body["prompt"]]
    end = End(outcome="client_left", error_code="client_too_slow", **counted(64))
    check_told(end, record, attempts=1, unknown=0)
    assert world.faulty.wait(lambda: world.faulty.log[-1].aborted_at)


STOPPED = {
    (EARLY, False): End(status=503, code="draining", outcome="failed", error_code="draining"),
    (EARLY, True): End(status=503, code="draining", outcome="failed", error_code="draining"),
    (LATE, True): End(body=ONE, code="draining", outcome="failed", error_code="draining", **counted(1)),
}


@pytest.mark.parametrize(("when", "is_stream"), STOPPED, ids=name_of)
@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
def test_the_process_ends_before_the_answer_does(
    way: str,
    when: str,
    upstream: FakeUpstream,
    others: dict[str, FakeUpstream],
    valkey: StoreServer,
    tmp_path: Path,
    *,
    is_stream: bool,
) -> None:
    """What cannot be finished within `drain_timeout` is told, settled, and cancelled upstream."""
    end = STOPPED[when, is_stream]
    with opened_world(upstream, others, valkey, tmp_path, drain_timeout="300ms") as world:
        world.forget()
        upstream.script(begun(is_early=when == EARLY, goes_on=[("do", world.gateway.stop), ("hold", 10)]))
        body = body_of(f"faulty-{way}", is_stream=is_stream, is_cacheable=WAYS[way].is_cacheable)
        got = ask(world, body)
        check_answer(end, got, is_stream=is_stream)
        check_record(end, got, world, attempts=1 + WAYS[way].retries, unknown=int(when == EARLY))
        assert upstream.wait(lambda: upstream.log[-1].aborted_at)
        assert world.gateway.is_stopped.wait(10)
        assert counters(world.gateway).requests == {"failed": 1}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("when", [EARLY, LATE])
@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
def test_an_answer_that_ends_in_time_is_finished_although_the_process_ends(
    way: str,
    when: str,
    upstream: FakeUpstream,
    others: dict[str, FakeUpstream],
    valkey: StoreServer,
    tmp_path: Path,
    *,
    is_stream: bool,
) -> None:
    whole = json.dumps(ANSWER).encode()
    with opened_world(upstream, others, valkey, tmp_path, drain_timeout="30s") as world:
        world.forget()
        stop: list[Op] = [("do", world.gateway.stop), ("sleep", 0.2)]
        begins, ends = [("send", sse_head() + chunk(ONE))], [("send", chunk(STOP + USAGE + DONE) + b"0\r\n\r\n")]
        if not is_stream:
            begins = [("send", head(200, [JSON_TYPE, ("Content-Length", len(whole))]) + whole[:20])]
            ends = [("send", whole[20:])]
        upstream.script([*stop, *begins, *ends] if when == EARLY else [*begins, *stop, *ends])
        got = ask(world, body_of(f"faulty-{way}", is_stream=is_stream, is_cacheable=WAYS[way].is_cacheable))
        end = End(body=ONE + STOP + DONE if is_stream else whole, outcome="completed", **REPORTED)
        check_answer(end, got, is_stream=is_stream)
        check_record(end, got, world, attempts=1 + WAYS[way].retries, unknown=0)
        assert world.gateway.is_stopped.wait(10)


def earn_retries(world: World, requests: int = 10) -> None:
    """Send what allows one repetition of a refused request: each allows a tenth."""
    for _ in range(requests):
        assert ask(world, body_of("plain", is_stream=False)).status == 200
    world.forget()
