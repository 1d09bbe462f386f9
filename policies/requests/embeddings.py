"""The embeddings request, as far as the gateway decides on it; everything else is forwarded as it came (SPEC §3).

Knows that an embedding generates nothing; knows no policy and no price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from policies.requests.fields import EndpointRequest, Input, count_inputs, count_token_ids, texts_of
from policies.requests.forms import input_form, number
from policies.requests.input_size import InputSize, utf8_bytes
from policies.requests.meaning import Meaning, Unread

if TYPE_CHECKING:
    from collections.abc import Mapping


class EmbeddingRequest(EndpointRequest):
    """`POST /v1/embeddings`."""

    input: Annotated[Input, Meaning(form=input_form)]
    """One input or several, as text or token ids."""
    dimensions: Annotated[Unread, Meaning(form=number)] = None
    """Length of each embedding."""
    encoding_format: Unread = None
    """How embeddings are written: float or base64."""
    user: Annotated[str | None, Meaning(is_keyed=False, names_end_user=True)] = None
    """The end user: the customer behind an application's key."""

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
        text_bytes = utf8_bytes(texts) + self.other_input_bytes(fields)
        return InputSize(count_token_ids(self.input), text_bytes, len(texts), verbatim=tuple(texts))
