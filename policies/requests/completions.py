"""The text completions request: its parameters with their ranges, and what couples `n` and `best_of` (SPEC §3, §4).

Knows what clients may ask; which bounds a policy sets is in `parameters`, what a request costs in `charges`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from policies.errors import InvalidRequest
from policies.requests.fields import (
    MAX_CHOICES,
    MAX_STOPS,
    Biases,
    CacheLevel,
    Choices,
    ChoicesRequest,
    Count,
    Input,
    Penalty,
    Reconciled,
    Stops,
    count_inputs,
    count_token_ids,
    shown,
    texts_of,
)
from policies.requests.forms import input_form, number, numbers, stop_form
from policies.requests.input_size import InputSize, utf8_bytes
from policies.requests.meaning import Meaning

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from policies.catalog import Model
    from policies.requests.asked import AskedRequest

DEFAULT_PROMPT = "<|endoftext|>"
DEFAULT_MAX_TOKENS = 16
_FULL_CACHE = 2


def _cache_level(value: object) -> object:
    """Write the level that lets the cache work as nothing, which is what everybody else sends."""
    return None if value == _FULL_CACHE else number(value)


class CompletionRequest(ChoicesRequest):
    """`POST /v1/completions`, as SPEC §3's table types it."""

    ceilings: ClassVar[tuple[str, ...]] = ("max_tokens",)
    coupled: ClassVar[tuple[str, ...]] = ("n", "best_of")

    prompt: Annotated[Input | None, Meaning(form=input_form)] = None
    """One prompt or several, as text or token ids; absent: the end-of-text marker."""
    suffix: str | None = None
    """Text that follows what is generated."""
    max_tokens: Annotated[Count | None, Meaning(default=DEFAULT_MAX_TOKENS)] = None
    """Most tokens a candidate may have."""
    best_of: Annotated[Choices | None, Meaning(counts_as="n")] = None
    """Candidates to generate for each prompt, of which the best `n` are answered; absent: counts as `n`."""
    logprobs: Count | None = None
    """Likeliest tokens to tell at each position; at most the model's `max_logprobs`."""
    echo: Annotated[bool | None, Meaning(default=False, is_shared_default=True)] = None
    """Whether the answer begins with its prompt."""
    stop: Annotated[Stops | None, Meaning(max_items=MAX_STOPS, form=stop_form)] = None
    """Texts at which generation ends."""
    presence_penalty: Annotated[Penalty | None, Meaning(default=0, is_shared_default=True)] = None
    """How much tokens that have occurred are avoided."""
    frequency_penalty: Annotated[Penalty | None, Meaning(default=0, is_shared_default=True)] = None
    """How much tokens are avoided, the more often they have occurred."""
    logit_bias: Annotated[Biases | None, Meaning(form=numbers)] = None
    """Token ids made likelier or less likely."""
    completion_config: str | None = None
    """Azure's; forwarded."""
    cache_level: Annotated[CacheLevel | None, Meaning(form=_cache_level)] = None
    """Azure's: 0 and 1 keep the answer out of the cache; forwarded to upstreams of kind azure only."""

    @property
    def prompt_count(self) -> int:
        """Prompts in the request."""
        return 1 if self.prompt is None else count_inputs(self.prompt)

    @property
    def choices(self) -> int:
        """Choices that the answer will hold: prompts × n."""
        return self.prompt_count * (self.n or 1)

    @property
    def candidates(self) -> int:
        """Candidates that are generated: prompts × max(n, best_of)."""
        return self.prompt_count * max(self.n or 1, self.best_of or 1)

    @property
    def token_ceiling(self) -> int:
        """Most tokens a candidate may have, as given or by the API's default."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def input_size(self, fields: Mapping[str, Any]) -> InputSize:
        """Every prompt, the suffix, and unknown members."""
        prompt = DEFAULT_PROMPT if self.prompt is None else self.prompt
        texts = texts_of(prompt) if self.suffix is None else (*texts_of(prompt), self.suffix)
        text_bytes = utf8_bytes(texts) + self.other_input_bytes(fields)
        return InputSize(count_token_ids(prompt), text_bytes, len(texts), verbatim=tuple(texts))

    def echo_size(self) -> InputSize:
        """Every prompt n times, when `echo` asks for it."""
        if not self.echo or self.prompt is None:
            return InputSize()
        n, texts = self.n or 1, texts_of(self.prompt)
        return InputSize(n * count_token_ids(self.prompt), n * utf8_bytes(texts), verbatim=n * tuple(texts))

    def check_together(self) -> None:
        """Refuse `best_of` below `n`, and above it on a stream (SPEC §3)."""
        super().check_together()
        if self.best_of is None:
            return
        n = self.n or 1
        if self.best_of < n:
            raise InvalidRequest(f"best_of is {self.best_of}; it must be at least n, which is {n}.", param="best_of")
        if self.best_of > n and self.stream:
            raise InvalidRequest(
                f"best_of is {self.best_of} and n is {n}; with stream: true, best_of must equal n or be left out.",
                param="best_of",
            )

    @classmethod
    def reconcile(
        cls,
        fields: Mapping[str, Any],
        defaulted: Collection[str],
        permits: Callable[[str, int], bool],
    ) -> Mapping[str, Reconciled] | None:
        """Make `n` and `best_of` agree (SPEC §4): `n` follows a lowered `best_of`."""
        changes: dict[str, Reconciled] = {}
        n = int(fields.get("n") or 1)
        best_of = None if fields.get("best_of") is None else int(fields["best_of"])
        if best_of is None and permits("n", n) and permits("best_of", n):
            return changes
        coupling = (_StreamCoupling if fields.get("stream") else _Coupling)(permits)
        if best_of is not None and "best_of" in defaulted:
            best_of = coupling.yielding(n, best_of)
        pair = coupling.without_best_of(n) if best_of is None else coupling.pair(n, best_of)
        if pair is None:
            return None
        if pair[0] != n:
            changes["n"] = Reconciled(pair[0], because="best_of")
        if pair[1] != fields.get("best_of"):
            changes["best_of"] = Reconciled(pair[1], because="n")
        return changes


class _Coupling:
    """Finds the valid pair of `n` and `best_of` near the wanted one: `n` is lowered first, then `best_of` moved."""

    def __init__(self, permits: Callable[[str, int], bool]) -> None:
        self._permits = permits

    def pair(self, n: int, best_of: int) -> tuple[int, int | None] | None:
        """Return the pair for a given `best_of`; None when policy permits none."""
        best_ofs = (*range(best_of, MAX_CHOICES + 1), *range(best_of - 1, 0, -1))
        lowered = [lower for lower in range(n, 0, -1) if self._permits("n", lower)]
        return self._first_permitted((lower, moved) for moved in best_ofs for lower in lowered if lower <= moved)

    def without_best_of(self, n: int) -> tuple[int, int | None] | None:
        """Return the pair for an absent `best_of`, which counts as `n`, so that its cap binds `n` too."""
        common = self._first_permitted((lower, lower) for lower in range(n, 0, -1))
        return (common[0], None) if common else self.pair(n, n)

    def yielding(self, n: int, best_of: int) -> int | None:
        """Return what a `best_of` that nobody asked for becomes beside an `n` that somebody did."""
        return best_of if best_of > n else None

    def _first_permitted(self, pairs: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
        return next((p for p in pairs if self._permits("n", p[0]) and self._permits("best_of", p[1])), None)


class _StreamCoupling(_Coupling):
    """On a stream the two must be equal."""

    def pair(self, n: int, best_of: int) -> tuple[int, int | None] | None:
        least = min(n, best_of)
        return self._first_permitted((both, both) for both in (*range(least, 0, -1), *range(least, MAX_CHOICES + 1)))

    def yielding(self, n: int, best_of: int) -> int | None:
        del n, best_of
        return None


def check_model_bounds(asked: AskedRequest, model: Model) -> None:
    """Refuse more `logprobs` than the model is configured for (SPEC §3). Raises InvalidRequest."""
    logprobs = asked.view.logprobs if isinstance(asked.view, CompletionRequest) else None
    most = model.settings.max_logprobs
    if logprobs is not None and logprobs > most:
        raise InvalidRequest(
            f"logprobs is {shown(logprobs)}; it must be an integer from 0 to {most} for the model {model.name!r}.",
            param="logprobs",
        )
