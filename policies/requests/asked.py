"""The values that a request passes through the core as: what was asked, and what policy made of it.

Knows the vocabulary that every endpoint shares; the endpoints' own parameters are in the modules beside it.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.catalog import TextCount, TextCounter
    from policies.requests.input_size import InputSize


class Endpoint(StrEnum):
    """An endpoint family; the value is the path below `/v1/`."""

    COMPLETIONS = "completions"
    CHAT = "chat/completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"


class Dialect(StrEnum):
    """Which of the three spellings of the API the client speaks (SPEC §2)."""

    OPENAI = "openai"
    ENGINES = "engines"
    AZURE = "azure"


class Action(StrEnum):
    """What an adjustment did to a parameter."""

    CLAMP = "clamp"
    DEFAULT = "default"
    FORCE = "force"
    DROP = "drop"
    NORMALISE = "normalise"
    STRIP = "strip"
    ADD = "add"
    PSEUDONYMISE = "pseudonymise"
    REJECT = "reject"
    """Only of rules that are observed: the request would have been refused."""


class Adjustment(msgspec.Struct, frozen=True):
    """One change made to a request; `before` and `after` are JSON values, None where there was or is none."""

    parameter: str
    before: Any  # any JSON value a client may send
    after: Any
    action: Action
    policy: str | None = None


class RequestView(Protocol):
    """What charges, limits, cache and relay may ask of any validated request, whatever its endpoint.

    Every endpoint's pydantic model provides it; absent parameters count with the API's default.
    """

    @property
    def prompt_count(self) -> int:
        """Prompts (completions) or inputs (embeddings) in the request; 1 for chat and responses."""

    @property
    def choices(self) -> int:
        """Choices that the answer will hold: prompts × n; for embeddings the inputs."""

    @property
    def candidates(self) -> int:
        """Candidates that are generated: prompts × max(n, best_of); 0 for embeddings."""

    @property
    def token_ceiling(self) -> int | None:
        """Most tokens a candidate may have, as given or by the API's default; None when open."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer is asked for as server-sent events."""

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to tell its usage, because the client asked for that or its endpoint always does."""

    @property
    def temperature(self) -> float | None:
        """As given; None when absent."""

    @property
    def seed(self) -> int | None:
        """As given; None when absent."""

    @property
    def end_user(self) -> str | None:
        """The free `user` string, as given."""

    def with_fields(self, fields: Mapping[str, Any]) -> RequestView:
        """Validate changed members as a request of the same kind. Raises InvalidRequest."""

    def input_size(self, fields: Mapping[str, Any]) -> InputSize:
        """How large the input is; `fields` are the request's members, of which a model may read unknown ones too."""

    def echo_size(self) -> InputSize:
        """How much of the input all choices of the answer together repeat; nothing without `echo`."""


class AskedRequest(msgspec.Struct, frozen=True):
    """A valid request as the client meant it, its dialect's spelling normalised.

    `fields` are the JSON members in the client's order without `model`; `model` is the name asked for,
    wherever it stood; `adjustments` are the normalisations. `api_version` is the query's, in Azure's dialect.
    """

    endpoint: Endpoint
    dialect: Dialect
    model: str
    fields: Mapping[str, Any]
    view: RequestView
    adjustments: tuple[Adjustment, ...] = ()
    api_version: str | None = None


class EffectiveRequest(msgspec.Struct, frozen=True, dict=True):
    """The request after normalising and policy: what is keyed, priced, limited and forwarded (SPEC §1).

    `fields` again without `model`, which is written per deployment.
    """

    endpoint: Endpoint
    fields: Mapping[str, Any]
    view: RequestView

    @cached_property
    def input_size(self) -> InputSize:
        """How large the input is; measured when it is first asked for, and once."""
        return self.view.input_size(self.fields)

    def verbatim_count(self, count: TextCounter) -> TextCount:
        """Count the input's verbatim texts; each counter is asked once."""
        found = self._counts.get(count)
        if found is None:
            found = self._counts[count] = count(self.input_size.verbatim)
        return found

    @cached_property
    def _counts(self) -> dict[TextCounter, TextCount]:
        return {}
