from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from transcripts import (
    CONSTANT,
    SAFE,
    USAGE,
    call,
    chat,
    chat_chunk,
    completion,
    completion_chunk,
    delta,
    named,
    said,
    text,
    tokens,
)

from policies.requests.asked import Endpoint
from proxy.wire.gathering import GatheredAnswer
from proxy.wire.raw_json import Inexact
from proxy.wire.sse import data_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def gathered(chunks: Sequence[bytes], endpoint: Endpoint = Endpoint.CHAT) -> Any:  # noqa: ANN401  what the JSON says
    answer = GatheredAnswer(endpoint)
    for chunk in chunks:
        answer.take(data_of(chunk) or b"")
    return json.loads(answer.whole())


START = chat_chunk(delta(role="assistant", content=""))
STOP = chat_chunk(delta(0, "stop"))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([START, STOP], chat(said(content="")), id="nothing was generated"),
        pytest.param([chat_chunk(delta(content="a")), STOP], chat(said(content="a")), id="no role"),
        pytest.param([chat_chunk(delta(role=None, content="a")), START, STOP], chat(said(content="a")), id="role null"),
        pytest.param([chat_chunk(delta(0, "stop", content="a"))], chat(said(content="a")), id="all in one chunk"),
        pytest.param(
            [START, chat_chunk({**delta(content="a"), "finish_reason": ""}), STOP],
            chat(said(content="a")),
            id="an empty finish reason is none",
        ),
        pytest.param(
            [START, chat_chunk({"delta": {"content": "a"}, "finish_reason": "stop"})],
            chat(said(content="a")),
            id="no index is the first",
        ),
        pytest.param(
            [chat_chunk(delta(role="assistant", content="a")), chat_chunk(delta(role="assistant", content="a")), STOP],
            chat(said(content="aa")),
            id="the role in every chunk, the same piece twice",
        ),
        pytest.param(
            [START, chat_chunk(delta(content="stop")), STOP, chat_chunk(delta(content=None))],
            chat(said(content="stop")),
            id="a text that is a finish reason",
        ),
        pytest.param(
            [chat_chunk(delta(content="", tool_calls=[], audio=None)), STOP],
            chat(said(content="", tool_calls=[], audio=None)),
            id="members that are empty",
        ),
        pytest.param(
            [START, chat_chunk(delta(tool_calls=None)), STOP],
            chat(said(content="", tool_calls=None)),
            id="calls that are null",
        ),
        pytest.param(
            [
                START,
                chat_chunk(delta(tool_calls=[{**named(0, "f"), "extra_content": {"signature": "s"}}])),
                chat_chunk(delta(tool_calls=[call(0, "{}", id="call_0", type="function")])),
                chat_chunk(delta(tool_calls=[call(0, "", id="", type=None)])),
                chat_chunk(delta(0, "tool_calls")),
            ],
            chat(
                said(
                    0,
                    "tool_calls",
                    content="",
                    tool_calls=[
                        {
                            "id": "call_0",
                            "type": "function",
                            "extra_content": {"signature": "s"},
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                )
            ),
            id="a call's id and type in several pieces, and what a server adds to it once",
        ),
        pytest.param(
            [
                chat_chunk(delta(content="a"), created=7, usage=None),
                chat_chunk(delta(0, "stop"), created=9, usage=None),
            ],
            chat(said(content="a"), created=9, usage=None),
            id="a clock that goes on, usage that is never told",
        ),
        pytest.param(
            [START, chat_chunk(delta(content="a"), timings={"ms": 1}), chat_chunk(delta(0, "stop"), timings={"ms": 2})],
            chat(said(content="a"), timings={"ms": 2}),
            id="a clock that is read for every chunk",
        ),
        pytest.param(
            [START, chat_chunk(delta(content="a"), obfuscation="xyz"), chat_chunk(delta(0, "stop"), obfuscation="q")],
            chat(said(content="a")),
            id="padding",
        ),
        pytest.param(
            [START, STOP, chat_chunk(usage=USAGE), chat_chunk(moderation={"x": 1})],
            chat(said(content=""), usage=USAGE, moderation={"x": 1}),
            id="a chunk of its own for what is of all",
        ),
        pytest.param(
            [START, chat_chunk({**delta(0, "stop"), "matched_stop": 2, "seed": 7, "x": [1]})],
            chat({**said(content=""), "matched_stop": 2, "seed": 7, "x": [1]}),
            id="what a server adds to a choice once",
        ),
    ],
)
def test_chunks_of_chat_become_one_answer(chunks: list[bytes], expected: dict[str, Any]) -> None:
    assert gathered(chunks) == expected


