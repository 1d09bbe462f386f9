"""SPEC §4 restated for one parameter: rules of several levels, what they say together, and a verdict to gather it in.

A verdict holds what must and what may be refused, and for every member that may change a test of what it becomes. Knows
rules as an administrator writes them, no parameter, and no code of the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from oracle_validity import ABSENT
from second_reading import Number, number, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Policy = dict[str, Any]
Level = tuple[str, Policy]
"""A policy's name and what the configuration says of it."""


@dataclass
class Verdict:
    """What policy makes of a request. `must` and `may` refuse: names of policies by parameter."""

    must: dict[str, set[str]] = field(default_factory=dict)
    may: dict[str, set[str]] = field(default_factory=dict)
    wanted: dict[str, tuple[str, Callable[[Any], bool]]] = field(default_factory=dict)
    """For every member that may differ: what is wanted of it in words, and as a test. Absent is None."""
    kinds: set[str] = field(default_factory=set)
    """The kinds of rules that spoke, for counting."""

    def refuse(self, parameter: str, rules: Iterable[Rule]) -> None:
        self.must.setdefault(parameter, set()).update(rule.policy for rule in rules)

    def perhaps(self, parameter: str, rules: Iterable[Rule]) -> None:
        self.may.setdefault(parameter, set()).update(rule.policy for rule in rules)

    def want(self, parameter: str, words: str, test: Callable[[Any], bool]) -> None:
        self.wanted[parameter] = (words, test)


