"""What a request may cost at most, before it is sent, and what it did cost, after (SPEC §5).

Knows the factors (prompts, n, best_of, token ceiling), the price, and whose count is believed; knows no limit and no
window, and takes what was seen of an answer as plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from policies.errors import InvalidRequest
from policies.pricing import cost_microdollars, most_cost_microdollars
from policies.requests.asked import Action, Adjustment, EffectiveRequest
from policies.requests.ceilings import (
    BEST_OF,
    ceilings_given,
    find_unreadable_multiplier,
    is_ceiling,
    widest_candidates,
    widest_ceiling,
)
from policies.requests.dialects import REQUEST_TYPES
from policies.requests.fields import shown
from policies.tokens import (
    BYTES_PER_TOKEN,
    bound_input_tokens,
    bound_sent_tokens,
    estimate_input_tokens,
    estimate_text_tokens,
    estimate_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.catalog import Model, TextCounter
    from policies.usage import Usage

MOST_TOKENS: Final = 10**15
"""Outputs above it are taken as this: more than any limit tells apart, and sums of it can still be written."""

Known = Literal["reported", "counted", "worst_case", "none"]
"""How the tokens of a charge are known: by the upstream, by ourselves, by what was held, or there are none."""


class WorstCase(msgspec.Struct, frozen=True):
    """The most a request can take: tokens as counts, cost in whole micro-dollars (0 for a model without price).

    Not `is_output_bounded` where nothing says how much one candidate may generate, which then counts as none; not
    `is_input_bounded` where nothing says how much an input has that is partly named only, which then counts as sent.
    `candidates` are the choices that are generated, whether they are returned or not.
    """

    input_tokens: int
    output_tokens: int
    cost_microdollars: int
    candidates: int = 0
    is_input_bounded: bool = True
    is_output_bounded: bool = True

    @property
    def is_bounded(self) -> bool:
        """Whether both are known."""
        return self.is_input_bounded and self.is_output_bounded

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Charged:
    """What a request is charged: tokens as counts, cost in whole micro-dollars.

    `cached_input_tokens` are part of the input, `reasoning_tokens` of the output; `completions` are choices generated.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cost_microdollars: int = 0
    known: Known = "none"
    completions: int = 0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


NOTHING = Charged()
"""The charge of a hit, of a refusal, and of a failure before the first token."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of an answer, for its charge.

    `usage` is the upstream's report. `is_served`: the upstream took the request and did not answer it with an error
    status; `is_ended`: the answer's end came; `is_abandoned`: the client left before that. `is_readable`: what passed
    could be counted, events of content and the bytes of their text. `choices` are those of an answer that is all there,
    0 where they were not counted; `choices_with_text` those of a whole answer that have some. `texts` is what choices
    have that was kept for the model's tokenizer, `other_bytes` the bytes of what was not.
    """

    usage: Usage | None = None
    content_events: int = 0
    content_bytes: int = 0
    is_served: bool = False
    is_ended: bool = False
    is_abandoned: bool = False
    is_readable: bool = True
    choices: int = 0
    choices_with_text: int = 0
    texts: tuple[str, ...] = ()
    other_bytes: int = 0


class _Output(NamedTuple):
    """How many tokens were seen; `is_counted` by the model's tokenizer, all of them."""

    tokens: int
    is_counted: bool = False


def most_candidates(effective: EffectiveRequest) -> int:
    """Return how many candidates are generated at most, whichever of their names the server obeys."""
    view = effective.view
    return widest_candidates(effective.fields, view.candidates, view.prompt_count)


def worst_case(effective: EffectiveRequest, model: Model) -> WorstCase:
    """Return the most that a request can take: its input, and its ceiling for every candidate."""
    bound = bound_input_tokens(effective, model)
    input_tokens = bound_sent_tokens(effective, model) if bound is None else bound
    candidates = most_candidates(effective)
    ceiling = widest_ceiling(effective.fields, effective.view.token_ceiling)
    if ceiling is None and all(map(is_ceiling, ceilings_given(effective.fields).values())):
        ceiling = model.settings.max_output_tokens or model.settings.context_window
    output_tokens = min(candidates * (ceiling or 0), MOST_TOKENS)
    cost = most_cost_microdollars(model.settings.price, input_tokens=input_tokens, output_tokens=output_tokens)
    is_counted = candidates == 0 or (ceiling is not None and find_unreadable_multiplier(effective.fields) is None)
    return WorstCase(
        input_tokens,
        output_tokens,
        cost,
        candidates=candidates,
        is_input_bounded=bound is not None,
        is_output_bounded=is_counted,
    )


def worst_case_if_held(effective: EffectiveRequest, model: Model, worst: WorstCase) -> WorstCase:
    """Return what a limit would hold of a request that none holds: with the ceiling that would be written into it.

    `worst` is its worst case as it is; it stays where the ceiling would be missing.
    """
    try:
        closed, written = close_ceiling(effective, model)
    except InvalidRequest:
        return worst
    return worst_case(closed, model) if written else worst


