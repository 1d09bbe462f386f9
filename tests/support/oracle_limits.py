"""What limits change of a request, restated (SPEC §5): a ceiling that is written, and what cannot be held is refused.

A limit that is observed, or that settles after (`hold: none`), changes nothing. Knows no counts: limits here are so
large that only a request which asks for a good part of one may be refused for want of room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oracle_quantities import computed_least_and_most
from oracle_validity import ABSENT, CEILINGS, MANY, OWN_CEILINGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oracle_rules import Level

_OUTPUT = {"tokens", "output_tokens"}
_CANDIDATES = {*_OUTPUT, "completions"}
_MULTIPLIERS = ("n", "best_of", "n_cmpl")
_SHARE = 100
"""What asks for more than one part in so many of a limit may be refused: others hold room as well."""


def _holding(levels: Sequence[Level], quantities: set[str]) -> list[Mapping[str, Any]]:
    """Return the limits of these quantities that hold the worst case and refuse."""
    limits = [limit for _, policy in levels for limit in policy.get("limits", ())]
    return [
        limit
        for limit in limits
        if limit["of"] in quantities and limit.get("mode") != "observe" and limit.get("hold") != "none"
    ]


def holds_output(levels: Sequence[Level], endpoint: str) -> bool:
    """Tell whether a limit has to know a request's token ceiling."""
    return endpoint in OWN_CEILINGS and bool(_holding(levels, _OUTPUT))


def _uncounted(endpoint: str, fields: Mapping[str, Any], levels: Sequence[Level]) -> set[str]:
    """Return the members that a limit has to count by, and cannot."""
    if endpoint not in OWN_CEILINGS:
        return set()
    names = [*(CEILINGS if _holding(levels, _OUTPUT) else ()), *(_MULTIPLIERS if _holding(levels, _CANDIDATES) else ())]
    return {name for name in names if fields.get(name) is not ABSENT and not MANY.takes(fields[name])}


def may_refuse(
    endpoint: str, fields: Mapping[str, Any], levels: Sequence[Level], status: int, error: Mapping[str, Any]
) -> bool:
    """Tell whether limits may refuse a request like this; policy may have changed it before."""
    if status == 400:
        return error["code"] != "policy_violation" and error["param"] in _uncounted(endpoint, fields, levels)
    limits = _holding(levels, _CANDIDATES)
    _, most = computed_least_and_most(endpoint, fields)["worst_case_tokens"]
    is_large = any(most * _SHARE > limit["limit"] for limit in limits)
    return (status, error["code"]) == (429, "rate_limit_exceeded") and is_large


def complain_of_limits(endpoint: str, sent: Mapping[str, Any], levels: Sequence[Level]) -> list[str]:
    """Return what is wrong with a request that was forwarded."""
    found = [f"a limit counts by {name}, {sent[name]}" for name in sorted(_uncounted(endpoint, sent, levels))]
    if holds_output(levels, endpoint) and all(sent.get(name) is ABSENT for name in OWN_CEILINGS[endpoint]):
        found.append("a limit holds output, and the ceiling is open")
    least, _ = computed_least_and_most(endpoint, sent)["worst_case_tokens"]
    if any(least > limit["limit"] for limit in _holding(levels, {"tokens"})):
        found.append(f"at least {least} tokens, above a limit")
    return found
