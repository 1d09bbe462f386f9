"""The core's one public answer: what shall happen to a request, as one value.

`decide` puts the parts of the core in order. It knows none of their rules, and nothing of stores or sockets; whoever
holds a `Decision` can carry it out, print it (`tidegate explain`) or throw it away.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from policies.advisories import advise
from policies.cacheability import plan_cache
from policies.charges import check_input, check_multipliers, close_ceiling, worst_case, worst_case_if_held
from policies.draft import joined
from policies.errors import Forbidden
from policies.limits import bind_limits, needs_candidates, needs_ceiling, needs_input
from policies.parameters import apply_rules, observe_rules
from policies.pseudonyms import pseudonym
from policies.requests.dialects import check_model_bounds
from policies.routing import fitting_first, order_candidates

if TYPE_CHECKING:
    from policies.cacheability import CachePlan
    from policies.catalog import Deployment, Model
    from policies.charges import WorstCase
    from policies.limits import BoundLimit
    from policies.merging import EffectivePolicy
    from policies.principals import Principal
    from policies.requests.asked import Adjustment, AskedRequest, EffectiveRequest
    from policies.rulebook import Rulebook


class Decision(msgspec.Struct, frozen=True):
    """Everything that is decided before anything is done.

    `adjustments` are in the order they were made, normalisations first; `observed` what rules that are only observed
    would have done to what came of them; `advisories` what the client had better know
    of what is left; `worst_case` is what is held; `limits` those that bind this request, with what each is asked for;
    `candidates` the deployments in the order they are to be tried.
    """

    asked: AskedRequest
    principal: Principal
    model: Model
    policy: EffectivePolicy
    effective: EffectiveRequest
    adjustments: tuple[Adjustment, ...]
    observed: tuple[Adjustment, ...]
    advisories: tuple[str, ...]
    worst_case: WorstCase
    limits: tuple[BoundLimit, ...]
    cache: CachePlan
    candidates: tuple[Deployment, ...]


def decide(
    asked: AskedRequest,
    principal: Principal,
    rulebook: Rulebook,
    *,
    cache_control: str | None,
    draw: float,
) -> Decision:
    """Decide what happens to a request (SPEC §3 to §8).

    `cache_control` is the request's header; `draw` a random number in [0, 1) that picks among deployments. Raises
    UnknownModel, Forbidden, PolicyViolation or InvalidRequest.
    """
    policy = rulebook.policy_for(principal)
    return decide_under(policy, asked, principal, rulebook, cache_control=cache_control, draw=draw)


def decide_under(  # noqa: PLR0913  a decision weighs all of them
    policy: EffectivePolicy,
    asked: AskedRequest,
    principal: Principal,
    rulebook: Rulebook,
    *,
    cache_control: str | None,
    draw: float,
) -> Decision:
    """Decide as `decide` does, under a policy that stands in for the principal's own."""
    model = rulebook.model(asked.model)
    if not principal.may_use(model.name):
        raise Forbidden(
            f"The key's project {principal.project!r} may not use the model {asked.model[:100]!r}; "
            "GET /v1/models lists those it may.",
            code="model_not_allowed",
            param="model",
        )
    _check_listed(asked.model, model, policy)
    check_model_bounds(asked, model)
    pseudonymise = partial(pseudonym, rulebook.pseudonym_key, principal)
    effective, adjustments = apply_rules(asked, policy, model, pseudonymise)
    observed = observe_rules(effective, asked, policy, model, pseudonymise) if policy.observed else ()
    if effective.input_size.is_open and needs_input(policy.limits, model):
        check_input(effective, model)
    if needs_candidates(policy.limits, model):
        check_multipliers(effective)
    if needs_ceiling(policy.limits, model):
        effective, written = close_ceiling(effective, model)
        adjustments = joined(adjustments, written)
    worst = worst_case(effective, model)
    observed_worst = worst
    if not worst.is_bounded and any(named.is_observed for named in policy.limits):
        observed_worst = worst_case_if_held(effective, model, worst)
    return Decision(
        asked=asked,
        principal=principal,
        model=model,
        policy=policy,
        effective=effective,
        adjustments=(*asked.adjustments, *adjustments),
        observed=observed,
        advisories=advise(effective),
        worst_case=worst,
        limits=bind_limits(policy.limits, principal, model, asked.view.end_user, worst, observed_worst=observed_worst),
        cache=plan_cache(
            effective,
            model,
            principal,
            policy.cache,
            cache_control,
            end_user=asked.view.end_user,
            api_version=asked.api_version if model.forwards_api_version else None,
        ),
        candidates=fitting_first(order_candidates(model.settings.deployments, draw), model, worst),
    )


def _check_listed(asked: str, model: Model, policy: EffectivePolicy) -> None:
    refusing = policy.refusing_model(model.name)
    if refusing is not None:
        raise Forbidden(
            f"Policy {refusing.policy!r} does not list the model {asked[:100]!r}; "
            "GET /v1/models lists those you may use.",
            code="model_not_allowed",
            param="model",
            policies=(refusing.policy,),
        )
