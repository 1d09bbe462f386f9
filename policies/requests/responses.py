"""The Responses API's request, as far as the gateway decides on it; all else is forwarded as it came (SPEC §3).

Knows which members name what the upstream keeps, so that the input is larger than what was sent; how what was sent is
measured is in `responses_input`. Knows no policy and no price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PlainValidator

from policies.errors import InvalidRequest
from policies.requests.fields import Count, GenerationRequest, TopLogprobs, all_of
from policies.requests.forms import number
from policies.requests.meaning import Meaning, Unread
from policies.requests.responses_input import responses_input_size
from policies.requests.tools import has_hosted_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.catalog import Model
    from policies.requests.asked import AskedRequest
    from policies.requests.input_size import InputSize

_ITEMS = "a string, or an array of items, each an object"


def _check_items(value: Any) -> str | list[dict[str, Any]]:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return all_of(dict, value)
    raise ValueError


Items = Annotated[
    str | list[dict[str, Any]], PlainValidator(_check_items), Field(json_schema_extra={"expected": _ITEMS})
]


class ResponsesRequest(GenerationRequest):
    """`POST /v1/responses`; what is not decided on is `Unread`.

    An answer repeats most of its request, labels included, so that all of them are part of the cache key.
    """

    ceilings: ClassVar[tuple[str, ...]] = ("max_output_tokens",)

    input: Items | None = None
    """A text, or messages and other items; absent beside a `prompt` or what the upstream keeps."""
    instructions: str | None = None
    """A system message in front of the input."""
    max_output_tokens: Count | None = None
    """Most tokens the response may have, reasoning included."""
    top_logprobs: TopLogprobs | None = None
    """Likeliest tokens to tell at each position."""
    store: Annotated[bool | None, Meaning(default=True)] = None
    """Whether the upstream keeps the response; cached only where it is false."""
    background: Annotated[bool | None, Meaning(default=False)] = None
    """Answer at once and work later; true is refused, since such an answer ends nowhere near its request."""
    previous_response_id: str | None = None
    """The response that this one continues; only for models with one deployment, never cached."""
    conversation: Unread = None
    """The conversation that this response belongs to; only for models with one deployment, never cached."""
    prompt: Annotated[Unread, Meaning(is_input=True)] = None
    """A prompt template that the upstream keeps, with its variables; never cached."""
    tools: Annotated[Unread, Meaning(is_input=True)] = None
    """Tools that the model may call; never cached with one that runs upstream."""
    tool_choice: Annotated[Unread, Meaning(needs="tools", is_input=True)] = None
    """Which tool is called, if any."""
    parallel_tool_calls: Annotated[Unread, Meaning(default=True, needs="tools")] = None
    """Whether several tools may be called at once."""
    max_tool_calls: Annotated[Unread, Meaning(needs="tools", form=number)] = None
    """Most calls of tools that run upstream."""
    text: Annotated[Unread, Meaning(is_input=True)] = None
    """Form of the answer's text: plain, or JSON of a schema; how long it is to be."""
    reasoning: Annotated[Unread, Meaning(is_input=True)] = None
    """How much a reasoning model thinks, and what it tells of that."""
    include: Unread = None
    """What the answer tells besides."""
    truncation: Annotated[Unread, Meaning(default="disabled")] = None
    """Whether an input that is too long is cut or refused."""
    context_management: Unread = None
    """When the upstream compacts the input."""
    moderation: Unread = None
    """Checks of input and output that the upstream makes."""
    service_tier: Annotated[Unread, Meaning(default="auto")] = None
    """At which priority the upstream works."""
    user: Annotated[str | None, Meaning(names_end_user=True)] = None
    """The end user: the customer behind an application's key."""
    safety_identifier: Annotated[Unread, Meaning(names_end_user=True)] = None
    """The end user, for the upstream's abuse tracking."""
    metadata: Unread = None
    """Labels that the upstream keeps with a stored response."""
    prompt_cache_key: Unread = None
    """Hint to the upstream's own prompt cache."""
    prompt_cache_retention: Unread = None
    """How long the upstream's prompt cache keeps the prompt."""
    prompt_cache_options: Unread = None
    """How the upstream's prompt cache keeps the prompt."""

    @property
    def prompt_count(self) -> int:
        """A response has one prompt."""
        return 1

    @property
    def choices(self) -> int:
        """A response is one choice."""
        return 1

    @property
    def candidates(self) -> int:
        """A response is one candidate."""
        return 1

    @property
    def token_ceiling(self) -> int | None:
        """Most tokens the response may have; None when open."""
        return self.max_output_tokens

    @property
    def seed(self) -> int | None:
        """Responses have none."""
        return None

    @property
    def wants_usage(self) -> bool:
        """Streams of responses end with their usage unasked."""
        return True

    def input_size(self, fields: Mapping[str, Any]) -> InputSize:
        """Input, instructions, tool definitions and all else that the model reads."""
        named = (self.previous_response_id, self.conversation, self.prompt)
        is_open = any(each is not None for each in named) or has_hosted_tool(self.tools)
        return responses_input_size(self.input, self.instructions, self.other_input_bytes(fields), is_open=is_open)

    def check_together(self) -> None:
        """Refuse responses in the background."""
        super().check_together()
        if self.background:
            raise InvalidRequest(
                "background is true; it must be false or left out: the gateway answers with the response itself.",
                param="background",
            )


def check_model_state(asked: AskedRequest, model: Model) -> None:
    """Refuse what only the deployment that made it knows, where the model has several. Raises InvalidRequest."""
    view, deployments = asked.view, len(model.settings.deployments)
    if not isinstance(view, ResponsesRequest) or deployments == 1:
        return
    for name in ("previous_response_id", "conversation"):
        if getattr(view, name) is not None:
            raise InvalidRequest(
                f"{name} cannot be used with the model {model.name!r}: it has {deployments} deployments, and what one "
                "of them keeps, the others do not know. Send the conversation so far as input.",
                param=name,
            )
