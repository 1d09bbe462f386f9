"""The models that are served: their deployments, prices and bounds, as configured.

Knows names and numbers; which deployment is tried first is `routing`'s business, what a request costs `pricing`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from policies.settings import Items, Milliseconds, Settings

TokenizerName = Literal["cl100k_base", "o200k_base", "o200k_harmony", "llama3", "qwen3"]


class TextCount(NamedTuple):
    """How many tokens texts have, but for so many bytes of them that were not counted: each token has one at least."""

    tokens: int
    other_bytes: int = 0


TextCounter = Callable[[Sequence[str]], TextCount]
"""Counts texts, each read by itself."""


MOST_USD: Final = 1e9
"""Per million tokens."""


class Price(Settings):
    """USD per million tokens."""

    input: float = Field(ge=0, le=MOST_USD)
    """USD per million input tokens."""
    output: float = Field(ge=0, le=MOST_USD)
    """USD per million output tokens."""
    cached_input: float | None = Field(default=None, ge=0, le=MOST_USD)
    """USD per million input tokens that the upstream served from its own prompt cache; absent: as input."""


class Deployment(Settings):
    """One place where a model runs."""

    upstream: str
    """Name of an entry under `upstreams`."""
    name: str | None = None
    """What the upstream calls the model or deployment; absent: the model's own name."""
    weight: PositiveInt = 1
    """Share of requests relative to the model's other deployments."""


class ModelDefaults(Settings):
    """What a model's servers take for a parameter that a request leaves out."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    """For an absent `temperature`."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """For an absent `top_p`."""
    max_tokens: NonNegativeInt | None = None
    """For an absent `max_tokens` of completions; a chat's open ceiling is as long as its prompt leaves room."""


class ModelSettings(Settings):
    """One entry under `models`."""

    deployments: Items[Deployment] = Field(min_length=1)
    """Where the model runs; with several, the first try is drawn by weight and the others are fail-overs."""
    aliases: Items[str] = ()
    """Other names that clients may use."""
    context_window: PositiveInt | None = None
    """Tokens that input and output share."""
    max_output_tokens: PositiveInt | None = None
    """Most tokens one candidate may have when the request leaves its ceiling open."""
    max_logprobs: NonNegativeInt = 5
    """Largest `logprobs` that completions take."""
    token_ceiling: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"  # noqa: S105  a name
    """Under which name an open ceiling of a chat request is written."""
    defaults: ModelDefaults = ModelDefaults()
    """What the servers take for absent parameters: the cache then keeps one entry for both. Servers differ in these."""
    tokenizer: TokenizerName | None = None
    """Vocabulary to count text by, with the extra `tokenizers`; absent: UTF-8 bytes bound input and tell of output."""
    image_tokens: PositiveInt = 2_048
    """What an image in a chat counts for, whatever its size: the most that the model makes of one."""
    request_overhead_tokens: NonNegativeInt = 8
    """Added to the bound on text once a request, for what the chat template adds; a tokenizer leaves no more room."""
    message_overhead_tokens: NonNegativeInt = 16
    """Added to the bound on text for every message or prompt."""
    cache_ttl: Milliseconds | None = None
    """How long its answers may be served from the cache at most; absent: as long as policies say."""
    price: Price | None = None
    """What tokens cost; absent: its tokens count, and cost nothing."""


@dataclass(frozen=True, slots=True)
class Model:
    """A served model under its canonical name.

    `forwards_api_version`: one of its upstreams is sent the client's own `api-version`, by which answers may differ.
    `count_tokens` is what its `tokenizer` counts with; None without one.
    """

    name: str
    settings: ModelSettings
    forwards_api_version: bool = False
    count_tokens: TextCounter | None = None
