"""One policy as configured: parameter rules, limits and cache settings that apply to a principal.

Holds the shape only. What a rule does is in `parameters`, what a limit binds in `limits`, what is cacheable in
`cacheability`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

from policies.quantities import QUANTITIES, Counted, OnStoreFailure
from policies.settings import Items, Milliseconds, Settings
from policies.windows import MAX_COUNT

Number = int | float
MAX_WAIT_MILLISECONDS: Final = 600_000
"""Longest wait for room that can be configured: ten minutes."""
DEFAULT_WAIT_MILLISECONDS: Final = 30_000


def _check_wait(milliseconds: int) -> int:
    if 0 < milliseconds <= MAX_WAIT_MILLISECONDS:
        return milliseconds
    msg = "must be 1ms or longer, and 10m at most"
    raise ValueError(msg)


class Rule(Settings):
    """What a policy says of one parameter."""

    max: Number | None = None
    """Largest value let through."""
    min: Number | None = None
    """Smallest value let through."""
    allowed: Items[Any] | None = None
    """The only values let through."""
    on_violation: Literal["reject", "clamp"] = "reject"
    """Whether a value outside is refused, or moved to the nearest one inside."""
    default: Any = None
    """Written when the client sent none."""
    force: Any = None
    """Written whatever the client sent."""
    forbid: Literal["reject", "drop"] | None = None
    """The parameter may not be sent, but as policy writes it: refuse the request, or take the parameter out."""
    add: Annotated[Items[str], Field(min_length=1)] | None = None
    """Texts that are added to what the client sent, such as to `stop`; on_violation says what happens to too many."""
    strip_trailing_space: bool = False
    """Take spaces off the end of every text, such as of `prompt`."""
    pseudonymise: bool = False
    """Write a keyed hash of who asks, as `user` for an upstream that looks for abuse; needs `pseudonym_key`."""
    mode: Literal["enforce", "observe"] = "enforce"
    """observe: only record what the rule would have done, and change nothing."""
    override: bool = False
    """What outer levels say of this parameter does not hold, even where it is stricter."""


class Limit(Settings):
    """A quota: so much of a quantity, per window, for a scope."""

    name: str | None = None
    """Name in headers, messages and metrics; absent: made from the other settings."""
    of: Counted
    """What is counted: `completions` are choices generated."""
    limit: Number = Field(ge=0)
    """How much of it: a whole number, but for usd, which may have six decimals."""
    per: str | None = None
    """second, minute, hour, day, week, month, or a duration such as 90s; not with concurrency."""
    by: Items[Literal["organization", "project", "user", "key", "end_user", "model"]] = Field(min_length=1)
    """Each combination of these has a count of its own."""
    mode: Literal["enforce", "observe"] = "enforce"
    """observe: count, and only record which requests the limit would have refused."""
    on_exceed: Literal["refuse", "wait"] = "refuse"
    """What becomes of a request that has no room: refused at once, or it waits in line until it fits."""
    max_wait: Annotated[Milliseconds, AfterValidator(_check_wait)] | None = None
    """Longest wait, with on_exceed: wait; past it, or if it cannot do, the request is refused. Absent: 30 seconds."""
    hold: Literal["worst_case", "none"] = "worst_case"
    """What is taken until the answer has come: the most it can be, or nothing; requests in flight then overshoot."""
    burst: Annotated[Number, Field(gt=0)] | None = None
    """Room of a refilling bucket, written as the limit is; absent: the limit."""
    models: Annotated[Items[str], Field(min_length=1)] | None = None
    """Model names or wildcards that the limit is for; absent: all."""
    on_store_failure: OnStoreFailure | None = None
    """While the store is away: let everything through, refuse, or count in the process; absent: local, for usd deny."""
    charge_hits: Literal["none", "full"] = "none"
    """Whether a cache hit takes tokens, completions and usd."""

    @field_validator("limit", "burst")
    @classmethod
    def _is_counted(cls, amount: Number | None, info: ValidationInfo) -> Number | None:
        quantity = QUANTITIES.get(info.data.get("of", ""))
        if amount is None or quantity is None:  # what is wrong with `of` has been told
            return amount
        most = MAX_COUNT // quantity.count(1)
        if amount > most:
            raise PydanticKnownError("less_than_equal", {"le": most})
        quantity.count(amount)
        return amount

    @field_validator("hold")
    @classmethod
    def _is_settled(cls, hold: str, info: ValidationInfo) -> str:
        quantity = QUANTITIES.get(info.data.get("of", ""))
        if hold == "none" and quantity is not None and not quantity.is_settled:
            msg = f"what {info.data['of']} takes is known before the answer: leave `hold` out"
            raise ValueError(msg)
        return hold

    @model_validator(mode="after")
    def _window_fits_quantity(self) -> Limit:
        if self.of == "concurrency" and self.per is not None:
            msg = "concurrency has no window: leave out `per`"
            raise ValueError(msg)
        if self.of != "concurrency" and self.per is None:
            msg = f"a limit of {self.of} needs `per`: second, minute, hour, day, week, month, or a duration such as 90s"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _waits_for_something(self) -> Limit:
        if self.max_wait is not None and self.on_exceed != "wait":
            msg = "max_wait is how long requests wait: write on_exceed: wait beside it, or leave it out"
            raise ValueError(msg)
        if self.on_exceed == "wait" and self.mode == "observe":
            msg = "nothing waits for a limit that is only observed: leave out on_exceed, or mode"
            raise ValueError(msg)
        return self

    @property
    def wait_milliseconds(self) -> int:
        """How long a request may wait for room, in milliseconds; 0 where it is refused at once."""
        if self.on_exceed == "refuse":
            return 0
        return DEFAULT_WAIT_MILLISECONDS if self.max_wait is None else self.max_wait


class CacheSettings(Settings):
    """Which answers a policy lets the cache keep, and for whom."""

    mode: Literal["deterministic", "everything", "off"] = "deterministic"
    """Cache deterministic requests only, all that is complete, or nothing."""
    scope: Literal["organization", "project", "user", "key", "end_user"] = "organization"
    """Who shares entries."""
    ttl: Milliseconds = 7 * 86_400_000
    """How long an entry may be served; a model's `cache_ttl` shortens it."""
    fingerprint: Literal["check", "ignore"] = "check"
    """Whether an answer whose `system_fingerprint` is retired is fetched anew."""
    drift_check: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of hits that are also sent upstream in the background and compared."""
    finish_abandoned: bool = False
    """Whether a fetch goes on for the cache's sake when nobody waits for it any more."""


class Policy(Settings):
    """One entry under `policies`."""

    parameters: dict[str, Rule] = Field(default_factory=dict)
    """Rules by parameter name; `prompts`, `candidates`, `prompt_tokens` and `worst_case_tokens` are computed."""
    models: Annotated[Items[str], Field(min_length=1)] | None = None
    """Model names or wildcards that may be asked for, within what project and key may; absent: all of those."""
    unknown_parameters: Literal["forward", "drop", "reject"] | None = None
    """What becomes of members that neither the API nor a rule names; absent: the outer level's word, or forward."""
    override: bool = False
    """Whatever this policy says of parameters, models and unknown parameters replaces what outer levels say of it."""
    limits: Items[Limit] = ()
    """All of them apply at once."""
    cache: CacheSettings | None = None
    """Absent: the outer level's, or the built-in defaults."""
