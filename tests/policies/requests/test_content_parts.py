from __future__ import annotations

from typing import Any

import pytest

from policies.requests.content_parts import InputMeter, PartTypes
from policies.requests.input_size import InputSize

TYPES = PartTypes(
    texts=frozenset({"text"}),
    images={"image": ("url", "")},
    sounds={"sound": ("sound", "data")},
    files={"file": ("file", "data"), "flat_file": ("file_data", "")},
    untyped=frozenset({"text", "image_url", "sound", "file"}),
)


def size(parts: list[Any]) -> InputSize:
    meter = InputMeter(TYPES)
    meter.add_parts(parts)
    return meter.size(texts=1, other_bytes=0)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        pytest.param({"type": "text", "text": "é"}, InputSize(0, 2, 1, verbatim=("é",)), id="a text by its text"),
        pytest.param({"type": "text", "text": "a", "x": 1}, InputSize(0, 39, 1), id="with more members by all of it"),
        pytest.param({"type": "image", "url": "A" * 99}, InputSize(0, 30, 1, images=1), id="an image less its picture"),
        pytest.param(
            {"type": "sound", "sound": {"data": "A" * 9}},
            InputSize(0, 42, 1, audio_bytes=9),
            id="a sound less its data",
        ),
        pytest.param({"type": "file", "file": {"data": "AA"}}, InputSize(0, 42, 1), id="a file by its bytes"),
        pytest.param({"type": "other", "url": "AA"}, InputSize(0, 32, 1, is_open=True), id="another type is open"),
        pytest.param({"url": "AA"}, InputSize(0, 15, 1, is_open=True), id="no type and nothing that tells of one"),
        pytest.param({"text": "AA"}, InputSize(0, 16, 1), id="a text without its type by its bytes"),
        pytest.param({"image_url": "AA"}, InputSize(0, 21, 1, images=1), id="an image without it by them as well"),
        pytest.param({"type": ["image"]}, InputSize(0, 21, 1, is_open=True), id="a type that is none"),
        pytest.param("abc", InputSize(0, 7, 1), id="a text without a part around it"),
        pytest.param([{"type": "text"}], InputSize(0, 20, 1, is_open=True), id="parts within parts"),
    ],
)
def test_a_part_is_what_its_type_says(part: object, expected: InputSize) -> None:
    assert size([part]) == expected


@pytest.mark.parametrize(
    ("part", "is_open"),
    [
        pytest.param({"type": "file", "file": {"data": "AA", "name": "a"}}, False, id="a file that is here"),
        pytest.param({"type": "flat_file", "file_data": "data:text/plain;base64,AA"}, False, id="in the part itself"),
        pytest.param({"file": {"data": "AA"}}, False, id="without its type"),
        pytest.param({"type": "file", "file": {"file_id": "f"}}, True, id="one by its id"),
        pytest.param({"type": "file", "file": {"data": "AA", "file_id": "f"}}, True, id="by both"),
        pytest.param({"type": "file", "file": {"data": "AA"}, "file_url": "x"}, True, id="or by an address beside it"),
        pytest.param({"type": "file", "file": {"data": "AA", "file_id": None}}, False, id="null names nothing"),
        pytest.param({"type": "file", "file": {"data": "https://x.test/a"}}, True, id="an address in place of data"),
        pytest.param({"type": "file", "file": {"data": "GS://a/b"}}, True, id="of any scheme"),
        pytest.param({"type": "file", "file": {"data": 7}}, True, id="data that is none"),
        pytest.param({"type": "file"}, True, id="nothing at all"),
        pytest.param({"file": {"file_id": "f"}}, True, id="one by its id, without its type"),
        pytest.param({"type": "text", "text": "a", "file": {"file_id": "f"}}, True, id="beside a text"),
        pytest.param({"type": "sound", "sound": {"data": "https://x.test/a"}}, True, id="a sound's address"),
        pytest.param({"type": "sound", "sound": {"id": "a"}}, True, id="a sound by its id"),
        pytest.param({"type": "sound", "sound": None}, True, id="a sound that the server remembers"),
        pytest.param({"type": "image", "url": "https://x.test/a"}, False, id="an image counts, wherever it is"),
        pytest.param({"type": "image", "url": None, "video_url": {"url": "x"}}, True, id="a video in an image"),
        pytest.param({"text": "a", "audio_url": {"url": "x"}}, True, id="a sound's address beside a text"),
        pytest.param({"type": "text", "text": "a", "video_url": None}, False, id="no video"),
    ],
)
def test_what_is_only_named_is_open(part: object, *, is_open: bool) -> None:
    assert size([part]).is_open is is_open


def test_members_count_by_their_names_and_values_and_parts_part_by_part() -> None:
    meter = InputMeter(TYPES)
    item = {"role": "user", "n": 7, "gone": None, "content": [{"type": "text", "text": "abc"}]}
    meter.add_members(item, frozenset({"content"}), is_verbatim=True)
    meter.add("de")
    names, values = len("rolengonecontent"), len("user") + len("[7]") + len("abc") + len("de")
    expected = InputSize(0, names + values + 100, 2, is_open=True, verbatim=("abc", "de"))
    assert meter.size(texts=2, other_bytes=100, is_open=True) == expected


@pytest.mark.parametrize("content", ["abc", [{"type": "text", "text": "abc"}]])
@pytest.mark.parametrize(("is_verbatim", "verbatim"), [(True, ("xy", "abc")), (False, ("xy",))])
def test_members_are_read_verbatim_where_that_is_so(
    content: object, *, is_verbatim: bool, verbatim: tuple[str, ...]
) -> None:
    meter = InputMeter(TYPES)
    meter.add("xy")
    meter.add_members({"content": content, "name": "n"}, frozenset({"content"}), is_verbatim=is_verbatim)
    expected = InputSize(0, len("xy") + len("contentabc") + len("namen"), 1, verbatim=verbatim)
    assert meter.size(texts=1, other_bytes=0) == expected
