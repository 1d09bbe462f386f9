"""What in a policy changes nothing, though somebody wrote it down: for people to hear of, never a reason to refuse.

Whether a part of a rule does anything is found by leaving it out: where rules without it do the same, it says nothing.
Only what is certain is told, for the endpoints that have the parameter, and nothing of levels that repeat each other's
words. What contradicts each other so that requests are refused is in `contradictions`, what a rule may not say at all
in `rule_checks`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from policies.bounds import find_broken, is_number, written
from policies.computed import COMPUTED
from policies.merging import Forced, MergedRule, Part, as_merged, is_same, merge, merge_rules
from policies.requests.ceilings import CEILING
from policies.requests.dialects import REQUEST_TYPES
from policies.requests.fields import expectation, number_type
from policies.requests.meaning import vocabulary
from policies.rule_checks import PARTS, kinds_with

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from policies.policy import Policy, Rule
    from policies.requests.fields import EndpointRequest, NumberType

Levels: TypeAlias = "Sequence[tuple[str, Policy]]"
"""Named policies, outermost first."""

_BOUNDS: Final = frozenset({"max", "min", "allowed"})
_OR_OVERRIDE: Final = "leave it out, or say override: true"
_OR_WITHIN: Final = "give one within that, or say override: true"
_OR_STRICTER: Final = "leave it out, or observe what is stricter"
_TELLS_NOTHING: Final = ("tells nothing", "tell nothing")
_IS_MOVED: Final = ("is never written as it stands", "are never written as they stand")
_LEAST_COMPUTED: Final = {"prompts": 1}
"""Least values of virtual parameters, where they are not 0."""
_MOST_LISTED: Final = 256


class Idle(NamedTuple):
    """Something in a policy that changes nothing.

    `place` is where it stands below the policy, such as `parameters.n`; `said` what stands there, `because` why it is
    idle, `right` what to do; `verdict` says of one and of several that they are idle.
    """

    place: str
    said: str
    because: str
    right: str = "leave it out"
    verdict: tuple[str, str] = ("changes nothing", "change nothing")


def idle_by_itself(policy: Policy) -> list[Idle]:
    """Return what changes nothing wherever the policy applies."""
    found = []
    for name, rule in policy.parameters.items():
        # What it forces may not hold within other levels, where its bounds do.
        bounding = rule.model_copy(update={"force": None, "pseudonymise": False})
        found += [
            Idle(f"parameters.{name}", _words(rule, part), _own_reason(name, rule, part))
            for part in _idle_parts(name, bounding, MergedRule())
            if part in _BOUNDS
        ]
        if rule.on_violation == "clamp" and not (rule.add or _BOUNDS.intersection(_said(rule))):
            found.append(Idle(f"parameters.{name}", "on_violation: clamp", "there is no max, min or allowed beside it"))
        if rule.override and policy.override:
            found.append(Idle(f"parameters.{name}", "override: true", "the whole policy says override"))
    return found


def idle_within(outer: Levels, policy: Policy) -> list[Idle]:
    """Return what changes nothing where these levels stand outside of the policy, some of which say stricter things."""
    merged = merge(outer)
    found = [*_idle_overrides(outer, policy), *_idle_unknown(outer, policy)]
    for name, rule in policy.parameters.items():
        beside = (merged.parameters if rule.mode == "enforce" else merged.observed).get(name)
        if beside is None or not beside.parts or rule.override or policy.override:
            continue
        found += [
            Idle(f"parameters.{name}", _words(rule, part), _reason(name, rule, part, beside), _OR_OVERRIDE)
            for part in _idle_parts(name, rule, beside)
            if not _is_repeated(rule, part, beside)
        ]
        found += _moved(name, rule, beside)
    return found


def idle_observed(levels: Levels, policy: Policy) -> list[Idle]:
    """Return the observed rules of a policy that can never tell anything, as all levels together enforce as much."""
    enforced = merge(levels).parameters
    found = []
    for name, rule in policy.parameters.items():
        beside = enforced.get(name)
        if rule.mode == "observe" and beside is not None and beside.parts:
            # What is enforced comes first, so that only how far a bound reaches makes a difference.
            reaching = rule.model_copy(update={"on_violation": "clamp"})
            beside = replace(beside, overrides=False)
            idle = _idle_parts(name, reaching, beside, is_first=True)
            is_written = rule.default is not None and beside.forbid is not None  # into what was dropped
            if idle == _said(rule) and not is_written:
                because = _reason(name, rule, idle[0], beside)
                found.append(Idle(f"parameters.{name}", "mode: observe", because, _OR_STRICTER, _TELLS_NOTHING))
    return found


def _idle_parts(name: str, rule: Rule, beside: MergedRule, *, is_first: bool = False) -> list[str]:
    """Return the parts of a rule without which it does the same inside of another, or outside (`is_first`)."""

    def together(own: Rule) -> tuple[object, ...]:
        one = as_merged(own, "")
        return _essence(name, merge_rules(one, beside) if is_first else merge_rules(beside, one))

    whole = together(rule)
    return [part for part in _said(rule) if together(_without(rule, part)) == whole]


def _essence(name: str, rule: MergedRule) -> tuple[object, ...]:
    """Return what a rule does to requests, as a value that is equal for rules that certainly do the same."""
    rule = _without_idle_bounds(name, rule)
    if rule.force is not None and _is_always_forced(name, rule, rule.force):
        # What is refused is refused all the same, and where the parameter is none, nothing is forced.
        is_kept = rule.forbid is not None and (
            rule.forbid.value == "reject" or len(kinds_with(name)) < len(REQUEST_TYPES)
        )
        rule = MergedRule(force=rule.force, add=rule.add, forbid=rule.forbid if is_kept else None)
    elif rule.forbid is not None and rule.force is None and not _is_bound_when_absent(name, rule):
        rule = MergedRule(forbid=rule.forbid, add=rule.add)
    ends = (part and (part.value, part.on_violation) for part in (rule.max, rule.min))
    lists = sorted((repr(sorted(map(repr, part.value))), part.on_violation) for part in rule.allowed)
    added = ((part.value, part.on_violation) for part in rule.add)
    others = (part and repr(part.value) for part in (rule.default, rule.force, rule.forbid, rule.strip))
    return (*ends, *lists, *added, *others)


def _without_idle_bounds(name: str, rule: MergedRule) -> MergedRule:
    """Take out the bounds that every valid value is within, or that a list implies."""
    lists: tuple[Part, ...] = ()
    for part in sorted(rule.allowed, key=lambda each: (len(each.value), each.on_violation == "clamp")):
        if not _covers_all(name, part) and not any(_is_sublist(kept, part) for kept in lists):
            lists = (*lists, part)

    def kept(said: str, bound: Part | None) -> Part | None:
        is_idle = bound and (_is_out_of_reach(name, said, bound.value) or _is_implied(said, bound, rule.allowed))
        return None if is_idle else bound

    return replace(rule, max=kept("max", rule.max), min=kept("min", rule.min), allowed=lists)


def _is_sublist(one: Part, other: Part) -> bool:
    """Tell whether a list leaves nothing to refuse or clamp to another that is at least as long."""
    is_weaker = (other.on_violation, one.on_violation) == ("reject", "clamp")
    return not is_weaker and all(any(is_same(value, each) for each in other.value) for value in one.value)


def _is_implied(said: str, bound: Part, lists: Sequence[Part]) -> bool:
    return any(
        (bound.on_violation, each.on_violation) != ("reject", "clamp")
        and all(is_number(value) and _is_in(said, value, bound.value) for value in each.value)
        for each in lists
    )


def _is_in(said: str, value: float, bound: float) -> bool:
    return value <= bound if said == "max" else value >= bound


def _is_out_of_reach(name: str, part: str, value: float) -> bool:
    """Tell whether no valid value is beyond a bound; a token ceiling may be open, which every bound closes."""
    if name in COMPUTED:
        return part == "min" and value <= _LEAST_COMPUTED.get(name, 0)
    kinds = [kind for kind in kinds_with(name) if not _is_boolean(kind, name)]
    if name == CEILING or not kinds:
        return False
    ends = [_end(number_type(kind, name), part) for kind in kinds]
    return all(end is not None and _is_in(part, end, value) for end in ends)


def _end(number: NumberType | None, part: str) -> float | None:
    if number is None:
        return None
    return number.maximum if part == "max" else number.minimum


def _covers_all(name: str, allowed: Part) -> bool:
    valid = [_valid_values(kind, name) for kind in kinds_with(name)]
    return bool(valid) and all(
        values is not None and all(any(is_same(value, other) for other in allowed.value) for value in values)
        for values in valid
    )


def _valid_values(kind: type[EndpointRequest], name: str) -> Sequence[bool | int] | None:
    """Return every value that an endpoint takes, where these are few."""
    if _is_boolean(kind, name):
        return (False, True)
    number = number_type(kind, name)
    if number is None or not number.is_integer or number.minimum is None or number.maximum is None:
        return None
    values = range(int(number.minimum), int(number.maximum) + 1)
    return values if len(values) <= _MOST_LISTED else None


def _is_always_forced(name: str, rule: MergedRule, force: Part) -> bool:
    """Tell whether what is forced is written as it stands into every request that has such a parameter."""
    if force.value is Forced.PSEUDONYM:
        return not rule.bounds
    value = force.value
    return find_broken(value, rule) is None and all(kind.takes(name, value) for kind in kinds_with(name))


def _is_bound_when_absent(name: str, rule: MergedRule) -> bool:
    """Tell whether a bound may have something written where nothing is sent: for a ceiling, or the API's default."""
    implied = [vocabulary(kind).defaults.get(name) for kind in kinds_with(name)]
    is_outside = any(value is not None and find_broken(value, rule) for value in implied)
    return bool(rule.bounds) and (name == CEILING or is_outside)


