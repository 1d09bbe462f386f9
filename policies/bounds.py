"""Which values the bounds of a rule let through, and which one is the nearest to a value outside (SPEC §4).

Knows JSON values and merged rules; which values are held to them, and what becomes of one outside, is in `parameters`.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from policies.errors import PolicyViolation
from policies.merging import MergedRule, Part, is_same
from policies.requests.fields import shown
from policies.requests.forms import one_or_many

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_WRITTEN: Final = 60


def is_number(value: Any) -> bool:  # noqa: ANN401  a JSON value
    """Tell whether bounds can be compared with a value."""
    return type(value) in {int, float}


def find_broken(value: Any, rule: MergedRule) -> Part | None:  # noqa: ANN401  a JSON value
    """Find the bound that a value is outside of: one that refuses rather than one that clamps."""
    found: Part | None = None
    for part in rule.bounds:
        if not _lets_through(part, value, rule):
            if part.on_violation == "reject":
                return part
            found = found or part
    return found


def _lets_through(part: Part, value: Any, rule: MergedRule) -> bool:  # noqa: ANN401  a JSON value
    if part is not rule.max and part is not rule.min:
        if rule.add:
            return _is_listed_own(value, part, rule)
        return any(is_same(value, allowed) for allowed in part.value)
    if not is_number(value):
        return False
    return bool(value <= part.value if part is rule.max else value >= part.value)


def _is_listed_own(value: Any, part: Part, rule: MergedRule) -> bool:  # noqa: ANN401  a JSON value
    """Tell whether what is the client's stands on a list: only its texts are known, not whether in an array."""
    own = one_or_many(clients_own(value, rule))
    return own is None or any(is_same(own, one_or_many(clients_own(allowed, rule))) for allowed in part.value)


def clients_own(value: Any, rule: MergedRule) -> Any:  # noqa: ANN401  JSON values
    """Return what of a value is the client's: all of it, less the texts that policy adds to it."""
    if not rule.add or value is None:
        return value
    added = {part.value for part in rule.add}
    if not isinstance(value, list):
        return None if isinstance(value, str) and value in added else value
    return [each for each in value if not (isinstance(each, str) and each in added)] or None


def inside(name: str, value: Any, rule: MergedRule) -> Any:  # noqa: ANN401  JSON values
    """Return the value, or the nearest one that every bound lets through. Raises PolicyViolation when there is none."""
    broken = find_broken(value, rule)
    if broken is None:
        return value
    nearest = [c for c in _candidates(rule) if is_number(value) and find_broken(c, rule) is None]
    if not nearest:
        raise violation(name, value, rule, broken)
    # As fractions, since the difference of a float and a large integer is no float.
    return min(nearest, key=lambda candidate: (abs(Fraction(candidate) - Fraction(value)), candidate))


def _candidates(rule: MergedRule) -> Iterator[int | float]:
    """Yield the values among which the nearest one inside must be."""
    if rule.listed is None:
        yield from (part.value for part in rule.bounds)
    else:
        yield from filter(is_number, rule.listed)


def largest_of(rule: MergedRule) -> Any:  # noqa: ANN401  a JSON value
    """Return the largest value that is let through; None when there is no end to it."""
    if rule.max is not None:
        return rule.max.value
    return max(filter(is_number, rule.listed or ()), default=None)


def written(value: Any) -> str:  # noqa: ANN401  a JSON value
    """Write a value of the configuration's in a message: what it holds, as compact JSON, where that is long its start.

    A client's own value is shown by `fields.shown`, which tells of arrays and objects only how large they are.
    """
    if not isinstance(value, list | dict):
        return shown(value)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= _LONGEST_WRITTEN else text[: _LONGEST_WRITTEN - 1] + "…"


def let_through(broken: Part, rule: MergedRule) -> str:
    """Say in words which values a bound lets through, such as `at most 4`; of lists, what stands on all of them."""
    if broken in rule.allowed:
        return f"only {', '.join(map(written, rule.listed))}" if rule.listed else "no value"
    return f"at {'most' if broken is rule.max else 'least'} {broken.value}"


def violation(
    said: str,
    value: Any,  # noqa: ANN401  a JSON value
    rule: MergedRule,
    broken: Part,
    *,
    param: str | None = None,
) -> PolicyViolation:
    """Say in one sentence that a value is outside a bound; `said` is what the value is of, `param` its parameter."""
    bound = let_through(broken, rule)
    return PolicyViolation(
        f"{said} is {shown(value)}; {_whose(broken, rule)} {bound}.",
        param=said if param is None else param,
        policies=(broken.policy,),
        value=value,
        bound=bound,
    )


def _whose(broken: Part, rule: MergedRule) -> str:
    """Name the policy that allows what a bound lets through; all of them where only their lists together do."""
    names = list(dict.fromkeys(part.policy for part in rule.allowed))
    is_alone = broken not in rule.allowed or len(broken.value) == len(rule.listed or ())
    if is_alone or len(names) == 1:
        return f"policy {broken.policy!r} allows"
    return f"policies {', '.join(map(repr, names[:-1]))} and {names[-1]!r} together allow"
