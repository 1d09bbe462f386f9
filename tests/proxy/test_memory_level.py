from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from proxy.memory_level import ENTRY_OVERHEAD_BYTES, Kept, MemoryLevel
from proxy.store.entries import StoredAnswer

KIBIBYTE = 1024


def answer(body_bytes: int, byte: bytes = b"a") -> StoredAnswer:
    return StoredAnswer(is_stream=False, content_type="t", body=byte * body_bytes, created_milliseconds=0)


def counts_for(size_bytes: int) -> StoredAnswer:
    return answer(size_bytes - ENTRY_OVERHEAD_BYTES)


def as_stream(stored: StoredAnswer) -> StoredAnswer:
    return replace(stored, is_stream=True)


def without_form(_stored: StoredAnswer) -> StoredAnswer | None:
    return None


class Converting:
    """Converts into a body of a size, and counts how often."""

    def __init__(self, counts_for_bytes: int) -> None:
        self.form = as_stream(counts_for(counts_for_bytes))
        self.times = 0

    def __call__(self, _stored: StoredAnswer) -> StoredAnswer:
        self.times += 1
        return self.form


def keys(level: MemoryLevel) -> str:
    """Return which keys are kept. It uses them, in this order."""
    return "".join(key for key in "abcdefghijklm" if level.get(key) is not None)


def test_what_was_put_is_found() -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    stored = answer(5)
    assert level.get("a") is None
    assert level.put("a", stored).answer is stored
    found = level.get("a")
    assert found is not None
    assert (found.answer, found.converted, found.was_converted) == (stored, None, False)
    assert (len(level), level.size_bytes) == (1, 5 + ENTRY_OVERHEAD_BYTES)


def test_a_later_answer_takes_the_place_of_an_earlier_one() -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    level.put("a", answer(500))
    level.put("a", answer(7))
    found = level.get("a")
    assert found is not None
    assert found.answer == answer(7)
    assert (len(level), level.size_bytes) == (1, 7 + ENTRY_OVERHEAD_BYTES)


@pytest.mark.parametrize(
    ("used", "left"),
    [
        pytest.param("", "bcdefghi", id="none used: the one that was put first"),
        pytest.param("a", "acdefghi", id="the first used: the second"),
        pytest.param("abcdefgh", "bcdefghi", id="all used in their order: the first again"),
    ],
)
def test_what_was_not_used_for_longest_makes_room(used: str, left: str) -> None:
    level = MemoryLevel(64 * KIBIBYTE)  # for eight of the largest that are kept
    for key in "abcdefgh":
        level.put(key, counts_for(8 * KIBIBYTE))
    for key in used:
        level.get(key)
    level.put("i", counts_for(8 * KIBIBYTE))
    assert keys(level) == left
    assert level.size_bytes == 64 * KIBIBYTE


@pytest.mark.parametrize(
    ("max_bytes", "left"),
    [
        pytest.param(128 * KIBIBYTE, "abcdefgh", id="more: all stay"),
        pytest.param(64 * KIBIBYTE, "abcdefgh", id="as much: likewise"),
        pytest.param(16 * KIBIBYTE, "", id="less, of which each is too large a share: none"),
        pytest.param(0, "", id="nothing"),
    ],
)
def test_another_size_keeps_what_fits(max_bytes: int, left: str) -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    for key in "abcdefgh":
        level.put(key, counts_for(8 * KIBIBYTE))
    level.adopt(max_bytes)
    assert (keys(level), level.size_bytes) == (left, len(left) * 8 * KIBIBYTE)


def test_of_a_smaller_size_the_most_recently_used_stay() -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    for key in "abcdefgh":
        level.put(key, counts_for(2 * KIBIBYTE))
    level.get("a")
    level.adopt(16 * KIBIBYTE)
    assert keys(level) == "abcdefgh"
    level.put("i", counts_for(2 * KIBIBYTE))
    assert keys(level) == "bcdefghi"
    level.get("b")
    level.put("j", counts_for(2 * KIBIBYTE))
    assert keys(level) == "bdefghij"


def test_a_large_one_drives_out_as_many_small_ones_as_it_needs() -> None:
    level = MemoryLevel(16 * KIBIBYTE)
    for key in "abcdefgh":
        level.put(key, counts_for(2 * KIBIBYTE))
    level.put("i", counts_for(2 * KIBIBYTE - 1))
    level.put("j", counts_for(2 * KIBIBYTE))
    assert (keys(level), level.size_bytes) == ("cdefghij", 16 * KIBIBYTE - 1)


