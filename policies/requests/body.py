"""A request body as bytes, read into JSON members and written back (SPEC §3).

What is forwarded is written from what was read here, so that policy and upstream can never read different things. This
file knows JSON and no parameter; how a body that could not be read is described is in `faults`.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any, AnyStr

import msgspec

from policies.errors import InvalidRequest
from policies.requests import faults
from policies.requests.faults import MAX_DIGITS
from policies.requests.long_texts import replace_long_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH = 64
MAX_PARTS = 2**18
"""Most arrays, objects and members in one body: a few bytes each, they cost memory and every walk dearly."""

_DECODER = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()
_CONTAINERS = frozenset({dict, list})
_NO_MARKS = bytes(set(range(256)) - set(b'"[{:'))
_BLOCK_BYTES = MAX_DIGITS // 2
_DIGIT_BEFORE_DIGIT = re.compile(rb"[0-9](?=[0-9])")
_TEXT_OR_DIGITS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(?P<long>[0-9]{%d})|[0-9]+' % (MAX_DIGITS + 1), re.DOTALL)
_LONG_BYTES = 16_384
_FEW_OCCURRENCES = 500


def decode_body(raw: bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Read a JSON object whose values keep their type and value exactly, integers of up to MAX_DIGITS digits included.

    Raises InvalidRequest, saying what is wrong and where, for anything but one UTF-8 object without duplicate keys (at
    any depth), NaN, infinities or lone surrogates, nested at most `max_depth` levels, its own level included, and with
    at most MAX_PARTS arrays, objects and members.
    """
    may_be_deeper = _may_be_deeper(raw, max_depth)
    if _may_hold_more(raw, MAX_PARTS) and _count_parts(raw) > MAX_PARTS:
        raise InvalidRequest(faults.describe(raw, faults.too_many(MAX_PARTS), max_depth=max_depth))
    if _has_long_number(raw):
        raise InvalidRequest(faults.describe(raw, faults.too_long(MAX_DIGITS), max_depth=max_depth))
    try:
        fields = _DECODER.decode(raw)
        if may_be_deeper and _is_deeper(fields, max_depth):
            raise InvalidRequest(faults.describe(raw, faults.too_deep(max_depth), max_depth=max_depth))
        has_duplicates = _has_duplicate_keys(raw, fields)
    except RecursionError:
        raise InvalidRequest(faults.describe(raw, faults.too_deep(max_depth), max_depth=max_depth)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(faults.describe(raw, str(error), max_depth=max_depth)) from None
    if has_duplicates:
        raise InvalidRequest(faults.describe(raw, faults.DUPLICATE_KEY, max_depth=max_depth))
    return fields


def encode_body(fields: Mapping[str, Any]) -> bytes:
    """Write members in their order, as compact UTF-8 JSON."""
    return _ENCODER.encode(fields)


def _may_hold_more(raw: bytes, parts: int) -> bool:
    # The least of them takes the two bytes of its brackets.
    return len(raw) > 2 * parts and sum(_count(raw, mark) for mark in (b"[", b"{", b":")) > parts


def _count_parts(raw: bytes) -> int:
    """Count opening brackets and colons outside of text, before anything is made of them; exact for valid JSON."""
    if b"\\" in raw:
        raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    # Two quotes side by side are a text without any of these, or the end of one and the beginning of the next.
    marks = raw.translate(None, _NO_MARKS).replace(b'""', b"")
    return sum(map(len, marks.split(b'"')[::2]))


def _has_long_number(raw: bytes) -> bool:
    # So many digits in a row fill a whole block of half their number; few texts have a digit at the start of two.
    if len(raw) <= MAX_DIGITS:
        return False
    starts = (found.start() * _BLOCK_BYTES for found in _DIGIT_BEFORE_DIGIT.finditer(raw[::_BLOCK_BYTES]))
    if not any(raw[start : start + _BLOCK_BYTES].isdigit() for start in starts):
        return False
    return any(found["long"] is not None for found in _TEXT_OR_DIGITS.finditer(raw))


def _has_duplicate_keys(raw: bytes, fields: dict[str, Any]) -> bool:
    # A key that was overwritten left its quotes in the bytes and nothing in the tree: written back, the tree has fewer
    # quotes. The one other difference in quotes is a quote spelled \u0022 (no other escape makes one), written back
    # as \". So one encoding and two counts see every duplicate, whatever its depth and its spelling.
    written = _ENCODER.encode(fields if len(raw) < _LONG_BYTES else replace_long_texts(fields, _quotes_only))
    return _count(raw, b'"') + _count_spelled_quotes(raw, written) != _count(written, b'"')


def _quotes_only(text: str) -> msgspec.Raw:
    """Write of a text what is counted, its quotes: finding them takes a fraction of writing the rest."""
    return msgspec.Raw(b'"' + rb"\"" * _count(text, '"') + b'"')


def _count_spelled_quotes(raw: bytes, written: bytes) -> int:
    # Where no text has a quote, none is spelled: that saves the search through a long body, whose texts are cut short.
    if b"\\" not in raw or (len(raw) >= _LONG_BYTES and rb"\"" not in written) or rb"\u0022" not in raw:
        return 0
    # Without the pairs of backslashes, every backslash left begins an escape.
    return raw.replace(rb"\\", b"").count(rb"\u0022")


def _count(data: AnyStr, mark: AnyStr) -> int:
    if len(data) < _LONG_BYTES:
        return data.count(mark)
    # `find` skips to the next occurrence with memchr, `count` looks at every byte: ten times slower on a long text.
    position = data.find(mark)
    for found in range(_FEW_OCCURRENCES):
        if position < 0:
            return found
        position = data.find(mark, position + 1)
    return _FEW_OCCURRENCES + data.count(mark, position) if position >= 0 else _FEW_OCCURRENCES


def _may_be_deeper(raw: bytes, max_depth: int) -> bool:
    left = max_depth
    for bracket in (b"{", b"["):
        position = raw.find(bracket)
        while position >= 0:
            if not left:
                return True
            left -= 1
            position = raw.find(bracket, position + 1)
    return False


def _is_deeper(fields: dict[str, Any], max_depth: int) -> bool:
    level: list[Any] = [fields]
    for _ in range(max_depth):
        values = chain.from_iterable(each.values() if type(each) is dict else each for each in level)
        level = [value for value in values if type(value) in _CONTAINERS]
        if not level:
            return False
    return True
