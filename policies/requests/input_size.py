"""How large an input is, in what is known of it without a tokenizer: token ids, bytes, messages, images (SPEC §5).

Knows how text and JSON are measured; which members of a request are input is known by the endpoints, and how many
tokens a byte or an image is by `tokens`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection

_encode = msgspec.json.Encoder().encode


class InputSize(msgspec.Struct, frozen=True):
    """What an input consists of.

    `token_ids` are tokens already; `text_bytes` are the UTF-8 bytes of everything that is read as text, `texts` the
    messages or prompts it stands in; images and the base64 of sounds are in none of these. `verbatim` are the texts
    among those bytes that the model reads as they are, so that a tokenizer can count them. `is_open`: there is more,
    which is only named here, such as what the upstream has kept.
    """

    token_ids: int = 0
    text_bytes: int = 0
    texts: int = 0
    images: int = 0
    audio_bytes: int = 0
    is_open: bool = False
    verbatim: tuple[str, ...] = ()


def utf8_bytes(texts: Collection[str]) -> int:
    """Return the UTF-8 bytes of all texts together."""
    if all(map(str.isascii, texts)):  # known without a look at the characters
        return sum(map(len, texts))
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def json_bytes(value: Any) -> int:  # noqa: ANN401  any JSON value
    """Return the bytes of a value as JSON, with the space after each separator that chat templates write."""
    encoded = _encode(value)
    return len(encoded) + encoded.count(b",") + encoded.count(b":")
