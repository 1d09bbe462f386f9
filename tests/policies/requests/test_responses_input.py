from __future__ import annotations

from typing import Any

import pytest

from policies.requests.input_size import InputSize
from policies.requests.responses_input import responses_input_size

Items = str | list[dict[str, Any]] | None


def size(given: Items, instructions: str | None = None, *, is_open: bool = False) -> InputSize:
    return responses_input_size(given, instructions, 0, is_open=is_open)


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


ROLE = len("roleusercontent")
PICTURE = "data:image/png;base64," + "A" * 100_000


@pytest.mark.parametrize(
    ("given", "instructions", "expected"),
    [
        pytest.param("hé", None, InputSize(0, 3, 1, verbatim=("hé",)), id="a text is one message"),
        pytest.param("hé", "be brief", InputSize(0, 11, 2, verbatim=("be brief", "hé")), id="instructions are another"),
        pytest.param(None, "be brief", InputSize(0, 8, 1, verbatim=("be brief",)), id="instructions alone"),
        pytest.param(None, None, InputSize(), id="nothing"),
        pytest.param([], None, InputSize(), id="no items"),
        pytest.param(
            [{"role": "user", "content": "abc"}],
            None,
            InputSize(0, ROLE + 3, 1, verbatim=("abc",)),
            id="a message of text",
        ),
        pytest.param(
            [{"type": "function_call_output", "output": "abc"}],
            None,
            InputSize(0, len("typefunction_call_outputoutput") + 3, 1),
            id="what a function returned is read as JSON",
        ),
        pytest.param(
            [message({"type": "input_text", "text": "abc"}, {"type": "output_text", "text": "de"})],
            None,
            InputSize(0, ROLE + 5, 1, verbatim=("abc", "de")),
            id="texts in parts",
        ),
    ],
)
def test_text_counts_by_its_bytes(given: Items, instructions: str | None, expected: InputSize) -> None:
    assert size(given, instructions) == expected


@pytest.mark.parametrize(
    ("item", "images"),
    [
        pytest.param(message({"type": "input_image", "image_url": PICTURE}), 1, id="an image"),
        pytest.param(message({"type": "input_image", "file_id": "file-1"}), 1, id="an image that is only named"),
        pytest.param(
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": PICTURE}]},
            1,
            id="an image that a function returned",
        ),
        pytest.param(
            {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": PICTURE}},
            1,
            id="a screenshot",
        ),
        pytest.param({"type": "computer_call_output", "output": {"image_url": "https://x.test/a"}}, 1, id="untyped"),
        pytest.param({"type": "image_generation_call", "id": "i", "result": PICTURE}, 1, id="an image that was made"),
        pytest.param(
            message({"type": "input_audio", "input_audio": {"data": "A" * 9, "format": "mp3"}}), 0, id="sound"
        ),
    ],
)
def test_what_is_no_text_is_no_bytes(item: dict[str, Any], images: int) -> None:
    found = size([item])
    assert (found.images, found.is_open) == (images, False)
    assert found.text_bytes < 200


@pytest.mark.parametrize(
    "item",
    [
        pytest.param({"type": "function_call", "name": "f", "arguments": "x" * 500}, id="a call"),
        pytest.param({"type": "function_call_output", "call_id": "c", "output": "x" * 500}, id="its output"),
        pytest.param({"type": "function_call_output", "output": {"odd": "x" * 500}}, id="an output of another form"),
        pytest.param({"type": "reasoning", "summary": [], "encrypted_content": "x" * 500}, id="encrypted reasoning"),
        pytest.param(
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 500}]}, id="summed up reasoning"
        ),
        pytest.param({"type": "mcp_list_tools", "tools": [{"description": "x" * 500}]}, id="tools of a server"),
        pytest.param(message({"type": "input_file", "file_data": "x" * 500}), id="a file that was sent"),
        pytest.param(message({"type": "refusal", "refusal": "x" * 500}), id="a refusal"),
        pytest.param(
            {"type": "shell_call_output", "output": [{"stdout": "x" * 500, "stderr": ""}]}, id="what a shell has said"
        ),
        pytest.param({"type": "something_new", "x": "x" * 500}, id="an item that nobody here knows"),
        pytest.param({"type": ["odd"], "content": "x" * 500}, id="a type that is none"),
    ],
)
def test_every_other_item_counts_by_its_bytes(item: dict[str, Any]) -> None:
    found = size([item])
    assert 500 < found.text_bytes < 600
    assert not found.is_open


@pytest.mark.parametrize(
    "item",
    [
        pytest.param({"type": "item_reference", "id": "msg_1"}, id="a reference"),
        pytest.param({"id": "msg_1"}, id="a reference without its type"),
        pytest.param(message({"type": "input_file", "file_id": "file-1"}), id="a file by its id"),
        pytest.param(message({"type": "input_file", "file_url": "https://x.test/a.pdf"}), id="a file by its address"),
        pytest.param(
            {"type": "function_call_output", "output": [{"type": "input_file", "file_id": "file-1"}]},
            id="a file that a function returned",
        ),
        pytest.param(
            message({"type": "input_file", "file_data": "https://x.test/a"}), id="an address in place of data"
        ),
        pytest.param(message({"type": "input_video", "video_url": "https://x.test/a"}), id="a part of another type"),
        pytest.param(message({"x": "y"}), id="a part without a type"),
        pytest.param({"type": "web_search_call", "id": "ws_1"}, id="a search that was made"),
        pytest.param({"type": "compaction", "encrypted_content": "x"}, id="a compacted conversation"),
        pytest.param({"type": "reasoning", "id": "rs_1", "summary": []}, id="reasoning that is kept upstream"),
        pytest.param(
            {"type": "additional_tools", "tools": [{"type": "web_search"}]}, id="a tool that runs upstream, by an item"
        ),
    ],
)
def test_what_is_only_named_leaves_the_input_open(item: dict[str, Any]) -> None:
    assert size([item]).is_open
    assert not size([{"role": "user", "content": "x"}]).is_open
    assert size("x", is_open=True).is_open
