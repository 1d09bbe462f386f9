from __future__ import annotations

from typing import Any

import pytest

from policies.requests.content_parts import InputMeter, PartTypes
from policies.requests.input_size import InputSize

TYPES = PartTypes(texts=frozenset({"text"}), images={"image": ("url", "")}, sounds={"sound": ("sound", "data")})


def size(parts: list[Any]) -> InputSize:
    meter = InputMeter(TYPES)
    meter.add_parts(parts)
    return meter.size(texts=1, other_bytes=0)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        pytest.param({"type": "text", "text": "é"}, InputSize(0, 2, 1), id="a text by its text"),
        pytest.param({"type": "text", "text": "a", "x": 1}, InputSize(0, 39, 1), id="with more members by all of it"),
        pytest.param({"type": "image", "url": "A" * 99}, InputSize(0, 30, 1, images=1), id="an image less its picture"),
        pytest.param(
            {"type": "sound", "sound": {"data": "A" * 9}},
            InputSize(0, 42, 1, audio_bytes=9),
            id="a sound less its data",
        ),
        pytest.param({"type": "other", "url": "AA"}, InputSize(0, 32, 1), id="another type by its bytes"),
        pytest.param({"url": "AA"}, InputSize(0, 15, 1), id="no type by its bytes"),
        pytest.param({"type": ["image"]}, InputSize(0, 21, 1), id="a type that is none"),
        pytest.param("abc", InputSize(0, 7, 1), id="a text without a part around it"),
    ],
)
def test_a_part_is_what_its_type_says(part: object, expected: InputSize) -> None:
    assert size([part]) == expected


def test_members_count_by_their_names_and_values_and_parts_part_by_part() -> None:
    meter = InputMeter(TYPES)
    meter.add_members(
        {"role": "user", "n": 7, "gone": None, "content": [{"type": "text", "text": "abc"}]}, frozenset({"content"})
    )
    meter.add("de")
    names, values = len("rolengonecontent"), len("user") + len("[7]") + len("abc") + len("de")
    assert meter.size(texts=2, other_bytes=100, is_open=True) == InputSize(0, names + values + 100, 2, is_open=True)
