"""The model's name in answers: which one is replaced, cut anywhere, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.requests.asked import Endpoint
from proxy.wire.renaming import NameReplacer, StreamRenamer, rename

if TYPE_CHECKING:
    from collections.abc import Iterable

COMPLETIONS, RESPONSES = Endpoint.COMPLETIONS, Endpoint.RESPONSES
NAME = 'an "alias" é'
SPELLED = '"an \\"alias\\" é"'.encode()

OBJECTS = [
    pytest.param(COMPLETIONS, b'{"id":"1","model":"m","choices":[]}', b'"m"', id="as the API orders its members"),
    pytest.param(COMPLETIONS, b'{"choices":[{"text":"a"}],"model":"m"}', b'"m"', id="last"),
    pytest.param(COMPLETIONS, b'{ "model" :\r\n\t"m" }', b'"m"', id="with spaces"),
    pytest.param(COMPLETIONS, b'{"model":""}', b'""', id="an empty name"),
    pytest.param(COMPLETIONS, rb'{"model":"a\"b\\"}', rb'"a\"b\\"', id="a name with escapes"),
    pytest.param(
        COMPLETIONS, b'{"choices":[{"model":"inner"}],"model":"outer"}', b'"outer"', id="not that of an object within"
    ),
    pytest.param(
        COMPLETIONS, rb'{"text":"\"model\":\"no\"","model":"m"}', b'"m"', id="not what a text says, escapes and all"
    ),
    pytest.param(COMPLETIONS, b'{"object":"model","model":"m"}', b'"m"', id="beside a text that says model"),
    pytest.param(COMPLETIONS, b'{"list":["model","{",{}],"model":"m"}', b'"m"', id="behind brackets within texts"),
    pytest.param(COMPLETIONS, rb'{"a\\":"model","model":"m"}', b'"m"', id="behind a text that ends in a backslash"),
    pytest.param(RESPONSES, b'{"object":"response","model":"m","output":[{"model":"x"}]}', b'"m"', id="of a response"),
    pytest.param(
        RESPONSES,
        b'{"type":"response.created","response":{"object":"model","a":{"model":"x"},"model":"m"},"model2":{}}',
        b'"m"',
        id="of the response that an event tells of",
    ),
]
UNNAMED = [
    pytest.param(COMPLETIONS, b'{"choices":[{"model":"inner"}]}', id="an object within has a name"),
    pytest.param(COMPLETIONS, b'{"error":{"model":"m","message":"no"}}', id="an error has one"),
    pytest.param(COMPLETIONS, b'{"response":{"model":"m"}}', id="a response within another answer"),
    pytest.param(COMPLETIONS, b'{"model":null,"a":"b"}', id="no name is given"),
    pytest.param(COMPLETIONS, b'{"model":5,"a":"b"}', id="a number is"),
    pytest.param(COMPLETIONS, b'{"model":{"model":"m"},"a":"b"}', id="an object is"),
    pytest.param(COMPLETIONS, b'{"a":"model"}', id="a text says model"),
    pytest.param(COMPLETIONS, rb'{"x\"model":"m"}', id="a member's name ends so"),
    pytest.param(COMPLETIONS, b'[{"model":"m"}]', id="a list"),
    pytest.param(COMPLETIONS, b"no JSON, model", id="no JSON"),
    pytest.param(COMPLETIONS, b"", id="nothing"),
    pytest.param(RESPONSES, b'{"response":"model","x":{"model":"m"}}', id="a text in the response's place"),
    pytest.param(RESPONSES, b'{"response":{"a":1},"x":{"model":"m"}}', id="an object beside the response"),
]


def in_pieces(feed: NameReplacer | StreamRenamer, pieces: Iterable[bytes]) -> bytes:
    return b"".join([feed.feed(piece) for piece in pieces])


def cuts(data: bytes) -> list[tuple[bytes, ...]]:
    """Return the data in two parts, cut everywhere, and byte by byte."""
    return [*((data[:at], data[at:]) for at in range(len(data) + 1)), tuple(bytes([byte]) for byte in data)]


@pytest.mark.parametrize(("endpoint", "given", "replaced"), OBJECTS)
def test_an_objects_own_name_is_replaced_and_nothing_else(endpoint: Endpoint, given: bytes, replaced: bytes) -> None:
    assert given.count(replaced) == 1
    wanted = given.replace(replaced, SPELLED)
    assert rename(given, NAME, endpoint) == wanted
    for pieces in cuts(given):
        assert in_pieces(NameReplacer(NAME, endpoint), pieces) == wanted


@pytest.mark.parametrize(("endpoint", "given"), UNNAMED)
def test_an_object_without_a_name_of_its_own_stays(endpoint: Endpoint, given: bytes) -> None:
    assert rename(given, NAME, endpoint) == given
    for pieces in cuts(given):
        assert in_pieces(NameReplacer(NAME, endpoint), pieces) == given


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("lead", [b"data: ", b"data:", b"id: {\ndata: ", b': "model":\ndata: '], ids=repr)
@pytest.mark.parametrize(("endpoint", "given", "replaced"), [row for row in OBJECTS if b"\r" not in row.values[1]])
def test_events_are_renamed_in_every_spelling(
    endpoint: Endpoint, given: bytes, replaced: bytes, lead: bytes, end: bytes
) -> None:
    event = lead.replace(b"\n", end) + given + end + end
    wanted = lead.replace(b"\n", end) + given.replace(replaced, SPELLED) + end + end
    for stream, expected in ((event, wanted), (b"\xef\xbb\xbf" + event, b"\xef\xbb\xbf" + wanted)):
        renamer = StreamRenamer(NAME, endpoint)
        assert in_pieces(renamer, [stream, event + event, b": comment" + end + end]) == (
            expected + wanted + wanted + b": comment" + end + end
        )


@pytest.mark.parametrize(("endpoint", "given"), [row for row in UNNAMED if row.values[1]])
def test_events_without_a_name_of_their_own_stay(endpoint: Endpoint, given: bytes) -> None:
    stream = b"data: " + given + b"\n\n" + b"data: [DONE]\n\n"
    assert StreamRenamer(NAME, endpoint).feed(stream) == stream


def test_data_on_several_lines_are_one_object() -> None:
    event = b'data: {"choices":[{"model":"x"}],\nid: 7\ndata: "model"\ndata::\ndata: "m"}\n\n'.replace(b"::", b": :")
    assert StreamRenamer(NAME, COMPLETIONS).feed(event) == event.replace(b'"m"', SPELLED)


@pytest.mark.parametrize(("endpoint", "given", "replaced"), OBJECTS)
def test_an_event_too_long_to_come_whole_is_renamed_wherever_it_is_cut(
    endpoint: Endpoint, given: bytes, replaced: bytes
) -> None:
    lead = b"data: "
    event = lead + given.replace(b"\r\n", b"") + b"\n\n"
    wanted = event.replace(replaced, SPELLED)
    for at in range(len(lead), len(event) - 1):
        renamer = StreamRenamer(NAME, endpoint)
        assert in_pieces(renamer, [event, event[:at], event[at:], event]) == wanted * 3


def test_what_a_stream_ends_with_is_renamed_though_unfinished() -> None:
    assert StreamRenamer(NAME, COMPLETIONS).feed(b'data: {"model":"m"}') == b'data: {"model":' + SPELLED + b"}"


NESTED = st.recursive(
    st.one_of(st.none(), st.integers(), st.sampled_from(["model", "response", '"model":', "\\", "{", "é"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["model", "response", "a", '"']), inner),
)


@given(st.dictionaries(st.sampled_from(["model", "response", "a", '"']), NESTED), st.data())
def test_any_object_says_the_same_but_for_its_name(value: dict[str, object], data: st.DataObject) -> None:
    endpoint, response = data.draw(st.sampled_from([COMPLETIONS, RESPONSES])), value.get("response")
    named = [each for each in (value, response) if isinstance(each, dict) and isinstance(each.get("model"), str)]
    if endpoint is COMPLETIONS:
        named = [each for each in named if each is value]
    assume(len(named) < 2)  # no answer is also an event that tells of one
    given = json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode()
    at = data.draw(st.integers(0, len(given)))
    for each in named:
        each["model"] = NAME
    assert json.loads(rename(given, NAME, endpoint)) == value
    assert json.loads(in_pieces(NameReplacer(NAME, endpoint), [given[:at], given[at:]])) == value
