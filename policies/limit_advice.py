"""What is odd about limits: those that nothing can pass, that nobody's models meet, or whose models have no price.

Told to people, never a reason to refuse a configuration. Knows the smallest requests of a merged policy; what a limit
counts and how is in `quantities` and `limits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from policies.charges import close_ceiling, worst_case
from policies.errors import InvalidRequest
from policies.requests.dialects import REQUEST_TYPES
from policies.smallest_requests import smallest_requests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from policies.catalog import Model
    from policies.charges import WorstCase
    from policies.limits import NamedLimit
    from policies.merging import EffectivePolicy
    from policies.requests.asked import Endpoint

Smallest = dict[str, dict["Endpoint", "list[WorstCase]"]]
"""What the smallest requests ask for, by model and endpoint."""


class OddLimit(NamedTuple):
    """A limit of some policy, and what is odd about it."""

    limit: NamedLimit
    message: str


def impassable(policy: EffectivePolicy, models: Sequence[Model]) -> Iterator[OddLimit]:
    """Yield the limits of a merged policy that no request for some model, or to some endpoint, is small enough for."""
    if not policy.limits:
        return
    smallest = {model.name: _smallest(policy, model) for model in models}
    for named in policy.limits:
        if named.is_observed:
            continue
        asks = {
            (model.name, endpoint): min(map(named.needed, worst))
            for model in models
            if named.covers(model.name) and not (named.quantity.needs_price and model.settings.price is None)
            for endpoint, worst in smallest[model.name].items()
        }
        refused = {key: ask for key, ask in asks.items() if ask > named.tank.capacity}
        if refused:
            yield OddLimit(named, _impassable_words(named, refused, asks))


def unpriced(policy: EffectivePolicy, models: Sequence[Model]) -> Iterator[OddLimit]:
    """Yield the limits of a merged policy that count what some of these models cost, which have no price."""
    for named in policy.limits:
        for model in models if named.quantity.needs_price else ():
            if named.covers(model.name) and model.settings.price is None:
                does = "counts as nothing" if named.is_observed else "is refused"
                told = f"counts {named.limit.of}, and every request for {model.name} {does}: give its price"
                yield OddLimit(named, f"{told} as models.{model.name}.price, or the limit `models` without it")


def _smallest(policy: EffectivePolicy, model: Model) -> dict[Endpoint, list[WorstCase]]:
    found = {}
    for endpoint in REQUEST_TYPES:
        asked = []
        for effective in smallest_requests(policy, model, endpoint):
            try:
                asked.append(worst_case(close_ceiling(effective, model)[0], model))
            except InvalidRequest:
                continue
        if asked:
            found[endpoint] = asked
    return found


def _impassable_words(
    named: NamedLimit, refused: Mapping[tuple[str, Endpoint], int], asks: Mapping[tuple[str, Endpoint], int]
) -> str:
    room = f"{'limit' if named.limit.burst is None else 'burst'}: {named.quantity.write(named.tank.capacity)}"
    least = named.quantity.write(max(refused.values()))
    return f"{room} lets no {_which(refused, asks)} pass: give it {least} or more, which the smallest of them asks for"


def _which(refused: Mapping[tuple[str, Endpoint], int], asks: Mapping[tuple[str, Endpoint], int]) -> str:
    """Name the requests that are refused, out of those that the limit is for."""
    models, endpoints = dict.fromkeys(m for m, _ in refused), dict.fromkeys(e for _, e in refused)
    by_model = "" if len(models) == len({m for m, _ in asks}) else f" for {' and '.join(models)}"
    by_endpoint = "" if len(endpoints) == len({e for _, e in asks}) else f" to {' and '.join(endpoints)}"
    return f"request{by_model}{by_endpoint}"
