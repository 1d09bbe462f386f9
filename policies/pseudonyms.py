"""A principal's name for upstreams that look for abuse: the same for the same customer, and nobody's name (SPEC §4).

A pseudonym is a keyed hash (HMAC-SHA-256, RFC 2104) of organization, project, owner and end user; the API key is no
part of it, so that it outlives the key. Its last digits are a hash of the others, by which the gateway knows its own:
one that is sent again is left as it is. Knows no parameter and no rule.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from policies.principals import Principal

_PREFIX: Final = "tg-"
_NAME_DIGITS: Final = 40
_CHECK_DIGITS: Final = 16


def pseudonym(key: bytes, principal: Principal, end_user: str | None) -> str:
    """Return the pseudonym of a principal and the end user it names: 59 characters, letters, digits and a hyphen.

    An `end_user` that is such a pseudonym already is returned as it is.
    """
    if end_user is not None and _is_own(key, end_user):
        return end_user
    who = (principal.organization, principal.project, principal.is_service_account, principal.owner, end_user)
    name = _digest(key, msgspec.json.encode(who))[:_NAME_DIGITS]
    return f"{_PREFIX}{name}{_check(key, name)}"


def _is_own(key: bytes, text: str) -> bool:
    name = text[len(_PREFIX) : len(_PREFIX) + _NAME_DIGITS]
    expected = f"{_PREFIX}{name}{_check(key, name)}"
    return hmac.compare_digest(expected.encode(), text.encode())


def _check(key: bytes, name: str) -> str:
    return _digest(key, b"pseudonym " + name.encode())[:_CHECK_DIGITS]


def _digest(key: bytes, content: bytes) -> str:
    return hmac.digest(key, content, "sha256").hex()
