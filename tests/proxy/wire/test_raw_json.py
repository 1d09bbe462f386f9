from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.raw_json import (
    NULL,
    Inexact,
    Members,
    cut,
    is_empty,
    is_piecewise,
    keep,
    keep_once,
    list_inside,
    list_of,
    mask_surrogates,
    members_of,
    text_inside,
    text_of,
    unmask_surrogates,
)


def raw(json_text: str) -> msgspec.Raw:
    return msgspec.Raw(json_text.encode())


def test_members_keep_order_and_spelling_and_the_last_of_two_counts() -> None:
    members = members_of(rb'{"b": 1E-05, "a": [ 1 ], "b": -0.0, "c": "\u0061\/"}')
    assert {name: bytes(value) for name, value in members.items()} == {
        "b": b"-0.0",
        "a": b"[ 1 ]",
        "c": rb'"\u0061\/"',
    }
    assert list(members) == ["b", "a", "c"]


@pytest.mark.parametrize("spelled", [b"", b"[]", b"1", b'{"a":01}', b'{"a":"\\q"}', b'{"a":1}x'])
def test_what_is_no_object_has_no_members(spelled: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        members_of(spelled)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(None, "null", id="null only"),
        pytest.param([], '""', id="no piece"),
        pytest.param([b"", b"a", rb"\u00e9", b""], r'"a\u00e9"', id="pieces, some empty"),
    ],
)
def test_texts_are_joined_as_they_are_spelled(pieces: list[bytes] | None, expected: str) -> None:
    assert text_of(pieces) == raw(expected)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(None, "null", id="null only"),
        pytest.param([b"", b""], "[]", id="empty lists"),
        pytest.param([b"1, 2", b"", b"3"], "[1, 2,3]", id="lists, one empty"),
    ],
)
def test_lists_are_joined_as_they_are_spelled(pieces: list[bytes] | None, expected: str) -> None:
    assert list_of(pieces) == raw(expected)


def test_the_inside_of_texts_and_lists() -> None:
    assert (text_inside(NULL), text_inside(raw('"a"')), text_inside(raw('""'))) == (None, b"a", b"")
    assert (list_inside(NULL), list_inside(raw("[ 1 ]")), list_inside(raw("[\n]"))) == (None, b"1", b"")
    for inside in (text_inside, list_inside):
        for wrong in ("1", "{}", "true"):
            with pytest.raises(Inexact):
                inside(raw(wrong))


def test_a_long_text_is_cut_before_spaces() -> None:
    words = [b"x" * 2048, b" yy", b" " + b"z" * 2047, b" \\u00e9"]
    assert cut(b"".join(words)) == [text_of([words[0]]), text_of([words[1] + words[2]]), text_of([words[3]])]
    assert cut(b"") == []
    assert cut(b"x" * 5000) == [text_of([b"x" * 5000])]


@given(st.lists(st.sampled_from(["é", "😀", " ", '"', "\\", "word ", "\n"]), max_size=3000), st.booleans())
def test_every_piece_of_a_cut_text_is_a_text(parts: list[str], ensure_ascii: bool) -> None:  # noqa: FBT001
    spelled = json.dumps("".join(parts), ensure_ascii=ensure_ascii).encode()[1:-1]
    pieces = cut(spelled)
    assert "".join(msgspec.json.decode(piece) for piece in pieces) == "".join(parts)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(["1", "1"], "1", id="the same twice"),
        pytest.param(["null", "1", "null"], "1", id="null says nothing"),
        pytest.param(['""', '"a"', '""', "{}", "[]"], '"a"', id="nothing in it says nothing"),
        pytest.param(["null", '""'], '""', id="empty is more than null"),
        pytest.param(["{}", "null"], "{}", id="null after empty"),
        pytest.param(["null", "null"], "null", id="null only"),
        pytest.param(['"a"', '"a"'], '"a"', id="the same text twice"),
        pytest.param(["1", "2"], None, id="two numbers"),
        pytest.param(["1", "1.0"], None, id="two spellings"),
        pytest.param(['"a"', '"b"'], None, id="two texts"),
    ],
)
def test_a_member_is_kept_if_it_never_differs(values: list[str], expected: str | None) -> None:
    members: Members = {}
    try:
        for value in values:
            keep(members, "x", raw(value))
    except Inexact:
        assert expected is None
    else:
        assert expected is not None
        assert members == {"x": raw(expected)}


@pytest.mark.parametrize(
    ("values", "is_kept"),
    [
        pytest.param(['"a"', "null", '""'], True, id="a text once"),
        pytest.param(['"a"', '"a"'], False, id="perhaps two pieces of a text"),
        pytest.param(["[1]", "[1]"], False, id="perhaps two pieces of a list"),
        pytest.param(["[]", "[]", '""', '""'], True, id="empty twice"),
        pytest.param(['{"a":1}', '{"a":1}', "null"], True, id="an object twice"),
        pytest.param(["7", "7"], True, id="a number twice"),
    ],
)
def test_a_member_that_may_come_in_pieces_is_kept_once(values: list[str], *, is_kept: bool) -> None:
    members: Members = {}
    try:
        for value in values:
            keep_once(members, "x", raw(value))
    except Inexact:
        assert not is_kept
    else:
        assert is_kept


def test_what_is_empty_and_what_may_be_a_piece() -> None:
    assert [is_empty(raw(each)) for each in ("null", '""', "[]", "{}", "0", "false")] == [True] * 4 + [False] * 2
    assert [is_piecewise(raw(each)) for each in ('"a"', "[1]", '""', "[]", "{}", "1")] == [True] * 2 + [False] * 4


@pytest.mark.parametrize(
    ("spelled", "masked"),
    [
        pytest.param(rb'"\ud83d"', b'"\x7fd83d\x7f"', id="half a pair"),
        pytest.param(rb'"\uD83d\uDe00"', b'"\x7fD83d\x7f\x7fDe00\x7f"', id="a pair"),
        pytest.param(rb'"\\ud83d"', rb'"\\ud83d"', id="a backslash and letters"),
        pytest.param(rb'"\\\ud83d"', b'"\\\\\x7fd83d\x7f"', id="a backslash and half a pair"),
        pytest.param(rb'"\u00e9\ud7ff\ue000"', rb'"\u00e9\ud7ff\ue000"', id="other escapes"),
        pytest.param(b'"\\ud83d\x7f"', b'"\\ud83d\x7f"', id="with the mask's own character nothing is masked"),
    ],
)
def test_surrogates_are_masked_and_come_back(spelled: bytes, masked: bytes) -> None:
    assert mask_surrogates(spelled) == masked
    if masked != spelled:
        assert unmask_surrogates(masked) == spelled