def _idle_overrides(outer: Levels, policy: Policy) -> Iterator[Idle]:
    named = {(name, rule.mode) for _, each in outer for name, rule in each.parameters.items()}
    for name, rule in policy.parameters.items():
        if rule.override and not policy.override and (name, rule.mode) not in named:
            yield Idle(f"parameters.{name}", "override: true", _nothing_to_override(name, rule, named))
    is_said = any((name, rule.mode) in named for name, rule in policy.parameters.items())
    is_said |= any(policy.models and each.models for _, each in outer)
    is_said |= any(policy.unknown_parameters and each.unknown_parameters for _, each in outer)
    if policy.override and not is_said:
        yield Idle("override", "override: true", "no outer level says anything that it replaces")


def _nothing_to_override(name: str, rule: Rule, named: Collection[tuple[str, str]]) -> str:
    """Say why a rule replaces nothing: rules that are enforced and rules that are observed combine among themselves."""
    if rule.mode == "observe":
        return f"no outer level observes {name}"
    if (name, "observe") in named:
        return f"outer levels only observe {name}"
    return f"no outer level says anything of {name}"


def _idle_unknown(outer: Levels, policy: Policy) -> Iterator[Idle]:
    said, strictest = policy.unknown_parameters, merge(outer).unknown
    if said is None or strictest is None or policy.override or said == strictest.value:
        return
    if merge([*outer, ("", policy)]).unknown == strictest:
        because = f"policy {strictest.policy!r} says {strictest.value}, which is stricter"
        yield Idle("unknown_parameters", said, because, _OR_OVERRIDE)


