"""Which limits bind a request, what each of them is asked for, and what it is charged in the end (SPEC §5).

Knows scopes and when a limit is taken from; what is counted is in `quantities`, the arithmetic of windows in `windows`,
the counting in the store's scripts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from policies.charges import WorstCase
from policies.errors import InvalidRequest
from policies.quantities import QUANTITIES, OnStoreFailure, Quantity
from policies.windows import MAX_COUNT, Calendar, Tank, Unwindowed, Window, make_tank, parse_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from policies.catalog import Model
    from policies.charges import Charged
    from policies.policy import Limit
    from policies.principals import Principal

MORE_THAN_ANY: Final = MAX_COUNT + 1
"""Stands for every ask above what limits can tell apart."""

_LEAST: Final = WorstCase(0, 0, 0)
_SEPARATORS: Final = re.compile(r"[^A-Za-z0-9._]+")


class Taking(StrEnum):
    """When a limit is taken from, and by whom; the words are those of `admit.lua`.

    Of a limit that says `hold: none` nothing is held, and the settlement takes all.
    """

    SPEND = "spend"
    """At admission, for good."""
    HOLD = "hold"
    """Held from admission on, until the settlement says how much it was."""
    MISS = "miss"
    """Held likewise, but not by answers from the cache."""


@dataclass(frozen=True, slots=True)
class NamedLimit:
    """One limit of one policy, prepared: `name` as configured or made from its settings, its window and tank.

    `quota` is the limit as it is counted: in whole micro-dollars where it is one of usd. `is_returned`: what is taken
    comes back as a whole when the request ends. `is_observed`: the limit only counts, and tells what it would have
    refused. `waits`: a request that has no room waits for some. `holds`: room is held for what a request takes at
    worst; else there only has to be some left. Raises ValueError for a `per` that is no window.
    """

    policy: str
    limit: Limit
    name: str = field(init=False)
    quantity: Quantity = field(init=False)
    quota: int = field(init=False)
    window: Window = field(init=False)
    tank: Tank = field(init=False)
    is_returned: bool = field(init=False)
    is_observed: bool = field(init=False)
    waits: bool = field(init=False)
    holds: bool = field(init=False)

    def __post_init__(self) -> None:
        """Prepare what every request needs."""
        quantity, window = QUANTITIES[self.limit.of], parse_window(self.limit.per)
        quota = quantity.count(self.limit.limit)
        burst = None if self.limit.burst is None else quantity.count(self.limit.burst)
        object.__setattr__(self, "name", self.limit.name or made_name(self.limit))
        object.__setattr__(self, "quantity", quantity)
        object.__setattr__(self, "quota", quota)
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "tank", make_tank(window, quota, burst))
        object.__setattr__(self, "is_returned", isinstance(window, Unwindowed))
        object.__setattr__(self, "is_observed", self.limit.mode == "observe")
        object.__setattr__(self, "waits", self.limit.on_exceed == "wait")
        object.__setattr__(self, "holds", self.limit.hold == "worst_case")

    @property
    def is_budget(self) -> bool:
        """Whether this is a budget, which no retry outlasts: a limit of usd, or a monthly one (SPEC §5)."""
        return self.quantity.is_budget or self.window is Calendar.MONTH

    @property
    def on_store_failure(self) -> OnStoreFailure:
        """What the limit does while the store is away, as configured or by its quantity's default (SPEC §10).

        One that is observed denies nothing, and counts in the process instead.
        """
        does = self.limit.on_store_failure or self.quantity.on_store_failure
        return "local" if self.is_observed and does == "deny" else does

    def needed(self, worst: WorstCase) -> int:
        """Return how much room there has to be for a request: for its worst case, or for anything at all."""
        return min(self.quantity.asks(worst), MORE_THAN_ANY) if self.holds else 1

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


class BoundLimit(msgspec.Struct, frozen=True):
    """One limit that binds one request.

    `name` is unique among the limits of one principal and goes out in headers; `policy` is where it was configured;
    `scope` the values of `by` in their order, such as `("alice",)`; `ask` how much room the request needs, and `worst`
    how much it takes at worst, as far as that is known, in the unit of `named.quota`.
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
    worst: int

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
        return self.named.quantity.is_taken_by_hits or self.limit.charge_hits == "full"

    @property
    def taking(self) -> Taking:
        """When the limit is taken from."""
        if self.named.quantity.is_spent_at_once:
            return Taking.SPEND
        return Taking.MISS if self.is_for_misses else Taking.HOLD

    @property
    def is_for_misses(self) -> bool:
        """Whether an answer from the cache needs no room in it."""
        return not self.is_taken_by_hits

    @property
    def is_observed(self) -> bool:
        """Whether the limit refuses nothing."""
        return self.named.is_observed

    @property
    def takes(self) -> int:
        """What is spent or held at admission: all that was asked for, or nothing."""
        return self.ask if self.named.holds else 0

    @property
    def at_worst(self) -> int:
        """What the request takes if nobody ever tells the truth about it."""
        return 0 if self.named.is_returned else self.worst


