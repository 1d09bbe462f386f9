"""What is broken, cut, refused or unfinished is never served twice: who asks next gets a complete answer (SPEC §6).

Every way in which an upstream can fail is asked for as a stream and whole, the next request comes in either form, and
others wait for the same meanwhile.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from answering import Answering, text_of
from fake_upstream import DONE, body_reply, chunk, ev, head, json_reply, sse_reply, tchunk
from gateway import Gateway, bearer, eventually, settings
from harness import Raw, Resp, call, sse, sse_json, uniq

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fake_upstream import FakeUpstream, Ops

CHOICES = 2
ERROR = {"error": {"message": "no", "type": "server_error", "param": None, "code": "x"}}
FINAL = [("x-should-retry", "false")]
"""The gateway is not to ask once more by itself: the next request is the client's."""
BOTH_FORMS = pytest.mark.parametrize("next_is_stream", [True, False], ids=["then a stream", "then whole"])

BEGUN = [ev(tchunk("poison", index)) for index in range(CHOICES)]
FINISHED = [*BEGUN, *(ev(tchunk("", index, "stop")) for index in range(CHOICES))]
HALF_FINISHED = [*BEGUN, ev(tchunk("", 0, "stop"))]


def choice(index: int = 0, finish: str | None = "stop") -> dict[str, Any]:
    """Return one choice of a whole answer."""
    return {"text": "poison", "index": index, "logprobs": None, "finish_reason": finish}


def whole(*choices: object, **more: object) -> dict[str, Any]:
    """Return a whole answer."""
    return {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": list(choices), **more}


GOOD = json.dumps(whole(choice(), choice(1))).encode()
WITH_LENGTH = [("Content-Type", "application/json"), ("Content-Length", len(GOOD))]
CHUNKED = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]

REFUSALS: dict[str, Ops] = {
    "500": json_reply(ERROR, 500, FINAL),
    "503 without a body": body_reply(b"", 503, FINAL),
    "503 in HTML": body_reply(b"<html>busy</html>", 503, FINAL, "text/html"),
    "429": json_reply(ERROR, 429, FINAL),
    "400": json_reply(ERROR, 400),
    "401": json_reply(ERROR, 401),
    "a redirect": body_reply(b"", 302, [("Location", "/elsewhere")]),
    "200 with an error object": json_reply(ERROR),
    "200 with an error beside the choices": json_reply(whole(choice(), choice(1), **ERROR)),
    "200 in HTML": body_reply(b"<html>hello</html>", ctype="text/html"),
    "200 with an empty body": body_reply(b""),
    "200 with an array": json_reply([whole(choice(), choice(1))]),
    "200 with what is no JSON": body_reply(GOOD[:-1] + b"]"),
    "200 with a part of JSON": body_reply(GOOD[:-9]),
    "200 with what is no UTF-8": body_reply(GOOD.replace(b"poison", b"p\xffison")),
}
WHOLE: dict[str, Ops] = {
    "without choices": json_reply(whole(choices=None)),
    "no choices": json_reply(whole()),
    "one choice of two": json_reply(whole(choice())),
    "the same choice twice": json_reply(whole(choice(), choice())),
    "choices that are none": json_reply(whole("a", "b")),
    "a choice without finish_reason": json_reply(whole(choice(), choice(1, None))),
    "a choice that was filtered": json_reply(whole(choice(), choice(1, "content_filter"))),
    "201": body_reply(GOOD, 201),
    "a stream": sse_reply([*FINISHED, DONE], gap=0),
    "shorter than its length, by a clean end": [("send", head(200, WITH_LENGTH) + GOOD[:-1]), ("close",)],
    "shorter than its length, by a reset": [("send", head(200, WITH_LENGTH) + GOOD[:-1]), ("rst",)],
    "without the last chunk": [("send", head(200, CHUNKED) + chunk(GOOD)), ("close",)],
    **REFUSALS,
}
STREAMS: dict[str, Ops] = {
    "cut by a reset": sse_reply(BEGUN, gap=0, end="rst"),
    "cut by a reset before [DONE]": sse_reply(FINISHED, gap=0, end="rst"),
    "cut in an event": sse_reply([*FINISHED, DONE[:9]], gap=0, end="fin"),
    "without the last chunk": sse_reply(BEGUN, gap=0, end="fin"),
    "without the last chunk after [DONE]": sse_reply([*FINISHED, DONE], gap=0, end="fin"),
    "a clean end in the middle": sse_reply(BEGUN, gap=0),
    "without [DONE]": sse_reply(FINISHED, gap=0),
    "a piece of [DONE]": sse_reply([*FINISHED, DONE[:9]], gap=0),
    "without finish_reason": sse_reply([*BEGUN, DONE], gap=0),
    "one choice of two finished": sse_reply([*HALF_FINISHED, DONE], gap=0),
    "one choice filtered": sse_reply([*HALF_FINISHED, ev(tchunk("", 1, "content_filter")), DONE], gap=0),
    "an error event": sse_reply([*BEGUN, ev(ERROR)], gap=0),
    "an error event before [DONE]": sse_reply([*BEGUN, ev(ERROR), DONE], gap=0),
    "an error event after all has finished": sse_reply([*FINISHED, ev(ERROR), DONE], gap=0),
    "a named error event": sse_reply([*FINISHED, b"event: error\n" + ev({"message": "no"}), DONE], gap=0),
    "an event that is no JSON": sse_reply([*FINISHED, b"data: {no\n\n", DONE], gap=0),
    "nothing but [DONE]": sse_reply([DONE], gap=0),
    "nothing": sse_reply([], gap=0),
    "without choices": sse_reply([ev({**tchunk(""), "choices": []}), DONE], gap=0),
    "a whole answer": body_reply(GOOD),
    **REFUSALS,
}
POISONS = pytest.mark.parametrize(
    ("is_stream", "poison"),
    [
        pytest.param(is_stream, poison, id=f"{'a stream' if is_stream else 'whole'}: {name}")
        for is_stream, poisons in ((True, STREAMS), (False, WHOLE))
        for name, poison in poisons.items()
    ],
)


