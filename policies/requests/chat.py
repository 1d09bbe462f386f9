"""The chat completions request, as far as the gateway decides on it; everything else is forwarded as it came (SPEC §3).

Knows which members are a chat's input, not how it is measured; knows no policy and no price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from policies.requests.chat_input import chat_input_size
from policies.requests.fields import Count, GenerationRequest, TopLogprobs, all_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.catalog import ModelSettings
    from policies.requests.input_size import InputSize

_MESSAGES = "an array of at least one message, each an object"


def _check_messages(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401  any JSON value
    if isinstance(value, list) and value:
        return all_of(dict, value)
    raise ValueError


Messages = Annotated[list[dict[str, Any]], PlainValidator(_check_messages), Field(description=_MESSAGES)]


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "temperature": 1,
        "top_p": 1,
        "n": 1,
        "stream": False,
        "logprobs": False,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    }
    inputs: ClassVar[frozenset[str]] = frozenset({
        "function_call", "functions", "prediction", "reasoning_effort", "response_format", "tool_choice", "tools",
        "verbosity", "web_search_options",
    })  # fmt: skip
    unread: ClassVar[frozenset[str]] = inputs | {
        "audio", "frequency_penalty", "logit_bias", "metadata", "modalities", "parallel_tool_calls",
        "presence_penalty", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "stop",
        "store",
    }  # fmt: skip
    ceilings: ClassVar[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

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

    def input_size(self, fields: Mapping[str, Any]) -> InputSize:
        """Messages, tool definitions and all else that the model reads."""
        return chat_input_size(self.messages, self.other_input_bytes(fields))
