"""A second reading of a client's bytes: the standard library's JSON, RFC 8259 and nothing of the gateway's.

`read` is what a strict reader makes of a request; `differences` compares two readings value by value and type by type.
Numbers keep their text, so that `1`, `1.0` and thirty digits stay what they are. This file knows no parameter.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from email.message import Message
from typing import TYPE_CHECKING, Any

import brotli
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAXIMUM_DEPTH = 64
"""Nested objects and arrays, the outermost included (SPEC §3)."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Fault(ValueError):  # noqa: N818  it says what is at fault: the bytes
    """These bytes are not a request (SPEC §3); the message says why."""


@dataclass(frozen=True)
class Number:
    """A JSON number as it was written; equal to another of the same kind (integer or real) and value.

    Integers are exact. Reals are compared as doubles, which is what every reader on the way makes of them.
    """

    text: str

    @property
    def is_integer(self) -> bool:
        """Tell whether it is written as an integer."""
        return not set(self.text) & set(".eE")

    @property
    def value(self) -> Decimal:
        """Its value, exactly. Raises Fault where Python has no room for the exponent."""
        try:
            return Decimal(self.text)
        except InvalidOperation:
            raise Fault(f"no room for {self.text}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Number) or self.is_integer != other.is_integer:
            return False
        return self.value == other.value if self.is_integer else float(self.text) == float(other.text)

    def __hash__(self) -> int:
        return hash((self.is_integer, float(self.text)))

    def __repr__(self) -> str:
        return self.text


def number(value: float) -> Number:
    """Return the number that Python writes so."""
    return Number(json.dumps(value))


def as_python(value: Any) -> Any:  # noqa: ANN401  whatever JSON can say
    """Return the same value with Python's own numbers."""
    if isinstance(value, Number):
        return int(value.text) if value.is_integer else float(value.text)
    if isinstance(value, list):
        return [as_python(each) for each in value]
    if isinstance(value, dict):
        return {name: as_python(each) for name, each in value.items()}
    return value


# ---------------------------------------------------------------- JSON
def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Fault("a key stands twice")
    return found


def _refuse_constant(name: str) -> None:
    raise Fault(f"{name} is no JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant
)


def depth_of(body: bytes) -> int:
    """Return how deep objects and arrays are nested, without reading what they hold."""
    deepest = depth = 0
    for byte in _STRING.sub(b"", body):
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401  whatever JSON can say
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def read_value(body: bytes) -> Any:  # noqa: ANN401  whatever JSON can say
    """Return the one JSON value that these bytes are. Raises Fault."""
    if depth_of(body) > MAXIMUM_DEPTH:
        raise Fault("nested too deep")
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except Fault:
        raise
    except (ValueError, RecursionError) as error:
        raise Fault(str(error)) from None
    if any(_SURROGATE.search(each) for each in _strings(value)):
        raise Fault("a lone surrogate")
    return value


def read(body: bytes) -> dict[str, Any]:
    """Return the request that these bytes are. Raises Fault."""
    value = read_value(body)
    if not isinstance(value, dict):
        raise Fault("no object")
    return value


# ---------------------------------------------------------------- HTTP around it
def _zlib(body: bytes, window: int) -> bytes:
    decoder = zlib.decompressobj(window)
    plain = decoder.decompress(body)
    if not decoder.eof or decoder.unused_data:
        raise Fault("cut off, or followed by something")
    return plain


def _deflate(body: bytes) -> bytes:
    try:
        return _zlib(body, zlib.MAX_WBITS)
    except zlib.error:
        return _zlib(body, -zlib.MAX_WBITS)  # what some clients send under this name


def _gzip(body: bytes) -> bytes:
    plain = b""
    while body:  # a file may have several members (RFC 1952 §2.2)
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
        plain += decoder.decompress(body)
        if not decoder.eof:
            raise Fault("cut off")
        body = decoder.unused_data
    return plain


def _zstd(body: bytes) -> bytes:
    plain = b""
    while body:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        plain += decoder.decompress(body)
        if not decoder.eof:
            raise Fault("cut off")
        body = decoder.unused_data
    return plain


_DECODERS = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "br": brotli.decompress, "zstd": _zstd}


def decompressed(body: bytes, codings: Iterable[str]) -> bytes:
    """Undo Content-Encoding, the last coding first. Raises Fault."""
    for coding in reversed([each.strip().lower() for each in ",".join(codings).split(",") if each.strip()]):
        if coding == "identity":
            continue
        if coding not in _DECODERS:
            raise Fault(f"nobody knows the coding {coding!r}")
        try:
            body = _DECODERS[coding](body)
        except (zlib.error, brotli.error, zstandard.ZstdError) as error:
            raise Fault(str(error)) from None
    return body


def is_json_in_utf8(content_types: list[str]) -> bool:
    """Tell whether SPEC §3 reads such a body: absent, or JSON in no charset but UTF-8."""
    if not content_types or not content_types[0].strip():
        return True
    message = Message()
    message["Content-Type"] = content_types[0]
    kind, charset = message.get_content_type(), message.get_param("charset", "utf-8")
    is_json = kind == "text/json" or (kind.startswith("application/") and re.fullmatch(r"(.*\+)?json", kind[12:]))
    return (
        bool(is_json)
        and isinstance(charset, str)
        and charset.strip("'\" ").lower()
        in {
            "utf-8",
            "utf8",
            "us-ascii",  # whose every text is UTF-8 too
        }
    )


# ---------------------------------------------------------------- comparing
def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Return the names whose values are not the same, an absent one and `null` told apart."""
    absent = object()
    return {name for name in {*one, *other} if not same(one.get(name, absent), other.get(name, absent))}


def same(one: Any, other: Any) -> bool:  # noqa: ANN401  whatever JSON can say
    """Tell whether two values are equal in value and JSON type, all the way down; `true` is not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(each, other[name]) for name, each in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
