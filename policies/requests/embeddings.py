"""The embeddings request, as far as the gateway decides on it; everything else is forwarded as it came (SPEC §3).

Knows that an embedding generates nothing; knows no policy and no price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from policies.requests.fields import EndpointRequest, Input, count_inputs, count_token_ids, texts_of
from policies.requests.input_size import InputSize, utf8_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping


class EmbeddingRequest(EndpointRequest):
    """`POST /v1/embeddings`."""

    unread: ClassVar[frozenset[str]] = frozenset({"dimensions", "encoding_format"})

    input: Input
    user: str | None = None

    @property
    def prompt_count(self) -> int:
        """Inputs in the request."""
        return count_inputs(self.input)

    @property
    def choices(self) -> int:
        """One embedding for each input."""
        return self.prompt_count

    @property
    def candidates(self) -> int:
        """Nothing is generated."""
        return 0

    @property
    def token_ceiling(self) -> int:
        """Nothing is generated."""
        return 0

    @property
    def is_stream(self) -> bool:
        """Embeddings come whole."""
        return False

    @property
    def wants_usage(self) -> bool:
        """Embeddings come whole."""
        return False

    @property
    def temperature(self) -> float | None:
        """Embeddings have none."""
        return None

    @property
    def seed(self) -> int | None:
        """Embeddings have none."""
        return None

    @property
    def end_user(self) -> str | None:
        """The free `user` string, as given."""
        return self.user

    def input_size(self, fields: Mapping[str, Any]) -> InputSize:
        """Every input, and unknown members."""
        texts = texts_of(self.input)
        return InputSize(count_token_ids(self.input), utf8_bytes(texts) + self.other_input_bytes(fields), len(texts))
