"""Arrays of prompts or inputs, taken apart: the requests of their items, and of some of their items (SPEC §6).

An item's request is the one that a client would have sent for it alone, so that both share a cache key. Knows which
arrays are answered item by item; knows no key, no cache and no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.ceilings import ALSO_CALLED, widest_ceiling
from policies.requests.dialects import REQUEST_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ARRAYS: Final[Mapping[Endpoint, str]] = {Endpoint.COMPLETIONS: "prompt", Endpoint.EMBEDDINGS: "input"}
"""The parameter that holds an endpoint's prompts or inputs."""

_OF_STREAMS: Final = frozenset({"stream", "stream_options"})
_MORE_INPUT: Final = "prompt_embeds"
"""vLLM's: prompts as vectors, which it answers beside those of `prompt`."""


def items(effective: EffectiveRequest) -> tuple[EffectiveRequest, ...] | None:
    """Return the requests of an array's items in its order, repeats included, each as if it were asked for alone.

    None for a request that is answered as a whole: one that holds a single item, one whose items draw from a common
    source of chance, and one that says more of its items than the array does. Policy has been applied to the whole, and
    is not again: what it wrote stands in every item, and its bounds on the array do not bind an item.
    """
    name = ARRAYS.get(effective.endpoint)
    if name is None or not _is_by_item(effective):
        return None
    return tuple(_with(effective, name, item) for item in effective.fields[name])


def subset(effective: EffectiveRequest, positions: Sequence[int]) -> EffectiveRequest:
    """Return the request for some items of an array, of which `items` are known, in the order of `positions`.

    It is an array whatever their number, and there has to be one. Its input size, and so its worst case, are its own.
    Its items are those of the whole array at these positions: `items` is not to be asked again, as a member that has
    nothing to do with items may happen to be as long as what is left.
    """
    name = ARRAYS[effective.endpoint]
    given = effective.fields[name]
    return _with(effective, name, [given[position] for position in positions])


def as_whole(effective: EffectiveRequest) -> EffectiveRequest:
    """Return the request for the same answer in one piece."""
    fields = {name: value for name, value in effective.fields.items() if name not in _OF_STREAMS}
    return EffectiveRequest(effective.endpoint, fields, effective.view.with_fields(fields))


def _with(effective: EffectiveRequest, name: str, value: Any) -> EffectiveRequest:  # noqa: ANN401  a JSON value
    fields = {**effective.fields, name: value}
    return EffectiveRequest(effective.endpoint, fields, effective.view.with_fields(fields))


def _is_by_item(effective: EffectiveRequest) -> bool:
    """Tell whether a request has several items and each has an answer of its own, whatever stands beside it."""
    view = effective.view
    if view.prompt_count == 1:
        return False
    is_alone = (
        effective.endpoint is Endpoint.EMBEDDINGS
        or view.temperature == 0  # a seed alone is none: servers draw all items from one stream of numbers
        or widest_ceiling(effective.fields, view.token_ceiling) == 0
    )
    return is_alone and not _says_more(effective)


def _says_more(effective: EffectiveRequest) -> bool:
    """Tell whether members that the API does not name may belong to single items, or change how many answers there are.

    Some servers take an array beside the prompts that has something for each of them, such as an adapter.
    """
    view, known = effective.view, REQUEST_TYPES[effective.endpoint]
    lengths = {view.prompt_count, view.choices}
    return any(
        name in _OTHER_ANSWERS or (isinstance(value, list) and len(value) in lengths)
        for name, value in effective.fields.items()
        if value is not None and not known.has_parameter(name)
    )


_OTHER_ANSWERS: Final = frozenset({_MORE_INPUT, *ALSO_CALLED.values()})
"""Members that are no parameter of these endpoints and may add answers to those that the API speaks of."""