def test_a_filter_that_reads_behind_is_the_choices() -> None:
    judged = {
        "index": 0,
        "finish_reason": None,
        "content_filter_results": SAFE,
        "content_filter_offsets": {"check_offset": 0, "start_offset": 0, "end_offset": 5},
    }
    blank = {"id": "", "object": "", "created": 0, "model": "", "system_fingerprint": None}
    chunks = [START, chat_chunk(delta(content="Hello")), STOP, chat_chunk(judged, **blank)]
    assert gathered(chunks) == chat({**said(content="Hello"), "content_filter_results": SAFE})


OTHER_USAGE = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        pytest.param([({0}, USAGE), ({1}, USAGE)], USAGE, id="each choice tells the same"),
        pytest.param([({0}, USAGE), ({1}, OTHER_USAGE)], None, id="each choice tells its own"),
        pytest.param([({0}, USAGE), ({1}, OTHER_USAGE), (set(), USAGE)], USAGE, id="and then that of all"),
        pytest.param([({0}, OTHER_USAGE), ({0}, USAGE)], USAGE, id="one choice counts on"),
        pytest.param([(set(), USAGE), (set(), USAGE)], USAGE, id="that of all twice"),
        pytest.param([(set(), USAGE), (set(), OTHER_USAGE)], None, id="two of all"),
        pytest.param([({0}, None), (set(), USAGE), (set(), None)], USAGE, id="null before and after"),
        pytest.param([({0}, USAGE), (set(), None)], USAGE, id="null for all"),
        pytest.param([({0}, None), (set(), None)], None, id="null only"),
        pytest.param([({0}, 7)], None, id="a number"),
    ],
)
def test_usage_is_that_of_all(usages: list[tuple[set[int], Any]], expected: dict[str, int] | None) -> None:
    chunks = [chat_chunk(delta(index, "stop", content="")) for index in range(2)]
    chunks += [chat_chunk(*(delta(index) for index in indexes), usage=usage) for indexes, usage in usages]
    try:
        found = gathered(chunks)["usage"]
    except (Inexact, msgspec.DecodeError):
        found = None
    assert found == expected


NO_LOGPROBS = {"tokens": [], "token_logprobs": [], "top_logprobs": None, "text_offset": []}


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param(
            [completion_chunk(text("", 0, "length"))], completion(text("", 0, "length")), id="nothing was generated"
        ),
        pytest.param(
            [completion_chunk(text("The sky", 0)), completion_chunk(text(" is", 0, "stop"))],
            completion(text("The sky is", 0, "stop")),
            id="an echoed prompt is the first piece",
        ),
        pytest.param(
            [completion_chunk(text("b", 1, "stop"), text("a", 0, "stop"))],
            completion(text("a", 0, "stop"), text("b", 1, "stop")),
            id="the choices of two prompts in one chunk",
        ),
        pytest.param(
            [
                completion_chunk(text("a", logprobs=NO_LOGPROBS)),
                completion_chunk(text("b", logprobs=tokens("b", offset=1))),
                completion_chunk(text("", 0, "stop", logprobs=NO_LOGPROBS)),
            ],
            completion(text("ab", 0, "stop", logprobs=tokens("b", offset=1))),
            id="logprobs that are empty in places",
        ),
        pytest.param(
            [completion_chunk(text("a", 0, "stop", logprobs=NO_LOGPROBS))],
            completion(text("a", 0, "stop", logprobs=NO_LOGPROBS)),
            id="a list of logprobs that is null only",
        ),
        pytest.param(
            [completion_chunk(text("a", 0, "stop", logprobs=None))],
            completion(text("a", 0, "stop", logprobs=None)),
            id="no logprobs",
        ),
    ],
)
def test_chunks_of_completions_become_one_answer(chunks: list[bytes], expected: dict[str, Any]) -> None:
    assert gathered(chunks, Endpoint.COMPLETIONS) == expected