def _moved(name: str, rule: Rule, beside: MergedRule) -> Iterator[Idle]:
    """Find what a rule writes that never comes out as it stands, as an outer level's bound moves it."""
    for said, value in (("default", rule.default), ("force", rule.force)):
        merged = merge_rules(beside, as_merged(rule, ""))
        part = merged.default if said == "default" else merged.force
        broken = find_broken(value, merged) if part is not None and part.policy == "" and is_number(value) else None
        if broken is not None and broken.policy:
            because = f"policy {broken.policy!r} {bound_words(broken, merged)}"
            yield Idle(f"parameters.{name}", f"{said}: {value}", because, _OR_WITHIN, _IS_MOVED)


def _is_boolean(kind: type[EndpointRequest], name: str) -> bool:
    return expectation(kind, name) == "true or false"


def _said(rule: Rule) -> list[str]:
    """Return the parts in which a rule says something."""
    return [part for part in PARTS if getattr(rule, part) is not type(rule).model_fields[part].default]


def _without(rule: Rule, part: str) -> Rule:
    return rule.model_copy(update={part: type(rule).model_fields[part].default})


def _is_repeated(rule: Rule, part: str, beside: MergedRule) -> bool:
    """Tell whether a level only says again what stands outside of it, which may be meant."""
    one = as_merged(rule, "")
    if part == "add":
        return True
    if part == "allowed":
        return any(_is_sublist(own, each) for own in one.allowed for each in beside.allowed)
    own, theirs = _part_of(part, one), _part_of(part, beside)
    return own is not None and theirs is not None and is_same(own.value, theirs.value)


