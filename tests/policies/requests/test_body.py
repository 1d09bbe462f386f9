"""Bodies as bytes: what is read keeps its value and type, and everything else is refused with its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.errors import InvalidRequest
from policies.requests.body import MAX_PARTS, decode_body, encode_body

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        pytest.param(b"{}", {}, id="an empty object"),
        pytest.param(b' {"a" : 1}\r\n', {"a": 1}, id="white space around"),
        pytest.param(b'{"n":1.0}', {"n": 1.0}, id="1.0 stays a float"),
        pytest.param(b'{"n":1e2}', {"n": 100.0}, id="1e2 is a float"),
        pytest.param(b'{"t":1e-7}', {"t": 1e-7}, id="a small number keeps its value"),
        pytest.param(b'{"n":"99"}', {"n": "99"}, id="a number in quotes stays a string"),
        pytest.param(b'{"n":true}', {"n": True}, id="true stays a boolean"),
        pytest.param(b'{"s":' + b"9" * 40 + b"}", {"s": int("9" * 40)}, id="40 digits are all kept"),
        pytest.param(b'{"s":18446744073709551616}', {"s": 2**64}, id="an integer above 2^64 is not rounded"),
        pytest.param(b'{"s":null,"x":[1,null,{"b":1.0}]}', {"s": None, "x": [1, None, {"b": 1.0}]}, id="nested nulls"),
        pytest.param(rb'{"x":"\u00e9\ud83d\ude00"}', {"x": "é😀"}, id="escapes and a surrogate pair are characters"),
        pytest.param(rb'{"a":"\u0022","b":"\\u0022\""}', {"a": '"', "b": '\\u0022"'}, id="quotes in every spelling"),
        pytest.param(rb'{"\u0061":1,"A":2}', {"a": 1, "A": 2}, id="keys that differ in case are two"),
        pytest.param(b'{"a":{"a":[{"a":1},{"a":2}]}}', {"a": {"a": [{"a": 1}, {"a": 2}]}}, id="one key, many objects"),
        pytest.param(b'{"a":' * 64 + b"1" + b"}" * 64, None, id="64 levels"),
        pytest.param(b'{"p":"' + b"[{" * 100 + b'"}', {"p": "[{" * 100}, id="brackets in text are no levels"),
        pytest.param(
            b'{"p":[' + b"[1]," * 99 + b"[1]]}", {"p": [[1]] * 100}, id="many arrays side by side are no depth"
        ),
    ],
)
def test_a_body_is_read_as_it_was_meant(raw: bytes, fields: dict[str, Any] | None) -> None:
    expected = json.loads(raw) if fields is None else fields
    assert repr(decode_body(raw)) == repr(expected)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(b"", "it is empty", id="nothing"),
        pytest.param(b" \n", "it is empty", id="white space only"),
        pytest.param(b"[]", "must be a JSON object, not an array", id="an array"),
        pytest.param(b'"x"', "must be a JSON object, not a string", id="a string"),
        pytest.param(b"null", "must be a JSON object, not null", id="null"),
        pytest.param(b"1", "must be a JSON object, not a number", id="a number"),
        pytest.param(b"true", "must be a JSON object, not a boolean", id="a boolean"),
        pytest.param(b"{", "not valid JSON at line 1, column 2", id="an open bracket"),
        pytest.param(b'{"a":"x', "not valid JSON at line 1, column 6: unterminated string", id="an open string"),
        pytest.param(b'{"a":1}{}', "not valid JSON at line 1, column 8: extra data", id="two objects"),
        pytest.param(b"{'a':1}", "not valid JSON at line 1, column 2", id="single quotes"),
        pytest.param(b'{"a":01}', "not valid JSON at line 1, column 7", id="a leading zero"),
        pytest.param(b'{"a":"\x01"}', "invalid control character", id="a bare control character"),
        pytest.param(b'{"a":1,}', "a comma stands before a closing bracket at line 1, column 8", id="trailing comma"),
        pytest.param(b'{"a":[1,]}', 'closing bracket within "a" at line 1, column 9', id="trailing comma in an array"),
        pytest.param(b'{"a":1,"a":1}', 'the key "a" stands twice in one object at line 1, column 8', id="equal twins"),
        pytest.param(b'{"n":1,"x":2,"n":3}', 'the key "n" stands twice', id="duplicate keys"),
        pytest.param(
            b'{"x":[0,{"y":{"a":1,\n "a":2}}]}',
            'the key "a" stands twice in one object within "x"[1]."y" at line 2, column 2',
            id="nested duplicate keys",
        ),
        pytest.param(rb'{"n":1,"\u006e":9}', 'the key "n" stands twice', id="a duplicate key spelled with an escape"),
        pytest.param(rb'{"\"":"\u0022","\u0022":0}', "stands twice", id="a duplicate key hidden by escaped quotes"),
        pytest.param(rb'{"a":"\u0022\u0022","a":1}', "stands twice", id="a duplicate key made up for by quotes"),
        pytest.param(b'{"":1,"":2}', 'the key "" stands twice', id="duplicate empty keys"),
        pytest.param(b'{"a":NaN}', "NaN is not a JSON number", id="NaN"),
        pytest.param(b'{"a":[Infinity]}', 'Infinity is not a JSON number within "a"', id="Infinity"),
        pytest.param(b'{"a":-Infinity}', "-Infinity is not a JSON number", id="minus Infinity"),
        pytest.param(b'{"a":1e400}', "the number 1e400 is too large", id="a number that no double holds"),
        pytest.param(
            b'{"a":' + b"9" * 1001 + b"}",
            "a number has more than 1000 digits in a row at line 1, column 6",
            id="1001 digits",
        ),
        pytest.param(
            b'{"a":[' + b"1," * 5000 + b"0." + b"3" * 1001 + b"]}",
            "a number has more than 1000 digits",
            id="after the point",
        ),
        pytest.param(rb'{"a":"\ud800"}', "a lone surrogate", id="a lone high surrogate"),
        pytest.param(rb'{"a":"\udc00x"}', "a lone surrogate", id="a lone low surrogate"),
        pytest.param(rb'{"a":"\ud800\ud801"}', "a lone surrogate", id="two high surrogates"),
        pytest.param(rb'{"\ud800":1}', "a lone surrogate", id="a lone surrogate in a key"),
        pytest.param(b'{"a":"\xed\xa0\x80"}', "not valid UTF-8 at byte 6", id="a surrogate as bytes"),
        pytest.param(b'{"model":"m","prompt":"\xff\xfe"}', "not valid UTF-8 at byte 23", id="bytes that are no UTF-8"),
        pytest.param(b'\xef\xbb\xbf{"a":1}', "byte order mark; leave it out", id="a byte order mark"),
        pytest.param('{"a":1}'.encode("utf-16"), "UTF-16 byte order mark; write UTF-8", id="UTF-16 with its mark"),
        pytest.param('{"a":1}'.encode("utf-16-le"), "looks like UTF-16", id="UTF-16 without one"),
        pytest.param('{"a":1}'.encode("utf-16-be"), "looks like UTF-16", id="UTF-16, the other end first"),
        pytest.param('{"a":1}'.encode("utf-32"), "UTF-32 byte order mark; write UTF-8", id="UTF-32"),
        pytest.param(b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64 levels", id="65 levels"),
        pytest.param(b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "deeper than 64 levels", id="65 levels of arrays"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deeper than 64 levels", id="100000 levels"),
        pytest.param(b'{"a":' * 100_000, "deeper than 64 levels", id="100000 levels that never close"),
    ],
)
def test_a_body_that_could_be_read_in_two_ways_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_body(raw)
    assert said in refused.value.message
    assert refused.value.status_hint == 400


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b'{"a":' + b"9" * 1000 + b"}", id="as many digits as there may be"),
        pytest.param(b'{"a":"' + b"9" * 5000 + b'"}', id="digits in a text"),
        pytest.param(b'{"a":"\\"' + b"9" * 5000 + b'","b":1}', id="digits in a text behind an escaped quote"),
        pytest.param(b'{"a":[' + b"123456789," * 5000 + b"1]}", id="many numbers"),
    ],
)
def test_digits_are_counted_in_a_row_and_outside_of_text(raw: bytes) -> None:
    assert decode_body(raw) == json.loads(raw)


@given(st.integers(0, 1500), st.integers(990, 1010))
def test_a_long_number_is_found_wherever_it_stands(offset: int, digits: int) -> None:
    raw = b'{"' + b"x" * offset + b'":' + b"7" * digits + b"}"
    if digits <= 1000:
        assert decode_body(raw) == json.loads(raw)
    else:
        with pytest.raises(InvalidRequest, match="a number has more than 1000 digits in a row"):
            decode_body(raw)


def test_depth_is_the_callers_choice() -> None:
    assert decode_body(b'{"a":[1]}', max_depth=2) == {"a": [1]}
    with pytest.raises(InvalidRequest, match="deeper than 2 levels"):
        decode_body(b'{"a":[[1]]}', max_depth=2)


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        pytest.param("[" + "[]," * MAX_PARTS + "1]", True, id="arrays"),
        pytest.param("[" + "{}," * MAX_PARTS + "1]", True, id="objects"),
        pytest.param("[" + '[""],' * MAX_PARTS + "1]", True, id="arrays around empty texts"),
        pytest.param("[" + ("[" * 60 + "]" * 60 + ",") * (MAX_PARTS // 60 + 1) + "1]", True, id="arrays in arrays"),
        pytest.param("[" + r'"\\",[],"\"",' * MAX_PARTS + "1]", True, id="arrays beside escapes"),
        pytest.param("[" + "[]," * (MAX_PARTS - 3) + "1]", False, id="as many as may be"),
        pytest.param("{" + ",".join(f'"{i:x}":0' for i in range(MAX_PARTS)) + "}", True, id="members"),
        pytest.param("{" + ",".join(f'"{i:x}" : ":"' for i in range(MAX_PARTS - 3)) + "}", False, id="as many members"),
        pytest.param("[" + '"[",' * MAX_PARTS + "1]", False, id="brackets in texts"),
        pytest.param('"' + r"[\"{" * MAX_PARTS + '"', False, id="brackets in a text beside escaped quotes"),
        pytest.param("[" + r'"[\\",' * MAX_PARTS + "1]", False, id="brackets in texts that end in a backslash"),
    ],
)
def test_a_body_holds_only_so_many_arrays_and_objects(text: str, *, is_refused: bool) -> None:
    raw = b'{"x":' + text.encode() + b"}"
    if not is_refused:
        assert decode_body(raw) == json.loads(raw)
        return
    with pytest.raises(InvalidRequest, match=f"it holds more than {MAX_PARTS} arrays, objects and members"):
        decode_body(raw)


def test_duplicates_are_found_in_long_bodies_full_of_quotes() -> None:
    text = json.dumps('say "a" and \\ and \n' * 5000).encode()
    assert decode_body(b'{"p":' + text + b"}")["p"].startswith('say "a"')
    with pytest.raises(InvalidRequest, match="stands twice"):
        decode_body(b'{"p":' + text + b',"p":' + text + b"}")


PIECES = st.lists(st.sampled_from(["word ", '"', "\\", r"\u0022", '\\"', "é", "\n", "[{"]), min_size=1, max_size=6)
TEXTS = PIECES.map(lambda pieces: "".join(pieces) * 4_000)


def _spelled(text: str, *, quote: str) -> str:
    """Write a text as JSON with its quotes spelled in one of the two ways there are."""
    return json.dumps(text).replace(r"\\", "\0").replace(r"\"", quote).replace("\0", r"\\")


@given(TEXTS, TEXTS, st.sampled_from([r"\"", r"\u0022"]), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_duplicates_beside_long_texts_are_found_and_nothing_else_is_taken_for_one(
    one: str, other: str, quote: str, depth: int
) -> None:
    first, second = _spelled(one, quote=quote), _spelled(other, quote=quote)
    around, behind = '{"messages":[1,' * depth, "]}" * depth
    once = f'{around}{{"a":{first},"b":{second},{first}:0}}{behind}'
    assert decode_body(once.encode()) == json.loads(once)
    for twice in (f'{{"a":{first},"a":{second}}}', f'{{"a":0,"b":{first},"a":1}}', f"{{{first}:0,{first}:1}}"):
        with pytest.raises(InvalidRequest):
            decode_body((around + twice + behind).encode())


@given(fields=st.dictionaries(st.text(max_size=6), JSON, max_size=5), is_ascii=st.booleans())
def test_whatever_is_written_is_read_back_with_value_and_type(fields: dict[str, Any], *, is_ascii: bool) -> None:
    raw = json.dumps(fields, ensure_ascii=is_ascii).encode()
    read = decode_body(raw)
    assert repr(read) == repr(json.loads(raw))
    assert repr(decode_body(encode_body(read))) == repr(read)
    assert list(json.loads(encode_body(read))) == list(read)


@given(JSON, JSON, st.text(max_size=3), st.integers(0, 4))
def test_every_duplicate_is_found_however_it_is_wrapped(one: object, other: object, key: str, depth: int) -> None:
    twins = f"{{{json.dumps(key)}:{json.dumps(one)},{json.dumps(key, ensure_ascii=True)}:{json.dumps(other)}}}"
    raw = ('{"x":[1,' * depth + twins + "]}" * depth).encode()
    with pytest.raises(InvalidRequest):
        decode_body(raw)


def test_written_members_keep_their_order() -> None:
    assert encode_body({"model": "m", "b": 1, "a": {"z": 1, "y": 2**70}}) == (
        b'{"model":"m","b":1,"a":{"z":1,"y":1180591620717411303424}}'
    )
