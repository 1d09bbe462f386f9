"""Answers in both forms: as a stream and whole, scripted by hand and recorded from a real model.

Run as a program, it records anew what stands in `tests/data/transcripts`: one request a file, sent plain and streamed
at temperature 0 to the model server of the demo.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.requests.asked import Endpoint

RECORDED = Path(__file__).parents[1] / "data/transcripts"
DONE = b"data: [DONE]\n\n"
CONSTANT = {"id": "x-1", "created": 7, "model": "m", "system_fingerprint": "fp_1"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
SAFE = {"hate": {"filtered": False, "severity": "safe"}}
FILTERED_PROMPTS = [{"prompt_index": 0, "content_filter_results": SAFE}]

_QUESTION = [{"role": "user", "content": "Name three colours."}]
REQUESTS: dict[str, tuple[Endpoint, dict[str, Any]]] = {
    "completion": (Endpoint.COMPLETIONS, {"prompt": "The capital of France is", "max_tokens": 12}),
    "completion-of-three": (Endpoint.COMPLETIONS, {"prompt": "One, two,", "max_tokens": 5, "n": 3}),
    "completion-with-logprobs": (Endpoint.COMPLETIONS, {"prompt": "The sky is", "max_tokens": 4, "logprobs": 2}),
    "completion-of-two-prompts": (Endpoint.COMPLETIONS, {"prompt": ["The sky is", "Snow is"], "max_tokens": 4}),
    "chat": (Endpoint.CHAT, {"messages": _QUESTION, "max_tokens": 16}),
    "chat-of-three": (Endpoint.CHAT, {"messages": _QUESTION, "max_tokens": 5, "n": 3}),
    "chat-with-logprobs": (
        Endpoint.CHAT,
        {"messages": _QUESTION, "max_tokens": 4, "logprobs": True, "top_logprobs": 2},
    ),
    "chat-that-stops": (Endpoint.CHAT, {"messages": _QUESTION, "max_tokens": 40, "stop": ["."]}),
    "chat-beyond-ascii": (
        Endpoint.CHAT,
        {"messages": [{"role": "user", "content": "Write three emoji and a smiley."}], "max_tokens": 12},
    ),
    "chat-that-says-nothing": (Endpoint.CHAT, {"messages": _QUESTION, "max_tokens": 10, "stop": ["1"]}),
}
"""What is recorded, by the name of its files."""


@dataclass(frozen=True)
class Transcript:
    """One answer in both forms; `whole` is what its stream says, put together by hand."""

    endpoint: Endpoint
    stream: bytes
    whole: dict[str, Any]


def event(obj: object) -> bytes:
    """Return one event as most servers write it."""
    return b"data: " + json.dumps(obj, separators=(",", ":")).encode() + b"\n\n"


def completion_chunk(*choices: dict[str, Any], **more: object) -> bytes:
    """Return one event of a streamed completion."""
    return event({**CONSTANT, "object": "text_completion", "choices": list(choices), **more})


def chat_chunk(*choices: dict[str, Any], **more: object) -> bytes:
    """Return one event of a streamed chat completion."""
    return event({**CONSTANT, "object": "chat.completion.chunk", "choices": list(choices), **more})


def text(piece: str, index: int = 0, finish: str | None = None, **more: object) -> dict[str, Any]:
    """Return a completion's choice, whole or a piece of it."""
    return {"text": piece, "index": index, "finish_reason": finish, **more}


def delta(index: int = 0, finish: str | None = None, /, **members: object) -> dict[str, Any]:
    """Return a piece of a chat choice."""
    return {"index": index, "delta": members, "finish_reason": finish}


def said(index: int = 0, finish: str = "stop", /, **message: object) -> dict[str, Any]:
    """Return a whole chat choice."""
    return {"index": index, "message": {"role": "assistant", **message}, "finish_reason": finish}


