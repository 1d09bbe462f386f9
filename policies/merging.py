"""How the policies of several levels combine into the one that applies to a principal (SPEC §4).

Levels come outermost first: organization, project, user, key. The stricter bound wins, and every part of a merged rule
remembers which policy it came from. Of `force` at one level and `forbid` at another the outer one stands, since an
inner level lifts nothing; but `forbid: reject` also stands within a `force`, as refusing is the stricter: what is
forced is written, and a client that sends anything else is refused. What a rule does to a request is in `parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from policies.limits import NamedLimit
from policies.policy import CacheSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.policy import Policy, Rule

BUILT_IN = "built-in"
"""What the policy is called where none is configured."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a rule says: the value, the policy that says it, and what happens to a request that differs."""

    value: Any  # a JSON value; a tuple of them for `allowed`; "reject" or "drop" for `forbid`
    policy: str
    on_violation: Literal["reject", "clamp"] = "reject"


@dataclass(frozen=True, slots=True)
class MergedRule:
    """What all levels together say of one parameter; a part that no level mentions is None.

    `force` excludes `forbid: drop`, and `forbid` excludes `default`. `bounds` are those of the parts that say which
    values are let through.
    """

    max: Part | None = None
    min: Part | None = None
    allowed: Part | None = None
    default: Part | None = None
    force: Part | None = None
    forbid: Part | None = None
    bounds: tuple[Part, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Prepare what every request asks for."""
        said = tuple(part for part in (self.max, self.min, self.allowed) if part is not None)
        object.__setattr__(self, "bounds", said)


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """What applies to one principal.

    `name` is the innermost policy's; `limits` are those of all levels, outermost first; `cache` is the innermost
    level's that says something, and `cache_policy` the policy it came from.
    """

    name: str = BUILT_IN
    parameters: Mapping[str, MergedRule] = field(default_factory=dict)
    limits: tuple[NamedLimit, ...] = ()
    cache: CacheSettings = field(default_factory=CacheSettings)
    cache_policy: str = BUILT_IN


def merge(policies: Sequence[tuple[str, Policy]]) -> EffectivePolicy:
    """Combine named policies, outermost level first. One that stands at several levels applies once."""
    once = dict(policies)
    caches = [(name, policy.cache) for name, policy in policies if policy.cache is not None]
    cache_policy, cache = caches[-1] if caches else (BUILT_IN, CacheSettings())
    return EffectivePolicy(
        name=policies[-1][0] if policies else BUILT_IN,
        parameters=_merge_parameters(once),
        limits=tuple(NamedLimit(name, limit) for name, policy in once.items() for limit in policy.limits),
        cache=cache,
        cache_policy=cache_policy,
    )


def _merge_parameters(policies: Mapping[str, Policy]) -> dict[str, MergedRule]:
    merged: dict[str, MergedRule] = {}
    for policy, configured in policies.items():
        for name, rule in configured.parameters.items():
            inner = as_merged(rule, policy)
            merged[name] = _merge_rules(merged[name], inner) if name in merged else inner
    return merged


def as_merged(rule: Rule, policy: str) -> MergedRule:
    """One level's rule by itself."""

    def part(value: Any) -> Part | None:  # noqa: ANN401  a JSON value
        return None if value is None else Part(value, policy, rule.on_violation)

    return MergedRule(*map(part, (rule.max, rule.min, rule.allowed, rule.default, rule.force, rule.forbid)))


def _merge_rules(outer: MergedRule, inner: MergedRule) -> MergedRule:
    force = outer.force or (None if outer.forbid else inner.force)
    forbid = _stronger(outer.forbid, inner.forbid)
    merged = MergedRule(
        max=_stricter([outer.max, inner.max], sign=1),
        min=_stricter([outer.min, inner.min], sign=-1),
        allowed=_common(outer.allowed, inner.allowed),
        default=inner.default or outer.default,
        force=force,
        forbid=None if force and forbid and forbid.value == "drop" else forbid,
    )
    return replace(merged, default=None) if merged.forbid else merged


def _stricter(parts: list[Part | None], *, sign: int) -> Part | None:
    """Return the bound that lets the least through (`sign` 1: the smallest); of equal ones, the one that refuses."""
    said = [part for part in parts if part is not None]
    return min(said, key=lambda part: (sign * part.value, part.on_violation == "clamp"), default=None)


def _common(outer: Part | None, inner: Part | None) -> Part | None:
    """Values that both levels allow, named after the inner level if that took any away."""
    if outer is None or inner is None:
        return outer or inner
    values = tuple(value for value in outer.value if any(is_same(value, other) for other in inner.value))
    named = outer if len(values) == len(outer.value) else inner
    is_refusing = "reject" in {outer.on_violation, inner.on_violation}
    return Part(values, named.policy, "reject" if is_refusing else "clamp")


def _stronger(outer: Part | None, inner: Part | None) -> Part | None:
    """Of two that forbid, the one that refuses, else the outer one."""
    said = [part for part in (outer, inner) if part is not None]
    return reduce(lambda a, b: b if (a.value, b.value) == ("drop", "reject") else a, said) if said else None


def is_same(one: Any, other: Any) -> bool:  # noqa: ANN401  JSON values
    """Tell whether two JSON values are the same: `1` and `1.0` are, `1` and `true` are not, at any depth."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    return bool(one == other)
