"""What is wrong with a body that could not be read, and where: the slow half of `body`, used on errors only.

Knows how people get JSON wrong; decides nothing: whoever calls it has already refused the body.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DIGITS = 1_000
"""Most digits in a row of one number: to read and write longer ones takes the square of their length."""
DUPLICATE_KEY = "a key stands twice in one object"

_EXAMINED_LEXEMES = 50_000
"""So many lexemes are looked at for the place; a long wrong body must not hold up other requests."""
_SHOWN_CHARACTERS = 40
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "a byte order mark; leave it out"),
    (codecs.BOM_UTF32_LE, "a UTF-32 byte order mark; write UTF-8"),
    (codecs.BOM_UTF32_BE, "a UTF-32 byte order mark; write UTF-8"),
    (codecs.BOM_UTF16_LE, "a UTF-16 byte order mark; write UTF-8"),
    (codecs.BOM_UTF16_BE, "a UTF-16 byte order mark; write UTF-8"),
)
_LEXEME = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"-?(?P<whole>\d+)(?P<rest>(?:\.\d+)?(?:[eE][+-]?\d+)?)", re.ASCII)
_TOO_MANY_DIGITS = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_NAMES = {dict: "an object", list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}


def too_deep(max_depth: int) -> str:
    """Say that a body is nested too deep."""
    return f"it is nested deeper than {max_depth} levels"


def too_many(max_parts: int) -> str:
    """Say that a body is made of too many parts."""
    return f"it holds more than {max_parts} arrays, objects and members"


def too_long(max_digits: int) -> str:
    """Say that a number is too long."""
    return f"a number has more than {max_digits} digits in a row"


def describe(raw: bytes, known: str, *, max_depth: int) -> str:
    """Say in one sentence what is wrong with a refused body; `known` is what is said when nothing better is found."""
    return f"The request body cannot be read: {_find_fault(raw, max_depth) or known}."


def _find_fault(raw: bytes, max_depth: int) -> str | None:
    if not raw.strip():
        return "it is empty; send a JSON object"
    for mark, said in _BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return f"it begins with {said}"
    if 0 in raw[:2]:
        return "it looks like UTF-16 or UTF-32; write UTF-8"
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return f"it is not valid UTF-8 at byte {error.start}"
    return _find_fault_in_text(text, max_depth)


def _find_fault_in_text(text: str, max_depth: int) -> str | None:
    scan = _Scan(max_depth)
    for examined, lexeme in enumerate(_LEXEME.finditer(text)):
        if examined == _EXAMINED_LEXEMES:
            return None
        said = scan.find_fault(lexeme[0])
        if said is not None:
            return f"{said}{scan.place()} at {_position(text, lexeme.start())}"
    return _find_syntax_fault(text)


def _find_syntax_fault(text: str) -> str | None:
    try:
        root = json.loads(text)
    except json.JSONDecodeError as error:
        return f"it is not valid JSON at {_position(text, error.pos)}: {error.msg[0].lower()}{error.msg[1:]}"
    except (ValueError, RecursionError):
        return None
    return None if isinstance(root, dict) else f"it must be a JSON object, not {_NAMES.get(type(root), 'null')}"


def _position(text: str, offset: int) -> str:
    line_start = text.rfind("\n", 0, offset) + 1
    return f"line {text.count(chr(10), 0, offset) + 1}, column {offset - line_start + 1}"


@dataclass(slots=True)
class _Container:
    """An object or array under way; `key` and `index` say which of its values the scan is at."""

    is_object: bool
    is_key_next: bool
    keys: set[str] = field(default_factory=set)
    key: str = ""
    index: int = 0

    def place(self) -> str:
        return f".{_shown(self.key)}" if self.is_object else f"[{self.index}]"


class _Scan:
    """Finds what a grammar alone does not tell, lexeme by lexeme; takes the grammar itself for granted."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._stack: list[_Container] = []
        self._before = ""

    def find_fault(self, lexeme: str) -> str | None:
        before, self._before = self._before, lexeme
        if lexeme in "{[":
            return self._open(lexeme)
        if lexeme in "}]":
            return self._close(before)
        if lexeme in ":,":
            self._separate(lexeme)
            return None
        return self._find_fault_in_string(lexeme) if lexeme[0] == '"' else _find_fault_in_scalar(lexeme)

    def place(self) -> str:
        within = "".join(self._places())
        return f" within {within.lstrip('.')}" if within else ""

    def _places(self) -> Iterator[str]:
        return (container.place() for container in self._stack[:-1])

    def _open(self, lexeme: str) -> str | None:
        if len(self._stack) == self._max_depth:
            self._stack.clear()
            return too_deep(self._max_depth)
        self._stack.append(_Container(is_object=lexeme == "{", is_key_next=lexeme == "{"))
        return None

    def _close(self, before: str) -> str | None:
        if before == ",":
            return "a comma stands before a closing bracket"
        if self._stack:
            self._stack.pop()
        return None

    def _separate(self, lexeme: str) -> None:
        if self._stack:
            top = self._stack[-1]
            top.is_key_next = top.is_object and lexeme == ","
            top.index += lexeme == ","

    def _find_fault_in_string(self, lexeme: str) -> str | None:
        try:
            text = json.loads(lexeme)
        except json.JSONDecodeError:
            return None
        if _SURROGATE.search(text):
            return "a string has a lone surrogate, which is no character"
        top = self._stack[-1] if self._stack else None
        return None if top is None or not top.is_key_next else _find_fault_in_key(top, text)


def _find_fault_in_key(container: _Container, key: str) -> str | None:
    if key in container.keys:
        return f"the key {_shown(key)} stands twice in one object"
    container.keys.add(key)
    container.key = key
    return None


def _find_fault_in_scalar(lexeme: str) -> str | None:
    if lexeme in {"NaN", "Infinity", "-Infinity"}:
        return f"{lexeme} is not a JSON number"
    number = _NUMBER.fullmatch(lexeme)
    if number is None:
        return None
    if _TOO_MANY_DIGITS.search(lexeme):
        return too_long(MAX_DIGITS)
    if number["rest"]:
        return f"the number {lexeme[:_SHOWN_CHARACTERS]} is too large" if math.isinf(float(lexeme)) else None
    return None


def _shown(text: str) -> str:
    shortened = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return json.dumps(shortened, ensure_ascii=False)
