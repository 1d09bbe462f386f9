"""The chat completions request, as far as the gateway decides on it; everything else is forwarded as it came (SPEC §3).

Knows what counts as a chat's input; knows no policy and no price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from pydantic import Field, PlainValidator

from policies.requests.fields import Count, GenerationRequest, TopLogprobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from policies.catalog import ModelSettings

_MESSAGES = "an array of at least one message, each an object"
_MEDIA_PARTS = {"image_url": "image_url", "input_audio": "input_audio", "file": "file"}


def _check_messages(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401  any JSON value
    if isinstance(value, list) and set(map(type, value)) == {dict}:
        return value
    raise ValueError(_MESSAGES)


Messages = Annotated[list[dict[str, Any]], PlainValidator(_check_messages), Field(description=_MESSAGES)]


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    defaults: ClassVar[Mapping[str, Any]] = {"temperature": 1, "top_p": 1, "n": 1, "stream": False, "logprobs": False}
    unread: ClassVar[frozenset[str]] = frozenset({
        "frequency_penalty", "logit_bias", "metadata", "modalities", "parallel_tool_calls", "presence_penalty",
        "prompt_cache_key", "reasoning_effort", "safety_identifier", "service_tier", "stop", "store", "verbosity",
        "web_search_options",
    })  # fmt: skip
    ceilings: ClassVar[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Any = None  # these five are any JSON: they are counted as input and forwarded as they came
    functions: Any = None
    tool_choice: Any = None
    response_format: Any = None
    prediction: Any = None

    @property
    def prompt_count(self) -> int:
        """A chat is one prompt."""
        return 1

    @property
    def choices(self) -> int:
        """Choices that the answer will hold: n."""
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Candidates that are generated: n."""
        return self.n or 1

    @property
    def token_ceiling(self) -> int | None:
        """The larger of the two ceilings, since servers differ in which one they obey; None when neither is given."""
        given = [c for c in (self.max_tokens, self.max_completion_tokens) if c is not None]
        return max(given, default=None)

    @classmethod
    def ceiling_to_write(cls, settings: ModelSettings) -> str:
        """Return the name that the model is configured for."""
        return settings.token_ceiling

    def input_texts(self) -> Sequence[str]:
        """Texts of the messages, at least one for each, and tool definitions and the like as JSON.

        Images, audio and files are left out: their bytes say nothing about their tokens; `count_media` counts them.
        """
        texts = ["".join(_texts_of_message(message)) for message in self.messages]
        others = (self.tools, self.functions, self.tool_choice, self.response_format, self.prediction)
        return texts + [_as_json(other) for other in others if other is not None]

    def input_token_ids(self) -> int:
        """Chats are text."""
        return 0

    def count_media(self) -> int:
        """How many images, sounds and files the messages hold."""
        contents = (message.get("content") for message in self.messages)
        parts = (part for content in contents if isinstance(content, list) for part in content)
        return sum(isinstance(part, dict) and part.get("type") in _MEDIA_PARTS for part in parts)


def _texts_of_message(message: Mapping[str, Any]) -> Iterator[str]:
    for name, value in message.items():
        if name == "content" and isinstance(value, list):
            yield from map(_text_of_part, value)
        elif isinstance(value, str):
            yield value
        elif value is not None:
            yield _as_json(value)


def _text_of_part(part: Any) -> str:  # noqa: ANN401  any JSON value
    if not isinstance(part, dict):
        return _as_json(part)
    media = _MEDIA_PARTS.get(str(part.get("type")))
    return _as_json({name: value for name, value in part.items() if name != media})


def _as_json(value: Any) -> str:  # noqa: ANN401  any JSON value
    return msgspec.json.encode(value).decode()