@pytest.fixture(scope="module")
def gateway(_upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = settings(f"{_upstream.url}/v1", users={"alice": {}, "bob": {}})
    with Gateway(tmp_path_factory.mktemp("gateway"), made) as running:
        yield running


def body(prompt: str, *, is_stream: bool) -> bytes:
    asked = {"model": "m", "prompt": prompt, "temperature": 0, "n": CHOICES, "max_tokens": 8}
    return json.dumps({**asked, "stream": True} if is_stream else asked).encode()


def ask(gateway: Gateway, prompt: str, *, is_stream: bool, user: str = "alice") -> Resp:
    return call(gateway.base_url, "POST", "/v1/completions", bearer(user), body(prompt, is_stream=is_stream))


@pytest.fixture(autouse=True)
def _is_well(upstream: FakeUpstream) -> None:
    upstream.default = Answering()


def check_complete(answer: Resp, prompt: str, *, is_stream: bool) -> None:
    """Check that all has come of the answer that the upstream gives when it is well."""
    assert answer.status == 200
    assert answer.complete
    assert b"poison" not in answer.body
    if is_stream:
        assert sse(answer.body)[0][-1] == ("message", "[DONE]")
        choices = [each for event in sse_json(answer.body) for each in event["choices"]]
    else:
        choices = answer.json()["choices"]
    for index in range(CHOICES):
        own = [each for each in choices if each["index"] == index]
        assert "".join(each["text"] for each in own) == text_of(prompt, 1, index)
        assert own[-1]["finish_reason"] == "stop"


def check_next(gateway: Gateway, prompt: str, *, is_stream: bool) -> None:
    """Check that the next answer is complete, and that it is kept."""
    then = ask(gateway, prompt, is_stream=is_stream)
    check_complete(then, prompt, is_stream=is_stream)
    again = ask(gateway, prompt, is_stream=not is_stream)
    check_complete(again, prompt, is_stream=not is_stream)
    assert again.header("cache-status").startswith("tidegate;hit")


@POISONS
@BOTH_FORMS
def test_the_next_request_reaches_the_upstream_and_is_complete(
    gateway: Gateway, upstream: FakeUpstream, poison: Ops, *, is_stream: bool, next_is_stream: bool
) -> None:
    prompt = uniq()
    upstream.script(poison)
    ask(gateway, prompt, is_stream=is_stream)
    check_next(gateway, prompt, is_stream=next_is_stream)
    assert len(upstream.log) == 2


EMBEDDED = {"object": "embedding", "embedding": [0.5]}
HELLO = {"role": "assistant", "content": "poison"}
OTHER: dict[str, tuple[str, Ops]] = {
    "no embeddings": ("embeddings", json_reply({"object": "list", "data": []})),
    "one embedding of two": ("embeddings", json_reply({"object": "list", "data": [{**EMBEDDED, "index": 0}]})),
    "the same embedding twice": ("embeddings", json_reply({"data": [{**EMBEDDED, "index": 0}] * 2})),
    "embeddings beside an error": (
        "embeddings",
        json_reply({"data": [{**EMBEDDED, "index": i} for i in (0, 1)], **ERROR}),
    ),
    "choices for embeddings": ("embeddings", json_reply(whole(choice(), choice(1)))),
    "a message without finish_reason": (
        "chat/completions",
        json_reply(whole(*[{"index": index, "message": HELLO, "finish_reason": None} for index in (0, 1)])),
    ),
    "one message of two": (
        "chat/completions",
        json_reply(whole({"index": 0, "message": HELLO, "finish_reason": "stop"})),
    ),
}


@pytest.mark.parametrize(("path", "poison"), OTHER.values(), ids=list(OTHER))
def test_answers_of_other_endpoints(gateway: Gateway, upstream: FakeUpstream, path: str, poison: Ops) -> None:
    prompt = uniq()
    asked = {"input": [prompt, uniq()]} if path == "embeddings" else {"n": 2, "temperature": 0}
    given = {"model": "m", **asked}
    if path != "embeddings":
        given["messages"] = [{"role": "user", "content": prompt}]
    upstream.script(poison)
    answers = [
        call(gateway.base_url, "POST", f"/v1/{path}", bearer("alice"), json.dumps(given).encode()) for _ in range(3)
    ]
    assert len(upstream.log) == 2
    assert b"poison" not in answers[1].body
    assert len(answers[1].json()["data" if path == "embeddings" else "choices"]) == 2
    assert answers[2].json() == answers[1].json()
    assert answers[2].header("cache-status").startswith("tidegate;hit")


@dataclass
class Gate:
    """An upstream's answer of which the rest does not come before `open` is set."""

    open: threading.Event = field(default_factory=threading.Event)

    def before_the_end(self, reply: Ops, *, is_stream: bool) -> Ops:
        """Return a reply that stops after a stream's first event, or before an answer that comes in one go."""
        position = min(3, len(reply) - 1) if is_stream else 0
        return [*reply[:position], ("do", lambda: self.open.wait(20)), *reply[position:]]


def outstanding(gateway: Gateway) -> int:
    """Return how many requests have been admitted and are under way."""
    page = call(gateway.admin_url, "GET", "/metrics").body.decode()
    lines = [line for line in page.splitlines() if line.startswith("tidegate_reservations_outstanding")]
    return sum(int(float(line.split()[-1])) for line in lines)


@POISONS
@BOTH_FORMS
def test_who_waits_for_the_same_is_no_worse_off_than_who_asked(
    gateway: Gateway, upstream: FakeUpstream, poison: Ops, *, is_stream: bool, next_is_stream: bool
) -> None:
    prompt, gate = uniq(), Gate()
    upstream.script(gate.before_the_end(poison, is_stream=is_stream))
    with ThreadPoolExecutor() as threads:
        leader = threads.submit(ask, gateway, prompt, is_stream=is_stream)
        assert upstream.wait(lambda: upstream.log)
        alike = threads.submit(ask, gateway, prompt, is_stream=is_stream, user="bob")
        other = threads.submit(ask, gateway, prompt, is_stream=not is_stream, user="bob")
        assert eventually(lambda: outstanding(gateway) == 3)
        gate.open.set()
    assert (alike.result().status, alike.result().body) == (leader.result().status, leader.result().body)
    if other.result().status == 200:
        check_complete(other.result(), prompt, is_stream=not is_stream)
    check_next(gateway, prompt, is_stream=next_is_stream)
    assert len(upstream.log) == 2


def leave(gateway: Gateway, upstream: FakeUpstream, prompt: str, *, is_stream: bool, after: Sequence[bytes]) -> None:
    """Ask, and leave before the upstream is done: after a stream's first event, or before anything has come."""
    held = sse_reply([*after], gap=0, end="ok")[:-1] if is_stream else []
    upstream.script([*held, ("hold", 20)])
    client = Raw(gateway.base_url)
    client.request("POST", "/v1/completions", bearer("alice"), body(prompt, is_stream=is_stream))
    assert upstream.wait(lambda: upstream.log)
    if is_stream and after:
        client.response(stop=lambda answer: bool(answer.body))
    client.close(rst=True)
    assert upstream.wait(lambda: upstream.log[0].aborted_at), "the fetch went on though nobody needed it"


@BOTH_FORMS
@pytest.mark.parametrize(
    ("is_stream", "after"),
    [(True, BEGUN), (True, FINISHED), (True, []), (False, [])],
    ids=["in a stream", "of a stream before [DONE]", "before a stream's first event", "before a whole answer"],
)
def test_what_a_client_left_is_not_kept(
    gateway: Gateway, upstream: FakeUpstream, after: Sequence[bytes], *, is_stream: bool, next_is_stream: bool
) -> None:
    prompt = uniq()
    leave(gateway, upstream, prompt, is_stream=is_stream, after=after)
    check_next(gateway, prompt, is_stream=next_is_stream)
    assert len(upstream.log) == 2
