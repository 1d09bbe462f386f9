from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from policies.catalog import Model, ModelSettings, TextCount
from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.dialects import view_of
from policies.tokens import bound_input_tokens, bound_sent_tokens, estimate_input_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = Model("m", ModelSettings(deployments=[{"upstream": "u"}]))
BARE = Model("m", ModelSettings(deployments=[{"upstream": "u"}], request_overhead_tokens=0, message_overhead_tokens=0))


def effective(endpoint: Endpoint, **fields: Any) -> EffectiveRequest:  # noqa: ANN401  members of a request
    return EffectiveRequest(endpoint, fields, view_of(endpoint, fields))


@pytest.mark.parametrize(
    ("request_", "bound", "estimate"),
    [
        pytest.param(effective(Endpoint.COMPLETIONS, prompt="hi"), 2 + 24, 1, id="text by its bytes and the overheads"),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt="é漢😀"), 9 + 24, 3, id="of UTF-8"),
        pytest.param(
            effective(Endpoint.COMPLETIONS, prompt=["ab", "c"]), 3 + 8 + 32, 1, id="every prompt has its overhead"
        ),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt=[5, 6, 7]), 3, 3, id="token ids exactly"),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt=[[5], [6, 7]]), 3, 3, id="those of several prompts too"),
        pytest.param(
            effective(Endpoint.COMPLETIONS, prompt=[5, 6], suffix="end"), 2 + 3 + 24, 3, id="a suffix is text"
        ),
        pytest.param(effective(Endpoint.EMBEDDINGS, input=["abcd", "efgh"]), 8 + 8 + 32, 2, id="inputs of embeddings"),
        pytest.param(effective(Endpoint.RESPONSES, input="abcd"), 4 + 24, 1, id="a response's input"),
        pytest.param(
            effective(Endpoint.RESPONSES, input="abcd", instructions="efgh"), 8 + 8 + 32, 2, id="and its instructions"
        ),
    ],
)
def test_input_is_bounded_and_estimated(request_: EffectiveRequest, bound: int, estimate: int) -> None:
    assert (bound_input_tokens(request_, MODEL), estimate_input_tokens(request_, MODEL)) == (bound, estimate)


def message(content: Any, **more: Any) -> dict[str, Any]:  # noqa: ANN401  JSON values
    return {"role": "user", "content": content, **more}


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        pytest.param({"messages": [message("hello")]}, 5, id="text"),
        pytest.param({"messages": [message([{"type": "text", "text": "x" * 90}])]}, 90, id="text in parts"),
        pytest.param({"messages": [message("x")], "tools": [TOOL]}, 40, id="tool definitions"),
        pytest.param(
            {"messages": [message(None, tool_calls=[{"function": {"arguments": "y" * 80}}])]}, 80, id="tool calls"
        ),
        pytest.param(
            {"messages": [message("x")], "response_format": {"json_schema": {"name": "z" * 70}}}, 70, id="schemas"
        ),
    ],
)
def test_everything_in_a_chat_that_becomes_tokens_counts(fields: dict[str, Any], least: int) -> None:
    bound = bound_input_tokens(effective(Endpoint.CHAT, **fields), BARE)
    assert least <= bound <= 3 * least + 40


def test_a_chat_is_bounded_by_its_bytes_and_the_overheads_of_its_messages() -> None:
    request = effective(Endpoint.CHAT, messages=[message("hello")] * 2)
    assert bound_input_tokens(request, MODEL) == 2 * (len("roleusercontenthello") + 16) + 8


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
SOUND = {"type": "input_audio", "input_audio": {"data": "A" * 1_600, "format": "mp3"}}
FILE = {"type": "file", "file": {"file_data": "A" * 10_000}}


@pytest.mark.parametrize(
    ("part", "settings", "tokens"),
    [
        pytest.param(IMAGE, {}, 2_048, id="an image by the default"),
        pytest.param(IMAGE, {"image_tokens": 300}, 300, id="or by what its model makes of one"),
        pytest.param(SOUND, {}, 100, id="a sound by a part of its bytes"),
        pytest.param(FILE, {}, 10_000, id="a file by its bytes"),
    ],
)
def test_what_is_no_text_counts_by_its_type(part: dict[str, Any], settings: dict[str, int], tokens: int) -> None:
    model = Model("m", ModelSettings(deployments=[{"upstream": "u"}], **settings))
    bound = bound_input_tokens(effective(Endpoint.CHAT, messages=[message([part])]), model)
    assert tokens < bound < tokens + 200


