"""The token ceiling under all of its names: what it is called by the endpoints' APIs and by servers of their own.

Servers obey the names of other endpoints too, and llama.cpp one of its own, so a rule or a hold that looked at one name
could be walked round by another (SPEC §4). Knows no rule and no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CEILING: Final = "max_tokens"
"""A rule on this name is a rule on the token ceiling under every name."""
CEILING_NAMES: Final = (CEILING, "max_completion_tokens", "max_output_tokens", "n_predict")
"""Every name; the last is llama.cpp's."""


def is_ceiling(value: Any) -> bool:  # noqa: ANN401  any JSON value
    """Tell whether a value bounds anything: a whole number from 0. Servers take -1 and nonsense for no bound."""
    return type(value) in {int, float} and value >= 0 and value % 1 == 0


def ceilings_given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ceilings that a request's members name, by any of the names."""
    return {name: value for name in CEILING_NAMES if (value := fields.get(name)) is not None}


def widest_ceiling(fields: Mapping[str, Any], own: int | None) -> int | None:
    """Return the most tokens that any server may take a request's members to allow a candidate; None for no bound.

    `own` is what the endpoint's API makes of them: the other names can only widen it.
    """
    if own is None:
        return None
    widest = own
    for value in ceilings_given(fields).values():
        if not is_ceiling(value):
            return None
        widest = max(widest, int(value))
    return widest
