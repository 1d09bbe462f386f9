"""How many tokens an input has at most, and about how many it or a text has (SPEC §5).

A bound is never below the truth: token ids are counted exactly, text by the model's tokenizer as far as it is read
verbatim, else by its UTF-8 bytes, of which a token has one at least, and an overhead per request and per message;
images and sounds by numbers that no ordinary one exceeds; an input of which some is only named by all that its model
can read. An estimate is for what nobody reported: what the tokenizer counts, and of the rest four bytes a token.
What an input consists of is measured in `requests`; this file knows no price, no limit, no ceiling and no vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policies.requests.input_size import utf8_bytes

if TYPE_CHECKING:
    from policies.catalog import Model, TextCount
    from policies.requests.asked import EffectiveRequest
    from policies.requests.input_size import InputSize

BYTES_PER_TOKEN: Final = 4
"""Of ordinary text, for estimates."""
AUDIO_BYTES_PER_TOKEN: Final = 16
"""Of a sound in base64: speech at 8 kbit/s, the least that MP3 has, is 26 bytes for each of 50 tokens a second."""


def bound_input_tokens(effective: EffectiveRequest, model: Model) -> int | None:
    """Return the most tokens that the input can have.

    None for an input of which some is only named, where the model's `context_window` is not configured.
    """
    size = effective.input_size
    return model.settings.context_window if size.is_open else _bound(effective, model)


def bound_sent_tokens(effective: EffectiveRequest, model: Model) -> int:
    """Return the most tokens that what was sent of the input can have, whatever it names besides."""
    return _bound(effective, model)


def estimate_input_tokens(effective: EffectiveRequest, model: Model) -> int:
    """Return about how many tokens the input has; token ids count exactly, images and sounds at their most.

    An input of which some is only named counts at its most too, where that is known.
    """
    size = effective.input_size
    if size.is_open and model.settings.context_window is not None:
        return model.settings.context_window
    counted, other_bytes = _text(effective, model)
    return size.token_ids + counted + estimate_tokens(other_bytes) + _media_tokens(size, model)


def estimate_text_tokens(count: TextCount) -> int:
    """Return about how many tokens counted texts have, with what was not counted of them."""
    return count.tokens + estimate_tokens(count.other_bytes)


def estimate_tokens(text_bytes: int) -> int:
    """Return about how many tokens so many bytes of text are, rounded up."""
    return _divide_up(text_bytes, BYTES_PER_TOKEN)


def _bound(effective: EffectiveRequest, model: Model) -> int:
    size, settings = effective.input_size, model.settings
    counted, other_bytes = _text(effective, model)
    tokens = size.token_ids + counted + other_bytes + _media_tokens(size, model)
    if size.texts:
        tokens += settings.request_overhead_tokens + size.texts * settings.message_overhead_tokens
    return tokens


def _text(effective: EffectiveRequest, model: Model) -> tuple[int, int]:
    """Return how many tokens the tokenizer counts, and the bytes of all text that it does not."""
    size = effective.input_size
    if model.count_tokens is None:
        return 0, size.text_bytes
    counted = effective.verbatim_count(model.count_tokens)
    return counted.tokens, size.text_bytes - utf8_bytes(size.verbatim) + counted.other_bytes


def _media_tokens(size: InputSize, model: Model) -> int:
    return size.images * model.settings.image_tokens + _divide_up(size.audio_bytes, AUDIO_BYTES_PER_TOKEN)


def _divide_up(count: int, by: int) -> int:
    return -(-count // by)
