"""What a policy's rules make of a request: an effective request and its adjustments, or a violation (SPEC §4).

Knows in which order rules are applied, and no parameter: what an endpoint has, takes and couples is said by its
request type. Which values bounds let through is in `bounds`, what is rewritten in `rewriting`, how coupled parameters
are made to agree in `coupling`, what is computed in `computed`. Whether a rule makes sense at all is asked in
`rule_checks`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.bounds import clients_own, find_broken, inside, largest_of, violation
from policies.computed import COMPUTED, WORST_CASE, check_computed, close_if_open
from policies.coupling import reconcile
from policies.draft import Draft, is_known, joined
from policies.errors import InvalidRequest, PolicyViolation
from policies.merging import Forced, MergedRule, Part, is_same
from policies.requests.asked import Action, Adjustment, EffectiveRequest
from policies.requests.ceilings import ALSO_CALLED, CEILING, CEILING_NAMES, is_ceiling
from policies.requests.fields import shown
from policies.requests.forms import one_or_many
from policies.requests.meaning import vocabulary
from policies.rewriting import add, strip

if TYPE_CHECKING:
    from collections.abc import Callable

    from policies.catalog import Model
    from policies.merging import EffectivePolicy
    from policies.requests.asked import AskedRequest

MAX_DROPPED: Final = 32
"""Most unknown parameters that are told of one by one; the others are told by their number."""
UNKNOWN: Final = "unknown_parameters"
"""What they are called together."""


def label_of(name: str, policy: EffectivePolicy) -> str:
    """Return the name that an adjusted parameter has in metrics: its own, unless only the client has said it."""
    is_configured = name in policy.parameters or name in policy.observed
    return name if is_configured or name in CEILING_NAMES or is_known(name) else UNKNOWN


def apply_rules(
    asked: AskedRequest, policy: EffectivePolicy, model: Model, pseudonymise: Callable[[str | None], str]
) -> tuple[EffectiveRequest, tuple[Adjustment, ...]]:
    """Apply a policy's parameter rules to a valid request; `pseudonymise` returns the pseudonym of an end user.

    The result is valid and within every bound, and applying the rules to it again changes nothing. Adjustments name the
    parameter as the request spells it, each at most once. Raises PolicyViolation, saying parameter, value, bound and
    policy.
    """
    if not policy.parameters and policy.unknown is None:
        return EffectiveRequest(asked.endpoint, asked.fields, asked.view), ()
    draft = Draft(asked, model, policy.parameters, pseudonymise)
    if policy.unknown is not None:
        _apply_to_unknown(draft, policy.unknown)
    for name, rule in policy.parameters.items():
        if name == CEILING and draft.request_type.ceilings:
            _apply_to_ceiling(draft, rule)
        elif name not in COMPUTED:
            _apply(draft, name, rule)
            other = ALSO_CALLED.get(name)
            if other is not None and other not in policy.parameters and draft.fields.get(other) is not None:
                _apply(draft, other, rule)
    reconcile(draft)
    effective, adjustments = _effective(asked, draft), tuple(draft.adjustments.values())
    if (worst := policy.parameters.get(WORST_CASE)) is not None:
        effective, written = close_if_open(effective, model, worst)
        adjustments = joined(adjustments, written)
    for name in COMPUTED:
        if name in policy.parameters:
            check_computed(effective, model, name, policy.parameters[name])
    return effective, adjustments


def observe_rules(
    effective: EffectiveRequest,
    asked: AskedRequest,
    policy: EffectivePolicy,
    model: Model,
    pseudonymise: Callable[[str | None], str],
) -> tuple[Adjustment, ...]:
    """Return what each observed rule would have done to a request that the enforced ones are through with.

    A refusal is an adjustment with the action `reject`.
    """
    found: list[Adjustment] = []
    within = msgspec.structs.replace(asked, fields=effective.fields, view=effective.view, adjustments=())
    for name, rule in policy.observed.items():
        alone = replace(policy, parameters={name: rule}, unknown=None)
        try:
            found += apply_rules(within, alone, model, pseudonymise)[1]
        except PolicyViolation as refused:
            found.append(Adjustment(refused.param or name, refused.value, None, Action.REJECT, refused.policies[0]))
    return tuple(found)


def _apply_to_unknown(draft: Draft, unknown: Part) -> None:
    """Drop or refuse what neither the endpoint's API nor a rule names; null is nothing to object to."""
    names = [
        name
        for name, value in draft.fields.items()
        if value is not None and not draft.request_type.has_parameter(name) and name not in draft.rules
    ]
    if names and unknown.value == "reject":
        raise PolicyViolation(
            f"{shown(names[0])} is no parameter of {draft.endpoint}; policy {unknown.policy!r} refuses unknown ones.",
            param=names[0],
            policies=(unknown.policy,),
        )
    for name in names[:MAX_DROPPED]:
        draft.write(name, None, Action.DROP, unknown.policy)
    others = names[MAX_DROPPED:]
    for name in others:
        del draft.fields[name]
    if others:
        draft.adjustments[UNKNOWN] = Adjustment(UNKNOWN, len(others), 0, Action.DROP, unknown.policy)


