"""What bounds the output, under all of its names: those of the endpoints' APIs and those of servers of their own.

That is the token ceiling, and how many candidates there are. Servers obey the names of other endpoints too, and
llama.cpp some of its own, so a rule or a hold that looked at one name could be walked round by another (SPEC §4). Knows
no rule and no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CEILING: Final = "max_tokens"
"""A rule on this name is a rule on the token ceiling under every name."""
CEILING_NAMES: Final = (CEILING, "max_completion_tokens", "max_output_tokens", "n_predict")
"""Every name; the last is llama.cpp's."""
BEST_OF: Final = "best_of"
"""Asks for candidates of which some are not returned."""
CANDIDATE_NAMES: Final = ("n", BEST_OF, "n_cmpl")
"""Names of how many candidates a prompt has, of which the most counts; the last is llama.cpp's."""
OUTPUT_NAMES: Final = (*CEILING_NAMES, *CANDIDATE_NAMES)
"""All of them: their numbers matter whether an endpoint's API has a parameter of the name or not."""
MOST_CANDIDATES: Final = 10**15
"""Numbers of candidates above it are taken as this: more than any limit tells apart."""


ALSO_CALLED: Final = {"n": "n_cmpl"}
"""Parameters that a server calls otherwise too: a rule on one is a rule on the other, where a client sends it."""


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


def find_unreadable_multiplier(fields: Mapping[str, Any]) -> str | None:
    """Return the name of a multiplier of candidates that is no whole number, which some server may read as one."""
    return next(
        (name for name in CANDIDATE_NAMES if (value := fields.get(name)) is not None and not is_ceiling(value)), None
    )


def widest_candidates(fields: Mapping[str, Any], own: int, prompts: int, names: Iterable[str] = CANDIDATE_NAMES) -> int:
    """Return the most candidates that any server may take a request's members to ask for, of all prompts together.

    `own` is what the endpoint's API makes of them: the other names can only widen it, as far as they are whole numbers
    from 1. Where nothing is generated it is 0, and stays so.
    """
    if own == 0:
        return 0
    given = [value for name in names if (value := fields.get(name)) is not None and is_ceiling(value)]
    return min(max((own, *(prompts * int(value) for value in given))), MOST_CANDIDATES)
