"""What in the policies of several levels, or in one, contradicts itself so that requests are refused whatever they say.

Told to people, never a reason to refuse a configuration. Only what is certain is told. What changes nothing is in
`rule_advice`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from policies.bounds import find_broken, is_number, written
from policies.computed import COMPUTED
from policies.merging import EffectivePolicy, Forced, MergedRule, is_same
from policies.requests.dialects import REQUEST_TYPES
from policies.requests.fields import number_type
from policies.requests.meaning import vocabulary
from policies.rule_advice import bound_words
from policies.rule_checks import kinds_with, lets_nothing_through
from policies.smallest_requests import smallest_requests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policies.catalog import Model
    from policies.merging import Part
    from policies.requests.asked import Endpoint
    from policies.requests.fields import EndpointRequest


class Contradiction(NamedTuple):
    """A contradiction: the policy and the place below it that have a part in it, and what it is."""

    policy: str
    place: str
    message: str


def contradictions(policy: EffectivePolicy, models: Sequence[Model]) -> Iterator[Contradiction]:
    """Yield what refuses every request, or every one to an endpoint, under a merged policy, asked for these models."""
    sound: dict[str, MergedRule] = {}
    for name, rule in policy.parameters.items():
        found = list(_within(name, rule)) or list(_refused_by_endpoints(name, rule, models))
        yield from found
        if not found:
            sound[name] = rule
    coupled = [contradiction for endpoint in REQUEST_TYPES for contradiction in _between(endpoint, sound)]
    yield from coupled
    if not coupled:
        yield from _of_computed(replace(policy, parameters=sound), models)


def _within(name: str, rule: MergedRule) -> Iterator[Contradiction]:
    place = f"parameters.{name}"
    if lets_nothing_through(rule):
        yield Contradiction(rule.bounds[-1].policy, place, f"{_all_words(rule)}: no value of {name} is let through")
        return
    for said, part in (("default", rule.default), ("force", rule.force)):
        if part is not None and (broken := _never_inside(part, rule)):
            value = "the pseudonym" if part.value is Forced.PSEUDONYM else f"{said}: {written(part.value)}"
            refused = "every request" if said == "force" else f"every request without {name}"
            told = f"{value} of policy {part.policy!r} is not within what policy {broken.policy!r} lets through"
            yield Contradiction(part.policy, place, f"{told}, which {bound_words(broken, rule)}: {refused} is refused")
    yield from _too_many(name, rule)


def _never_inside(part: Part, rule: MergedRule) -> Part | None:
    """Return the bound that something to write breaks, where no bound says what to write in its place."""
    if part.value is Forced.PSEUDONYM:
        return next(iter(rule.bounds), None)
    broken = find_broken(part.value, rule)
    values = [bound.value for bound in rule.bounds] if rule.listed is None else rule.listed
    can_move = is_number(part.value) and any(is_number(value) and find_broken(value, rule) is None for value in values)
    return None if can_move else broken


def _too_many(name: str, rule: MergedRule) -> Iterator[Contradiction]:
    most = max((vocabulary(kind).meanings[name].max_items or 0 for kind in kinds_with(name)), default=0)
    if most and len(rule.add) > most:
        policies = list(dict.fromkeys(part.policy for part in rule.add))
        told = f"policies {_listed(policies)} together add {len(rule.add)} texts; {name} takes at most {most}"
        yield Contradiction(policies[-1], f"parameters.{name}", f"{told}: every request that has a {name} is refused")


def _refused_by_endpoints(name: str, rule: MergedRule, models: Sequence[Model]) -> Iterator[Contradiction]:
    """Find what is written though the endpoint refuses it in every request, as the gateway does what it asks for."""
    for said, part in (("default", rule.default), ("force", rule.force)):
        if part is None or part.value is Forced.PSEUDONYM or find_broken(part.value, rule):
            continue
        alone = EffectivePolicy(parameters={name: MergedRule(force=part)})
        refused = [
            endpoint
            for endpoint in (each for each, kind in REQUEST_TYPES.items() if kind.takes(name, part.value))
            if models and not any(smallest_requests(alone, model, endpoint) for model in models)
        ]
        if refused:
            which = f"every request{'' if said == 'force' else f' without {name}'} to {' and '.join(refused)}"
            told = f"{said}: {written(part.value)} of policy {part.policy!r} is refused by the endpoint itself"
            yield Contradiction(part.policy, f"parameters.{name}", f"{told}: {which} is refused")


def _between(endpoint: Endpoint, rules: dict[str, MergedRule]) -> Iterator[Contradiction]:
    """Find rules on coupled parameters that no values of these keep to."""
    kind = REQUEST_TYPES[endpoint]
    ruled = {name: rules[name] for name in kind.coupled if name in rules}
    if not ruled:
        return
    refused = [stream for stream in (False, True) if not _has_agreement(kind, ruled, is_stream=stream)]
    if refused:
        name, rule = list(ruled.items())[-1]
        parts = [part for each in ruled.values() for part in (*each.bounds, each.force) if part is not None]
        said = " and ".join(f"{each} ({_all_words(one)})" for each, one in ruled.items())
        which = f"every request{'' if len(refused) > 1 else ' for a stream'} to {endpoint}"
        told = f"no values of {' and '.join(kind.coupled)} agree within {said}: {which} is refused"
        yield Contradiction((rule.parts or parts)[-1].policy, f"parameters.{name}", told)


def _has_agreement(kind: type[EndpointRequest], rules: dict[str, MergedRule], *, is_stream: bool) -> bool:
    """Ask the endpoint whether values of coupled parameters can be made to agree.

    What does not agree is lowered, so that from the largest value which is let through all others are tried.
    """

    def permits(name: str, value: int) -> bool:
        rule = rules.get(name)
        if rule is None:
            return True
        if rule.force is not None and find_broken(rule.force.value, rule) is None:
            return is_same(value, rule.force.value)
        return find_broken(value, rule) is None  # what is forced from outside is moved to one of these

    first = kind.coupled[0]
    number = number_type(kind, first)
    if number is None or number.minimum is None or number.maximum is None:
        return True
    values = (value for value in range(int(number.minimum), int(number.maximum) + 1) if permits(first, value))
    stream = {"stream": True} if is_stream else {}
    largest = max(values, default=None)
    return largest is None or kind.reconcile({first: largest, **stream}, (), permits) is not None


def _of_computed(policy: EffectivePolicy, models: Sequence[Model]) -> Iterator[Contradiction]:
    """Find bounds on virtual parameters that the smallest request which the other rules let through is above."""
    others = replace(policy, parameters={n: rule for n, rule in policy.parameters.items() if n not in COMPUTED})
    capped = {name: rule.max for name in COMPUTED if (rule := policy.parameters.get(name)) and rule.max}
    least: dict[str, dict[Endpoint, int]] = {name: {} for name in capped}
    for endpoint in REQUEST_TYPES if capped else ():
        requests = [(each, model) for model in models for each in smallest_requests(others, model, endpoint)]
        for name in capped:
            values = [value for each in requests if (value := COMPUTED[name][1](*each)) is not None]
            if values:
                least[name][endpoint] = min(values)
    for name, cap in capped.items():
        refused = {endpoint: value for endpoint, value in least[name].items() if value > cap.value}
        if refused:
            which = "" if len(refused) == len(least[name]) else f" to {' and '.join(refused)}"
            least_of_them = f"the smallest that the other rules let through has {min(refused.values())}"
            told = f"max: {cap.value} refuses every request{which}: {least_of_them}"
            yield Contradiction(cap.policy, f"parameters.{name}", told)


def _all_words(rule: MergedRule) -> str:
    """Say who says what of a parameter's values."""
    said = [f"policy {part.policy!r} {bound_words(part, rule)}" for part in rule.bounds]
    if rule.force is not None:
        said.append(f"policy {rule.force.policy!r} forces {written(rule.force.value)}")
    return " and ".join(said)


def _listed(policies: Sequence[str]) -> str:
    return " and ".join(map(repr, policies))
