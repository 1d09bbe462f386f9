"""The query of an address as named parameters, for pages of our own that take some.

Knows no page and none of its names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from policies.errors import InvalidRequest
from proxy.config_references import suggest

if TYPE_CHECKING:
    from collections.abc import Collection

_SHOWN_CHARACTERS = 100


def read_parameters(query: str, names: Collection[str]) -> dict[str, str]:
    """Return those of the named parameters that a raw query has. Raises InvalidRequest for one twice, and for no text.

    Other parameters are nobody's business here: `check_names` refuses them.
    """
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
        if name not in names:
            continue
        if name in found:
            raise InvalidRequest(f"The query names `{name}` more than once; name it once.", param=name)
        if not is_text(value):
            raise InvalidRequest(f"The query's `{name}` must be text in UTF-8.", param=name)
        found[name] = value
    return found


def check_names(query: str, names: Collection[str]) -> None:
    """Raise InvalidRequest where a raw query has a parameter of another name, and say the nearest."""
    for name, _ in parse_qsl(query, keep_blank_values=True, errors="replace"):
        if name not in names:
            shown = name[:_SHOWN_CHARACTERS]
            raise InvalidRequest(f"The query has an unknown parameter {shown!r}; {suggest(shown, names)}.", param=shown)


def is_text(value: str) -> bool:
    """Tell whether a value can be written in UTF-8: what an address or a command line says otherwise cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in value)
