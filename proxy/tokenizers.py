"""Counting text by the vocabulary that a model reads it with (SPEC §5); the vocabularies come with `quicktok-v1`.

The package is an extra, and found where a configuration first asks for it. A counter is handed to the core as a plain
function; this file knows no model, no request and no limit.
"""

from __future__ import annotations

import re
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Protocol, cast
from unicodedata import category

from policies.catalog import TextCount
from policies.requests.input_size import utf8_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.catalog import TextCounter, TokenizerName

MOST_COUNTED: Final = 128 * 1024
"""Characters of a request that are counted: a few milliseconds of ordinary text."""
_LONGEST_WORD: Final = 1024
"""ASCII with more between two blanks is no prose, and would take long: such as rules of a hundred thousand dashes."""
_CUT_WITHIN: Final = 1024
_BETWEEN_WORDS: Final = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")
"""Where every vocabulary here parts a text, so that its two halves have as many tokens as the whole."""
_NO_CHARACTERS: Final = frozenset({"Cn", "Cs"})
"""Unassigned code points, which newer tables take for letters and older ones do not, and halves of surrogate pairs."""
_LONG_S: Final = "'\u017f"
"""A contraction to those who fold its letter to an s, and to others none."""
_COMPOSING: Final = frozenset({"qwen3"})
"""Vocabularies that read text in normal form C."""
_MOST_COMPOSED: Final = 3
"""Bytes of UTF-8 that normal form C makes of one at most."""


class _Vocabulary(Protocol):
    def count(self, text: str) -> int:
        """Return how many tokens a text has; special tokens in it are read as text."""


def missing_package() -> str | None:
    """Say what to install where no vocabulary can be had; None where they are there."""
    if find_spec("quicktok") is not None:
        return None
    return "needs the package quicktok-v1, which is not installed: pip install 'quicktok-v1>=0.4,<0.5'"


@cache
def text_counter(name: TokenizerName) -> TextCounter:
    """Return a function that counts texts.

    Up to MOST_COUNTED characters are counted exactly, in the order of the texts; of what follows, and what cannot be
    counted or would take long, it tells the bytes that the vocabulary reads, at most. Loads the vocabulary, which
    takes up to a second and 30 to 100 MiB of memory, once a process. Raises ImportError without the package.
    """
    vocabulary = cast("_Vocabulary", import_module("quicktok").get_encoding(name))
    return partial(_count, vocabulary, _MOST_COMPOSED if name in _COMPOSING else 1)


def _count(vocabulary: _Vocabulary, widening: int, texts: Sequence[str]) -> TextCount:
    tokens, other_bytes, left = 0, 0, MOST_COUNTED
    for text in texts:
        counted, rest = _parted(text, left)
        left -= len(counted)
        other_bytes += _read_bytes(widening, rest)
        if _is_odd(counted):
            other_bytes += _read_bytes(widening, counted)
        else:
            tokens += vocabulary.count(counted)
    return TextCount(tokens, other_bytes)


def _parted(text: str, most: int) -> tuple[str, str]:
    """Part a text before its character `most`, between two words; counted is nothing where there are none."""
    if len(text) <= most:
        return text, ""
    found = _BETWEEN_WORDS.search(text, max(0, most - _CUT_WITHIN), most)
    at = 0 if found is None else found.start()
    return text[:at], text[at:]


def _is_odd(text: str) -> bool:
    return _has_long_word(text) if text.isascii() else _is_read_variously(text)


def _read_bytes(widening: int, text: str) -> int:
    return len(text) if text.isascii() else utf8_bytes((text,)) * widening


def _has_long_word(text: str) -> bool:
    start = 0
    while len(text) - start > _LONGEST_WORD:
        end = start + _LONGEST_WORD
        last = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        if last < 0:
            return True
        start = last + 1
    return False


def _is_read_variously(text: str) -> bool:
    """Tell whether implementations of one vocabulary may part a text differently."""
    return _LONG_S in text or any(category(each) in _NO_CHARACTERS for each in set(text))
