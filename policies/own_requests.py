"""Requests that the gateway sends of its own accord, such as drift checks: whose they are, what binds them (SPEC §5).

They are the organization's: no project, owner or key is charged for them, and only limits of the whole organization
have to have room. Knows no reason for sending one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace as with_parts

from policies.cacheability import Bypass
from policies.limits import NamedLimit, bind_limits

if TYPE_CHECKING:
    from policies.decision import Decision
    from policies.principals import Principal
    from policies.rulebook import Rulebook

_SCOPES: Final = frozenset({"organization", "model"})


def for_organization(decision: Decision, organization: Principal, rulebook: Rulebook, *, reason: str) -> Decision:
    """Return the decision to send what a client's decision made of its request, on the organization's account.

    It bypasses the cache for `reason`. A limit without room refuses it though clients would wait: such requests are the
    first to be dropped. Raises InvalidRequest as `bind_limits` does.
    """
    policy = rulebook.policy_for(organization)
    limits = [_impatient(limit) for limit in policy.limits if _SCOPES.issuperset(limit.limit.by)]
    return with_parts(
        decision,
        principal=organization,
        policy=replace(policy, limits=tuple(limits)),
        limits=bind_limits(limits, organization, decision.model, None, decision.worst_case),
        cache=Bypass(reason),
    )


def _impatient(named: NamedLimit) -> NamedLimit:
    if not named.waits:
        return named
    return NamedLimit(named.policy, named.limit.model_copy(update={"on_exceed": "refuse", "max_wait": None}))
