"""Coupled parameters after policy has changed some: brought to agree again, within the rules on each (SPEC §4).

What says nothing without another parameter goes with it. Which parameters are coupled, and how they agree, is said by
the request types; this file knows whose rule asked for a change, and who is named where no values agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policies.bounds import find_broken, violation
from policies.errors import PolicyViolation
from policies.merging import MergedRule, is_same
from policies.requests.asked import Action
from policies.requests.meaning import vocabulary

if TYPE_CHECKING:
    from policies.draft import Draft
    from policies.merging import Part
    from policies.requests.asked import Adjustment
    from policies.requests.fields import Reconciled


def reconcile(draft: Draft) -> None:
    """Let the endpoint bring coupled parameters to agree, within the rules on each of them."""

    def permits(name: str, value: int) -> bool:
        rule = draft.rules.get(name)
        if rule is None:
            return True
        return is_same(value, draft.fields.get(name)) if rule.force else find_broken(value, rule) is None

    changes = draft.request_type.reconcile(draft.fields, draft.defaulted(), permits)
    if changes is None:
        raise _contradiction(draft)
    for name, change in changes.items():
        _write_reconciled(draft, name, change)
    for name, other in vocabulary(draft.request_type).needs.items():
        _drop_companion(draft, name, other)


def _drop_companion(draft: Draft, name: str, other: str) -> None:
    """Take out what says nothing without another parameter, where policy has changed either of them."""
    reason = draft.adjustments.get(other) or draft.adjustments.get(name)
    if reason is not None and draft.fields.get(name) is not None and not draft.fields.get(other):
        draft.write(name, None, Action.DROP, reason.policy or "")


def _contradiction(draft: Draft) -> PolicyViolation:
    coupled = draft.request_type.coupled
    rules = [rule for name in coupled if (rule := draft.rules.get(name))]
    policies = sorted({part.policy for rule in rules for part in (*rule.bounds, rule.force, rule.forbid) if part})
    said = " and ".join(coupled)
    return PolicyViolation(
        f"No values of {said} fit both the request and policy {', '.join(map(repr, policies))}.",
        param=coupled[0],
        policies=policies,
        value=draft.sent.get(coupled[0]),
    )


def _write_reconciled(draft: Draft, name: str, change: Reconciled) -> None:
    before, noted, cause = draft.fields.get(name), draft.adjustments.get(name), draft.adjustments.get(change.because)
    rule, rule_of_cause = draft.rules.get(name, MergedRule()), draft.rules.get(change.because, MergedRule())
    if rule.forbid and change.value is not None:
        raise _contradiction(draft)
    broken = None if before is None else find_broken(before, rule_of_cause)
    is_asked = before is not None and name not in draft.defaulted()
    if broken and is_asked and broken.on_violation == "reject" and draft.fields.get(change.because) is None:
        # An absent parameter that counts as this one is bound with it (SPEC §4).
        raise violation(f"{name}, which counts as {change.because},", before, rule_of_cause, broken, param=name)
    reason = cause or broken or _reason_elsewhere(draft, name, change)
    action = noted.action if noted else _action(before, change.value)
    draft.write(name, change.value, action, reason.policy or "")


def _reason_elsewhere(draft: Draft, name: str, change: Reconciled) -> Part | Adjustment:
    """Return a bound on either of two parameters, else the last change: a request that nobody changed agrees."""
    rules = [draft.rules[each] for each in (name, change.because) if each in draft.rules]
    bounds = [part for rule in rules for part in rule.bounds]
    return bounds[0] if bounds else list(draft.adjustments.values())[-1]


def _action(before: Any, after: Any) -> Action:  # noqa: ANN401  JSON values
    if after is None:
        return Action.DROP
    return Action.DEFAULT if before is None else Action.CLAMP