def _part_of(part: str, rule: MergedRule) -> Part | None:
    """Return what a rule says under the name of a setting; of lists, none."""
    named: Mapping[str, Part | None] = {
        "max": rule.max,
        "min": rule.min,
        "default": rule.default,
        "force": rule.force,
        "pseudonymise": rule.force,
        "forbid": rule.forbid,
        "strip_trailing_space": rule.strip,
    }
    return named.get(part)


def _own_reason(name: str, rule: Rule, part: str) -> str:
    if part != "allowed" and not _is_out_of_reach(name, part, getattr(rule, part)):
        return "allowed says more"
    return f"{name} {_valid_words(name)} anyway"


def _valid_words(name: str) -> str:
    if name in COMPUTED:
        return f"is at least {_LEAST_COMPUTED.get(name, 0)}"
    words = {expectation(kind, name): 0 for kind in kinds_with(name)}
    return f"must be {' or '.join(words)}"


def _reason(name: str, rule: Rule, part: str, beside: MergedRule) -> str:
    """Say which outer level makes a part idle."""
    if beside.force is not None:
        return f"policy {beside.force.policy!r} {force_words(beside.force, name)}"
    if beside.forbid is not None:
        return f"policy {beside.forbid.policy!r} forbids {name}"
    stricter = _stricter(rule, part, beside)
    if stricter in beside.bounds:
        return f"policy {stricter.policy!r} {bound_words(stricter, beside)}"
    return f"policy {stricter.policy!r} says {part}: {_value_words(stricter.value)}"


def _stricter(rule: Rule, part: str, beside: MergedRule) -> Part:
    """Return what stands outside of a rule and leaves nothing to one of its parts."""
    own, same = getattr(rule, part), _part_of(part, beside)
    found: list[Part] = []
    if part == "allowed":
        found = [each for each in beside.allowed if _is_sublist(each, Part(own, "", rule.on_violation))]
    elif part not in _BOUNDS or (same is not None and _is_in(part, same.value, own)):
        found = [same] if same else []
    else:
        found = [each for each in beside.allowed if _is_implied(part, Part(own, "", rule.on_violation), [each])]
    return [*found, *beside.parts][0]


def force_words(force: Part, name: str) -> str:
    """Say what is forced on a parameter."""
    return f"pseudonymises {name}" if force.value is Forced.PSEUDONYM else f"forces {written(force.value)}"


def bound_words(part: Part, rule: MergedRule) -> str:
    """Say what a bound of a rule lets through."""
    if part in rule.allowed:
        return f"allows {_value_words(part.value)}"
    return f"says {'max' if part is rule.max else 'min'}: {part.value}"


def _words(rule: Rule, part: str) -> str:
    """Write a part as it stands in a configuration, such as `max: 4`."""
    return f"{part}: {_value_words(getattr(rule, part))}"


def _value_words(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return value if isinstance(value, str) else written(value)
