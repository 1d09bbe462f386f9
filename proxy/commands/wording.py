"""How several commands write what they tell: whole as JSON, and principals, amounts and time in words.

Knows the JSON values that `proxy/standings` makes, and no command.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def as_json(told: dict[str, Any]) -> str:
    """Write with the encoder that writes bodies: numbers look as they are forwarded."""
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()


def principal_words(who: dict[str, Any]) -> str:
    """Say who somebody is, from the key outwards."""
    kind = "service account" if who["is_service_account"] else "user"
    owner = f"{kind} {who['owner']}" if who["owner"] else "somebody"
    key = f"key {who['key']} of {owner}" if who["key"] else f"{owner} without a key"
    return f"{key}, project {who['project']}, organization {who['organization']}"


def amount_words(limit: dict[str, Any], amount: float) -> str:
    """Write an amount of what a limit counts; USD with all their decimals, so that they stand below each other."""
    return f"{amount:.6f}" if limit["of"] == "usd" else str(amount)


def mode_words(limit: dict[str, Any]) -> str:
    """Say, behind its quota, what a limit does other than refuse at once; nothing for most."""
    if limit["mode"] == "observe":
        return ", observed only"
    return f", waits up to {limit['max_wait_seconds']:g} s" if limit["on_exceed"] == "wait" else ""


def duration_words(seconds: int) -> str:
    """Write seconds in the two largest units that there are of them: `2 h 5 min`."""
    parts: list[str] = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
