"""What counts as a chat's input, and that nothing escapes by its name."""

from __future__ import annotations

from typing import Any

import pytest

from policies.requests.chat_input import chat_input_size
from policies.requests.input_size import InputSize

LONG = "x" * 100_000
LONG_URL = {"url": f"data:image/png;base64,{LONG}"}


def measured(content: Any, **more: Any) -> InputSize:  # noqa: ANN401  JSON values
    return chat_input_size([{"role": "user", "content": content, **more}], 0)


def test_text_is_measured_exactly_with_names_and_roles() -> None:
    assert measured("hé") == InputSize(text_bytes=len("roleusercontent") + 3, texts=1, verbatim=("hé",))
    assert measured([{"type": "text", "text": 'a"\n'}]).text_bytes == len("roleusercontent") + 3


def test_what_stands_beside_messages_is_added() -> None:
    assert chat_input_size([{"role": "user"}], 100).text_bytes == 108


def test_images_and_sounds_are_told_apart_from_text() -> None:
    parts = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": LONG_URL},
        {"type": "image_url", "image_url": LONG_URL["url"]},
        {"type": "image_url"},
        {"type": "input_audio", "input_audio": {"data": LONG, "format": "wav"}},
    ]
    size = measured(parts)
    assert (size.images, size.audio_bytes) == (3, 100_000)
    assert size.text_bytes < 400


@pytest.mark.parametrize(
    ("content", "more"),
    [
        pytest.param([{"type": "file", "file": {"file_data": LONG}}], {}, id="a file"),
        pytest.param([{"image_url": LONG_URL}], {}, id="an image without its type"),
        pytest.param([{"type": "text", "image_url": LONG_URL}], {}, id="an image of another type"),
        pytest.param([{"type": ["image_url"], "image_url": LONG_URL}], {}, id="a type that is none"),
        pytest.param([{"type": "text", "text": "a", "image_url": LONG}], {}, id="something beside a text"),
        pytest.param([{"type": "text", "text": {"a": LONG}}], {}, id="a text that is none"),
        pytest.param([{"type": "image_url", "image_url": {"url": "", "detail": LONG}}], {}, id="beside an image"),
        pytest.param([{"type": "image_url", "image_url": {"url": {"a": LONG}}}], {}, id="an address that is none"),
        pytest.param([{"type": "input_audio", "input_audio": {"data": "", "format": LONG}}], {}, id="beside a sound"),
        pytest.param([[{"type": "image_url", "image_url": LONG_URL}]], {}, id="an image one level down"),
        pytest.param({"type": "image_url", "image_url": LONG_URL}, {}, id="a content that is no array"),
        pytest.param([LONG], {}, id="a text among the parts"),
        pytest.param("a", {"name": LONG}, id="a name"),
        pytest.param("a", {"role": LONG}, id="a role"),
        pytest.param("a", {LONG: None}, id="a member's name"),
        pytest.param("a", {"file": LONG_URL}, id="a member called file"),
        pytest.param(None, {"tool_calls": [{"function": {"arguments": LONG}}]}, id="arguments of a call"),
        pytest.param("a", {"image_url": [{"type": "image_url", "image_url": LONG_URL}]}, id="parts outside content"),
    ],
)
def test_everything_else_counts_by_its_bytes(content: Any, more: dict[str, Any]) -> None:  # noqa: ANN401  JSON values
    size = measured(content, **more)
    assert size.text_bytes + size.audio_bytes >= 100_000
    assert size.audio_bytes == 0


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"content": "plain"}, id="text"),
        pytest.param({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, id="a call of a function"),
        pytest.param({"content": None, "tool_calls": [{"type": "custom", "custom": {"input": "x"}}]}, id="of a tool"),
        pytest.param({"role": "assistant", "audio": None, "content": "a"}, id="no sound"),
        pytest.param({"content": [{"type": "refusal", "refusal": "no"}]}, id="a refusal"),
        pytest.param({"content": [{"type": "text", "text": "a", "cache_control": {}}]}, id="a text with a hint"),
        pytest.param({"content": [{"type": "image_url", "image_url": {"url": "https://x.test/a"}}]}, id="an image"),
        pytest.param({"content": [{"type": "input_audio", "input_audio": {"data": "AA"}}]}, id="a sound"),
        pytest.param({"content": [{"type": "file", "file": {"file_data": "AA", "filename": "a"}}]}, id="a file"),
        pytest.param({"content": [{"text": "a"}, {"refusal": "no"}, "b"]}, id="parts without their types"),
    ],
)
def test_what_is_all_there_is_not_open(message: dict[str, Any]) -> None:
    assert not chat_input_size([message], 0).is_open


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"content": [{"type": "file", "file": {"file_id": "f"}}]}, id="a file by its id"),
        pytest.param({"content": [{"file": {"file_id": "f"}}]}, id="without its type"),
        pytest.param({"role": "assistant", "audio": {"id": "audio_1"}}, id="what was said before"),
        pytest.param({"content": [{"type": "video_url", "video_url": {"url": "https://x.test/a"}}]}, id="a video"),
        pytest.param({"content": [{"type": "audio_url", "audio_url": {"url": "https://x.test/a"}}]}, id="a sound"),
        pytest.param({"content": [{"type": "input_audio", "input_audio": {"data": "https://x"}}]}, id="its address"),
        pytest.param({"content": [{"type": "something_new", "x": "y"}]}, id="a type that the API does not name"),
        pytest.param({"content": [{"x": "y"}]}, id="no type, and nothing that tells of one"),
        pytest.param({"content": {"type": "video_url", "video_url": "x"}}, id="a content that is a part"),
    ],
)
def test_what_lives_elsewhere_leaves_the_input_open(message: dict[str, Any]) -> None:
    assert chat_input_size([{"content": "a"}, message], 0).is_open


def test_an_image_without_its_type_counts_as_one_too() -> None:
    size = measured([{"image_url": {"url": "https://x.test/a"}}])
    assert (size.images, size.is_open) == (1, False)


@pytest.mark.parametrize(
    ("prediction", "is_open"),
    [
        pytest.param({"type": "content", "content": "abc"}, False, id="a text"),
        pytest.param({"type": "content", "content": [{"type": "text", "text": "abc"}]}, False, id="texts"),
        pytest.param({"content": [{"type": "file", "file": {"file_id": "f"}}]}, True, id="a file by its id"),
        pytest.param({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, True, id="an image"),
        pytest.param("odd", False, id="none"),
    ],
)
def test_a_prediction_is_texts_or_open(prediction: object, *, is_open: bool) -> None:
    assert chat_input_size([{"content": "a"}], 0, prediction=prediction).is_open is is_open


def test_every_message_counts() -> None:
    assert chat_input_size([{"role": "user", "content": "a"}] * 3, 0).texts == 3


@pytest.mark.parametrize(
    ("role", "verbatim"),
    [
        pytest.param("user", ("hé",), id="what a user says"),
        pytest.param("system", ("hé",), id="instructions"),
        pytest.param("tool", (), id="what a tool answered is read as JSON"),
        pytest.param(None, (), id="who knows"),
    ],
)
def test_a_content_is_read_verbatim_by_its_role(role: str | None, verbatim: tuple[str, ...]) -> None:
    assert measured("hé", role=role).verbatim == verbatim
    assert measured([{"type": "text", "text": "hé"}], role=role).verbatim == verbatim
