"""How the policies of several levels combine into the one that applies to a principal (SPEC §4).

Levels come outermost first: organization, project, user, key. The stricter bound wins, and every part of a merged rule
remembers which policy it came from; a rule that is marked `override` replaces what stands outside of it. Of `force` at
one level and `forbid` at another the outer one stands, since an inner level lifts nothing; but what is forbidden within
a `force` is kept for endpoints that do not take the forced value, and `forbid: reject` holds for others too: what is
forced is written, and a client that sends anything else is refused. A parameter that a rule of any level names is
unknown to none of them. Rules that are observed combine among themselves. What a rule does to a request is in
`parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Literal

from policies.limits import NamedLimit
from policies.policy import CacheSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.policy import Policy, Rule

BUILT_IN = "built-in"
"""What the policy is called where none is configured."""


class Forced(Enum):
    """What a rule may force besides a value of its own."""

    PSEUDONYM = "a pseudonym of the principal"


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a rule says: the value, the policy that says it, and what happens to a request that differs.

    The value is a JSON value; a tuple of them for `allowed`; `Forced`, too, for `force`; "reject" or "drop" for
    `forbid`.
    """

    value: Any
    policy: str
    on_violation: Literal["reject", "clamp"] = "reject"


@dataclass(frozen=True, slots=True)
class MergedRule:
    """What all levels together say of one parameter; a part that no level mentions is None or empty.

    `forbid` excludes `default`. `bounds` are those of the parts that say which values are let through; `allowed` are
    the lists of all levels, and `listed` the values that stand on every one, None without a list. `overrides` tells
    that levels outside of these are not listened to.
    """

    max: Part | None = None
    min: Part | None = None
    allowed: tuple[Part, ...] = ()
    default: Part | None = None
    force: Part | None = None
    forbid: Part | None = None
    strip: Part | None = None
    add: tuple[Part, ...] = ()
    overrides: bool = False
    bounds: tuple[Part, ...] = field(init=False)
    listed: tuple[Any, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        """Prepare what every request asks for."""
        ends = tuple(part for part in (self.max, self.min) if part is not None)
        object.__setattr__(self, "bounds", (*ends, *self.allowed))
        object.__setattr__(self, "listed", _common(self.allowed))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that is said."""
        single = (self.default, self.force, self.forbid, self.strip)
        return (*self.bounds, *(part for part in single if part is not None), *self.add)


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """What applies to one principal.

    `name` is the innermost policy's. `parameters` are the rules that are enforced, `observed` those that are only
    observed. A model must match each of `models`, whose values are tuples of patterns; `unknown` says "drop" or
    "reject", None that unknown parameters are forwarded. `limits` are those of all levels, outermost first; `cache` is
    the innermost level's that says something, and `cache_policy` the policy it came from.
    """

    name: str = BUILT_IN
    parameters: Mapping[str, MergedRule] = field(default_factory=dict)
    observed: Mapping[str, MergedRule] = field(default_factory=dict)
    models: tuple[Part, ...] = ()
    unknown: Part | None = None
    limits: tuple[NamedLimit, ...] = ()
    cache: CacheSettings = field(default_factory=CacheSettings)
    cache_policy: str = BUILT_IN

    def refusing_model(self, model: str) -> Part | None:
        """Return the first list of models that this canonical name is not on; None where it is on all."""
        for part in self.models:
            if not any(fnmatchcase(model, pattern) for pattern in part.value):
                return part
        return None


def merge(policies: Sequence[tuple[str, Policy]]) -> EffectivePolicy:
    """Combine named policies, outermost level first. The limits of one that stands at several levels apply once."""
    once = dict(policies)
    caches = [(name, policy.cache) for name, policy in policies if policy.cache is not None]
    cache_policy, cache = caches[-1] if caches else (BUILT_IN, CacheSettings())
    return EffectivePolicy(
        name=policies[-1][0] if policies else BUILT_IN,
        parameters=_merge_parameters(policies, "enforce"),
        observed=_merge_parameters(policies, "observe"),
        models=_merge_models(policies),
        unknown=_merge_unknown(policies),
        limits=tuple(NamedLimit(name, limit) for name, policy in once.items() for limit in policy.limits),
        cache=cache,
        cache_policy=cache_policy,
    )


def _merge_parameters(policies: Sequence[tuple[str, Policy]], mode: str) -> dict[str, MergedRule]:
    merged: dict[str, MergedRule] = {}
    for policy, configured in policies:
        for name, rule in configured.parameters.items():
            if rule.mode == mode:
                inner = as_merged(rule, policy, overrides=rule.override or configured.override)
                merged[name] = merge_rules(merged[name], inner) if name in merged else inner
    return merged


def _merge_models(policies: Sequence[tuple[str, Policy]]) -> tuple[Part, ...]:
    lists: tuple[Part, ...] = ()
    for name, policy in policies:
        if policy.models is not None:
            lists = (*(() if policy.override else lists), Part(policy.models, name))
    return lists


def _merge_unknown(policies: Sequence[tuple[str, Policy]]) -> Part | None:
    strictest: Part | None = None
    for name, policy in policies:
        said = policy.unknown_parameters
        if said is not None and (
            strictest is None or policy.override or _STRICTNESS[said] > _STRICTNESS[strictest.value]
        ):
            strictest = Part(said, name)
    return None if strictest is None or strictest.value == "forward" else strictest


_STRICTNESS: Final = {"forward": 0, "drop": 1, "reject": 2}


def as_merged(rule: Rule, policy: str, *, overrides: bool = False) -> MergedRule:
    """One level's rule by itself."""

    def part(value: Any) -> Part | None:  # noqa: ANN401  a JSON value
        return None if value is None else Part(value, policy, rule.on_violation)

    return MergedRule(
        max=part(rule.max),
        min=part(rule.min),
        allowed=() if rule.allowed is None else (Part(rule.allowed, policy, rule.on_violation),),
        default=part(rule.default),
        force=part(Forced.PSEUDONYM if rule.pseudonymise else rule.force),
        forbid=part(rule.forbid),
        strip=part(rule.strip_trailing_space or None),
        add=tuple(Part(text, policy, rule.on_violation) for text in dict.fromkeys(rule.add or ())),
        overrides=overrides,
    )


def merge_rules(outer: MergedRule, inner: MergedRule) -> MergedRule:
    """Combine what two levels say of one parameter; associative, and without `override` never looser than either."""
    if inner.overrides:
        return inner
    merged = MergedRule(
        max=_stricter([outer.max, inner.max], sign=1),
        min=_stricter([outer.min, inner.min], sign=-1),
        allowed=(*outer.allowed, *inner.allowed),
        default=inner.default or outer.default,
        force=outer.force or (None if outer.forbid else inner.force),
        forbid=_stronger(outer.forbid, inner.forbid),
        strip=outer.strip or inner.strip,
        add=_all_added(outer.add, inner.add),
        overrides=outer.overrides,
    )
    return replace(merged, default=None) if merged.forbid else merged


def _stricter(parts: list[Part | None], *, sign: int) -> Part | None:
    """Return the bound that lets the least through (`sign` 1: the smallest); of equal ones, the one that refuses."""
    said = [part for part in parts if part is not None]
    return min(said, key=lambda part: (sign * part.value, part.on_violation == "clamp"), default=None)


def _common(lists: tuple[Part, ...]) -> tuple[Any, ...] | None:
    """Return the values that stand on every list; None without one."""
    if not lists:
        return None
    first, *others = (each.value for each in lists)
    return tuple(v for v in first if all(any(is_same(v, other) for other in each) for each in others))


def _stronger(outer: Part | None, inner: Part | None) -> Part | None:
    """Of two that forbid, the one that refuses, else the outer one."""
    said = [part for part in (outer, inner) if part is not None]
    return reduce(lambda a, b: b if (a.value, b.value) == ("drop", "reject") else a, said) if said else None


def _all_added(outer: tuple[Part, ...], inner: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return every text once, named after the outer level; one that either level refuses for is refused for."""
    added = {part.value: part for part in outer}
    for part in inner:
        known = added.setdefault(part.value, part)
        if part.on_violation == "reject":
            added[part.value] = replace(known, on_violation="reject")
    return tuple(added.values())


def is_same(one: Any, other: Any) -> bool:  # noqa: ANN401  JSON values
    """Tell whether two JSON values are the same: `1` and `1.0` are, `1` and `true` are not, at any depth."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    return bool(one == other)
