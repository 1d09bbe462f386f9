"""The models that are served: their deployments, prices and bounds, as configured.

Knows names and numbers; which deployment is tried first is `routing`'s business, what a request costs `pricing`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

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
    context_window: PositiveInt | None = None
    """Tokens that input and output share here; absent: the model's. Requests go first where they surely fit."""

    def name_of(self, model: str) -> str:
        """Return what the upstream calls a model of this name."""
        return self.name or model


class BreakerSettings(Settings):
    """When a deployment that fails is avoided for a while. It is asked all the same when no other is left."""

    failures: PositiveInt = 5
    """So many failed attempts within `window`, and `share` of all, open the breaker."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Part of the attempts within `window` that have to have failed."""
    window: Milliseconds = Field(default=10_000, gt=0)
    """How far back attempts count."""
    open_for: Milliseconds = Field(default=10_000, gt=0)
    """How long it stays open until one request probes; doubled each time a probe fails."""
    longest_open: Milliseconds = Field(default=120_000, gt=0)
    """Longest time until the next probe."""
    fail_fast: bool = False
    """Refuse with 503 at once when no deployment is available, instead of asking one all the same."""


class ShadowSettings(Settings):
    """Another deployment that a share of requests is also sent to, on the organization's account."""

    upstream: str
    """Name of an entry under `upstreams`."""
    name: str | None = None
    """What the upstream calls the model or deployment; absent: the model's own name."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Part of the requests that went upstream."""
    compare: bool = True
    """Compare what deterministic requests generate; else the answers are thrown away."""

    @property
    def deployment(self) -> Deployment:
        """The deployment that it is."""
        return Deployment(upstream=self.upstream, name=self.name)


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
    """Where the model runs; with several, `routing` says which is tried first, and the others are fail-overs."""
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
    routing: Literal["weighted", "least_outstanding", "latency"] = "weighted"
    """Which deployment is tried first: drawn by weight; with the fewest requests under way; the faster of two drawn."""
    max_attempts: PositiveInt = Field(default=3, le=10)
    """Most attempts at one request, all deployments together."""
    retry_max_wait: Milliseconds = 1_000
    """Longest wait before an attempt; a longer Retry-After means another deployment, or the answer is passed on."""
    breaker: BreakerSettings = BreakerSettings()
    """When a deployment that fails is avoided for a while."""
    hedge_after: Annotated[Milliseconds, Field(gt=0)] | None = None
    """Send a deterministic request to a second deployment when no answer began by then; absent: never."""
    shadow: ShadowSettings | None = None
    """Another deployment that a share of requests is also sent to; absent: none."""
    response_model: Literal["upstream", "asked"] = "upstream"
    """Whose name of the model answers bear: the upstream's, or the one that was asked for."""
    auth: Literal["upstream", "passthrough"] = "upstream"
    """Whose credential goes upstream: the upstream's `api_key`, or the client's own."""


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
