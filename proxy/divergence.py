"""Whether two answers to the same request say the same, and where they part (SPEC §6, §8).

Compares what was generated, whole or streamed, without ids, times and probabilities. What it tells of a difference
holds no text. Knows neither why answers are compared nor what comes of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from policies.requests.asked import Endpoint
from proxy.answer_cache import in_form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.store.entries import StoredAnswer

_OWN: Final = frozenset({"index", "logprobs", "id", "call_id", "encrypted_content"})
"""Members of what was generated that differ between equal answers."""
_HOLDERS: Final = {
    Endpoint.COMPLETIONS: "choices",
    Endpoint.CHAT: "choices",
    Endpoint.EMBEDDINGS: "data",
    Endpoint.RESPONSES: "output",
}
_LONGEST_NAME: Final = 64
_SHORT_BYTES: Final = 64 * 1024
"""Two answers that are compared within some milliseconds."""


class Difference(NamedTuple):
    """Where two answers part first.

    `place` are the members' names and positions on the way there; `position` how many characters, or items, are the
    same at that place before they part, None where it holds neither texts nor lists.
    """

    place: str
    position: int | None


async def compare(one: StoredAnswer, other: StoredAnswer, endpoint: Endpoint) -> Difference | None:
    """Return what `find_difference` does; what takes long is done beside the event loop, which serves clients."""
    if len(one.body) + len(other.body) <= _SHORT_BYTES:
        return find_difference(one, other, endpoint)
    return await asyncio.to_thread(find_difference, one, other, endpoint)


def find_difference(one: StoredAnswer, other: StoredAnswer, endpoint: Endpoint) -> Difference | None:
    """Return where two answers part, None where they say the same; what cannot be taken apart is compared by byte."""
    ours, theirs = _generated(one, endpoint), _generated(other, endpoint)
    if isinstance(ours, bytes) or isinstance(theirs, bytes):
        return _parting(one.body, other.body, ())
    return _parting(ours, theirs, (_HOLDERS[endpoint],))


def _generated(answer: StoredAnswer, endpoint: Endpoint) -> Any:  # noqa: ANN401  JSON values, or bytes
    """Return what was generated, in the choices' order; the body of what cannot be taken apart."""
    whole = in_form(answer, endpoint, is_stream=False)
    if whole is None:
        return answer.body
    held = msgspec.json.decode(whole.body).get(_HOLDERS[endpoint])
    return _content(sorted(held, key=_index) if isinstance(held, list) else held)


def _index(held: Any) -> int:  # noqa: ANN401  a JSON value
    """Return the place of a choice or an embedding, however they are listed."""
    index = held.get("index") if isinstance(held, dict) else None
    return index if isinstance(index, int) else 0


def _content(value: Any) -> Any:  # noqa: ANN401  a JSON value
    """Leave out what differs between equal answers, at every depth; and null, which is as good as absent."""
    if isinstance(value, dict):
        return {name: _content(each) for name, each in value.items() if name not in _OWN and each is not None}
    return [_content(each) for each in value] if isinstance(value, list) else value


def _parting(one: Any, other: Any, place: tuple[str, ...]) -> Difference | None:  # noqa: ANN401  JSON values, or bytes
    if one == other:
        return None
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys((*one, *other))
        partings = (_parting(one.get(name), other.get(name), (*place, _shown(name))) for name in names)
        return next(filter(None, partings), None)
    if isinstance(one, list) and isinstance(other, list):
        pairs = enumerate(zip(one, other, strict=False))
        partings = (_parting(*pair, (*place, str(position))) for position, pair in pairs)
        return next(filter(None, partings), None) or Difference("/".join(place), min(len(one), len(other)))
    is_text = isinstance(one, str | bytes) and isinstance(other, type(one))
    return Difference("/".join(place), _same_length(one, other) if is_text else None)


def _same_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how long two texts are the same; halving, as going through long ones takes long."""
    same, end = 0, min(len(one), len(other))
    while same < end:
        middle = (same + end + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same


def _shown(name: str) -> str:
    """Return a member's name as it may be shown; one that the API cannot have may be text."""
    return name if name.isidentifier() and len(name) <= _LONGEST_NAME else "?"
