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


def bare_item(value: Bare) -> str:
    """Write one value; text that is no token becomes a quoted string, its non-ASCII characters `?`."""
    if isinstance(value, bool):
        return "?1" if value else "?0"
    if isinstance(value, int):
        return str(max(-_MAX_INTEGER, min(_MAX_INTEGER, value)))
    if isinstance(value, float):
        return f"{value:.{_DECIMAL_DIGITS}f}".rstrip("0") + "0" * value.is_integer()
    return value if _TOKEN.fullmatch(value) else quoted(value)


def quoted(text: str) -> str:
    """Write text as a quoted string: printable ASCII, quotes and backslashes escaped."""
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
