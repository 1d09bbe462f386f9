"""How many tokens an input has at most, and about how many it or a text has (SPEC §5).

A bound is never below the truth: token ids are counted exactly, text by its UTF-8 bytes and an overhead per request
and per message, since no tokenizer makes more tokens than bytes. An estimate is for what nobody reported: four bytes
a token. This file knows no price, no limit and no ceiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from policies.requests.asked import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from policies.catalog import Model
    from policies.requests.asked import EffectiveRequest

_BYTES_PER_TOKEN: Final = 4
_IMAGE_TOKENS: Final = 2_048
"""For an image in a message: above what models make of one at their default detail."""
_MEDIA_MEMBERS: Final = frozenset({"image_url", "input_audio", "file"})
_DEFINITION_MEMBERS: Final = ("tools", "functions", "response_format")


def bound_input_tokens(effective: EffectiveRequest, model: Model) -> int:
    """Return the most tokens that the input can have."""
    text_bytes, messages = _measure(effective)
    tokens = effective.view.input_token_ids() + text_bytes
    if messages:
        tokens += model.settings.request_overhead_tokens + messages * model.settings.message_overhead_tokens
    return tokens


def estimate_input_tokens(effective: EffectiveRequest) -> int:
    """Return about how many tokens the input has; token ids count exactly."""
    return effective.view.input_token_ids() + estimate_tokens(_measure(effective)[0])


def estimate_tokens(text_bytes: int) -> int:
    """Return about how many tokens so many bytes of text are, rounded up."""
    return -(-text_bytes // _BYTES_PER_TOKEN)


def _measure(effective: EffectiveRequest) -> tuple[int, int]:
    """Return the bytes of all text, and how many messages (chat) or texts it stands in."""
    if effective.endpoint is not Endpoint.CHAT:
        texts = effective.view.input_texts()
        return sum(map(_bytes, texts)), len(texts)
    messages = effective.fields.get("messages")
    if not isinstance(messages, list):
        return 0, 0
    definitions = (effective.fields.get(name) for name in _DEFINITION_MEMBERS)
    return _nested_bytes(messages) + sum(_nested_bytes(each) for each in definitions if each is not None), len(messages)


def _nested_bytes(value: Any) -> int:  # noqa: ANN401  any JSON value; its depth is bounded where bodies are decoded
    """Return the bytes of every text in a value, member names of objects included, and of numbers their digits."""
    if isinstance(value, str):
        return _bytes(value)
    if isinstance(value, dict):
        return _object_bytes(value)
    if isinstance(value, list):
        return _sum(value)
    return 0 if value is None else len(str(value))


def _object_bytes(members: Mapping[str, Any]) -> int:
    if not _MEDIA_MEMBERS.isdisjoint(members):
        return _IMAGE_TOKENS + _sum(value for name, value in members.items() if name not in _MEDIA_MEMBERS)
    return sum(map(_bytes, members)) + _sum(members.values())


def _sum(values: Iterable[Any]) -> int:
    return sum(_nested_bytes(value) for value in values)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
