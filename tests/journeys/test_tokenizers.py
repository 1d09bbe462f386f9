"""A model with a tokenizer, through a whole gateway: what is held of its input, what is charged of its output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from admitting import ORGANIZATION, held, records, spent
from fake_upstream import DONE, ev, json_reply, sse_reply, tchunk, usage
from responses import event, response
from sending import MemoryWriter
from whole import KEY, Sent, configuration, whole_gateway

from proxy.explanation import Question, describe, explain

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import FakeUpstream, Ops
    from stores import StoreServer

    from proxy.config import Configuration

pytest.importorskip("quicktok", reason="there is no wheel of quicktok-v1 for this Python")

ASKED = {"model": "m", "prompt": "hello world", "max_tokens": 10}
"""Two tokens, eleven bytes; 24 for the request and its prompt, and 10 to generate."""


def limited(url: str, data_dir: Path, limit: int = 40, **model: Any) -> Configuration:  # noqa: ANN401  settings
    models = {"m": {"deployments": [{"upstream": "only"}], **model}}
    policies = {"default": {"limits": [{"of": "tokens", "limit": limit, "per": "365d", "by": ["user"]}]}}
    return configuration(url, data_dir, organization={"id": ORGANIZATION}, models=models, policies=policies)


@pytest.mark.parametrize(
    ("model", "served", "input_tokens"),
    [
        pytest.param({}, 0, 11 + 24, id="by bytes"),
        pytest.param({"tokenizer": "cl100k_base"}, 1, 2 + 24, id="by its tokenizer"),
    ],
)
async def test_a_limit_holds_what_the_tokenizer_counts(
    upstream: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    model: dict[str, str],
    served: int,
    input_tokens: int,
) -> None:
    settings = limited(upstream.url, tmp_path, **model)
    async with whole_gateway(settings, valkey.url) as whole:
        answer, _ = await whole.ask("POST", "/v1/completions", ASKED)
    assert (len(upstream.served), answer.status == 200) == (served, bool(served))
    told = describe(explain(settings, Question(json.dumps(ASKED).encode(), key=KEY)))
    assert told["worst_case"]["input_tokens"] == input_tokens


# Output that nobody reports -------------------------------------------------------------------------------------------

LONG = "antidisestablishmentarianism"
"""Six tokens of cl100k_base, as its makers published; seven by four bytes each. `hello world` is two."""
STREAMED = {"model": "m", "prompt": "hello world", "max_tokens": 50, "stream": True}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello world"}], "max_tokens": 50}
RESPONSE = {"model": "m", "input": "hello world", "max_output_tokens": 50}
LETTERS = [ev(tchunk(letter)) for letter in LONG]
STOP = ev(tchunk("", finish="stop"))
TWO_CHOICES = [
    ev(tchunk(piece, index)) for each in zip("hello world", LONG[:11], strict=True) for index, piece in enumerate(each)
]
REST_OF_LONG = [ev(tchunk(LONG[11:], 1)), STOP, ev(tchunk("", 1, finish="stop"))]
ONE_REPORTED = ev({"id": "x", "model": "m", "choices": [], "usage": usage(2 + 6, prompt=2)})


def delta(**fields: object) -> bytes:
    return ev({"id": "x", "model": "m", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def call(arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}


def message(content: str) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}


PATHS = {"prompt": "/v1/completions", "messages": "/v1/chat/completions", "input": "/v1/responses"}


@pytest.mark.parametrize(
    ("asked", "reply", "leaves_after", "output"),
    [
        pytest.param(STREAMED, sse_reply([*LETTERS, STOP, DONE], gap=0), None, (6, 28), id="a stream in letters"),
        pytest.param(STREAMED, sse_reply(LETTERS, gap=0, end="rst"), None, (6, 28), id="one that broke off"),
        pytest.param(STREAMED, sse_reply([*LETTERS[:27], 0.05, LETTERS[27]]), 27, (6, 28), id="one that was left"),
        pytest.param({**STREAMED, "max_tokens": 5}, sse_reply(LETTERS), 27, (5, 5), id="never above the hold"),
        pytest.param(
            {**STREAMED, "n": 2}, sse_reply([*TWO_CHOICES, *REST_OF_LONG, DONE], gap=0), None, (8, 23), id="two choices"
        ),
        pytest.param(
            {**STREAMED, "n": 2},
            sse_reply([*TWO_CHOICES, *REST_OF_LONG, ONE_REPORTED, DONE], gap=0),
            None,
            (8, 23),
            id="two choices of which one is reported",
        ),
        pytest.param(
            {**CHAT, "stream": True},
            sse_reply([delta(content=piece) for piece in ("hel", "lo wor", "ld")]),
            2,
            (2, 3),
            id="a chat that was left",
        ),
        pytest.param(
            {**CHAT, "stream": True},
            sse_reply([delta(**call("hello")), delta(**call(" world")), DONE]),
            None,
            (2, 3),
            id="calls of tools",
        ),
        pytest.param(
            {**RESPONSE, "stream": True},
            sse_reply([event(n, "response.output_text.delta", delta=piece) for n, piece in enumerate(LONG)]),
            27,
            (6, 28),
            id="a response that was left",
        ),
        pytest.param(
            {**CHAT, "n": 2},
            json_reply({"choices": [message("hello world"), message(LONG)]}),
            None,
            (8, 10),
            id="whole",
        ),
        pytest.param(
            {**CHAT, "n": 3}, json_reply({"choices": [message("a")] * 3}), None, (3, 3), id="three choices of a letter"
        ),
        pytest.param(RESPONSE, json_reply(response(LONG, usage=None)), None, (6, 7), id="a whole response"),
    ],
)
@pytest.mark.parametrize("model", [{"tokenizer": "cl100k_base"}, {}], ids=["by its tokenizer", "by events and bytes"])
async def test_output_that_nobody_reports_is_counted(
    upstream: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    *,
    model: dict[str, str],
    asked: dict[str, Any],
    reply: Ops,
    leaves_after: int | None,
    output: tuple[int, int],
) -> None:
    upstream.script(reply)
    path = next(path for name, path in PATHS.items() if name in asked)
    writer = MemoryWriter(leaves_after=leaves_after)
    sent = Sent("POST", path, fields=[("Authorization", f"Bearer {KEY}")], body=json.dumps(asked).encode())
    settings = limited(upstream.url, tmp_path, limit=1_000, **model)
    async with whole_gateway(settings, valkey.url) as whole:
        await whole.gateway.answer(sent, writer)
        with valkey.client() as client:
            [record] = map(json.loads, records(client))
            assert (held(client), spent(client, "tokens")) == (0, record["input_tokens"] + record["output_tokens"])
    by_tokenizer, by_bytes = output
    assert (record["output_tokens"], record["known"]) == (by_tokenizer if model else by_bytes, "counted")
    if model and "prompt" in asked:
        assert record["input_tokens"] == 2
