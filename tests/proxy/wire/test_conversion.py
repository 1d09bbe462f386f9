from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming._deltas import accumulate_delta
from openai.lib.streaming.chat import ChatCompletionStreamState
from responses import response
from responses import stream as response_stream
from transcripts import (
    CONSTANT,
    DONE,
    REQUESTS,
    SCRIPTED,
    USAGE,
    Transcript,
    chat,
    chat_chunk,
    completion,
    completion_chunk,
    delta,
    event,
    recorded,
    said,
    text,
)

from policies.requests.asked import Endpoint
from proxy.wire.chunks import is_added_usage_event
from proxy.wire.conversion import to_stream, to_whole
from proxy.wire.sse import EventSplitter

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_CONVERTED = {
    "completion-of-two-prompts": "each choice has its own usage",
    "chat-that-says-nothing": "null in the stream and an empty text in the whole answer",
}
RECORDED = sorted(REQUESTS.keys() - NOT_CONVERTED.keys())
BOM = b"\xef\xbb\xbf"


def content_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what an answer says, less what its server measured anew for every answer, in the order of its choices."""
    own = {"id", "created", "timings"}
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    return {**{name: value for name, value in answer.items() if name not in own}, "choices": choices}


def whole_of(endpoint: Endpoint, stream: bytes) -> Any:  # noqa: ANN401  what the JSON says
    found = to_whole(endpoint, stream)
    return None if found is None else json.loads(found)


def stream_of(endpoint: Endpoint, whole: object) -> bytes:
    found = to_stream(endpoint, json.dumps(whole).encode())
    assert found is not None
    return found


# ---------------------------------------------------------------- scripted upstreams
@pytest.mark.parametrize("transcript", SCRIPTED.values(), ids=SCRIPTED)
def test_a_stream_becomes_the_whole_answer(transcript: Transcript) -> None:
    assert whole_of(transcript.endpoint, transcript.stream) == transcript.whole


@pytest.mark.parametrize("transcript", SCRIPTED.values(), ids=SCRIPTED)
def test_there_and_back_is_the_same_answer(transcript: Transcript) -> None:
    assert whole_of(transcript.endpoint, stream_of(transcript.endpoint, transcript.whole)) == transcript.whole


def folded(stream: bytes) -> bytes:
    """Return the stream with its data on several lines each, between comments."""
    return stream.replace(b'data: {"', b': ping\nevent: x\ndata: {\ndata:"').replace(b"}\n\n", b"\ndata: }\n\n")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda stream: stream.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(lambda stream: stream.replace(b"\n", b"\r"), id="CR"),
        pytest.param(lambda stream: BOM + stream, id="a BOM"),
        pytest.param(lambda stream: b": hello\n\n" + stream.replace(b"data: ", b"data:"), id="no space, a comment"),
        pytest.param(folded, id="data on several lines"),
        pytest.param(lambda stream: stream.removesuffix(b"\n\n"), id="no line end at the end"),
        pytest.param(lambda stream: stream + b": bye\n\n", id="a comment after the end"),
        pytest.param(lambda stream: stream.replace(b'","', b'"\t,  "'), id="white space"),
    ],
)
@pytest.mark.parametrize("transcript", SCRIPTED.values(), ids=SCRIPTED)
def test_how_a_stream_is_written_does_not_matter(transcript: Transcript, change: Callable[[bytes], bytes]) -> None:
    assert whole_of(transcript.endpoint, change(transcript.stream)) == transcript.whole


def test_a_whole_answer_becomes_a_stream_as_the_api_writes_it() -> None:
    whole = (
        b'{"id":"x","object":"text_completion","created":7,"model":"m","choices":[{"text":"Hi","index":0,"logprobs":'
        b'null,"finish_reason":"stop"}],"usage":{"total_tokens":3}}'
    )
    head = b'data: {"id":"x","object":"text_completion","created":7,"model":"m","choices":['
    assert to_stream(Endpoint.COMPLETIONS, whole) == (
        head
        + b'{"index":0,"text":"Hi","logprobs":null,"finish_reason":null}]}\n\n'
        + head
        + b'{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}\n\n'
        + head
        + b'],"usage":{"total_tokens":3}}\n\n'
        + b"data: [DONE]\n\n"
    )


@pytest.mark.parametrize("has_usage", [True, False], ids=["with usage", "without usage"])
def test_the_usage_event_is_the_last_before_the_end_and_there_only_with_usage(*, has_usage: bool) -> None:
    whole = completion(text("Hi", 0, "stop"), **({"usage": USAGE} if has_usage else {}))
    events = EventSplitter().feed(stream_of(Endpoint.COMPLETIONS, whole))
    assert events[-1] == DONE
    assert [is_added_usage_event(each) for each in events] == [False, False, *([True] if has_usage else []), False]


# ---------------------------------------------------------------- spelling
SPELLED = (
    b'{"id":"x","object":"text_completion","created":12345678901234567890123,"model":"m","choices":[{"text":'
    b'"\\u00e9\\/\xc3\xa9\\ud83d\\ude00","index":0,"logprobs":{"tokens":["\\u0061"],"token_logprobs":[-1E-05],'
    b'"top_logprobs":[{"a":-0.0}],"text_offset":[1e400]},"finish_reason":"stop"}],"usage":{"a":1,"a":1.10}}'
)


def test_every_number_and_text_is_spelled_as_it_was() -> None:
    stream = to_stream(Endpoint.COMPLETIONS, SPELLED.replace(b',"', b',\r\n"'))
    assert stream is not None
    assert to_whole(Endpoint.COMPLETIONS, stream) == SPELLED


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([rb"\ud83d", rb"\ude00"], "😀", id="a pair in two pieces"),
        pytest.param([rb"a\uD83D", rb"\uDE00b", rb"\u00e9"], "a😀bé", id="a pair in capitals, with text around it"),
        pytest.param([rb"\\ud83d", rb"\\ude00"], r"\ud83d\ude00", id="no escape but a backslash and letters"),
        pytest.param([rb"\\\ud83d\ude00"], "\\😀", id="a pair after a backslash"),
        pytest.param(["👩".encode(), "\u200d".encode(), "💻".encode()], "👩\u200d💻", id="a grapheme in three pieces"),
        pytest.param([b"e", "\u0301".encode()], "e\u0301", id="a letter and its accent"),
        pytest.param([b"a", b"a", b"", b"b", b"", b"a"], "aaba", id="the same piece again"),
        pytest.param([b"stop", b"text", b"m", b"index", b"stop"], "stoptextmindexstop", id="words of the frame"),
        pytest.param([rb"\n", rb"\"", b"a", rb"\\", b"b"], '\n"a\\b', id="escapes between plain pieces"),
        pytest.param([b"a", b'b","logprobs":null,"x":"'], "ab", id="a piece that holds a quote is no plain piece"),
        pytest.param([rb"\ud83d", b"x"], None, id="half a pair is no text"),
        pytest.param([rb"\ud83d", b"\x7f", rb"\ude00"], None, id="a pair around the mask's own character"),
        pytest.param([rb"\ud83d\ude00", b"\x7f"], "😀\x7f", id="a whole pair beside the mask's own character"),
        pytest.param([b"\xf0\x9f", b"\x98\x80"], None, id="a character's bytes in two pieces are no JSON"),
        pytest.param([rb"\q"], None, id="an escape that there is not"),
        pytest.param([b"a\tb"], None, id="a control character"),
    ],
)
def test_texts_that_are_cut_anywhere(pieces: list[bytes], expected: str | None) -> None:
    spelled = [completion_chunk(text("PIECE")).replace(b"PIECE", piece) for piece in pieces]
    found = whole_of(Endpoint.COMPLETIONS, b"".join([*spelled, completion_chunk(text("", 0, "stop")), DONE]))
    assert (found and found["choices"][0]["text"]) == expected


# ---------------------------------------------------------------- what is not converted
HELLO = (chat_chunk(delta(role="assistant", content="Hi")), chat_chunk(delta(0, "stop")))


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(DONE, id="the end alone"),
        pytest.param(b"".join(HELLO), id="no end"),
        pytest.param(HELLO[0] + DONE, id="no finish reason"),
        pytest.param(b"".join([*HELLO, event({"error": {"message": "no"}}), DONE]), id="an error"),
        pytest.param(b"".join([HELLO[0], b"data: x\n\n", HELLO[1], DONE]), id="an event without JSON"),
        pytest.param(b"".join([HELLO[0], b"data: [1]\n\n", HELLO[1], DONE]), id="an event that is a list"),
        pytest.param(b"".join([HELLO[0], b"data:\n\n", HELLO[1], DONE]), id="an event without anything"),
        pytest.param(b"".join([*HELLO, DONE]).replace(b"Hi", b"\xff"), id="bytes that are no UTF-8"),
        pytest.param(b'data: {"choices":' + b"[" * 100_000, id="nested too deeply"),
        pytest.param(b"<html>\n\n" + DONE, id="HTML"),
    ],
)
def test_a_stream_that_is_not_whole_is_not_converted(stream: bytes) -> None:
    assert to_whole(Endpoint.CHAT, stream) is None


@pytest.mark.parametrize("transcript", SCRIPTED.values(), ids=SCRIPTED)
def test_no_answer_that_is_cut_is_converted(transcript: Transcript) -> None:
    whole = json.dumps(transcript.whole).encode()
    end = len(transcript.stream) - len(b"]\n\n")
    assert [at for at in range(end) if to_whole(transcript.endpoint, transcript.stream[:at]) is not None] == []
    assert [at for at in range(len(whole)) if to_stream(transcript.endpoint, whole[:at]) is not None] == []


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"<html>", id="HTML"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"error":{"message":"no"}}', id="an error"),
        pytest.param(b'{"choices":[]}', id="no choices"),
        pytest.param(json.dumps(chat(said(content="x"))).encode()[:-1], id="a cut answer"),
        pytest.param(json.dumps(chat(said(content="x"))).encode().replace(b"x", b"\xff"), id="no UTF-8"),
        pytest.param(json.dumps(chat(said(content="\ud800"))).encode(), id="half a surrogate pair"),
        pytest.param(b'{"choices":' + b"[" * 100_000, id="nested too deeply"),
    ],
)
def test_what_is_no_whole_answer_is_not_converted(whole: bytes) -> None:
    assert to_stream(Endpoint.CHAT, whole) is None


def test_embeddings_have_one_form_only() -> None:
    whole = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}
    assert to_stream(Endpoint.EMBEDDINGS, json.dumps(whole).encode()) is None
    assert to_whole(Endpoint.EMBEDDINGS, b"".join([*HELLO, DONE])) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "index", "delta", "message", "text", "content", "role", "finish_reason", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(endpoint=st.sampled_from(Endpoint), values=st.lists(JSON | st.binary(max_size=8), max_size=4))
def test_no_bytes_make_it_fail(endpoint: Endpoint, values: list[Any]) -> None:
    spelled = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in values]
    to_whole(endpoint, b"".join([*(b"data: " + each + b"\n\n" for each in spelled), DONE]))
    for each in spelled:
        to_whole(endpoint, each)
        to_stream(endpoint, each)


@given(data=st.data())
def test_no_damage_makes_it_fail(data: st.DataObject) -> None:
    transcript = data.draw(st.sampled_from([*SCRIPTED.values()]))
    whole = json.dumps(transcript.whole).encode()
    for known, convert in ((transcript.stream, to_whole), (whole, to_stream)):
        begin = data.draw(st.integers(0, len(known)))
        end = data.draw(st.integers(begin, len(known)))
        convert(transcript.endpoint, known[:begin] + data.draw(st.binary(max_size=3)) + known[end:])


# ---------------------------------------------------------------- drawn answers
TEXT = st.text(max_size=40) | st.text(alphabet='ab "\\\n{}[]é😀', max_size=40)
NUMBER = st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)
TOKEN = st.fixed_dictionaries({"token": TEXT, "logprob": NUMBER, "bytes": st.none() | st.lists(st.integers(0, 255))})
CALL = st.fixed_dictionaries(
    {
        "id": TEXT.filter(bool),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}),
    }
)
SAYING = {"content", "tool_calls", "function_call", "refusal"}
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | TEXT},
    optional={
        "refusal": st.none() | TEXT,
        "reasoning": st.none() | TEXT,
        "reasoning_content": st.none() | TEXT,
        "annotations": st.lists(st.dictionaries(TEXT, NUMBER, max_size=2), max_size=2),
        "audio": st.none(),
        "function_call": st.none() | st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}),
        "tool_calls": st.none() | st.lists(CALL, max_size=3),
    },
).filter(lambda message: not SAYING.isdisjoint(name for name, value in message.items() if value not in (None, [])))
CHAT_LOGPROBS = st.none() | st.fixed_dictionaries(
    {"content": st.none() | st.lists(TOKEN, max_size=3), "refusal": st.none() | st.lists(TOKEN, max_size=2)}
)
LOGPROBS = st.none() | st.fixed_dictionaries(
    {
        "tokens": st.lists(TEXT, max_size=3),
        "token_logprobs": st.lists(st.none() | NUMBER, max_size=3),
        "top_logprobs": st.none() | st.lists(st.none() | st.dictionaries(TEXT, NUMBER, max_size=2), max_size=3),
        "text_offset": st.lists(NUMBER, max_size=3),
    }
)
OPTIONAL = {"content_filter_results": JSON, "stop_reason": st.none() | NUMBER | TEXT}
REASON = st.sampled_from(["stop", "length", "tool_calls"])
CHAT_CHOICE = st.fixed_dictionaries(
    {"message": MESSAGE, "finish_reason": REASON}, optional={**OPTIONAL, "logprobs": CHAT_LOGPROBS}
)
CHOICE = st.fixed_dictionaries({"text": TEXT, "finish_reason": REASON}, optional={**OPTIONAL, "logprobs": LOGPROBS})
EVERY = {
    "id": TEXT.filter(bool),
    "created": st.integers(1, 10**20),
    "model": TEXT.filter(bool),
}
MORE = {
    "usage": st.none() | st.dictionaries(TEXT, NUMBER, max_size=3),
    "system_fingerprint": st.none() | TEXT,
    "service_tier": st.none() | TEXT,
    "prompt_filter_results": st.lists(JSON, max_size=2),
    "timings": JSON,
}


@st.composite
def answers(draw: st.DrawFn) -> tuple[Endpoint, dict[str, Any]]:
    endpoint, choice, name = draw(
        st.sampled_from(
            [
                (Endpoint.COMPLETIONS, CHOICE, "text_completion"),
                (Endpoint.CHAT, CHAT_CHOICE, "chat.completion"),
            ]
        )
    )
    answer = draw(st.fixed_dictionaries({**EVERY, "object": st.just(name)}, optional=MORE))
    choices = draw(st.lists(choice, min_size=1, max_size=3))
    return endpoint, {**answer, "choices": [{"index": index, **each} for index, each in enumerate(choices)]}


@given(answer=answers(), indent=st.none() | st.integers(0, 2), ensure_ascii=st.booleans())
def test_any_answer_is_the_same_there_and_back(
    answer: tuple[Endpoint, dict[str, Any]], indent: int | None, *, ensure_ascii: bool
) -> None:
    endpoint, whole = answer
    stream = to_stream(endpoint, json.dumps(whole, indent=indent, ensure_ascii=ensure_ascii).encode())
    assert stream is not None
    assert whole_of(endpoint, stream) == whole


@given(pieces=st.lists(st.tuples(st.integers(0, 2), TEXT)), is_chat=st.booleans())
def test_pieces_of_any_text_in_any_order_are_joined(pieces: list[tuple[int, str]], *, is_chat: bool) -> None:
    texts = ["".join(piece for index, piece in pieces if index == at) for at in range(3)]
    if is_chat:
        chunks = [chat_chunk(delta(at, role="assistant", content="")) for at in range(3)]
        chunks += [chat_chunk(delta(index, content=piece)) for index, piece in pieces]
        chunks += [chat_chunk(delta(at, "stop")) for at in range(3)]
        expected = chat(*(said(at, content=texts[at]) for at in range(3)))
    else:
        chunks = [completion_chunk(text(piece, index)) for index, piece in pieces]
        chunks += [completion_chunk(text("", at, "stop")) for at in range(3)]
        expected = completion(*(text(texts[at], at, "stop") for at in range(3)))
    endpoint = Endpoint.CHAT if is_chat else Endpoint.COMPLETIONS
    assert whole_of(endpoint, b"".join([*chunks, DONE])) == expected


# ---------------------------------------------------------------- responses
def test_a_response_stream_becomes_the_response_it_ends_in() -> None:
    assert whole_of(Endpoint.RESPONSES, b"".join(response_stream(["Hel", "lo"]))) == response("Hello")


def test_a_response_is_the_same_there_and_back() -> None:
    stream = stream_of(Endpoint.RESPONSES, response("Hello"))
    assert whole_of(Endpoint.RESPONSES, stream) == response("Hello")
    assert stream.startswith(b'event: response.created\ndata: {"type":"response.created","sequence_number":0,')


# ---------------------------------------------------------------- the real model
@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_the_real_models_whole_answer_is_the_same_there_and_back(name: str) -> None:
    transcript = recorded(name)
    stream = stream_of(transcript.endpoint, transcript.whole)
    assert whole_of(transcript.endpoint, stream) == transcript.whole


@pytest.mark.parametrize("name", RECORDED)
def test_the_real_models_stream_says_what_its_whole_answer_says(name: str) -> None:
    transcript = recorded(name)
    streamed = whole_of(transcript.endpoint, transcript.stream)
    assert streamed is not None
    assert content_of(streamed) == content_of(transcript.whole)
    assert whole_of(transcript.endpoint, stream_of(transcript.endpoint, streamed)) == streamed


@pytest.mark.parametrize("name", NOT_CONVERTED)
def test_the_real_models_stream_is_not_converted_where_it_does_not_say_enough(name: str) -> None:
    transcript = recorded(name)
    assert to_whole(transcript.endpoint, transcript.stream) is None


# ---------------------------------------------------------------- the official SDK
def client_of(body: bytes, content_type: str) -> openai.OpenAI:
    """Return a client of a server that answers this, whatever it is asked."""
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, content=body, headers={"Content-Type": content_type})
    )
    return openai.OpenAI(api_key="x", base_url="http://x/v1", http_client=httpx2.Client(transport=transport))


def sdk_whole(endpoint: Endpoint, body: bytes) -> Any:  # noqa: ANN401  the SDK's own object
    with client_of(body, "application/json") as client:
        if endpoint is Endpoint.CHAT:
            return client.chat.completions.create(model="m", messages=[])
        return client.completions.create(model="m", prompt="")


def sdk_chunks(endpoint: Endpoint, stream: bytes) -> list[Any]:
    with client_of(stream, "text/event-stream") as client:
        if endpoint is Endpoint.CHAT:
            return list(client.chat.completions.create(model="m", messages=[], stream=True))
        return list(client.completions.create(model="m", prompt="", stream=True))


def sdk_gathered(endpoint: Endpoint, stream: bytes) -> dict[int, dict[str, Any]]:
    """Join by index what the SDK's chunks say, deltas with the SDK's own function for that."""
    gathered: dict[int, dict[str, Any]] = {}
    for choice in chain.from_iterable(chunk.choices for chunk in sdk_chunks(endpoint, stream)):
        own = gathered.setdefault(choice.index, {"message": {}, "text": "", "logprobs": {}, "finish_reason": None})
        if endpoint is Endpoint.CHAT:
            own["message"] = accumulate_delta(own["message"], choice.delta.to_dict())
        else:
            own["text"] += choice.text
        for name, found in (choice.logprobs.to_dict() if choice.logprobs else {}).items():
            own["logprobs"][name] = own["logprobs"].get(name, []) + (found or [])
        own["finish_reason"] = choice.finish_reason or own["finish_reason"]
    return {index: said_in(own) for index, own in gathered.items()}


def said_in(choice: dict[str, Any]) -> dict[str, Any]:
    """Return what a choice says, less what is null or empty, and less a call's index, which only streams have.

    Not every server's stream says the role, of which there is one.
    """
    told = {name: value for name, value in choice.get("message", {}).items() if value is not None}
    message = {"role": "assistant", **told}
    if "tool_calls" in message:
        calls = [{name: value for name, value in each.items() if name != "index"} for each in message["tool_calls"]]
        message["tool_calls"] = calls
    logprobs = {name: found for name, found in (choice.get("logprobs") or {}).items() if found}
    return {
        "message": message,
        "text": choice.get("text", ""),
        "logprobs": logprobs,
        "finish_reason": choice["finish_reason"],
    }


TRANSCRIPTS = [
    *(pytest.param(lambda found=found: found, id=name) for name, found in SCRIPTED.items()),
    *(pytest.param(lambda name=name: recorded(name), id=f"the real model's {name}") for name in RECORDED),
]


@pytest.mark.parametrize("find", TRANSCRIPTS)
def test_the_official_sdk_reads_the_same_from_both_forms(find: Callable[[], Transcript]) -> None:
    transcript = find()
    endpoint = transcript.endpoint
    whole = to_whole(endpoint, transcript.stream)
    assert whole is not None
    stream = to_stream(endpoint, whole)
    assert stream is not None
    read = sdk_whole(endpoint, whole)
    expected = {choice.index: said_in(choice.to_dict()) for choice in read.choices}
    assert sdk_gathered(endpoint, transcript.stream.replace(b"\n", b"\r\n")) == expected
    assert sdk_gathered(endpoint, stream) == expected
    *chunks, usage = sdk_chunks(endpoint, stream)
    for name in ("id", "created", "model", "system_fingerprint"):
        assert {getattr(chunk, name) for chunk in chunks if chunk.choices} == {getattr(read, name)}
    assert (usage.choices, usage.usage) == ([], read.usage)


@pytest.mark.parametrize(
    "transcript",
    [pytest.param(found, id=name) for name, found in SCRIPTED.items() if found.endpoint is Endpoint.CHAT],
)
def test_the_official_sdk_puts_both_streams_together_as_one_object(transcript: Transcript) -> None:
    converted = stream_of(transcript.endpoint, transcript.whole)
    gathered = []
    for stream in (transcript.stream, converted):
        state = ChatCompletionStreamState()
        for chunk in sdk_chunks(transcript.endpoint, stream):
            state.handle_chunk(chunk)
        gathered.append(state.current_completion_snapshot)
    own = {"content_filter_results"}  # the SDK takes it from a choice's first chunk, whatever follows
    first, second = (each.model_dump(exclude={"usage": True, "choices": {"__all__": own}}) for each in gathered)
    assert first == second


def test_the_official_sdk_puts_a_converted_response_together() -> None:
    stream = stream_of(Endpoint.RESPONSES, response("Hello there"))
    with (
        client_of(stream, "text/event-stream") as client,
        client.responses.stream(model="m", input="x") as events,
    ):
        deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
        final = events.get_final_response()
    assert ("".join(deltas), final.output_text) == ("Hello there", "Hello there")
    assert final.usage.to_dict() == response("x")["usage"]
    assert CONSTANT["model"] == final.model
