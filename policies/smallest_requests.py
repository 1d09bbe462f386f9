"""The smallest requests that a policy lets through, for telling what no request can keep to.

Knows what an endpoint cannot do without, and that more choices and a higher ceiling never cost less; everything else
is asked of the policy itself, by applying it.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

from policies.bounds import find_broken
from policies.errors import Rejection
from policies.parameters import apply_rules
from policies.requests.asked import Dialect, EffectiveRequest, Endpoint
from policies.requests.ceilings import CANDIDATE_NAMES, CEILING
from policies.requests.dialects import REQUEST_TYPES, read_request
from policies.requests.fields import number_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from policies.catalog import Model
    from policies.merging import EffectivePolicy, MergedRule
    from policies.requests.fields import EndpointRequest

_INPUTS: Final[Mapping[Endpoint, Mapping[str, Any]]] = {
    Endpoint.COMPLETIONS: {"prompt": [0]},
    Endpoint.CHAT: {"messages": [{}]},
    Endpoint.EMBEDDINGS: {"input": [0]},
    Endpoint.RESPONSES: {"input": ""},
}
"""The least that can be asked: a token id is one token, a chat's message and a response's input have an overhead."""


def smallest_requests(policy: EffectivePolicy, model: Model, endpoint: Endpoint) -> list[EffectiveRequest]:
    """Return what policy makes of requests of which one is smallest in each quantity; none where it refuses them.

    None that policy lets through has a smaller input, fewer candidates or a lower ceiling than the smallest of these.
    """
    found = []
    for fields in _variants(policy, model, endpoint):
        try:
            asked = read_request(
                endpoint=endpoint,
                dialect=Dialect.OPENAI,
                fields={"model": model.name, **fields},
                path_model=None,
                api_version=None,
            )
            found.append(apply_rules(asked, policy, model, lambda end_user: end_user or "")[0])
        except Rejection:
            continue
    return found


def _variants(policy: EffectivePolicy, model: Model, endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    """Yield requests that send each multiplying parameter at its least, or leave it to policy."""
    kind = REQUEST_TYPES[endpoint]
    names = [name for name in CANDIDATE_NAMES if name in policy.parameters]
    least: dict[str, Any] = {name: _least(kind, name, policy.parameters[name]) for name in names}
    if kind.ceilings:
        least[kind.ceiling_to_write(model.settings)] = _least(kind, CEILING, policy.parameters.get(CEILING))
    for is_sent in product((True, False), repeat=len(least)):
        sent = {name: value for (name, value), sends in zip(least.items(), is_sent, strict=True) if sends}
        yield {**_INPUTS[endpoint], **sent}


def _least(kind: type[EndpointRequest], name: str, rule: MergedRule | None) -> Any:  # noqa: ANN401  a JSON value
    """Return the smallest value of a parameter that a rule lets through; what it forces replaces any."""
    number = number_type(kind, name)
    least = 0 if number is None or number.minimum is None else int(number.minimum)
    if rule is None:
        return least
    said = [part.value for part in (rule.max, rule.min) if part is not None]
    values = [value for value in (least, *said, *(rule.listed or ())) if type(value) is int]
    return min((value for value in values if value >= least and find_broken(value, rule) is None), default=least)