def _apply_to_ceiling(draft: Draft, rule: MergedRule) -> None:
    for name in CEILING_NAMES:
        if (value := draft.fields.get(name)) is None:
            continue
        if rule.bounds and not (rule.force or rule.forbid or is_ceiling(value)):
            _close(draft, name, rule, rule.bounds[0])
        else:
            _apply(draft, name, rule)
    if all(draft.fields.get(name) is None for name in draft.request_type.ceilings):
        _apply(draft, draft.request_type.ceiling_to_write(draft.model.settings), rule)


def _close(draft: Draft, name: str, rule: MergedRule, part: Part) -> None:
    """Put a number in place of what some server takes for no ceiling at all, such as -1."""
    largest = _largest_ceiling(draft, rule)
    if part.on_violation == "reject" or largest is None:
        raise PolicyViolation(
            f"{name} is {shown(draft.fields[name])}; policy {part.policy!r} takes a number of tokens there.",
            param=name,
            policies=(part.policy,),
            value=draft.fields[name],
        )
    draft.write(name, inside(name, largest, rule), Action.CLAMP, part.policy)


def _apply(draft: Draft, name: str, rule: MergedRule) -> None:
    if rule.forbid and clients_own(draft.fields.get(name), rule) is not None:
        _forbid(draft, name, rule, rule.forbid)
    forced = draft.forced(name, rule.force) if rule.force else None
    if rule.force and draft.takes(name, forced):
        _force(draft, name, inside(name, forced, rule), rule.force)
    elif draft.fields.get(name) is None:
        own = _value_for_absent(draft, name, rule)
        if own:
            draft.write(name, own[0], Action.DEFAULT, own[1])
    else:
        _apply_to_given(draft, name, rule)
    if rule.add:
        add(draft, name, rule)
        _check_rest(draft, name, rule)


def _check_rest(draft: Draft, name: str, rule: MergedRule) -> None:
    """Refuse what is left of the client's texts where some of them had to go and the rest is outside a bound."""
    rest = clients_own(draft.fields.get(name), rule)
    broken = None if rest is None else find_broken(rest, rule)
    if broken is not None:
        raise violation(name, rest, rule, broken)


def _force(draft: Draft, name: str, forced: Any, force: Part) -> None:  # noqa: ANN401  a JSON value
    action = Action.PSEUDONYMISE if force.value is Forced.PSEUDONYM else Action.FORCE
    if not is_same(draft.fields.get(name), forced):
        draft.write(name, forced, action, force.policy)


