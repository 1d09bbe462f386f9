"""Requests that the gateway sends of its own accord: when, whose they are, and what binds them (SPEC §5).

Drift checks, shadow traffic and hedges are the organization's: no project, owner or key is charged for them, and only
limits of the whole organization have to have room. Knows neither clock nor dice, nor how anything is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace as with_parts

from policies.cacheability import Bypass, is_bound_to_upstream, is_deterministic, is_repeatable
from policies.limits import NamedLimit, bind_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.catalog import Deployment
    from policies.decision import Decision
    from policies.principals import Principal
    from policies.rulebook import Rulebook

DRIFT_CHECK: Final = "drift_check"
SHADOW: Final = "shadow"
HEDGE: Final = "hedge"
"""Origins, as usage records name them."""

_SCOPES: Final = frozenset({"organization", "model"})
_FEWEST_TO_HEDGE: Final = 2


def for_organization(
    decision: Decision,
    organization: Principal,
    rulebook: Rulebook,
    *,
    reason: str,
    candidates: Sequence[Deployment] | None = None,
) -> Decision:
    """Return the decision to send what a client's decision made of its request, on the organization's account.

    It bypasses the cache for `reason`, and goes where the client's would, or once to one of `candidates`. A limit
    without room refuses it though clients would wait: such requests are the first to be dropped. Raises InvalidRequest
    as `bind_limits` does.
    """
    policy = rulebook.policy_for(organization)
    limits = [_impatient(limit) for limit in policy.limits if _SCOPES.issuperset(limit.limit.by)]
    own = with_parts(
        decision,
        principal=organization,
        policy=replace(policy, limits=tuple(limits)),
        limits=bind_limits(limits, organization, decision.model, None, decision.worst_case),
        cache=Bypass(reason),
    )
    return own if candidates is None else _once(own, candidates)


def _once(decision: Decision, candidates: Sequence[Deployment]) -> Decision:
    """Return the decision to make a single attempt, at one of these: what fails of its own accord is not repeated."""
    model = decision.model
    settings = model.settings.model_copy(update={"max_attempts": 1})
    return with_parts(decision, model=replace(model, settings=settings), candidates=tuple(candidates))


def is_checked(decision: Decision, draw: float) -> bool:
    """Tell whether a hit is fetched again to be compared; `draw` is a random number in [0, 1)."""
    return draw < decision.policy.cache.drift_check and not _bears_own_credential(decision)


def find_shadow(decision: Decision, draw: float) -> Deployment | None:
    """Return the deployment that the request is also sent to; `draw` is a random number in [0, 1).

    None for most: no shadow is set, the lot fell on others, the client's own credential goes upstream, or the request
    is about what only its own upstream keeps or runs.
    """
    shadow = decision.model.settings.shadow
    if shadow is None or draw >= shadow.share or _bears_own_credential(decision):
        return None
    return None if is_bound_to_upstream(decision.effective) else shadow.deployment


def is_compared(decision: Decision) -> bool:
    """Tell whether what the shadow generates is held against the client's answer."""
    shadow = decision.model.settings.shadow
    return shadow is not None and shadow.compare and is_deterministic(decision.effective)


def hedge_after_seconds(decision: Decision) -> float | None:
    """Return how long the first attempt may take until a second deployment is asked too; None: however long.

    Only what makes no difference if it is done twice is hedged, and nothing that bears a client's own credential.
    """
    settings = decision.model.settings
    if settings.hedge_after is None or min(settings.max_attempts, len(decision.candidates)) < _FEWEST_TO_HEDGE:
        return None
    if _bears_own_credential(decision) or not is_repeatable(decision.effective):
        return None
    return settings.hedge_after / 1000


def _bears_own_credential(decision: Decision) -> bool:
    """Tell whether the client's own credential goes upstream, which nobody else may use."""
    return decision.model.settings.auth == "passthrough"


def _impatient(named: NamedLimit) -> NamedLimit:
    if not named.waits:
        return named
    return NamedLimit(named.policy, named.limit.model_copy(update={"on_exceed": "refuse", "max_wait": None}))
