"""An answer's other form: a stream made of a whole answer, a whole answer made of a stream (SPEC §6).

Exact or not at all: there and back is the identity on content, every number and every text spelled as it was. How
chunks and whole answers hang together is known in `gathering` and `spreading`, responses in `response_events`; here
stand the events around them. What is stored, and who may have it, is unknown here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from policies.requests.asked import Endpoint
from proxy.wire.gathering import GatheredAnswer
from proxy.wire.raw_json import Inexact, mask_surrogates, members_of, unmask_surrogates
from proxy.wire.response_events import response_in, spread_response
from proxy.wire.spreading import spread
from proxy.wire.sse import EventSplitter, data_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_DONE: Final = b"[DONE]"
_NOTHING: Final = b"null"  # llama.cpp's first event of several prompts
_DONE_EVENT: Final = b"data: [DONE]\n\n"
_is_plain: Final = re.compile(rb'[^"\\\x00-\x1f]*').fullmatch
_MOST_PATTERNS: Final = 4
_NOT_CONVERTIBLE: Final = (Inexact, msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def to_whole(endpoint: Endpoint, stream: bytes) -> bytes | None:
    """Return the JSON body that the upstream would have answered without `stream`; None where that is not known.

    `stream` is all of it, up to its end (`[DONE]`, of responses the last typed event); a usage event in it becomes
    `usage`, and without one the answer has none. Never raises, whatever the bytes are.
    """
    try:
        masked = mask_surrogates(stream)
        whole = _whole(endpoint, _events(masked))
        if masked is not stream:
            whole = unmask_surrogates(whole)
            members_of(whole)  # half a pair that nothing completes comes to light only now
    except _NOT_CONVERTIBLE:
        return None
    return whole


def to_stream(endpoint: Endpoint, whole: bytes) -> bytes | None:
    """Return the event stream that the upstream would have answered with `stream`; None where that is not known.

    It is as the API writes it, `[DONE]` included where the family ends with it; with a usage event if the answer has
    usage, which whoever replays it takes out for a client that did not ask. Never raises, whatever the bytes are.
    """
    try:
        whole.decode()  # members that stay as they are spelled are not looked at otherwise
        compact = msgspec.json.format(whole, indent=-1)  # a line end in the data would end its line
        return _stream(endpoint, compact)
    except _NOT_CONVERTIBLE:
        return None


def _whole(endpoint: Endpoint, events: Iterable[bytes]) -> bytes:
    if endpoint is Endpoint.EMBEDDINGS:
        raise Inexact
    if endpoint is Endpoint.RESPONSES:
        return response_in(data for event in events if (data := data_of(event)) is not None)
    answer = GatheredAnswer(endpoint)
    _gather(answer, events)
    return answer.whole()


def _stream(endpoint: Endpoint, whole: bytes) -> bytes:
    if endpoint is Endpoint.EMBEDDINGS:
        raise Inexact
    if endpoint is Endpoint.RESPONSES:
        return b"".join([b"event: %b\ndata: %b\n\n" % each for each in spread_response(whole)])
    return b"".join([b"data: %b\n\n" % chunk for chunk in spread(endpoint, whole)]) + _DONE_EVENT


def _events(stream: bytes) -> list[bytes]:
    stream.decode()  # texts are joined as they are spelled, without being looked at
    splitter = EventSplitter(len(stream))
    return [*splitter.feed(stream), splitter.rest()]


def _gather(answer: GatheredAnswer, events: Iterable[bytes]) -> None:
    """Take all chunks up to `[DONE]`. Raises Inexact where that is missing."""
    patterns: list[_Pattern] = []
    for event in events:
        for pattern in patterns:
            if pattern.takes(event):
                break
        else:
            data = data_of(event)
            if data is None or data == _NOTHING:
                continue
            if data.startswith(_DONE):
                return
            texts = answer.take(data)
            if texts is not None and (found := _Pattern.find(event, texts)) is not None:
                patterns = [found, *patterns[: _MOST_PATTERNS - 1]]
    raise Inexact


class _Pattern:
    """Events that differ in their piece of text alone, which are nearly all: read once, then compared."""

    __slots__ = ("_head", "_length", "_tail", "_texts")

    def __init__(self, head: bytes, tail: bytes, texts: list[bytes]) -> None:
        self._head = head
        self._tail = tail
        self._length = len(head) + len(tail)
        self._texts = texts

    @classmethod
    def find(cls, event: bytes, texts: list[bytes]) -> _Pattern | None:
        """Return the pattern of an event that added the last one of `texts`; None where that stands there twice."""
        piece = b'"%b"' % texts[-1]
        if event.count(piece) != 1:
            return None
        head, _, tail = event.partition(piece)
        return cls(head + b'"', b'"' + tail, texts)

    def takes(self, event: bytes) -> bool:
        """Add an event's piece if it is one of these events; tell whether it is."""
        if len(event) < self._length or not event.startswith(self._head) or not event.endswith(self._tail):
            return False
        piece = event[len(self._head) : -len(self._tail)]
        if _is_plain(piece) is None:
            return False
        self._texts.append(piece)
        return True
