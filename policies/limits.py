"""Which limits bind a request, what each of them is asked for, and what it is charged in the end (SPEC §5).

Knows scopes and quantities; the arithmetic of windows is in `windows`, the counting in the store's scripts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from policies.charges import Charged
from policies.windows import MAX_COUNT, Calendar, Tank, Unwindowed, Window, make_tank, parse_window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from policies.catalog import Model
    from policies.charges import WorstCase
    from policies.policy import Limit
    from policies.principals import Principal
    from policies.requests.asked import EffectiveRequest
    from policies.usage import Usage

MORE_THAN_ANY: Final = MAX_COUNT + 1
"""Stands for every ask above what limits can tell apart."""

_SEPARATORS: Final = re.compile(r"[^A-Za-z0-9._]+")


class Taking(StrEnum):
    """When a limit is taken from; the words are those of `admit.lua`."""

    SPEND = "spend"
    """At admission, for good."""
    HOLD = "hold"
    """Held from admission on, until the settlement says how much it was."""
    MISS = "miss"
    """Held likewise, but not by answers from the cache."""


@dataclass(frozen=True, slots=True)
class NamedLimit:
    """One limit of one policy, prepared: `name` as configured or made from its settings, its window and tank.

    Raises ValueError for a `per` that is no window.
    """

    policy: str
    limit: Limit
    name: str = field(init=False)
    window: Window = field(init=False)
    tank: Tank = field(init=False)

    def __post_init__(self) -> None:
        """Prepare what every request needs."""
        window = parse_window(self.limit.per)
        object.__setattr__(self, "name", self.limit.name or made_name(self.limit))
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "tank", make_tank(window, self.limit.limit, self.limit.burst))

    @property
    def is_held(self) -> bool:
        """Whether the worst case is held until the answer has come, so that the request needs a token ceiling."""
        return self.limit.of == "tokens"

    @property
    def is_returned(self) -> bool:
        """Whether what is taken comes back as a whole when the request ends."""
        return isinstance(self.window, Unwindowed)

    @property
    def is_budget(self) -> bool:
        """Whether this is a budget, which no retry outlasts: a monthly limit (SPEC §5)."""
        return self.window is Calendar.MONTH

    def covers(self, model: str) -> bool:
        """Tell whether the limit is for this canonical model name."""
        patterns = self.limit.models
        return patterns is None or any(fnmatchcase(model, pattern) for pattern in patterns)


def made_name(limit: Limit) -> str:
    """Return the name of a limit that was given none, such as `requests-per-minute-by-user`."""
    per = () if limit.per is None else ("per", limit.per)
    models = () if limit.models is None else ("for", *limit.models)
    words = (limit.of, *per, "by", *limit.by, *models)
    return _SEPARATORS.sub("-", "-".join(words)).strip("-")


@dataclass(frozen=True, slots=True)
class BoundLimit:
    """One limit that binds one request.

    `name` is unique among the limits of one principal and goes out in headers; `policy` is where it was configured;
    `scope` the values of `by` in their order, such as `("alice",)`; `ask` how much the request needs at worst.
    `counter` names the count within its policy, for whomever it is bound: principals with other policies beside this
    one share it.
    """

    name: str
    policy: str
    limit: Limit
    scope: tuple[str, ...]
    ask: int
    counter: str
    named: NamedLimit

    @property
    def window(self) -> Window:
        """Over which time the limit counts."""
        return self.named.window

    @property
    def tank(self) -> Tank:
        """The limit in numbers."""
        return self.named.tank

    @property
    def is_taken_by_hits(self) -> bool:
        """Whether an answer from the cache needs room too: requests, concurrency, and what says `charge_hits: full`."""
        return self.limit.of != "tokens" or self.limit.charge_hits == "full"

    @property
    def taking(self) -> Taking:
        """When the limit is taken from."""
        if self.limit.of == "requests":
            return Taking.SPEND
        return Taking.HOLD if self.is_taken_by_hits else Taking.MISS

    @property
    def at_worst(self) -> int:
        """What the request takes if nobody ever tells the truth about it."""
        return 0 if self.named.is_returned else self.ask


def bind_limits(
    limits: Sequence[NamedLimit],
    principal: Principal,
    model: Model,
    effective: EffectiveRequest,
    worst: WorstCase,
) -> tuple[BoundLimit, ...]:
    """Return the limits that bind a request, in the order of the levels; a policy that applies twice counts once."""
    bound: dict[tuple[str, str, tuple[str, ...]], BoundLimit] = {}
    names: set[str] = set()
    for named in limits:
        if not named.covers(model.name):
            continue
        scope = tuple(_SCOPES[level](principal, model, effective) for level in named.limit.by)
        identity = (named.policy, named.name, scope)
        if identity in bound and bound[identity].limit == named.limit:
            continue
        while identity in bound:
            identity = (named.policy, identity[1] + "-also", scope)
        name = _free_name(identity[1], named.policy, names)
        names.add(name)
        ask = min(_ASKS[named.limit.of](worst), MORE_THAN_ANY)
        bound[identity] = BoundLimit(name, named.policy, named.limit, scope, ask, identity[1], named)
    return tuple(bound.values())


def needs_ceiling(limits: Sequence[NamedLimit], model: Model) -> bool:
    """Tell whether a limit for this model holds the worst case, so that a token ceiling has to be written."""
    return any(named.is_held and named.covers(model.name) for named in limits)


def taken(bound: BoundLimit, charged: Charged) -> int:
    """Return what a request takes from a limit once its charge is known; what is returned takes nothing."""
    return min(_CHARGES[bound.limit.of](charged), MAX_COUNT)


def taken_by_hit(bound: BoundLimit, usage: Usage | None) -> int:
    """Return what an answer from the cache takes from a limit, given what was reported when it was made.

    Tokens only where the policy says so; what nobody reported is then taken as asked (SPEC §5).
    """
    if bound.taking is Taking.MISS:
        return 0
    if usage is None and bound.limit.of == "tokens":
        return bound.ask
    return taken(bound, Charged() if usage is None else Charged(usage.input_tokens, usage.output_tokens))


def level_words(bound: BoundLimit) -> str:
    """Return whose limit it is, such as `user alice` or `project research and model m`."""
    words = (
        f"{level.replace('_', ' ')} {value or '(none)'}"
        for level, value in zip(bound.limit.by, bound.scope, strict=True)
    )
    return " and ".join(words)


def _free_name(name: str, policy: str, names: set[str]) -> str:
    if name not in names:
        return name
    name = f"{name}-in-{_SEPARATORS.sub('-', policy)}"
    while name in names:
        name += "-also"
    return name


def _owner(principal: Principal) -> str:
    """Return the owner so that a user and a service account of the same id are told apart."""
    return f"service-account:{principal.owner}" if principal.is_service_account else principal.owner


_SCOPES: Final[Mapping[str, Callable[[Principal, Model, EffectiveRequest], str]]] = {
    "organization": lambda principal, _model, _effective: principal.organization,
    "project": lambda principal, _model, _effective: principal.project,
    "user": lambda principal, _model, _effective: _owner(principal),
    "key": lambda principal, _model, _effective: principal.key,
    "end_user": lambda _principal, _model, effective: effective.view.end_user or "",
    "model": lambda _principal, model, _effective: model.name,
}

_ASKS: Final[Mapping[str, Callable[[WorstCase], int]]] = {
    "requests": lambda _worst: 1,
    "tokens": lambda worst: worst.tokens,
    "concurrency": lambda _worst: 1,
}

_CHARGES: Final[Mapping[str, Callable[[Charged], int]]] = {
    "requests": lambda _charged: 1,
    "tokens": lambda charged: charged.tokens,
    "concurrency": lambda _charged: 0,
}