def test_the_answers_members_are_in_the_apis_order() -> None:
    chunk = {"choices": [delta(0, "stop", content="a")], "usage": USAGE, **CONSTANT, "object": "chat.completion.chunk"}
    answer = gathered([b"data: " + json.dumps(chunk).encode() + b"\n\n"])
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"]
    assert list(answer["choices"][0]) == ["index", "message", "finish_reason"]
    assert list(answer["choices"][0]["message"]) == ["role", "content"]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([], id="no chunk"),
        pytest.param([chat_chunk(usage=USAGE)], id="no choice"),
        pytest.param([START], id="no finish reason"),
        pytest.param([START, STOP, chat_chunk(delta(0, "length"))], id="two finish reasons"),
        pytest.param([START, chat_chunk({**delta(), "finish_reason": 1})], id="a finish reason that is a number"),
        pytest.param([chat_chunk(delta(0, "stop"), delta(2, "stop"))], id="a choice is missing"),
        pytest.param([START, STOP, chat_chunk(delta(1, content="a"))], id="a choice is not finished"),
        pytest.param([START, chat_chunk({**delta(0, "stop"), "index": -1})], id="an index below 0"),
        pytest.param([START, chat_chunk({**delta(0, "stop"), "index": "0"})], id="an index that is a text"),
        pytest.param([START, chat_chunk({**delta(0, "stop"), "index": 10**30})], id="an index beyond all"),
        pytest.param([START, chat_chunk({**delta(0, "stop"), "message": {}})], id="a message in a chunk"),
        pytest.param([chat_chunk({"index": 0, "finish_reason": "stop"})], id="no delta"),
        pytest.param([chat_chunk(delta(role="assistant", content=None)), STOP], id="content that is null alone"),
        pytest.param([chat_chunk(delta(content=None, reasoning="Hm")), STOP], id="reasoning alone beside null"),
        pytest.param([START, STOP, b"data: {}\n\n"], id="a chunk without choices"),
        pytest.param([START, STOP, chat_chunk().replace(b"[]", b"null")], id="choices that are null"),
        pytest.param([START, STOP, chat_chunk(error={"message": "x"})], id="an error"),
        pytest.param([START, STOP, chat_chunk(id="x-2")], id="two ids"),
        pytest.param([START, STOP, chat_chunk(model="n")], id="two models"),
        pytest.param([START, STOP, chat_chunk(system_fingerprint="fp_2")], id="two fingerprints"),
        pytest.param([START, STOP, chat_chunk(object="x")], id="two kinds"),
        pytest.param([chat_chunk(delta(0, "stop"), object="chat.completion")], id="a kind that chunks are not"),
        pytest.param([chat_chunk(delta(role="assistant")), chat_chunk(delta(0, "stop", role="user"))], id="two roles"),
        pytest.param([chat_chunk(delta(0, "stop", role=1, content="a"))], id="a role that is a number"),
        pytest.param([START, chat_chunk(delta(content=["a"])), STOP], id="content in parts"),
        pytest.param([START, chat_chunk(delta(thinking="a")), STOP], id="a text that nobody knows"),
        pytest.param([START, chat_chunk(delta(reasoning_details=[{"index": 0}])), STOP], id="a list nobody knows"),
        pytest.param([START, chat_chunk(delta(audio={"data": "x"})), STOP], id="audio"),
        pytest.param(
            [START, chat_chunk({**delta(), "x": "a"}), chat_chunk({**delta(0, "stop"), "x": "a"})],
            id="perhaps two pieces of a text that nobody knows",
        ),
        pytest.param(
            [START, chat_chunk({**delta(), "x": 1}), chat_chunk({**delta(0, "stop"), "x": 2})],
            id="a number that changes",
        ),
        pytest.param(
            [
                START,
                chat_chunk({**delta(), "content_filter_results": SAFE}),
                chat_chunk({**delta(0, "stop"), "content_filter_results": {"hate": {"severity": "low"}}}),
            ],
            id="a filter that judges pieces differently",
        ),
        pytest.param([START, chat_chunk({**delta(0, "stop"), "logprobs": {"x": [1]}})], id="logprobs nobody knows"),
        pytest.param([START, chat_chunk({**delta(0, "stop"), "logprobs": {"content": 1}})], id="logprobs, no list"),
        pytest.param([START, chat_chunk({**delta(0, "stop"), "logprobs": [1]})], id="logprobs that are a list"),
        pytest.param([START, chat_chunk(delta(tool_calls=[named(1, "f")])), STOP], id="calls begin with the second"),
        pytest.param(
            [
                START,
                chat_chunk(delta(tool_calls=[named(0, "f")])),
                chat_chunk(delta(tool_calls=[{**named(0, "g"), "id": "call_9"}])),
                STOP,
            ],
            id="two calls under one index",
        ),
        pytest.param(
            [
                START,
                chat_chunk(delta(tool_calls=[named(0, "f")])),
                chat_chunk(delta(tool_calls=[{"index": 0, "function": {"name": "f"}}])),
                STOP,
            ],
            id="a name that may go on",
        ),
        pytest.param([START, chat_chunk(delta(tool_calls=[call(0, "{}")])), STOP], id="a call without a name"),
        pytest.param(
            [START, chat_chunk(delta(tool_calls=[{"index": 0, "function": {"name": "f"}}])), STOP],
            id="a call without arguments",
        ),
        pytest.param(
            [START, chat_chunk(delta(tool_calls=[{"index": 0, "function": {"arguments": {}}}])), STOP],
            id="arguments that are an object",
        ),
        pytest.param(
            [START, chat_chunk(delta(tool_calls=[{"index": 0, "custom": {"name": "f"}}])), STOP],
            id="a call of another type",
        ),
        pytest.param([START, chat_chunk(delta(tool_calls={"index": 0})), STOP], id="calls that are an object"),
        pytest.param([START, chat_chunk(delta(function_call={"name": "f"})), STOP], id="a function without arguments"),
    ],
)
def test_what_nobody_can_place_is_not_gathered(chunks: list[bytes]) -> None:
    with pytest.raises((Inexact, msgspec.DecodeError)):
        gathered(chunks)


def test_a_completion_without_text_is_not_gathered() -> None:
    with pytest.raises(Inexact):
        gathered([completion_chunk({"index": 0, "finish_reason": "stop"})], Endpoint.COMPLETIONS)


@pytest.mark.parametrize(
    ("choices", "pieces"),
    [
        pytest.param([delta(content="a")], [b"a"], id="one choice's text"),
        pytest.param([delta(content="a"), delta(1, content="b")], None, id="two choices"),
        pytest.param([], None, id="no choice"),
    ],
)
def test_a_chunk_that_adds_one_text_alone_tells_where(
    choices: list[dict[str, Any]], pieces: list[bytes] | None
) -> None:
    assert GatheredAnswer(Endpoint.CHAT).take(data_of(chat_chunk(*choices)) or b"") == pieces
