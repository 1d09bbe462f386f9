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
    assert measured("hé") == InputSize(text_bytes=len("roleusercontent") + 3, texts=1)
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


def test_every_message_counts() -> None:
    assert chat_input_size([{"role": "user", "content": "a"}] * 3, 0).texts == 3