def bind_limits(  # noqa: PLR0913  whom it binds and what it asks
    limits: Sequence[NamedLimit],
    principal: Principal,
    model: Model,
    end_user: str | None,
    worst: WorstCase,
    *,
    observed_worst: WorstCase | None = None,
) -> tuple[BoundLimit, ...]:
    """Return the limits that bind a request, in the order of the levels; a policy that applies twice counts once.

    `end_user` is the one that the client named; `observed_worst` the worst case for limits that are observed, where it
    is another: they close no ceiling. Raises InvalidRequest where a limit counts what a model without a price
    costs.
    """
    values = _values_of_levels(principal, model, end_user)
    bound: dict[tuple[str, str, tuple[str, ...]], BoundLimit] = {}
    names: set[str] = set()
    for named in limits:
        if not named.covers(model.name):
            continue
        if named.quantity.needs_price:
            _check_price(named, model)
        scope = tuple(map(values.__getitem__, named.limit.by))
        identity = (named.policy, named.name, scope)
        if identity in bound and bound[identity].limit == named.limit:
            continue
        while identity in bound:
            identity = (named.policy, identity[1] + "-also", scope)
        name = _free_name(identity[1], named.policy, names)
        names.add(name)
        most = observed_worst if named.is_observed and observed_worst is not None else worst
        bound[identity] = BoundLimit(
            name,
            named.policy,
            named.limit,
            scope,
            ask=named.needed(most),
            counter=identity[1],
            named=named,
            worst=min(named.quantity.asks(most), MORE_THAN_ANY),
        )
    return tuple(bound.values())


class Standing(NamedTuple):
    """A count that requests of a principal go against, bound as for the first of the models that it counts, by name."""

    bound: BoundLimit
    models: tuple[str, ...]


def find_standings(
    limits: Sequence[NamedLimit], principal: Principal, models: Iterable[Model], end_user: str | None
) -> tuple[Standing, ...]:
    """Return the limits that bind requests of a principal for any of these models, in the order of `limits`.

    `end_user` is the one that the requests name. Left out are limits by user or key where the principal has none, and
    of a limit of what requests cost the models without a price, which nobody gets under it.
    """
    own = [named for named in limits if _is_ones_own(named, principal)]
    found: dict[tuple[int, str, tuple[str, ...]], tuple[BoundLimit, list[str]]] = {}
    for model in models:
        binding = [named for named in own if _can_count(named, model)]
        for bound in bind_limits(binding, principal, model, end_user, _LEAST):
            count = own.index(bound.named), bound.counter, bound.scope
            found.setdefault(count, (bound, []))[1].append(model.name)
    in_order = sorted(found.items(), key=lambda each: each[0][0])
    return tuple(Standing(bound, tuple(names)) for _, (bound, names) in in_order)


def needs_ceiling(limits: Sequence[NamedLimit], model: Model) -> bool:
    """Tell whether a limit for this model holds what depends on the token ceiling, so that one has to be written."""
    return any(named.quantity.needs_ceiling and _is_held_for(named, model) for named in limits)


def needs_input(limits: Sequence[NamedLimit], model: Model) -> bool:
    """Tell whether a limit for this model holds what depends on the input, so that its size has to be known."""
    return any(named.quantity.needs_input and _is_held_for(named, model) for named in limits)


def needs_candidates(limits: Sequence[NamedLimit], model: Model) -> bool:
    """Tell whether a limit for this model holds what depends on how many candidates are asked for."""
    return any(named.quantity.needs_candidates and _is_held_for(named, model) for named in limits)


def _is_held_for(named: NamedLimit, model: Model) -> bool:
    """Tell whether a limit may refuse requests for a model by their worst case."""
    return named.holds and not named.is_observed and named.covers(model.name)


def taken(bound: BoundLimit, charged: Charged) -> int:
    """Return what a request takes from a limit once its charge is known; what is returned takes nothing."""
    return min(bound.named.quantity.charges(charged), MAX_COUNT)


def taken_by_hit(bound: BoundLimit, full: Charged) -> int:
    """Return what an answer from the cache takes from a limit, of which `full` is the charge in full (SPEC §5)."""
    return taken(bound, full) if bound.is_taken_by_hits else 0


def level_words(bound: BoundLimit) -> str:
    """Return whose limit it is, such as `user alice` or `project research and model m`."""
    words = (
        f"{level.replace('_', ' ')} {value or '(none)'}"
        for level, value in zip(bound.limit.by, bound.scope, strict=True)
    )
    return " and ".join(words)


def quota_words(bound: BoundLimit) -> str:
    """Return how much the limit lets pass, such as `60 requests` or `0.5 USD`."""
    quantity = bound.named.quantity
    return " ".join(filter(None, (quantity.write(bound.named.quota), quantity.noun)))


def _free_name(name: str, policy: str, names: set[str]) -> str:
    if name not in names:
        return name
    name = f"{name}-in-{_SEPARATORS.sub('-', policy)}"
    while name in names:
        name += "-also"
    return name


def _values_of_levels(principal: Principal, model: Model, end_user: str | None) -> Mapping[str, str]:
    """Return what each of a limit's `by` is for a request; users and service accounts of the same id are told apart."""
    return {
        "organization": principal.organization,
        "project": principal.project,
        "user": f"service-account:{principal.owner}" if principal.is_service_account else principal.owner,
        "key": principal.key,
        "end_user": end_user or "",
        "model": model.name,
    }


def _is_ones_own(named: NamedLimit, principal: Principal) -> bool:
    values = {"user": principal.owner, "key": principal.key}
    return all(values.get(level, level) for level in named.limit.by)


def _can_count(named: NamedLimit, model: Model) -> bool:
    return named.is_observed or not named.quantity.needs_price or model.settings.price is not None


def _check_price(named: NamedLimit, model: Model) -> None:
    if not _can_count(named, model):
        raise InvalidRequest(
            f"Limit {named.name!r} of policy {named.policy!r} counts what requests cost, and the model {model.name!r} "
            f"has no price. Have models.{model.name}.price set in the configuration, or ask for another model.",
            code="price_missing",
            param="model",
        )