def close_ceiling(effective: EffectiveRequest, model: Model) -> tuple[EffectiveRequest, tuple[Adjustment, ...]]:
    """Write a token ceiling into a request that left it open, since a limit has to hold its worst case.

    The value is the API's default, else the model's `max_output_tokens`, else what its context window leaves. Raises
    InvalidRequest where none of them says anything, naming the setting that is missing.
    """
    if effective.view.candidates == 0:
        return effective, ()
    given = ceilings_given(effective.fields)
    _check_ceilings(given)
    request_type = REQUEST_TYPES[effective.endpoint]
    if not given.keys().isdisjoint(request_type.ceilings):
        return effective, ()
    name = request_type.ceiling_to_write(model.settings)
    ceiling = effective.view.token_ceiling
    if ceiling is None:
        ceiling = _configured_ceiling(effective, model, name)
    fields = {**effective.fields, name: ceiling}
    written = Adjustment(parameter=name, before=None, after=ceiling, action=Action.DEFAULT)
    return EffectiveRequest(effective.endpoint, fields, effective.view.with_fields(fields)), (written,)


def check_multipliers(effective: EffectiveRequest) -> None:
    """Refuse what may multiply candidates and is no number, since a limit has to know how many there are.

    Raises InvalidRequest.
    """
    name = find_unreadable_multiplier(effective.fields) if effective.view.candidates else None
    if name is not None:
        raise InvalidRequest(
            f"{name} is {shown(effective.fields[name])}; it must be a whole number, since a limit has to know how many "
            "candidates this request can take.",
            param=name,
        )


def check_input(effective: EffectiveRequest, model: Model) -> None:
    """Refuse an input of which some is only named, since a limit has to hold its worst case.

    Raises InvalidRequest, naming the setting that is missing, where nothing says how large it may be.
    """
    if bound_input_tokens(effective, model) is None:
        raise InvalidRequest(
            "The request names input that only the upstream knows, such as an earlier response, a file or the results "
            "of a tool, and a limit has to know the most tokens that it can take. Send all of the input, or have "
            f"models.{model.name}.context_window set in the gateway's configuration.",
            code="input_unbounded",
        )


