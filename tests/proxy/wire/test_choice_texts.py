from __future__ import annotations

import pytest

from proxy.wire.choice_texts import MOST_KEPT_BYTES, ChoiceTexts


def test_pieces_of_a_choice_are_joined() -> None:
    texts = ChoiceTexts(2)
    for choice, piece in ((1, b"wor"), (0, b"hello"), (1, b"ld"), (0, b"")):
        texts.add(choice, piece)
    assert (sorted(texts.joined()), texts.left_out_bytes) == (["hello", "world"], 0)


def test_a_choice_without_text_has_none() -> None:
    texts = ChoiceTexts(2)
    texts.add(1, b"")
    assert texts.joined() == ()


@pytest.mark.parametrize("choice", [None, -1, 2, 10**30])
def test_a_choice_that_cannot_be_is_left_out(choice: int | None) -> None:
    texts = ChoiceTexts(2)
    texts.add(choice, "é".encode())
    assert (texts.joined(), texts.left_out_bytes) == ((), 2)


def test_what_is_kept_of_all_choices_has_a_bound() -> None:
    texts = ChoiceTexts(2)
    texts.add(0, b"a" * (MOST_KEPT_BYTES - 4))
    texts.add(1, "éé".encode())
    texts.add(1, b"more")
    texts.add(0, b"more")
    assert (texts.joined()[1], texts.left_out_bytes) == ("éé", 8)
    assert len(texts.joined()[0]) == MOST_KEPT_BYTES - 4


def test_a_letter_that_is_cut_by_the_bound_is_gone() -> None:
    texts = ChoiceTexts(1)
    texts.add(0, b"a" * (MOST_KEPT_BYTES - 1) + "éb".encode())
    assert (texts.joined(), texts.left_out_bytes) == (("a" * (MOST_KEPT_BYTES - 1),), 2)


@pytest.mark.parametrize(("candidates", "expected"), [(1, True), (2, False)])
def test_all_is_of_one_where_there_is_one(candidates: int, *, expected: bool) -> None:
    assert ChoiceTexts(candidates).are_of_one is expected
