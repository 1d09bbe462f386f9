"""An upstream that keeps a bill of its own: what it read, and what it wrote before it saw the close.

A request says in its `user` who it is and what shall become of it: `<name>.<fate>`. The name joins the line of the bill
with the client's and the gateway's books; fates are

    ok          answered as asked
    500, 429    refused at every attempt; once: refused with 500 at the first attempt, answered at the second
    reset       the connection is reset instead of an answer
    late        the connection is reset after the head of an answer and before its first token
    cut<n>      the answer's transport ends well after n tokens, though the answer has not

A token of the prompt is a word, or a token id; a chat message has four more. A token of an answer is `tok ` and, on a
stream, an event of its own. How many there are is drawn from the name. The bill is for what was generated: all
candidates of best_of, whole answers as time passes, nothing for a refusal or a reset before the first token.

`BilledUpstream` runs it in a process of its own. Knows nothing of gateways.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Self

from fake_upstream import DONE, FakeUpstream, chunk, ev, json_reply, sse_head

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from fake_upstream import Ops, Req

TOKEN = "tok "  # noqa: S105  a token of text
TOKENS_OF_A_MESSAGE = 4
_DEFAULT_CEILING = 16
_REPLY_SECONDS = 30.0
_REFUSALS = {"500": 500, "429": 429}


@dataclass
class Line:
    """What one request came to upstream, all attempts together. Times are Unix seconds.

    `is_left`: the other side closed before the answer had ended. `is_told`: a report of usage was written.
    """

    name: str
    attempts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    candidates: int = 0
    began_at: float = 0.0
    ended_at: float = 0.0
    is_left: bool = True
    is_told: bool = False

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    @property
    def last_at(self) -> float:
        """When the upstream had to do with it last, as far as that is on the bill."""
        return self.ended_at or self.began_at


@dataclass
class Asked:
    """What a request asks for, as the upstream reads it."""

    is_chat: bool
    is_stream: bool
    wants_usage: bool
    input_tokens: int
    choices: int
    candidates: int
    lengths: list[int]
    """Tokens of each candidate."""


@dataclass
class Biller:
    """Answers requests and keeps the bill; `pace_seconds` is what a token takes on a stream."""

    pace_seconds: float
    lines: dict[str, Line] = field(default_factory=dict)

    def __call__(self, req: Req) -> Ops:
        body = req.json()
        name, _, fate = str(body.get("user", "")).partition(".")
        line = self.lines.setdefault(name, Line(name))
        line.attempts += 1
        line.began_at = line.began_at or time.time()
        if fate in _REFUSALS or (fate == "once" and line.attempts == 1):
            return _refusal(_REFUSALS.get(fate, 500), line)
        if fate == "reset":
            return [*_end(line), ("rst",)]
        asked = read_request(body, "chat/" in req.path, Random(name))  # noqa: S311  a seed is the point
        if fate == "late":
            return [("send", sse_head()), *_end(line), ("rst",)]
        if asked.is_stream:
            cut = int(fate.removeprefix("cut")) if fate.startswith("cut") else None
            return self._stream(asked, line, cut)
        return self._whole(asked, line)

    def _stream(self, asked: Asked, line: Line, cut: int | None) -> Ops:
        ops: Ops = [("send", sse_head([("x-request-id", line.name)])), ("do", lambda: _bill_prompt(line, asked))]
        written = 0
        for turn in range(max(asked.lengths)):
            for index, length in enumerate(asked.lengths):
                if turn >= length:
                    continue
                if written == cut:
                    return [*ops, *_end(line), ("close",)]
                ops += [("send", _event(asked, index, TOKEN)), ("do", lambda: _bill_token(line))]
                written += 1
            ops.append(("sleep", self.pace_seconds))
        ops += [("send", _event(asked, index, "", "stop")) for index in range(asked.choices)]
        if asked.wants_usage:
            told = {"choices": [], "usage": _usage(asked)}
            ops += [("send", chunk(ev({**_envelope(asked), **told}))), ("do", lambda: _note_told(line))]
        return [*ops, ("send", chunk(DONE) + b"0\r\n\r\n"), *_end(line)]

    def _whole(self, asked: Asked, line: Line) -> Ops:
        """Generate for a while, billing on the way, and answer in one go."""
        ops: Ops = [("do", lambda: _bill_prompt(line, asked))]
        left = sum(asked.lengths)
        while left:
            now = min(left, 8)
            ops += [("sleep", self.pace_seconds), ("do", lambda now=now: _bill_token(line, now))]
            left -= now
        answer = {
            **_envelope(asked),
            "choices": [
                _choice(asked, index, TOKEN * length, "stop")
                for index, length in enumerate(asked.lengths[: asked.choices])
            ],
            "usage": _usage(asked),
        }
        return [*ops, *json_reply(answer, headers=[("x-request-id", line.name)]), *_end(line)]


def read_request(body: Mapping[str, Any], is_chat: bool, random: Random) -> Asked:  # noqa: FBT001  as the path says
    """Read what a request asks for; how long its candidates are is drawn, between one token and the ceiling."""
    prompts = _prompts(body, is_chat)
    each = int(body.get("n") or 1)
    most = max(each, int(body.get("best_of") or each))
    ceiling = int(body.get("max_tokens") or body.get("max_completion_tokens") or _DEFAULT_CEILING)
    candidates = len(prompts) * most
    return Asked(
        is_chat=is_chat,
        is_stream=body.get("stream") is True,
        wants_usage=(body.get("stream_options") or {}).get("include_usage") is True,
        input_tokens=sum(prompts),
        choices=len(prompts) * each,
        candidates=candidates,
        lengths=[random.randint(1, ceiling) for _ in range(candidates)],
    )


def _prompts(body: Mapping[str, Any], is_chat: bool) -> list[int]:  # noqa: FBT001  likewise
    """Return how many tokens each prompt has."""
    if is_chat:
        return [sum(len(each["content"].split()) + TOKENS_OF_A_MESSAGE for each in body["messages"])]
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return [len(prompt.split())]
    if isinstance(prompt[0], int):
        return [len(prompt)]
    return [len(each.split()) if isinstance(each, str) else len(each) for each in prompt]


def _bill_prompt(line: Line, asked: Asked) -> None:
    line.input_tokens += asked.input_tokens
    line.candidates += asked.candidates


def _bill_token(line: Line, tokens: int = 1) -> None:
    line.output_tokens += tokens
    line.ended_at = time.time()


def _note_told(line: Line) -> None:
    line.is_told = True


def _end(line: Line) -> Ops:
    def note() -> None:
        line.is_left = False
        line.ended_at = time.time()

    return [("do", note)]


def _refusal(status: int, line: Line) -> Ops:
    error = {"error": {"message": "not now", "type": "server_error", "param": None, "code": None}}
    wait = [("Retry-After", 5)] if status == 429 else []
    return [*json_reply(error, status, wait), *_end(line)]


def _envelope(asked: Asked) -> dict[str, Any]:
    kind = "chat.completion" if asked.is_chat else "text_completion"
    chunked = ".chunk" if asked.is_chat and asked.is_stream else ""
    return {"id": "cmpl-x", "object": kind + chunked, "created": 1, "model": "m"}


def _usage(asked: Asked) -> dict[str, int]:
    generated = sum(asked.lengths)
    return {
        "prompt_tokens": asked.input_tokens,
        "completion_tokens": generated,
        "total_tokens": asked.input_tokens + generated,
    }


def _choice(asked: Asked, index: int, text: str, finish: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {"text": text, "logprobs": None}
    if asked.is_chat:
        said = {"delta": {"content": text}} if asked.is_stream else {"message": {"role": "assistant", "content": text}}
    return {"index": index, "finish_reason": finish, **said}


def _event(asked: Asked, index: int, text: str, finish: str | None = None) -> bytes:
    return chunk(ev({**_envelope(asked), "choices": [_choice(asked, index, text, finish)]}))


# ---------------------------------------------------------------- the process
class BilledUpstream:
    """A biller behind a port, in a process of its own; use it in a `with`."""

    def __init__(self, *, pace_seconds: float = 0.01) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawned.Pipe()
        self._process = spawned.Process(target=_serve, args=(theirs, pace_seconds), daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        """Start it."""
        self._process.start()
        self.url = self._receive()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def bill(self) -> dict[str, Line]:
        """Return the lines so far, by the requests' names."""
        self._pipe.send("bill")
        lines: dict[str, Line] = self._receive()
        return lines

    def _receive(self) -> Any:  # noqa: ANN401  whatever was asked for
        if not self._pipe.poll(_REPLY_SECONDS):
            raise TimeoutError("the upstream's process does not answer")
        return self._pipe.recv()


def _serve(pipe: Connection, pace_seconds: float) -> None:
    upstream, biller = FakeUpstream(), Biller(pace_seconds)
    upstream.default, upstream.log = biller, deque(maxlen=10)
    pipe.send(upstream.start().url)
    while True:
        pipe.recv()
        pipe.send(dict(biller.lines))