def completion(*choices: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return a whole completion."""
    return {**CONSTANT, "object": "text_completion", "choices": list(choices), **more}


def chat(*choices: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return a whole chat completion."""
    return {**CONSTANT, "object": "chat.completion", "choices": list(choices), **more}


def call(index: int, arguments: str, **more: object) -> dict[str, Any]:
    """Return a piece of a tool call."""
    return {"index": index, **more, "function": {"arguments": arguments}}


def named(index: int, name: str) -> dict[str, Any]:
    """Return the first piece of a tool call."""
    return {
        "index": index,
        "id": f"call_{index}",
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }


def called(index: int, name: str, arguments: str) -> dict[str, Any]:
    """Return a whole tool call."""
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def token(spelled: str, logprob: float) -> dict[str, Any]:
    """Return a token of chat's logprobs."""
    return {"token": spelled, "logprob": logprob, "bytes": list(spelled.encode()), "top_logprobs": []}


def tokens(*spelled: str, offset: int, logprob: float | None = -0.5) -> dict[str, Any]:
    """Return logprobs of completions, tokens one character long."""
    return {
        "tokens": list(spelled),
        "token_logprobs": [logprob for _ in spelled],
        "top_logprobs": [None if logprob is None else {each: logprob} for each in spelled],
        "text_offset": list(range(offset, offset + len(spelled))),
    }


def _stream(*events: bytes) -> bytes:
    return b"".join((*events, DONE))


SCRIPTED: dict[str, Transcript] = {
    "three choices interleaved, with all four arrays of logprobs": Transcript(
        Endpoint.COMPLETIONS,
        _stream(
            completion_chunk(text("a", 0, logprobs=tokens("a", offset=0, logprob=None))),
            completion_chunk(text("x", 1, logprobs=tokens("x", offset=0))),
            completion_chunk(text("p", 2, logprobs=tokens("p", offset=0))),
            completion_chunk(text("yz", 1, logprobs=tokens("y", "z", offset=1, logprob=-1e-05))),
            completion_chunk(text("b", 0, logprobs=tokens("b", offset=1)), text("q", 2, logprobs=None)),
            completion_chunk(text("", 2, "length", logprobs=None)),
            completion_chunk(text("", 0, "stop", logprobs=None)),
            completion_chunk(text("", 1, "stop", logprobs=None)),
            completion_chunk(usage=USAGE),
        ),
        completion(
            text(
                "ab",
                0,
                "stop",
                logprobs={
                    "tokens": ["a", "b"],
                    "token_logprobs": [None, -0.5],
                    "top_logprobs": [None, {"b": -0.5}],
                    "text_offset": [0, 1],
                },
            ),
            text(
                "xyz",
                1,
                "stop",
                logprobs={
                    "tokens": ["x", "y", "z"],
                    "token_logprobs": [-0.5, -1e-05, -1e-05],
                    "top_logprobs": [{"x": -0.5}, {"y": -1e-05}, {"z": -1e-05}],
                    "text_offset": [0, 1, 2],
                },
            ),
            text(
                "pq",
                2,
                "length",
                logprobs={
                    "tokens": ["p"],
                    "token_logprobs": [-0.5],
                    "top_logprobs": [{"p": -0.5}],
                    "text_offset": [0],
                },
            ),
            usage=USAGE,
        ),
    ),
    "chat with three choices": Transcript(
        Endpoint.CHAT,
        _stream(
            *(chat_chunk(delta(index, role="assistant", content="", refusal=None)) for index in range(3)),
            *(chat_chunk(delta(index, content=piece)) for piece in ("Hel", "lo ", "é漢") for index in (0, 2, 1)),
            *(chat_chunk(delta(index, "stop")) for index in (2, 0, 1)),
            chat_chunk(usage=USAGE),
        ),
        chat(*(said(index, content="Hello é漢", refusal=None) for index in range(3)), usage=USAGE),
    ),
    "chat with logprobs of content and refusal": Transcript(
        Endpoint.CHAT,
        _stream(
            chat_chunk({**delta(role="assistant", content="", refusal=None), "logprobs": None}),
            chat_chunk(
                {**delta(content="a"), "logprobs": {"content": [token("a", -0.25)], "refusal": None}},
            ),
            chat_chunk(
                {
                    **delta(content="bc"),
                    "logprobs": {"content": [token("b", -1e-05), token("c", -0.0)], "refusal": []},
                },
            ),
            chat_chunk(
                {**delta(refusal="No."), "logprobs": {"content": None, "refusal": [token("No.", -2.5)]}},
            ),
            chat_chunk({**delta(0, "stop"), "logprobs": None}, usage=USAGE),
        ),
        chat(
            {
                **said(content="abc", refusal="No."),
                "logprobs": {
                    "content": [token("a", -0.25), token("b", -1e-05), token("c", -0.0)],
                    "refusal": [token("No.", -2.5)],
                },
            },
            usage=USAGE,
        ),
    ),
    "two tool calls whose pieces alternate": Transcript(
        Endpoint.CHAT,
        _stream(
            chat_chunk(delta(role="assistant", content=None, refusal=None), service_tier="default", usage=None),
            chat_chunk(delta(tool_calls=[named(0, "look"), named(1, "add")]), service_tier="default", usage=None),
            chat_chunk(delta(tool_calls=[call(1, '{"a": 1'), call(0, '{"city":')]), service_tier="default", usage=None),
            chat_chunk(delta(tool_calls=[call(0, '"K\\u00f6ln"}')]), service_tier="default", usage=None),
            chat_chunk(delta(tool_calls=[call(1, "}")]), service_tier="default", usage=None),
            chat_chunk(delta(0, "tool_calls"), service_tier="default", usage=None),
            chat_chunk(service_tier="default", usage=USAGE),
        ),
        chat(
            said(
                0,
                "tool_calls",
                content=None,
                refusal=None,
                tool_calls=[called(0, "look", '{"city":"K\\u00f6ln"}'), called(1, "add", '{"a": 1}')],
            ),
            service_tier="default",
            usage=USAGE,
        ),
    ),
    "the function call of old": Transcript(
        Endpoint.CHAT,
        _stream(
            chat_chunk(delta(role="assistant", content=None, function_call={"name": "look", "arguments": ""})),
            chat_chunk(delta(function_call={"arguments": '{"a'})),
            chat_chunk(delta(function_call={"arguments": '": 1}'})),
            chat_chunk(delta(0, "function_call")),
            chat_chunk(usage=USAGE),
        ),
        chat(
            said(0, "function_call", content=None, function_call={"name": "look", "arguments": '{"a": 1}'}),
            usage=USAGE,
        ),
    ),
    "a refusal": Transcript(
        Endpoint.CHAT,
        _stream(
            chat_chunk(delta(role="assistant", content="", refusal=None)),
            chat_chunk(delta(refusal="I'm sorry")),
            chat_chunk(delta(refusal=", no.")),
            chat_chunk(delta(0, "stop")),
            chat_chunk(usage=USAGE),
        ),
        chat(said(content="", refusal="I'm sorry, no."), usage=USAGE),
    ),
    "reasoning under both names, and annotations": Transcript(
        Endpoint.CHAT,
        _stream(
            chat_chunk(delta(role="assistant", content="")),
            chat_chunk(delta(reasoning="Hm", reasoning_content="Hm", content=None)),
            chat_chunk(delta(reasoning=", so", reasoning_content=", so")),
            chat_chunk(delta(content="Four")),
            chat_chunk(delta(annotations=[{"type": "url_citation"}])),
            chat_chunk(delta(0, "stop")),
            chat_chunk(usage=USAGE),
        ),
        chat(
            said(
                content="Four",
                reasoning="Hm, so",
                reasoning_content="Hm, so",
                annotations=[{"type": "url_citation"}],
            ),
            usage=USAGE,
        ),
    ),
    "Azure's filters": Transcript(
        Endpoint.CHAT,
        _stream(
            event(
                {
                    "choices": [],
                    "created": 0,
                    "id": "",
                    "model": "",
                    "object": "",
                    "prompt_filter_results": FILTERED_PROMPTS,
                }
            ),
            chat_chunk({**delta(role="assistant", content="", refusal=None), "content_filter_results": {}}),
            chat_chunk({**delta(content="Hel"), "content_filter_results": SAFE}),
            chat_chunk({**delta(content="lo"), "content_filter_results": SAFE}),
            chat_chunk({**delta(0, "stop"), "content_filter_results": {}}),
            chat_chunk(usage=USAGE),
        ),
        chat(
            {**said(content="Hello", refusal=None), "content_filter_results": SAFE},
            prompt_filter_results=FILTERED_PROMPTS,
            usage=USAGE,
        ),
    ),
    "what only some servers add": Transcript(
        Endpoint.COMPLETIONS,
        _stream(
            completion_chunk(text("a", stop_reason=None), provider="p", usage={"total_tokens": 8}),
            completion_chunk(text("b", stop_reason=None), provider="p", usage={"total_tokens": 9}),
            completion_chunk(
                text("", 0, "stop", stop_reason="\n\n"),
                provider="p",
                usage=USAGE,
                timings={"predicted_ms": 1.5},
            ),
        ),
        completion(
            text("ab", 0, "stop", stop_reason="\n\n"),
            provider="p",
            usage=USAGE,
            timings={"predicted_ms": 1.5},
        ),
    ),
}
"""By what is special about them."""


def recorded(name: str) -> Transcript:
    """Return what the real model answered to one of `REQUESTS`."""
    whole = json.loads((RECORDED / f"{name}.json").read_bytes())
    return Transcript(REQUESTS[name][0], (RECORDED / f"{name}.sse").read_bytes(), whole)


def _record(base_url: str, name: str) -> None:
    endpoint, asked = REQUESTS[name]
    for ending, more in (("json", {}), ("sse", {"stream": True, "stream_options": {"include_usage": True}})):
        body = json.dumps({"model": "smollm2", "temperature": 0, **asked, **more}).encode()
        request = urllib.request.Request(  # noqa: S310  the model server's own address
            f"{base_url}/{endpoint}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            (RECORDED / f"{name}.{ending}").write_bytes(answer.read())


if __name__ == "__main__":
    from proxy.demo.model_process import ModelProcess

    RECORDED.mkdir(parents=True, exist_ok=True)
    with ModelProcess(Path(sys.argv[1])) as _process:
        for _name in REQUESTS:
            _record(_process.base_url, _name)