def _check_ceilings(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if not is_ceiling(value):
            raise InvalidRequest(
                f"{name} is {shown(value)}; it must be a number of tokens, since a limit has to know the most tokens "
                "that this request can take.",
                param=name,
            )


def _configured_ceiling(effective: EffectiveRequest, model: Model, name: str) -> int:
    settings = model.settings
    if settings.max_output_tokens is not None:
        return settings.max_output_tokens
    bound = bound_input_tokens(effective, model)
    if settings.context_window is None or bound is None:
        raise InvalidRequest(
            f"{name} is required here: a limit has to know the most tokens that this request can take. "
            f"Send {name}, or have models.{model.name}.max_output_tokens set in the gateway's configuration.",
            code="token_ceiling_missing",
            param=name,
        )
    if bound < settings.context_window:
        return settings.context_window - bound
    raise InvalidRequest(
        f"{name} is required here: the input may fill the context window of {settings.context_window} tokens, "
        f"which leaves no room to assume. Send {name}, or have models.{model.name}.max_output_tokens set.",
        code="token_ceiling_missing",
        param=name,
    )


def charge(effective: EffectiveRequest, model: Model, worst: WorstCase, seen: Seen) -> Charged:
    """Return what a request that went upstream is charged, given what was seen of its answer.

    The upstream's report is believed, unless our own count is much larger: of several choices or prompts, of which some
    servers report one only, and of an answer without its end, as some report in between. Without a report the prompt
    and what was generated are estimated, never above the worst case. A failure before the first token costs nothing; an
    answer that could not be seen costs the worst case.
    """
    charged = _charge_tokens(effective, model, worst, seen)
    if charged.known in ("none", "worst_case"):
        return charged
    return replace(charged, completions=_completions(effective, worst, seen))


def charge_of_hit(model: Model, worst: WorstCase, usage: Usage | None) -> Charged:
    """Return what an answer from the cache takes where a policy charges hits in full: what was reported of it, if so.

    What nobody reported is taken at its worst. A stored answer is complete, so all of its choices were generated.
    """
    if usage is None:
        return at_worst(worst)
    return _charged(
        model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        known="reported",
        completions=worst.candidates,
    )


def _charge_tokens(effective: EffectiveRequest, model: Model, worst: WorstCase, seen: Seen) -> Charged:
    """Do what `charge` says, and count no completions but at worst."""
    if not seen.is_served:
        return NOTHING
    if seen.usage is not None:
        return _reported(effective, model, worst, seen, seen.usage)
    has_generated = bool(seen.content_events or seen.content_bytes)
    if not (has_generated or seen.is_ended or seen.is_abandoned):
        return NOTHING
    is_countable = seen.is_readable if seen.is_ended else effective.view.is_stream
    if has_generated or is_countable or not _may_generate(worst):
        return _counted(effective, model, worst, seen)
    return at_worst(worst)


def at_worst(worst: WorstCase) -> Charged:
    """Charge what was held."""
    return Charged(
        input_tokens=worst.input_tokens,
        output_tokens=worst.output_tokens,
        cost_microdollars=worst.cost_microdollars,
        known="worst_case",
        completions=worst.candidates,
    )


def _completions(effective: EffectiveRequest, worst: WorstCase, seen: Seen) -> int:
    """Return how many choices were generated: none before the first token, all asked for where nobody counted them.

    Candidates that were generated and not returned count like those that were.
    """
    if seen.choices:
        return min(_with_left_out(effective, seen.choices), worst.candidates)
    has_begun = seen.usage is not None or seen.content_events or seen.content_bytes
    return worst.candidates if has_begun else 0


def _with_left_out(effective: EffectiveRequest, returned: int) -> int:
    """Scale what the returned choices have, rounded up, to what was generated with those that were left out."""
    view = effective.view
    candidates = widest_candidates(effective.fields, view.candidates, view.prompt_count, (BEST_OF,))
    return -(-returned * candidates // view.choices)


def _may_generate(worst: WorstCase) -> bool:
    return worst.output_tokens > 0 or not worst.is_output_bounded


def _reported(effective: EffectiveRequest, model: Model, worst: WorstCase, seen: Seen, usage: Usage) -> Charged:
    input_tokens, output_tokens = usage.input_tokens, usage.output_tokens
    view = effective.view
    if view.prompt_count > 1:
        own_input = min(estimate_input_tokens(effective, model), worst.input_tokens)
        token_ids = effective.input_size.token_ids  # these are no estimate
        input_tokens = max(token_ids, _credible(usage.input_tokens, _Output(own_input)))
    may_be_partial = worst.candidates > 1 or not seen.is_ended
    if may_be_partial and not view.echo_size().token_ids:  # whose text is of a length that nobody knows
        own = _seen_output(effective, model, seen)
        output_tokens = _credible(usage.output_tokens, own._replace(tokens=_at_most(worst, own.tokens)))
    if seen.is_abandoned and not seen.is_ended:
        output_tokens = _at_most(worst, output_tokens)
        input_tokens = min(input_tokens, worst.input_tokens) if worst.is_input_bounded else input_tokens
    return _charged(
        model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        known="reported" if (input_tokens, output_tokens) == (usage.input_tokens, usage.output_tokens) else "counted",
    )


def _credible(reported: int, own: _Output) -> int:
    """Return the report, unless it is at most two thirds of our own count, or below nine tenths of a tokenizer's.

    Where our count takes four bytes for a token, most text has some more, so that a right report is often a little
    smaller. A server that reports one of two choices reports about half.
    """
    is_too_small = 10 * reported < 9 * own.tokens if own.is_counted else 3 * reported <= 2 * own.tokens
    return own.tokens if is_too_small else reported


def _counted(effective: EffectiveRequest, model: Model, worst: WorstCase, seen: Seen) -> Charged:
    """Charge without a report; candidates that were generated and not returned count like those that were."""
    return _charged(
        model,
        input_tokens=min(estimate_input_tokens(effective, model), worst.input_tokens),
        output_tokens=_at_most(worst, _with_left_out(effective, _seen_output(effective, model, seen).tokens)),
        known="counted",
    )


def _seen_output(effective: EffectiveRequest, model: Model, seen: Seen) -> _Output:
    """Return how many tokens the choices have, less what they repeat of the prompt: about, without a tokenizer."""
    echo = effective.view.echo_size()
    if model.count_tokens is not None and seen.texts and not echo.token_ids:
        return _count_output(model.count_tokens, seen, echo.verbatim)
    echo_bytes = echo.text_bytes + echo.token_ids * BYTES_PER_TOKEN
    if not echo_bytes:
        return _Output(max(seen.content_events, seen.choices_with_text, estimate_tokens(seen.content_bytes)))
    return _Output(estimate_tokens(max(0, seen.content_bytes - echo_bytes)))


def _count_output(count_tokens: TextCounter, seen: Seen, echoed: Sequence[str]) -> _Output:
    found, repeated = count_tokens(seen.texts), count_tokens(echoed)
    tokens = estimate_text_tokens(found) + estimate_tokens(seen.other_bytes) - estimate_text_tokens(repeated)
    return _Output(max(0, tokens), is_counted=not (found.other_bytes or seen.other_bytes or echoed))


def _at_most(worst: WorstCase, output_tokens: int) -> int:
    return min(output_tokens, worst.output_tokens) if worst.is_output_bounded else output_tokens


def _charged(  # noqa: PLR0913  a charge's parts, each by name
    model: Model,
    *,
    input_tokens: int,
    output_tokens: int,
    cached_input_tokens: int = 0,
    reasoning_tokens: int = 0,
    known: Known,
    completions: int = 0,
) -> Charged:
    cached = min(cached_input_tokens, input_tokens)
    cost = cost_microdollars(
        model.settings.price, input_tokens=input_tokens, output_tokens=output_tokens, cached_input_tokens=cached
    )
    reasoning = min(reasoning_tokens, output_tokens)
    return Charged(input_tokens, output_tokens, cached, reasoning, cost, known, completions)