@pytest.mark.parametrize("name", ["file", "image_url", "input_audio"])
def test_a_tools_property_is_a_property_whatever_its_name(name: str) -> None:
    parameters = {"type": "object", "properties": {name: {"type": name, "description": "x" * 100_000}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    bound = bound_input_tokens(effective(Endpoint.CHAT, messages=[message("x")], tools=[tool]), MODEL)
    assert bound > 100_000


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.COMPLETIONS, {"prompt": "a"}),
        (Endpoint.EMBEDDINGS, {"input": "a"}),
        (Endpoint.CHAT, {"messages": [message("a")]}),
        (Endpoint.RESPONSES, {"input": "a"}),
    ],
)
def test_what_some_server_may_read_counts(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    plain, more = (effective(endpoint, **fields, **extra) for extra in ({}, {"prompt_embeds": "x" * 5_000}))
    assert bound_input_tokens(more, MODEL) - bound_input_tokens(plain, MODEL) > 5_000


def test_brackets_count_however_deep() -> None:
    nested: Any = []
    for _ in range(60):
        nested = [nested]
    assert bound_sent_tokens(effective(Endpoint.CHAT, messages=[message(nested)]), MODEL) >= 120


def test_an_estimate_takes_images_at_their_most() -> None:
    assert estimate_input_tokens(effective(Endpoint.CHAT, messages=[message([IMAGE])]), MODEL) > 2_048


def test_an_input_that_is_partly_named_only_counts_as_all_that_its_model_can_read() -> None:
    request = effective(Endpoint.RESPONSES, input="abcd", previous_response_id="resp_1")
    windowed = Model("m", ModelSettings(deployments=[{"upstream": "u"}], context_window=1_000))
    assert (bound_input_tokens(request, windowed), estimate_input_tokens(request, windowed)) == (1_000, 1_000)
    assert (bound_input_tokens(request, MODEL), estimate_input_tokens(request, MODEL)) == (None, 1)
    assert bound_sent_tokens(request, windowed) == bound_sent_tokens(request, MODEL) == 4 + 24


def test_an_input_is_measured_once() -> None:
    request = effective(Endpoint.CHAT, messages=[{"role": "user", "content": "hi"}])
    assert request.input_size is request.input_size


def halves(texts: Sequence[str]) -> TextCount:
    """Take two characters for a token, and leave out texts with an em dash."""
    counted = [text for text in texts if "—" not in text]
    others = [text for text in texts if "—" in text]
    return TextCount(sum(-(-len(text) // 2) for text in counted), sum(len(text.encode()) for text in others))


COUNTING = Model("m", MODEL.settings, count_tokens=halves)


@pytest.mark.parametrize(
    ("request_", "bound", "estimate"),
    [
        pytest.param(effective(Endpoint.COMPLETIONS, prompt="abcdef"), 3 + 24, 3, id="a prompt"),
        pytest.param(effective(Endpoint.COMPLETIONS), 7 + 24, 7, id="that is the end of text"),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt=["abcdef", "é"]), 3 + 1 + 8 + 32, 4, id="every prompt"),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt=[5, 6], suffix="abcd"), 2 + 2 + 24, 4, id="a suffix"),
        pytest.param(effective(Endpoint.COMPLETIONS, prompt=[5, 6, 7]), 3, 3, id="token ids are tokens already"),
        pytest.param(effective(Endpoint.EMBEDDINGS, input=["abcd", "efgh"]), 4 + 8 + 32, 4, id="inputs of embeddings"),
        pytest.param(
            effective(Endpoint.RESPONSES, input="abcd", instructions="efgh"), 4 + 8 + 32, 4, id="a response's input"
        ),
        pytest.param(
            effective(Endpoint.CHAT, messages=[message("abcdef")]), 3 + 15 + 24, 3 + 4, id="a message's text only"
        ),
        pytest.param(
            effective(Endpoint.COMPLETIONS, prompt="abcdef", x="yz"),
            3 + 11 + 24,
            3 + 3,
            id="what else is read by bytes",
        ),
        pytest.param(
            effective(Endpoint.COMPLETIONS, prompt=["abcdef", "é—é"]),
            3 + 7 + 40,
            3 + 2,
            id="and what the tokenizer leaves out",
        ),
    ],
)
def test_a_tokenizer_counts_what_is_read_verbatim(request_: EffectiveRequest, bound: int, estimate: int) -> None:
    assert (bound_input_tokens(request_, COUNTING), estimate_input_tokens(request_, COUNTING)) == (bound, estimate)


def test_a_tokenizer_is_asked_once() -> None:
    asked: list[Sequence[str]] = []

    def count(texts: Sequence[str]) -> TextCount:
        asked.append(texts)
        return TextCount(1)

    request = effective(Endpoint.COMPLETIONS, prompt="abcdef")
    model = Model("m", MODEL.settings, count_tokens=count)
    assert [bound_input_tokens(request, model), bound_sent_tokens(request, model)] == [1 + 24] * 2
    assert estimate_input_tokens(request, model) == 1
    assert asked == [("abcdef",)]
