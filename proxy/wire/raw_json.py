"""JSON whose spelling is kept: objects whose values stay the bytes that stand there, strings and lists in pieces.

Numbers, escapes and whatever else has several spellings come out as they went in. Knows no API; what a member means is
the business of those who ask for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

Members = dict[str, msgspec.Raw]
"""An object's members in order; of one that is given twice the last counts, as for most readers."""

NULL: Final = msgspec.Raw(b"null")
EMPTY_TEXT: Final = msgspec.Raw(b'""')
EMPTY_LIST: Final = msgspec.Raw(b"[]")

_EMPTY: Final = (b"null", b'""', b"[]", b"{}")
_PIECEWISE: Final = (b'"', b"[")
_PIECE_BYTES: Final = 2048
_SURROGATE = re.compile(rb"\\(?:u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_HAS_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MASK: Final = b"\x7f"
_MASKED = re.compile(rb"\x7f(.{4})\x7f")

_MEMBERS = msgspec.json.Decoder(Members)
_OBJECTS = msgspec.json.Decoder(list[Members])
_VALUES = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)


class Inexact(Exception):  # noqa: N818  what it is, not that it is an error
    """What was given has no form that says exactly the same, or none that this build knows."""


def members_of(json: bytes | msgspec.Raw) -> Members:
    """Return an object's members. Raises msgspec.DecodeError for anything else."""
    return _MEMBERS.decode(json)


def objects_of(json: msgspec.Raw) -> list[Members]:
    """Return a list's objects. Raises msgspec.DecodeError for anything else."""
    return _OBJECTS.decode(json)


def values_of(json: msgspec.Raw) -> list[msgspec.Raw]:
    """Return a list's values. Raises msgspec.DecodeError for anything else."""
    return _VALUES.decode(json)


def string_of(json: msgspec.Raw) -> str:
    """Return what a string says. Raises msgspec.DecodeError for anything else."""
    return _STRING.decode(json)


def text_inside(json: msgspec.Raw) -> bytes | None:
    """Return the spelling between a string's quotes; None for null. Raises Inexact for anything else."""
    return _inside(json, b'"')


def list_inside(json: msgspec.Raw) -> bytes | None:
    """Return what stands between a list's brackets; None for null. Raises Inexact for anything else."""
    inside = _inside(json, b"[")
    return inside if inside is None else inside.strip()


def _inside(json: msgspec.Raw, begin: bytes) -> bytes | None:
    if json == NULL:
        return None
    spelled = bytes(json)
    if spelled[:1] != begin:
        raise Inexact
    return spelled[1:-1]


def text_of(pieces: Iterable[bytes] | None) -> msgspec.Raw:
    """Write the string whose pieces those are; None becomes null."""
    return NULL if pieces is None else msgspec.Raw(b'"%b"' % b"".join(pieces))


def list_of(pieces: Iterable[bytes] | None) -> msgspec.Raw:
    """Write the list whose pieces those are; None becomes null."""
    return NULL if pieces is None else msgspec.Raw(b"[%b]" % b",".join(filter(None, pieces)))


def cut(text: bytes) -> list[msgspec.Raw]:
    """Cut what stands between a string's quotes into strings of about 2 KiB, each but the first beginning at a space.

    No escape, no character and no surrogate pair goes on after a space, so each piece is a string of its own. Nothing
    gives no piece.
    """
    pieces = []
    begin = 0
    while begin < len(text):
        end = text.find(b" ", begin + _PIECE_BYTES)
        end = len(text) if end < 0 else end
        pieces.append(text_of((text[begin:end],)))
        begin = end
    return pieces


def is_empty(json: msgspec.Raw) -> bool:
    """Tell whether a value is null or has nothing in it."""
    return bytes(json) in _EMPTY


def is_piecewise(json: msgspec.Raw) -> bool:
    """Tell whether a value is a string or a list with something in it, so perhaps one piece of a longer one."""
    return bytes(json)[:1] in _PIECEWISE and not is_empty(json)


def keep(members: Members, name: str, value: msgspec.Raw) -> None:
    """Note a member that says the same wherever it is said, or nothing. Raises Inexact for two that differ."""
    known = members.get(name)
    if known is None:
        members[name] = value
    elif value == known:
        return
    elif is_empty(known):
        members[name] = known if value == NULL else value
    elif not is_empty(value):
        raise Inexact


def keep_once(members: Members, name: str, value: msgspec.Raw) -> None:
    """Note a member of which nobody knows whether it comes in pieces. Raises Inexact where it may have."""
    if value == members.get(name) and is_piecewise(value):
        raise Inexact
    keep(members, name, value)


def mask_surrogates(json: bytes) -> bytes:
    r"""Write each `\ud83d` as text that a decoder does not look at, since halves of a pair may stand apart.

    Bytes that hold the mask's own character (DEL) come back as they are.
    """
    if _MASK in json or _HAS_SURROGATE.search(json) is None:
        return json
    return _SURROGATE.sub(lambda found: found[0] if found[1] is None else _MASK + found[1] + _MASK, json)


def unmask_surrogates(json: bytes) -> bytes:
    """Undo `mask_surrogates` in what was made of its result."""
    return _MASKED.sub(rb"\\u\1", json)