def _forbid(draft: Draft, name: str, rule: MergedRule, forbid: Part) -> None:
    own = _value_for_absent(draft, name, rule) or _ceiling_of_worst_case(draft, name)
    if own and is_same(one_or_many(clients_own(draft.fields[name], rule)), one_or_many(own[0])):
        return  # What policy itself writes is nothing to object to: rules may be applied twice.
    if forbid.value == "reject":
        raise PolicyViolation(
            f"{name} may not be sent: policy {forbid.policy!r} forbids it.",
            param=name,
            policies=(forbid.policy,),
            value=draft.fields[name],
        )
    draft.write(name, None, Action.DROP, forbid.policy)


def _value_for_absent(draft: Draft, name: str, rule: MergedRule) -> tuple[Any, str] | None:
    """Value to write where none was sent, and whose it is: policy's own, else the API's if that breaks a bound."""
    for part in (rule.force, rule.default):
        if part and draft.takes(name, value := draft.forced(name, part)):
            return inside(name, value, rule), part.policy
    implied = vocabulary(draft.request_type).defaults.get(name)
    if name == draft.ceiling_to_write and rule.bounds:
        # A ceiling that was left open is always written: not every server obeys the API's default (SPEC §4).
        largest = _largest_ceiling(draft, rule) if implied is None else implied
        return None if largest is None else (inside(name, largest, rule), rule.bounds[0].policy)
    broken = None if implied is None or not _is_bound(draft, name, implied) else find_broken(implied, rule)
    return (inside(name, implied, rule), broken.policy) if broken else None


def _ceiling_of_worst_case(draft: Draft, name: str) -> tuple[Any, str] | None:
    """Ceiling that is written where none was sent and the worst case is bounded, and whose it is."""
    worst = draft.rules.get(WORST_CASE)
    if worst is None or name != draft.ceiling_to_write:
        return None
    fields = {each: value for each, value in draft.sent.items() if each not in draft.request_type.ceilings}
    _, written = close_if_open(
        EffectiveRequest(draft.endpoint, fields, draft.view.with_fields(fields)), draft.model, worst
    )
    return next(((each.after, each.policy or "") for each in written), None)


def _largest_ceiling(draft: Draft, rule: MergedRule) -> Any:  # noqa: ANN401  a JSON value
    """Return the largest ceiling that is let through, or all that the model can generate where that is less.

    None where there is no end to it, and no bound on the worst case either.
    """
    largest, settings, worst = largest_of(rule), draft.model.settings, draft.rules.get(WORST_CASE)
    most = settings.max_output_tokens or settings.context_window
    if largest is None:
        return most if worst and worst.max else None
    return largest if most is None else min(largest, most)


def _apply_to_given(draft: Draft, name: str, rule: MergedRule) -> None:
    if rule.strip:
        strip(draft, name, rule.strip)
    sent = clients_own(draft.fields[name], rule)
    broken = find_broken(sent, rule) if sent is not None and _is_bound(draft, name, sent) else None
    if broken is None:
        return
    if broken.on_violation == "reject":
        raise violation(name, sent, rule, broken)
    draft.write(name, inside(name, sent, rule), Action.CLAMP, broken.policy)


def _is_bound(draft: Draft, name: str, value: Any) -> bool:  # noqa: ANN401  a JSON value
    """Tell whether bounds are meant for this value.

    They are not where the endpoint's parameter of that name is another thing, such as a chat's `logprobs`, a boolean,
    under a bound for the number that completions take.
    """
    if not isinstance(value, bool) or not draft.request_type.reads_boolean(name):
        return True
    return any(isinstance(each, bool) for part in draft.rules[name].allowed for each in part.value)


def _effective(asked: AskedRequest, draft: Draft) -> EffectiveRequest:
    if not draft.adjustments:
        return EffectiveRequest(asked.endpoint, asked.fields, asked.view)
    try:
        view = asked.view.with_fields(draft.fields)
    except InvalidRequest as error:
        raise PolicyViolation(
            f"What policy makes of the request is not valid: {error.message}",
            param=error.param,
            policies=[each.policy for each in draft.adjustments.values() if each.policy],
        ) from None
    return EffectiveRequest(asked.endpoint, draft.fields, view)
