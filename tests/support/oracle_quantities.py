"""What is computed of a request, restated: prompts, candidates, and the least and most that its input may count as.

Where SPEC §4 and §5 leave room, a range; a rule decides alone outside of it. Knows no rule and no code of the
gateway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oracle_validity import ABSENT, CEILINGS, MANY, NAMED, OWN_CEILINGS, Whole, are_id_lists, are_ids
from second_reading import Number

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPUTED = ("prompts", "candidates", "prompt_tokens", "worst_case_tokens")
REQUEST_OVERHEAD, PROMPT_OVERHEAD = 8, 16
"""Tokens added to the bytes of texts, once and for each prompt or message (SPEC §5)."""
_SOME = Whole(1, float("inf"))


def texts_of(value: Any) -> list[str]:  # noqa: ANN401
    """Return all strings within a value, names of members not."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for each in value for text in texts_of(each)] if isinstance(value, list) else []


def prompts_of(endpoint: str, fields: Mapping[str, Any]) -> int:
    """Return how many prompts a request has (SPEC §4): the array's length where it is an array of prompts."""
    value = fields.get({"completions": "prompt", "embeddings": "input"}.get(endpoint, ""))
    return len(value) if isinstance(value, list) and value and not isinstance(value[0], Number) else 1


def input_of(endpoint: str, fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least and the most that may count as a request's input tokens (SPEC §5)."""
    unknown = sum(len(name) + 3 * len(repr(fields[name]).encode()) + 32 for name in fields.keys() - NAMED[endpoint])
    low, high = _own_input_of(endpoint, fields)
    return low, high + unknown


def _own_input_of(endpoint: str, fields: Mapping[str, Any]) -> tuple[int, int]:
    if endpoint in {"completions", "embeddings"}:
        value = fields.get("prompt" if endpoint == "completions" else "input")
        suffix = sum(len(text.encode()) for text in texts_of(fields.get("suffix")))
        if isinstance(value, list) and (are_ids(value) or are_id_lists(value)):
            exact = len(value) if are_ids(value) else sum(map(len, value))
            return exact, exact + (suffix and suffix + REQUEST_OVERHEAD + PROMPT_OVERHEAD)
        if value is ABSENT:
            return 1, 64 + suffix
        size = sum(len(text.encode()) for text in texts_of(value))
        exact = size + REQUEST_OVERHEAD + PROMPT_OVERHEAD * prompts_of(endpoint, fields)
        return exact, exact + (suffix and suffix + PROMPT_OVERHEAD)
    member = fields.get("messages" if endpoint == "chat/completions" else "input")
    contents = (
        [each.get("content") for each in member if isinstance(each, dict)] if isinstance(member, list) else member
    )
    return sum(len(text.encode()) for text in texts_of(contents)), 3 * len(repr(fields).encode()) + 1000


def candidates_of(endpoint: str, fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return prompts × max(n, best_of): as the endpoint's API has it, and by all names that some server obeys."""
    given = {name: fields[name] for name in ("n", "best_of", "n_cmpl") if _SOME.takes(fields.get(name))}
    own = {"completions": ("n", "best_of"), "chat/completions": ("n",)}.get(endpoint, ())
    prompts = prompts_of(endpoint, fields)
    low, high = (max([1, *(int(given[name].value) for name in names if name in given)]) for names in (own, given))
    return prompts * low, prompts * high


def ceiling_of(endpoint: str, fields: Mapping[str, Any]) -> int | None:
    """Return the token ceiling in force; None where it is open and the API has no default."""
    own = OWN_CEILINGS.get(endpoint, set())
    given = [int(fields[name].value) for name in own if isinstance(fields.get(name), Number)]
    return max(given) if given else (16 if endpoint == "completions" else None)


def computed_least_and_most(endpoint: str, fields: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the virtual parameters of a request as it is forwarded: the least and the most that each may be."""
    low, high = input_of(endpoint, fields)
    found: dict[str, tuple[float, float]] = {
        "prompts": (prompts_of(endpoint, fields),) * 2,
        "prompt_tokens": (low, high),
    }
    if endpoint == "embeddings":
        return {**found, "candidates": (0, prompts_of(endpoint, fields)), "worst_case_tokens": (low, high)}
    (fewest, candidates), ceiling = candidates_of(endpoint, fields), ceiling_of(endpoint, fields)
    if any(fields.get(name) is not ABSENT and not MANY.takes(fields[name]) for name in ("n", "best_of", "n_cmpl")):
        candidates = float("inf")
    most = _most_of(ceiling, [fields[name] for name in CEILINGS if fields.get(name) is not ABSENT])
    return {
        **found,
        "candidates": (fewest, candidates),
        "worst_case_tokens": (low + fewest * (ceiling or 0), high + candidates * most),
    }


def _most_of(ceiling: int | None, given: list[Any]) -> float:
    """Return the most that a choice may have: some servers obey ceilings of other names, and what none can read."""
    if ceiling is None or not all(MANY.takes(each) for each in given):
        return float("inf")
    return max([ceiling, *(int(each.value) for each in given)])