# ---------------------------------------------------------------- rules of several levels
@dataclass(frozen=True)
class Rule:
    """What one policy says of one parameter."""

    policy: str
    says: Mapping[str, Any]

    @property
    def rejects(self) -> bool:
        return self.says.get("on_violation", "reject") == "reject"

    def is_broken_by(self, value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        """Tell whether a value is outside this rule's bounds; what cannot be compared is."""
        says = self.says
        if "allowed" in says and not any(_means(value, each) for each in says["allowed"]):
            return True
        if not {"min", "max"} & set(says):
            return False
        if not isinstance(value, Number):
            return True
        return ("max" in says and value.value > exact(says["max"])) or (
            "min" in says and value.value < exact(says["min"])
        )


def exact(value: float) -> Decimal:
    return Decimal(repr(value))


def _means(value: Any, configured: Any) -> bool:  # noqa: ANN401  whatever JSON can say
    if isinstance(value, Number) and isinstance(configured, int | float) and not isinstance(configured, bool):
        return value.value == exact(configured)
    return type(value) is type(configured) and bool(value == configured)


def _json(value: Any) -> Any:  # noqa: ANN401  whatever YAML can say
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def rules_on(levels: Sequence[Level], parameter: str) -> list[Rule]:
    """Return the rules that bind a parameter: those marked `override` replace outer ones, observed ones only watch."""
    kept: list[Rule] = []
    for name, policy in levels:
        says = policy.get("parameters", {}).get(parameter)
        if says is None or says.get("mode") == "observe":
            continue
        if says.get("override") or policy.get("override"):
            kept = []
        kept.append(Rule(name, says))
    return kept


@dataclass(frozen=True)
class Bounds:
    """The bounds of several rules together."""

    rules: tuple[Rule, ...]

    @property
    def least(self) -> float | None:
        return max((rule.says["min"] for rule in self.rules if "min" in rule.says), default=None)

    @property
    def most(self) -> float | None:
        return min((rule.says["max"] for rule in self.rules if "max" in rule.says), default=None)

    @property
    def listed(self) -> list[Any] | None:
        """The values that every list allows and no bound forbids; None without a list."""
        lists = [rule.says["allowed"] for rule in self.rules if "allowed" in rule.says]
        return [each for each in lists[0] if self.hold(_json(each))] if lists else None

    def hold(self, value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        """Tell whether a value is within all of them."""
        return not self.broken_by(value)

    def broken_by(self, value: Any) -> list[Rule]:  # noqa: ANN401  whatever JSON can say
        return [rule for rule in self.rules if rule.is_broken_by(value)]

    @property
    def is_empty(self) -> bool:
        """Tell whether no value at all is within them."""
        if self.listed is not None:
            return not self.listed
        return self.least is not None and self.most is not None and self.least > self.most

    def tightest(self, value: Number) -> list[Rule]:
        """Return, of the rules that a value breaks, those whose bound is the tightest on its side."""
        broken = self.broken_by(value)
        tight = [
            rule
            for rule in broken
            if ("max" in rule.says and rule.says["max"] == self.most and value.value > exact(rule.says["max"]))
            or ("min" in rule.says and rule.says["min"] == self.least and value.value < exact(rule.says["min"]))
        ]
        return tight or broken

    def clamps_to(self, value: Number, result: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        """Tell whether a result is what clamping makes of a value: the nearest bound, or one of those allowed."""
        if not isinstance(result, Number) or not self.hold(result):
            return False
        if self.listed is not None:
            return True
        bound = self.most if self.most is not None and value.value > exact(self.most) else self.least
        return bound is not None and result.value == exact(bound)


@dataclass(frozen=True)
class Spoken:
    """What the rules on one parameter say besides bounds."""

    rules: tuple[Rule, ...]

    @property
    def bounds(self) -> Bounds:
        return Bounds(tuple(rule for rule in self.rules if {"min", "max", "allowed"} & set(rule.says)))

    def saying(self, word: str) -> list[Rule]:
        return [rule for rule in self.rules if word in rule.says]

    def values(self, word: str) -> list[Any]:
        return [_json(rule.says[word]) for rule in self.saying(word)]


def is_one_of(values: Sequence[Any]) -> Callable[[Any], bool]:
    return lambda sent: any(_means_same(sent, each) for each in values)


def _means_same(one: Any, other: Any) -> bool:  # noqa: ANN401  whatever JSON can say
    if isinstance(one, Number) and isinstance(other, Number):
        return one.value == other.value
    return same(one, other)


# ---------------------------------------------------------------- one parameter
def rule_one(verdict: Verdict, name: str, value: Any, spoken: Spoken, default: Any) -> None:  # noqa: ANN401
    """Say what the rules on one parameter make of its value; `default` is what the API means by none."""
    verdict.kinds.update(
        word for rule in spoken.rules for word in rule.says if word not in {"on_violation", "mode", "override"}
    )
    forbidden, forced, defaulted = spoken.saying("forbid"), spoken.values("force"), spoken.values("default")
    if forbidden:
        _rule_forbidden(verdict, name, value, spoken)
    elif forced:
        outside = [each for each in forced if not spoken.bounds.hold(each)]
        if outside:
            verdict.perhaps(name, spoken.rules)
        verdict.want(
            name,
            f"one of {forced}, forced",
            lambda sent: is_one_of(forced)(sent) or bool(outside and spoken.bounds.hold(sent)),
        )
    elif value is ABSENT and defaulted:
        outside = [each for each in defaulted if not spoken.bounds.hold(each)]
        if outside:
            verdict.perhaps(name, spoken.rules)
        verdict.want(
            name,
            f"one of {defaulted}, by default",
            lambda sent: spoken.bounds.hold(sent) and (bool(outside) or is_one_of(defaulted)(sent)),
        )
    elif value is not ABSENT:
        rule_bounds(verdict, name, value, spoken.bounds)
    elif default is not None:
        rule_meant(verdict, name, _json(default), spoken.bounds)


def _rule_forbidden(verdict: Verdict, name: str, value: Any, spoken: Spoken) -> None:  # noqa: ANN401
    forbidden, instead = spoken.saying("forbid"), spoken.values("force") + spoken.values("default")
    if value is not ABSENT and any(rule.says["forbid"] == "reject" for rule in forbidden):
        (verdict.perhaps if instead else verdict.refuse)(name, forbidden)
    if instead or spoken.bounds.is_empty:
        verdict.perhaps(name, spoken.rules)
    verdict.want(
        name,
        "forbidden",  # or what another level's bounds write where it is absent
        lambda sent: (
            sent is ABSENT
            or is_one_of(instead)(sent)
            or (bool(spoken.bounds.rules) and spoken.bounds.hold(sent) and not same(sent, value))
        ),
    )


def rule_bounds(verdict: Verdict, name: str, value: Any, bounds: Bounds) -> None:  # noqa: ANN401
    """Say what bounds make of a value that is sent or meant."""
    broken = bounds.broken_by(value)
    if not broken:
        return
    if not isinstance(value, Number) or bounds.is_empty or all(rule.rejects for rule in bounds.tightest(value)):
        verdict.refuse(name, bounds.rules)
    elif any(rule.rejects for rule in broken) or any("allowed" in rule.says and rule.rejects for rule in bounds.rules):
        verdict.perhaps(name, bounds.rules)
    verdict.want(name, f"{value} clamped", lambda sent: bounds.clamps_to(value, sent))


def rule_meant(verdict: Verdict, name: str, value: Any, bounds: Bounds) -> None:  # noqa: ANN401
    """Say what bounds make of the API's default: a value within them is written, or the request refused."""
    if bounds.hold(value):
        return
    (verdict.refuse if bounds.is_empty else verdict.perhaps)(name, bounds.rules)
    verdict.want(name, f"absent, which means {value}, bounded", bounds.hold)
