"""Structured field values (RFC 9651) as the gateway sends them: lists of tokens or strings with parameters.

Knows the syntax only; what the members mean is known where they are made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Bare = bool | int | float | str

_TOKEN = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+\-.^_`|~:/]*")
_DECIMAL_DIGITS = 3
_MAX_INTEGER = 999_999_999_999_999
_MAX_DECIMAL = 999_999_999_999


def bare_item(value: Bare) -> str:
    """Write one value; what the syntax has no room for becomes a quoted string.

    That is an integer of more than 15 digits, a decimal of more than 12 before the point or 3 after it, and text that
    is no token (RFC 9651 §3.3).
    """
    if isinstance(value, bool):
        return "?1" if value else "?0"
    if isinstance(value, int):
        return str(value) if abs(value) <= _MAX_INTEGER else quoted(str(value))
    if isinstance(value, float):
        return _decimal(value)
    return value if _TOKEN.fullmatch(value) else quoted(value)


def _decimal(value: float) -> str:
    if not abs(value) <= _MAX_DECIMAL or round(value, _DECIMAL_DIGITS) != value:
        return quoted(repr(value))
    digits = f"{value:.{_DECIMAL_DIGITS}f}".rstrip("0")
    return f"{digits}0" if digits.endswith(".") else digits


def quoted(text: str) -> str:
    """Write text as a quoted string: printable ASCII, quotes and backslashes escaped."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def member(item: str, parameters: Mapping[str, Bare | None]) -> str:
    """Write one list member; `item` is already written, parameters that are None are left out, True stands alone."""
    parts = [item]
    for name, value in parameters.items():
        if value is True:
            parts.append(name)
        elif value is not None:
            parts.append(f"{name}={bare_item(value)}")
    return ";".join(parts)


def members(items: Iterable[str]) -> str:
    """Join written members into a list."""
    return ", ".join(items)
