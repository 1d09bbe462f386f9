"""Virtual parameters: what rules may bound that no client sends, since it is computed from a request (SPEC §4).

Knows what they are computed of; how much that is, is known by `charges`, `tokens` and the request itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from policies.bounds import find_broken, violation
from policies.charges import close_ceiling, most_candidates, worst_case
from policies.errors import InvalidRequest, PolicyViolation
from policies.requests.ceilings import find_unreadable_multiplier
from policies.tokens import bound_input_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policies.catalog import Model
    from policies.merging import MergedRule
    from policies.requests.asked import Adjustment, EffectiveRequest


CANDIDATES: Final = "candidates"
WORST_CASE: Final = "worst_case_tokens"
"""The one that depends on the token ceiling."""


def _worst_case_tokens(effective: EffectiveRequest, model: Model) -> int | None:
    worst = worst_case(effective, model)
    return worst.tokens if worst.is_bounded else None


def _candidates(effective: EffectiveRequest, model: Model) -> int | None:
    del model
    is_open = effective.view.candidates > 0 and find_unreadable_multiplier(effective.fields) is not None
    return None if is_open else most_candidates(effective)


def _why_open(effective: EffectiveRequest, model: Model, name: str) -> str:
    multiplier = find_unreadable_multiplier(effective.fields)
    if name != CANDIDATES and bound_input_tokens(effective, model) is None:
        return "only names some of its input"
    return "gives no token ceiling" if multiplier is None else f"has a {multiplier} that is no whole number"


COMPUTED: Mapping[str, tuple[str, Callable[[EffectiveRequest, Model], int | None]]] = {
    "prompts": ("the number of prompts", lambda effective, _: effective.view.prompt_count),
    "prompt_tokens": ("the most tokens that the input can have", bound_input_tokens),
    CANDIDATES: ("prompts × max(n, best_of)", _candidates),
    WORST_CASE: ("input + candidates × token ceiling", _worst_case_tokens),
}
"""Virtual parameters: what they are in words, and how they are computed; None where the request leaves them open."""


def close_if_open(
    effective: EffectiveRequest, model: Model, rule: MergedRule
) -> tuple[EffectiveRequest, tuple[Adjustment, ...]]:
    """Write the token ceiling that a bounded worst case counts on, where a request leaves it open and one is known."""
    if rule.max is None:
        return effective, ()
    try:
        closed, written = close_ceiling(effective, model)
    except InvalidRequest:
        return effective, ()  # the worst case has no bound, which is refused as that
    return closed, tuple(replace(each, policy=rule.max.policy) for each in written)


def check_computed(effective: EffectiveRequest, model: Model, name: str, rule: MergedRule) -> None:
    """Raise PolicyViolation where a virtual parameter of a request is outside the bounds of its rule, or has no end."""
    said, compute = COMPUTED[name]
    value = compute(effective, model)
    if value is None and rule.max is not None:
        raise PolicyViolation(
            f"{name} ({said}) has no bound, since the request {_why_open(effective, model, name)}; "
            f"policy {rule.max.policy!r} allows at most {rule.max.value}.",
            param=name,
            policies=(rule.max.policy,),
        )
    broken = None if value is None else find_broken(value, rule)
    if broken is not None:
        raise violation(f"{name} ({said})", value, rule, broken, param=name)
