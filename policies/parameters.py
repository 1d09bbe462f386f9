"""What a policy's rules make of a request: an effective request and its adjustments, or a violation (SPEC §4).

Knows rules and no parameter: what an endpoint has, takes and couples is said by its request type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from policies.charges import worst_case
from policies.errors import InvalidRequest, PolicyViolation
from policies.merging import MergedRule, as_merged, is_same
from policies.requests.asked import Action, Adjustment, EffectiveRequest
from policies.requests.dialects import REQUEST_TYPES, view_of
from policies.requests.fields import NumberType, expectation, number_type, shown
from policies.requests.meaning import vocabulary
from policies.tokens import bound_input_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from policies.catalog import Model
    from policies.merging import EffectivePolicy, Part
    from policies.policy import Rule
    from policies.requests.asked import AskedRequest
    from policies.requests.fields import EndpointRequest, Reconciled

CEILING = "max_tokens"
"""A rule on this name is a rule on the token ceiling under every name (SPEC §4)."""
_CEILING_NAMES = (CEILING, "max_completion_tokens", "max_output_tokens")
"""Servers obey names of other endpoints too, so a rule holds for each that is sent."""


def _worst_case_tokens(effective: EffectiveRequest, model: Model) -> int | None:
    worst = worst_case(effective, model)
    return worst.tokens if worst.is_bounded else None


_COMPUTED: Mapping[str, tuple[str, Callable[[EffectiveRequest, Model], int | None]]] = {
    "prompts": ("the number of prompts", lambda effective, _: effective.view.prompt_count),
    "prompt_tokens": ("the most tokens that the input can have", bound_input_tokens),
    "candidates": ("prompts × max(n, best_of)", lambda effective, _: effective.view.candidates),
    "worst_case_tokens": ("input + candidates × token ceiling", _worst_case_tokens),
}
"""Virtual parameters: what they are in words, and how they are computed; None where the request leaves them open."""

_NOT_RULED = {
    "model": "say `models` of the project or key instead",
    "messages": "a chat cannot do without it",
    "input": "embeddings cannot do without it",
    "max_completion_tokens": f"say `{CEILING}`: it binds the token ceiling under every name",
    "max_output_tokens": f"say `{CEILING}`: it binds the token ceiling under every name",
}
_KNOWN = frozenset(name for kind in REQUEST_TYPES.values() for name in kind.model_fields)
_LIKENESS = 0.85


def apply_rules(
    asked: AskedRequest, policy: EffectivePolicy, model: Model
) -> tuple[EffectiveRequest, tuple[Adjustment, ...]]:
    """Apply a policy's parameter rules to a valid request.

    The result is valid and within every bound, and applying the rules to it again changes nothing. Adjustments name the
    parameter as the request spells it, each at most once. Raises PolicyViolation, saying parameter, value, bound and
    policy.
    """
    if not policy.parameters:
        return EffectiveRequest(asked.endpoint, asked.fields, asked.view), ()
    draft = _Draft(REQUEST_TYPES[asked.endpoint], model, policy.parameters, asked.fields, dict(asked.fields))
    for name, rule in policy.parameters.items():
        if name == CEILING and draft.request_type.ceilings:
            _apply_to_ceiling(draft, rule)
        elif name not in _COMPUTED:
            _apply(draft, name, rule)
    _reconcile(draft)
    effective = _effective(asked, draft)
    for name in _COMPUTED:
        if name in policy.parameters:
            _check_computed(effective, model, name, policy.parameters[name])
    return effective, tuple(draft.adjustments.values())


@dataclass(slots=True)
class _Draft:
    """A request while policy works on it: `sent` as it came, `fields` as they became."""

    request_type: type[EndpointRequest]
    model: Model
    rules: Mapping[str, MergedRule]
    sent: Mapping[str, Any]
    fields: dict[str, Any]
    adjustments: dict[str, Adjustment] = field(default_factory=dict)

    def write(self, name: str, value: Any, action: Action, policy: str) -> None:  # noqa: ANN401  a JSON value
        """Set a parameter, None taking it out, and note the change; a change undone is none."""
        self.adjustments.pop(name, None)
        before = self.sent.get(name)
        if value is None and (before is not None or name not in self.sent):
            self.fields.pop(name, None)
        else:
            self.fields[name] = value
        if not is_same(before, value):
            self.adjustments[name] = Adjustment(name, before, value, action, policy)

    def takes(self, name: str, value: Any) -> bool:  # noqa: ANN401  a JSON value
        """Tell whether policy may write this into a request of this kind; what no endpoint knows, generation may."""
        if name in _CEILING_NAMES and self.request_type.ceilings:
            name = self.request_type.ceilings[0]  # a ceiling under another endpoint's name is one all the same
        return self.request_type.takes(name, value) or (name not in _KNOWN and bool(self.request_type.ceilings))

    @property
    def ceiling_to_write(self) -> str | None:
        """Name under which an open token ceiling is written; None where nothing is generated."""
        kind = self.request_type
        return kind.ceiling_to_write(self.model.settings) if kind.ceilings else None

    def defaulted(self) -> set[str]:
        """Names of the parameters that policy wrote because none was sent."""
        return {name for name, adjustment in self.adjustments.items() if adjustment.action is Action.DEFAULT}


def _apply_to_ceiling(draft: _Draft, rule: MergedRule) -> None:
    for name in _CEILING_NAMES:
        if draft.fields.get(name) is not None:
            _apply(draft, name, rule)
    if all(draft.fields.get(name) is None for name in draft.request_type.ceilings):
        _apply(draft, draft.request_type.ceiling_to_write(draft.model.settings), rule)


def _apply(draft: _Draft, name: str, rule: MergedRule) -> None:
    if rule.forbid and draft.fields.get(name) is not None:
        _forbid(draft, name, rule, rule.forbid)
    if rule.force and draft.takes(name, rule.force.value):
        if not is_same(draft.fields.get(name), forced := _inside(name, rule.force.value, rule)):
            draft.write(name, forced, Action.FORCE, rule.force.policy)
        return
    if draft.fields.get(name) is None:
        own = _value_for_absent(draft, name, rule)
        if own:
            draft.write(name, own[0], Action.DEFAULT, own[1])
    else:
        _apply_to_given(draft, name, rule)


def _forbid(draft: _Draft, name: str, rule: MergedRule, forbid: Part) -> None:
    own = _value_for_absent(draft, name, rule)
    if own and is_same(draft.fields[name], own[0]):
        return  # What policy itself writes is nothing to object to: rules may be applied twice.
    if forbid.value == "reject":
        raise PolicyViolation(f"{name} may not be sent: policy {forbid.policy!r} forbids it.", param=name)
    draft.write(name, None, Action.DROP, forbid.policy)


def _value_for_absent(draft: _Draft, name: str, rule: MergedRule) -> tuple[Any, str] | None:
    """Value to write where none was sent, and whose it is: policy's own, else the API's if that breaks a bound."""
    for own in (rule.force, rule.default):
        if own and draft.takes(name, own.value):
            return _inside(name, own.value, rule), own.policy
    implied = vocabulary(draft.request_type).defaults.get(name)
    if name == draft.ceiling_to_write and rule.bounds:
        # A ceiling that was left open is always written: not every server obeys the API's default (SPEC §4).
        largest = _largest(rule) if implied is None else implied
        return None if largest is None else (_inside(name, largest, rule), rule.bounds[0].policy)
    broken = None if implied is None or not _is_bound(draft, name, implied) else _find_broken(implied, rule)
    return (_inside(name, implied, rule), broken.policy) if broken else None


def _largest(rule: MergedRule) -> Any:  # noqa: ANN401  a JSON value
    """Return the largest value that is let through; None when there is no end to it."""
    if rule.max is not None:
        return rule.max.value
    return max(filter(_is_number, rule.allowed.value), default=None) if rule.allowed else None


def _apply_to_given(draft: _Draft, name: str, rule: MergedRule) -> None:
    sent = draft.fields[name]
    broken = _find_broken(sent, rule) if _is_bound(draft, name, sent) else None
    if broken is None:
        return
    if broken.on_violation == "reject":
        raise _violation(name, sent, rule, broken)
    draft.write(name, _inside(name, sent, rule), Action.CLAMP, broken.policy)


def _is_bound(draft: _Draft, name: str, value: Any) -> bool:  # noqa: ANN401  a JSON value
    """Tell whether bounds are meant for this value.

    They are not where the endpoint's parameter of that name is another thing, such as a chat's `logprobs`, a boolean,
    under a bound for the number that completions take.
    """
    if not isinstance(value, bool) or name not in draft.request_type.model_fields:
        return True
    allowed = draft.rules[name].allowed
    return allowed is not None and any(isinstance(let_through, bool) for let_through in allowed.value)


def _find_broken(value: Any, rule: MergedRule) -> Part | None:  # noqa: ANN401  a JSON value
    """Find the bound that a value is outside of: one that refuses rather than one that clamps."""
    found: Part | None = None
    for part in rule.bounds:
        if not _lets_through(part, value, rule):
            if part.on_violation == "reject":
                return part
            found = found or part
    return found


def _lets_through(part: Part, value: Any, rule: MergedRule) -> bool:  # noqa: ANN401  a JSON value
    if part is rule.allowed:
        return any(is_same(value, allowed) for allowed in part.value)
    if not _is_number(value):
        return False
    return bool(value <= part.value if part is rule.max else value >= part.value)


def _inside(name: str, value: Any, rule: MergedRule) -> Any:  # noqa: ANN401  JSON values
    """Return the value, or the nearest one that every bound lets through. Raises PolicyViolation when there is none."""
    broken = _find_broken(value, rule)
    if broken is None:
        return value
    nearest = [c for c in _candidates(rule) if _is_number(value) and _find_broken(c, rule) is None]
    if not nearest:
        raise _violation(name, value, rule, broken)
    return min(nearest, key=lambda candidate: (abs(candidate - value), candidate))


def _candidates(rule: MergedRule) -> Iterator[int | float]:
    """Yield the values among which the nearest one inside must be."""
    if rule.allowed is not None:
        yield from filter(_is_number, rule.allowed.value)
    else:
        yield from (part.value for part in rule.bounds)


def _is_number(value: Any) -> bool:  # noqa: ANN401  a JSON value
    return type(value) in {int, float}


def _reconcile(draft: _Draft) -> None:
    """Let the endpoint bring coupled parameters to agree, within the rules on each of them."""

    def permits(name: str, value: int) -> bool:
        rule = draft.rules.get(name)
        if rule is None:
            return True
        return is_same(value, draft.fields.get(name)) if rule.force else _find_broken(value, rule) is None

    changes = draft.request_type.reconcile(draft.fields, draft.defaulted(), permits)
    if changes is None:
        raise _contradiction(draft)
    for name, change in changes.items():
        _write_reconciled(draft, name, change)


def _contradiction(draft: _Draft) -> PolicyViolation:
    coupled = draft.request_type.coupled
    rules = [rule for name in coupled if (rule := draft.rules.get(name))]
    policies = sorted({part.policy for rule in rules for part in (*rule.bounds, rule.force) if part})
    said = " and ".join(coupled)
    return PolicyViolation(
        f"No values of {said} fit both the request and policy {', '.join(map(repr, policies))}.", param=coupled[0]
    )


def _write_reconciled(draft: _Draft, name: str, change: Reconciled) -> None:
    before, noted, cause = draft.fields.get(name), draft.adjustments.get(name), draft.adjustments.get(change.because)
    rule, rule_of_cause = draft.rules.get(name, MergedRule()), draft.rules.get(change.because, MergedRule())
    if rule.forbid and change.value is not None:
        raise _contradiction(draft)
    broken = None if before is None else _find_broken(before, rule_of_cause)
    is_asked = before is not None and name not in draft.defaulted()
    if broken and is_asked and broken.on_violation == "reject" and draft.fields.get(change.because) is None:
        # An absent parameter that counts as this one is bound with it (SPEC §4).
        raise _violation(f"{name}, which counts as {change.because},", before, rule_of_cause, broken, param=name)
    reason = cause or broken or next(iter((*rule.bounds, *rule_of_cause.bounds)), None) or noted
    action = noted.action if noted else _action(before, change.value)
    draft.write(name, change.value, action, (reason.policy if reason else None) or "")


def _action(before: Any, after: Any) -> Action:  # noqa: ANN401  JSON values
    if after is None:
        return Action.DROP
    return Action.DEFAULT if before is None else Action.CLAMP


def _effective(asked: AskedRequest, draft: _Draft) -> EffectiveRequest:
    if not draft.adjustments:
        return EffectiveRequest(asked.endpoint, asked.fields, asked.view)
    try:
        view = view_of(asked.endpoint, draft.fields)
    except InvalidRequest as error:
        raise PolicyViolation(
            f"What policy makes of the request is not valid: {error.message}", param=error.param
        ) from None
    return EffectiveRequest(asked.endpoint, draft.fields, view)


def _check_computed(effective: EffectiveRequest, model: Model, name: str, rule: MergedRule) -> None:
    said, compute = _COMPUTED[name]
    value = compute(effective, model)
    if value is None and rule.max is not None:
        raise PolicyViolation(
            f"{name} ({said}) has no bound, since the request gives no token ceiling; "
            f"policy {rule.max.policy!r} allows at most {rule.max.value}.",
            param=name,
        )
    broken = None if value is None else _find_broken(value, rule)
    if broken is not None:
        raise _violation(f"{name} ({said})", value, rule, broken, param=name)


def _violation(
    said: str,
    value: Any,  # noqa: ANN401  a JSON value
    rule: MergedRule,
    broken: Part,
    *,
    param: str | None = None,
) -> PolicyViolation:
    if broken is rule.allowed and not broken.value:
        bound = "no value that the levels above it allow"
    elif broken is rule.allowed:
        bound = f"only {', '.join(map(shown, broken.value))}"
    else:
        bound = f"at {'most' if broken is rule.max else 'least'} {broken.value}"
    return PolicyViolation(
        f"{said} is {shown(value)}; policy {broken.policy!r} allows {bound}.", param=said if param is None else param
    )


def lets_nothing_through(rule: MergedRule) -> bool:
    """Tell whether bounds contradict each other, so that every value is refused."""
    values = rule.allowed.value if rule.allowed else [part.value for part in rule.bounds]
    return bool(rule.bounds) and all(_find_broken(value, rule) for value in values)


def check_rule(name: str, rule: Rule) -> list[str]:
    """Say what makes no sense in a configured rule, one sentence a problem; empty when all is well."""
    if name in _NOT_RULED:
        return [f"{name} cannot be ruled here: {_NOT_RULED[name]}"]
    merged = as_merged(rule, name)
    if not any((*merged.bounds, merged.default, merged.force, merged.forbid)):
        return ["the rule says nothing; give max, min, allowed, default, force or forbid"]
    checks = (_check_computed_rule if name in _COMPUTED else _check_name, _check_parts, _check_bounds, _check_values)
    return [problem for check in checks for problem in check(name, merged)]


def _check_name(name: str, rule: MergedRule) -> Iterator[str]:
    del rule
    alike = [] if name in _KNOWN else get_close_matches(name, sorted(_KNOWN | _COMPUTED.keys()), n=1, cutoff=_LIKENESS)
    if alike:
        yield f"no endpoint has a parameter {name}; did you mean {alike[0]}?"


def _check_computed_rule(name: str, rule: MergedRule) -> Iterator[str]:
    if any((rule.allowed, rule.default, rule.force, rule.forbid)):
        yield f"{name} is computed from the request: it takes max and min only"
    if any(part.on_violation == "clamp" for part in rule.bounds):
        yield f"{name} is computed from the request and cannot be clamped: on_violation must be reject"


def _check_parts(name: str, rule: MergedRule) -> Iterator[str]:
    del name
    others = {"max": rule.max, "min": rule.min, "allowed": rule.allowed, "default": rule.default, "force": rule.force}
    said = [other for other, part in others.items() if part is not None]
    if rule.forbid and said:
        yield f"forbid leaves nothing for {', '.join(said)} to say"
    if rule.force and rule.default:
        yield "force leaves nothing for default to say"


def _check_bounds(name: str, rule: MergedRule) -> Iterator[str]:
    if rule.max and rule.min and rule.min.value > rule.max.value:
        yield f"min is {rule.min.value}, above max, which is {rule.max.value}: nothing is let through"
        return
    if rule.allowed and not rule.allowed.value:
        yield "allowed is empty: nothing is let through"
    if rule.allowed and rule.allowed.on_violation == "clamp" and not all(map(_is_number, rule.allowed.value)):
        yield "only numbers can be clamped: on_violation must be reject"
    for said, part in (("default", rule.default), ("force", rule.force)):
        broken = _find_broken(part.value, rule) if part else None
        if part and broken:
            yield f"{said}: {_violation(name, part.value, rule, broken).message}"


def _check_values(name: str, rule: MergedRule) -> Iterator[str]:
    kinds = [kind for kind in REQUEST_TYPES.values() if name in kind.model_fields]
    if not kinds:
        return
    numbers = [found for kind in kinds if (found := number_type(kind, name))]
    for said, part, is_outside in (("max", rule.max, NumberType.is_below), ("min", rule.min, NumberType.is_above)):
        if part is None:
            continue
        if not numbers:
            yield f"{said} is {part.value}, but {name} is no number; use allowed, force or forbid"
        elif all(number.is_integer for number in numbers) and not isinstance(part.value, int):
            yield f"{said} is {part.value}, but {name} is an integer"
        elif all(is_outside(number, part.value) for number in numbers):
            yield f"{said} is {part.value}, outside what {name} may be: nothing is let through"
    written = [(said, part.value) for said, part in (("default", rule.default), ("force", rule.force)) if part]
    written += [("allowed", value) for value in (rule.allowed.value if rule.allowed else ())]
    for said, value in written:
        if not any(kind.takes(name, value) for kind in kinds):
            yield f"{said} is {shown(value)}; {name} must be {' or '.join({expectation(k, name): 0 for k in kinds})}"
