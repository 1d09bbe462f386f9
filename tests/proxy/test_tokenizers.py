"""Vocabularies against counts that their makers published, and bounds that hold whatever a text is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.catalog import TextCount
from proxy import tokenizers
from proxy.config import Configuration
from proxy.tokenizers import MOST_COUNTED, text_counter

if TYPE_CHECKING:
    from policies.catalog import TokenizerName

quicktok = pytest.importorskip("quicktok", reason="there is no wheel of quicktok-v1 for this Python")

NAMES: tuple[TokenizerName, ...] = ("cl100k_base", "o200k_base", "o200k_harmony", "llama3", "qwen3")
MAKERS: tuple[TokenizerName, ...] = ("cl100k_base", "o200k_base")
UNTIMED = settings(deadline=None)  # the first example loads a vocabulary
PROSE = "It was the best of times, it was the worst of times. "


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param("", (0, 0), id="nothing"),
        pytest.param("hello world", (2, 2), id="two words"),
        pytest.param("tiktoken is great!", (6, 6), id="a word of several tokens"),
        pytest.param("antidisestablishmentarianism", (6, 6), id="a long word"),
        pytest.param("2 + 2 = 4", (7, 7), id="digits"),
        pytest.param("お誕生日おめでとう", (9, 8), id="another script"),
    ],
)
def test_published_counts(text: str, counts: tuple[int, int]) -> None:
    assert tuple(text_counter(name)([text]) for name in MAKERS) == tuple(TextCount(each) for each in counts)


def test_texts_are_read_each_by_itself() -> None:
    assert text_counter("cl100k_base")(["hello", " world", "hello world"]) == TextCount(1 + 1 + 2)


PIECES = st.sampled_from([" ", "\n", "'ll", "x", "foo", " bar", "12", "=", "!!", "é", "e\u0301", "漢", "😀", "</", ">"])


@pytest.mark.parametrize("name", NAMES)
@UNTIMED
@given(data=st.data())
def test_a_special_token_within_a_text_counts_for_no_less_than_one(name: TokenizerName, data: st.DataObject) -> None:
    vocabulary = quicktok.get_encoding(name)
    special = st.sampled_from(sorted(vocabulary.special_tokens_set))
    text = data.draw(st.lists(special | PIECES, max_size=12).map("".join))
    assert sum(text_counter(name)([text])) >= len(vocabulary.encode_with_special(text))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "qwen3"])
@UNTIMED
@given(text=st.text() | st.lists(PIECES).map("".join))
def test_no_text_has_more_tokens_than_bytes(name: TokenizerName, text: str) -> None:
    assert sum(text_counter(name)([text])) <= len(text.encode("utf-8", "surrogatepass"))


def test_but_where_it_is_put_in_normal_form_it_may_have() -> None:
    """One musical note is four bytes, and three characters of four bytes in normal form C."""
    assert len("\U0001d160".encode()) < sum(text_counter("qwen3")(["\U0001d160"])) <= 12


@pytest.mark.parametrize(
    ("text", "most"),
    [
        pytest.param("\ud800", 3, id="half of a surrogate pair"),
        pytest.param("a\u0378", 3, id="a code point that is no character"),
        pytest.param("a'\u017f'S", 6, id="what only some take for a contraction"),
        pytest.param("=" * 2_000, 2_000, id="a word without end"),
    ],
)
def test_what_cannot_be_counted_well_is_taken_by_its_bytes(text: str, most: int) -> None:
    assert text_counter("cl100k_base")([text]) == TextCount(0, most)
    assert text_counter("qwen3")([text]) == TextCount(0, most if text.isascii() else 3 * most)


def test_long_texts_are_counted_in_part_and_never_too_low() -> None:
    text = PROSE * 5_000
    tokens, other_bytes = text_counter("o200k_base")([text])
    exact, rest = quicktok.get_encoding("o200k_base").count(text), len(text) - MOST_COUNTED
    assert rest <= other_bytes < rest + 1_024
    assert exact - rest < tokens < exact < tokens + other_bytes


def test_what_is_counted_is_shared_by_all_texts_of_a_request() -> None:
    texts = [PROSE * (MOST_COUNTED // len(PROSE)), *["\n" * MOST_COUNTED] * 3]
    assert text_counter("o200k_base")(texts).other_bytes > 3 * (MOST_COUNTED - 1_024)


@UNTIMED
@given(words=st.lists(st.text("abcXYZ", min_size=1, max_size=6), min_size=40, max_size=60), most=st.integers(20, 60))
def test_a_text_is_parted_where_its_halves_have_as_many_tokens(words: list[str], most: int) -> None:
    text = " ".join(words)
    halves = tokenizers._parted(text, most)  # noqa: SLF001  its promise is what the bound rests on
    assert "".join(halves) == text
    for name in NAMES:
        assert text_counter(name)(halves) == text_counter(name)([text])


def configured(**model: str) -> Configuration:
    upstreams = {"u": {"kind": "openai", "base_url": "http://u"}}
    return Configuration.model_validate(
        {"upstreams": upstreams, "models": {"m": {"deployments": [{"upstream": "u"}], **model}}}
    )


def test_a_configured_model_counts_by_its_tokenizer() -> None:
    counting = configured(tokenizer="cl100k_base").rulebook().model("m").count_tokens
    assert counting is text_counter("cl100k_base")
    assert configured().rulebook().model("m").count_tokens is None


def test_a_tokenizer_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="'cl100k_base', 'o200k_base'"):
        configured(tokenizer="gpt2")


def test_without_the_package_a_tokenizer_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: None)  # noqa: ARG005
    configured()
    with pytest.raises(ValueError, match=r"(?s)models\.m\.tokenizer.*pip install 'quicktok-v1"):
        configured(tokenizer="cl100k_base")
