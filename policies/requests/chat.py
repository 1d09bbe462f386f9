"""The chat completions request, as far as the gateway decides on it; everything else is forwarded as it came (SPEC §3).

Knows which members are a chat's input, and which of them name what is not in it, so that the input is larger than what
was sent; not how it is measured. Knows no policy and no price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from policies.requests.chat_input import chat_input_size
from policies.requests.fields import MAX_STOPS, ChoicesRequest, Count, TopLogprobs, all_of
from policies.requests.forms import number, numbers, stop_form
from policies.requests.meaning import Meaning, Unread
from policies.requests.tools import has_hosted_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.catalog import ModelSettings
    from policies.requests.input_size import InputSize

_MESSAGES = "an array of at least one message, each an object"


def _check_messages(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401  any JSON value
    if isinstance(value, list) and value:
        return all_of(dict, value)
    raise ValueError


Messages = Annotated[
    list[dict[str, Any]], PlainValidator(_check_messages), Field(json_schema_extra={"expected": _MESSAGES})
]


class ChatRequest(ChoicesRequest):
    """`POST /v1/chat/completions`; what is not decided on is `Unread`."""

    ceilings: ClassVar[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")

    messages: Messages
    """The conversation so far."""
    max_completion_tokens: Count | None = None
    """Most tokens a candidate may have, reasoning included."""
    logprobs: Annotated[bool | None, Meaning(default=False, is_shared_default=True)] = None
    """Whether the answer tells the probabilities of its tokens."""
    top_logprobs: Annotated[TopLogprobs | None, Meaning(needs="logprobs")] = None
    """Likeliest tokens to tell at each position; only with `logprobs`."""
    presence_penalty: Annotated[Unread, Meaning(default=0, is_shared_default=True, form=number)] = None
    """From -2 to 2: how much tokens that have occurred are avoided."""
    frequency_penalty: Annotated[Unread, Meaning(default=0, is_shared_default=True, form=number)] = None
    """From -2 to 2: how much tokens are avoided, the more often they have occurred."""
    logit_bias: Annotated[Unread, Meaning(form=numbers)] = None
    """Token ids made likelier or less likely."""
    stop: Annotated[Unread, Meaning(max_items=MAX_STOPS, form=stop_form)] = None
    """Texts at which generation ends."""
    tools: Annotated[Unread, Meaning(is_input=True)] = None
    """Tools that the model may call."""
    tool_choice: Annotated[Unread, Meaning(needs="tools", is_input=True)] = None
    """Which tool is called, if any."""
    parallel_tool_calls: Annotated[Unread, Meaning(default=True, needs="tools")] = None
    """Whether several tools may be called at once."""
    functions: Annotated[Unread, Meaning(is_input=True)] = None
    """Tools in the older spelling."""
    function_call: Annotated[Unread, Meaning(needs="functions", is_input=True)] = None
    """Which of `functions` is called, if any."""
    response_format: Annotated[Unread, Meaning(is_input=True)] = None
    """Form of the answer: text, or JSON of a schema."""
    prediction: Annotated[Unread, Meaning(is_input=True)] = None
    """Text that the answer will mostly consist of."""
    reasoning_effort: Annotated[Unread, Meaning(is_input=True)] = None
    """How much a reasoning model thinks."""
    verbosity: Annotated[Unread, Meaning(is_input=True)] = None
    """How long the answer is to be."""
    web_search_options: Annotated[Unread, Meaning(is_input=True)] = None
    """Search the web for the answer; never cached."""
    data_sources: Annotated[Unread, Meaning(is_input=True)] = None
    """Azure's: where the upstream looks up what the answer is to be drawn from; never cached."""
    prompt_cache_options: Unread = None
    """How the upstream's prompt cache keeps the prompt."""
    moderation: Unread = None
    """Whether the upstream judges what is asked and answered."""
    modalities: Unread = None
    """Kinds of output: text, audio."""
    audio: Unread = None
    """Voice and format of spoken output; never cached."""
    store: Annotated[Unread, Meaning(default=False)] = None
    """Whether the upstream keeps the answer; never cached."""
    service_tier: Annotated[Unread, Meaning(default="auto")] = None
    """At which priority the upstream works."""
    metadata: Annotated[Unread, Meaning(is_keyed=False)] = None
    """Labels that the upstream keeps with a stored answer."""
    safety_identifier: Annotated[Unread, Meaning(is_keyed=False, names_end_user=True)] = None
    """The end user, for the upstream's abuse tracking."""
    prompt_cache_key: Annotated[Unread, Meaning(is_keyed=False)] = None
    """Hint to the upstream's own prompt cache."""
    prompt_cache_retention: Annotated[Unread, Meaning(is_keyed=False)] = None
    """How long the upstream's prompt cache keeps the prompt."""

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
        if self.max_tokens is None:
            return self.max_completion_tokens
        return (
            self.max_tokens if self.max_completion_tokens is None else max(self.max_tokens, self.max_completion_tokens)
        )

    @classmethod
    def ceiling_to_write(cls, settings: ModelSettings) -> str:
        """Return the name that the model is configured for."""
        return settings.token_ceiling

    def input_size(self, fields: Mapping[str, Any]) -> InputSize:
        """Messages, tool definitions and all else that the model reads."""
        elsewhere = (self.web_search_options, self.data_sources)
        is_open = any(each is not None for each in elsewhere) or has_hosted_tool(self.tools)
        other_bytes = self.other_input_bytes(fields)
        return chat_input_size(self.messages, other_bytes, prediction=self.prediction, is_open=is_open)