@pytest.mark.parametrize(
    ("max_bytes", "size_bytes", "is_kept"),
    [
        pytest.param(64 * KIBIBYTE, 8 * KIBIBYTE, True, id="an eighth"),
        pytest.param(64 * KIBIBYTE, 8 * KIBIBYTE + 1, False, id="more than an eighth"),
        pytest.param(0, ENTRY_OVERHEAD_BYTES, False, id="no memory, and an answer without a body"),
        pytest.param(8 * ENTRY_OVERHEAD_BYTES, ENTRY_OVERHEAD_BYTES, True, id="the least that keeps anything"),
        pytest.param(8 * ENTRY_OVERHEAD_BYTES - 1, ENTRY_OVERHEAD_BYTES, False, id="less than that keeps nothing"),
    ],
)
def test_what_is_too_large_is_not_kept(max_bytes: int, size_bytes: int, *, is_kept: bool) -> None:
    level = MemoryLevel(max_bytes)
    stored = counts_for(size_bytes)
    assert level.put("a", stored).answer is stored
    assert (level.get("a") is not None, len(level), level.size_bytes) == (is_kept, is_kept, is_kept * size_bytes)


def test_one_that_is_too_large_leaves_no_earlier_one_in_its_place() -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    level.put("a", answer(1))
    level.put("a", answer(64 * KIBIBYTE))
    assert (level.get("a"), level.size_bytes) == (None, 0)


def test_dropped_ones_are_gone_and_give_back_their_room() -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    level.put("a", answer(1))
    level.put("b", answer(2))
    level.drop("a")
    level.drop("never kept")
    assert (keys(level), level.size_bytes) == ("b", 2 + ENTRY_OVERHEAD_BYTES)
    level.clear()
    assert (keys(level), len(level), level.size_bytes) == ("", 0, 0)


def test_the_other_form_is_made_once_and_counted() -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    kept, convert = level.put("a", counts_for(2 * KIBIBYTE)), Converting(3 * KIBIBYTE)
    assert [level.find_other_form("a", kept, convert) for _ in range(2)] == [convert.form] * 2
    assert (convert.times, level.size_bytes) == (1, 5 * KIBIBYTE)
    found = level.get("a")
    assert found is not None
    assert found.converted is convert.form
    level.drop("a")
    assert level.size_bytes == 0


def test_the_other_form_makes_room_for_itself() -> None:
    small = ENTRY_OVERHEAD_BYTES
    level = MemoryLevel(16 * small)  # where two of them are just not too large
    kept = {key: level.put(key, counts_for(small)) for key in "abcdefghijklm"}
    for key in "abcd":
        assert level.find_other_form(key, kept[key], Converting(small)) is not None
    assert (keys(level), level.size_bytes) == ("abcdfghijklm", 16 * small)  # 13 + 4 forms, less e


def test_that_there_is_no_other_form_is_remembered() -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    kept = level.put("a", counts_for(2 * KIBIBYTE))
    assert level.find_other_form("a", kept, without_form) is None
    assert level.find_other_form("a", kept, Converting(2 * KIBIBYTE)) is None
    assert level.size_bytes == 2 * KIBIBYTE


@pytest.mark.parametrize(
    ("converted_bytes", "left"),
    [
        pytest.param(3 * KIBIBYTE + 1, 5 * KIBIBYTE, id="both together too large: kept alone"),
        pytest.param(64 * KIBIBYTE, 5 * KIBIBYTE, id="too large by itself"),
        pytest.param(3 * KIBIBYTE, 8 * KIBIBYTE, id="just not too large"),
    ],
)
def test_a_form_that_is_too_large_beside_its_entry_is_not_kept(converted_bytes: int, left: int) -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    kept, convert = level.put("a", counts_for(5 * KIBIBYTE)), Converting(converted_bytes)
    assert level.find_other_form("a", kept, convert) is convert.form
    assert (keys(level), level.size_bytes) == ("a", left)


@pytest.mark.parametrize("is_replaced", [pytest.param(True, id="replaced"), pytest.param(False, id="dropped")])
def test_the_form_of_an_entry_that_is_gone_is_given_and_not_kept(*, is_replaced: bool) -> None:
    level = MemoryLevel(64 * KIBIBYTE)
    kept, convert = level.put("a", counts_for(2 * KIBIBYTE)), Converting(3 * KIBIBYTE)
    if is_replaced:
        level.put("a", counts_for(4 * KIBIBYTE))
    else:
        level.drop("a")
    assert level.find_other_form("a", kept, convert) is convert.form
    assert level.size_bytes == (4 * KIBIBYTE if is_replaced else 0)
    now = level.get("a")
    assert now is None or not now.was_converted


def test_whatever_is_done_the_bytes_add_up_and_stay_within_their_bound() -> None:
    level, draw = MemoryLevel(64 * KIBIBYTE), random.Random(7)  # noqa: S311  nobody guesses it
    for _ in range(5_000):
        key = draw.choice("abcdefghijklm")
        kept = level.get(key)
        match draw.randrange(4):
            case 0:
                level.drop(key)
            case 1 if kept is not None:
                level.find_other_form(key, kept, Converting(draw.randrange(ENTRY_OVERHEAD_BYTES, 9 * KIBIBYTE)))
            case _:
                level.put(key, counts_for(draw.randrange(ENTRY_OVERHEAD_BYTES, 9 * KIBIBYTE)))
        entries: list[Kept] = [found for key in "abcdefghijklm" if (found := level.get(key)) is not None]
        assert level.size_bytes == sum(each.size_bytes for each in entries) <= 64 * KIBIBYTE
        assert len(level) == len(entries)
