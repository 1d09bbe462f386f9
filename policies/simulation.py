"""What a policy would have done to a request of which only its usage record is left (SPEC §11).

A record holds numbers and booleans as they were asked, of every other parameter how many items it had, of unknown
members up to 32 names: the request is rebuilt from these and decided on as a live one is, with values that stand in for
what is not known. A part of a rule that asks for such a value is left out and told of; nothing is guessed, but that a
text which is forced or added is another than was sent. The input is as large as the record says, as policy left it
then, whatever a changed one takes out of it or writes into it.

Knows no file, no configuration and none of the counts of limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec
from pydantic import PrivateAttr

from policies.bounds import is_number
from policies.charges import Charged, at_worst
from policies.computed import COMPUTED
from policies.decision import Decision, decide_under
from policies.draft import may_write
from policies.errors import Rejection
from policies.merging import Forced
from policies.pricing import cost_microdollars
from policies.requests.asked import AskedRequest, Dialect, Endpoint
from policies.requests.ceilings import OUTPUT_NAMES, widest_ceiling
from policies.requests.chat import ChatRequest
from policies.requests.completions import CompletionRequest
from policies.requests.embeddings import EmbeddingRequest
from policies.requests.fields import EndpointRequest
from policies.requests.forms import input_form
from policies.requests.input_size import InputSize
from policies.requests.meaning import vocabulary
from policies.requests.responses import ResponsesRequest
from policies.usage import CLIENT, MAX_TEXT_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from policies.merging import EffectivePolicy, MergedRule, Part
    from policies.principals import Principal
    from policies.rulebook import Rulebook

Count = Annotated[int, msgspec.Meta(ge=0)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=2**47)]

_UNSEEN: Final = "\0"
"""Stands for a text that a record does not hold: no configuration writes it."""
_COUNT: Final = "_count"
_MOST_TEXTS: Final = 128
_REJECTED: Final = "rejected"
_HIT: Final = "hit"
_NOT_STORED: Final = "not_stored"


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What of a usage record is simulated, by the record's names; members that are not named here are skipped."""

    request_id: str
    origin: str = CLIENT
    started_milliseconds: Moment
    ended_milliseconds: Moment | None = None
    organization: str = ""
    project: str = ""
    owner: str = ""
    is_service_account: bool = False
    key: str = ""
    end_user: str | None = None
    endpoint: Endpoint | None = None
    dialect: Dialect | None = None
    model_asked: str | None = None
    outcome: str = ""
    error_code: str | None = None
    cache: str = ""
    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_input_tokens: Count = 0
    completions: Count = 0
    cost_microdollars: Count = 0
    input_bound_tokens: Count = 0
    input_is_bounded: bool = True
    held_tokens: Count = 0
    saved_input_tokens: Count = 0
    saved_output_tokens: Count = 0
    saved_microdollars: Count = 0
    prompts: Count = 0
    parameters: dict[str, int | float | bool] = msgspec.field(default_factory=dict)
    unknown_fields: tuple[str, ...] = ()

    @property
    def was_read(self) -> bool:
        """Whether the request could be read, so that it came to be decided on."""
        return self.endpoint is not None and self.model_asked is not None

    @property
    def was_refused(self) -> bool:
        """Whether the gateway refused it, and not for want of a stored answer."""
        return self.outcome == _REJECTED and self.error_code != _NOT_STORED

    @property
    def was_hit(self) -> bool:
        """Whether it was answered from the cache."""
        return self.cache == _HIT

    @property
    def was_only_looked_up(self) -> bool:
        """Whether it asked for a stored answer or none, and got none."""
        return self.error_code == _NOT_STORED

    @property
    def output_bound_tokens(self) -> int | None:
        """The most output it might have; None where nothing bounded it."""
        return max(0, self.held_tokens - self.input_bound_tokens) or None


@dataclass(frozen=True, slots=True)
class Untold:
    """A part of a rule that a record cannot tell about: `part` as configurations spell it, `policy` who says it."""

    parameter: str
    part: str
    policy: str


@dataclass(frozen=True, slots=True)
class Simulated:
    """What would have become of a request, less what `untold` says; limits have not been asked for room."""

    outcome: Decision | Rejection
    untold: tuple[Untold, ...]


def simulate(record: RecordedRequest, principal: Principal, rulebook: Rulebook) -> Simulated:
    """Decide on a recorded request. Raises ValueError for one that could not be read when it came."""
    rebuilt = _rebuild(record)
    policy, untold = _leave_out_untold(rulebook.policy_for(principal), rebuilt)
    outcome: Decision | Rejection
    try:
        outcome = decide_under(policy, rebuilt.asked(), principal, rulebook, cache_control=None, draw=0.0)
    except Rejection as rejection:
        outcome = rejection
    return Simulated(outcome, untold)


@dataclass(frozen=True, slots=True)
class NotSpent:
    """What a request would have taken less: tokens as counts, money in whole micro-dollars; never negative."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_microdollars: int = 0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


def not_spent(record: RecordedRequest, decision: Decision | None) -> NotSpent:
    """Return what a request would not have taken; `decision` is None where it would have been refused.

    Of a refused one that is all it took. Of others it is output: at most candidates' × ceiling' tokens are left, where
    that is less than the request might have had, and output × candidates' / candidates, rounded up, where fewer
    candidates would have been generated. The money is the record's cost, by the share which that output has in the
    request's price at the decision's prices, rounded down. A hit and a request that was refused took nothing.
    """
    if decision is None:
        return NotSpent(record.input_tokens, record.output_tokens, record.cost_microdollars)
    output_tokens = _output_left(record, decision)
    was, would_be = (_price(record, decision, output) for output in (record.output_tokens, output_tokens))
    cost = record.cost_microdollars * (was - would_be) // was if was else 0
    return NotSpent(0, record.output_tokens - output_tokens, cost)


def _output_left(record: RecordedRequest, decision: Decision) -> int:
    effective, candidates = decision.effective, decision.worst_case.candidates
    left = record.output_tokens
    if record.completions > candidates:
        left = -(-left * candidates // record.completions)
    ceiling, bound = widest_ceiling(effective.fields, effective.view.token_ceiling), record.output_bound_tokens
    if ceiling is None or (bound is not None and candidates * ceiling >= bound):
        return left  # an upstream that exceeds its ceiling would have done so again
    return min(left, candidates * ceiling)


def _price(record: RecordedRequest, decision: Decision, output_tokens: int) -> int:
    return cost_microdollars(
        decision.model.settings.price,
        input_tokens=record.input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=record.cached_input_tokens,
    )


def charge_again(record: RecordedRequest, decision: Decision) -> Charged:
    """Return what limits are charged for a request that is served: its record's charge, less what is not spent.

    A hit counts in full, as what it saved says, since it is for the limit whether hits are charged; one that was
    refused, and a hit of which nothing was reported, at its worst.
    """
    if record.was_refused:
        return at_worst(decision.worst_case)
    if record.was_hit:
        return _charge_of_hit(record, decision)
    spared = not_spent(record, decision)
    return Charged(
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens - spared.output_tokens,
        cost_microdollars=record.cost_microdollars - spared.cost_microdollars,
        completions=min(record.completions, decision.worst_case.candidates),
    )


def _charge_of_hit(record: RecordedRequest, decision: Decision) -> Charged:
    if not record.saved_input_tokens:
        return at_worst(decision.worst_case)
    return Charged(
        input_tokens=record.saved_input_tokens,
        output_tokens=record.saved_output_tokens,
        cost_microdollars=record.saved_microdollars,
        completions=decision.worst_case.candidates,
    )


class _Recorded(EndpointRequest):
    """A request whose input is known by its size only, whatever its members say."""

    _prompts: int = PrivateAttr()
    _size: InputSize = PrivateAttr()

    @classmethod
    def of(cls, fields: Mapping[str, Any], prompts: int, size: InputSize) -> Self:
        """Validate members. Raises InvalidRequest."""
        return cls.read(fields).with_input(prompts, size)

    def with_fields(self, fields: Mapping[str, Any]) -> Self:
        """Validate changed members; the input keeps its size. Raises InvalidRequest."""
        return self.of(fields, self._prompts, self._size)

    def with_input(self, prompts: int, size: InputSize) -> Self:
        """Take so many prompts of this size, and return itself."""
        self._prompts, self._size = prompts, size
        return self

    @property
    def prompt_count(self) -> int:
        """Prompts, as recorded."""
        return self._prompts

    def input_size(self, fields: Mapping[str, Any]) -> InputSize:
        """Return the bound that was recorded, as token ids: a model adds nothing to these."""
        del fields
        return self._size


class _RecordedCompletion(_Recorded, CompletionRequest):
    pass


class _RecordedChat(_Recorded, ChatRequest):
    pass


class _RecordedEmbedding(_Recorded, EmbeddingRequest):
    pass


class _RecordedResponse(_Recorded, ResponsesRequest):
    pass


_Kind = type[_RecordedCompletion] | type[_RecordedChat] | type[_RecordedEmbedding] | type[_RecordedResponse]
_KINDS: Final[Mapping[Endpoint, _Kind]] = {
    Endpoint.COMPLETIONS: _RecordedCompletion,
    Endpoint.CHAT: _RecordedChat,
    Endpoint.EMBEDDINGS: _RecordedEmbedding,
    Endpoint.RESPONSES: _RecordedResponse,
}


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    """A request as far as its record tells; `unseen` are the members whose values it does not hold."""

    record: RecordedRequest
    endpoint: Endpoint
    model: str
    fields: Mapping[str, Any]
    unseen: frozenset[str]

    @property
    def kind(self) -> _Kind:
        """The type of such a request."""
        return _KINDS[self.endpoint]

    def asked(self) -> AskedRequest:
        """Return the request. Raises InvalidRequest where it can be none."""
        record = self.record
        size = InputSize(token_ids=record.input_bound_tokens, is_open=not record.input_is_bounded)
        view = self.kind.of(self.fields, record.prompts, size)
        return AskedRequest(self.endpoint, record.dialect or Dialect.OPENAI, self.model, self.fields, view)


def _rebuild(record: RecordedRequest) -> _Rebuilt:
    if record.endpoint is None or record.model_asked is None:
        raise ValueError("a request that could not be read was not decided on")
    kind = _KINDS[record.endpoint]
    fields: dict[str, Any] = dict.fromkeys(record.unknown_fields, _UNSEEN)  # the first of them is refused first
    unseen = set(record.unknown_fields)
    for name, value in record.parameters.items():
        if kind.has_parameter(name) or name in OUTPUT_NAMES:
            fields[name] = value
        else:
            member = name.removesuffix(_COUNT)
            fields[member] = _stand_in(kind, member, min(int(value), _MOST_TEXTS))
            unseen.add(member)
    if record.end_user is not None and len(record.end_user) < MAX_TEXT_CHARACTERS:
        fields["user"] = record.end_user
        unseen.discard("user")
    return _Rebuilt(record, record.endpoint, record.model_asked, fields, frozenset(unseen - _known_outputs(fields)))


def _known_outputs(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return what bounds the output and is recorded by its value, though the endpoint's API may not name it."""
    return frozenset(name for name in OUTPUT_NAMES if name in fields and fields[name] != _UNSEEN)


@lru_cache
def _stand_in(kind: type[EndpointRequest], name: str, items: int) -> Any:  # noqa: ANN401  a JSON value
    """Return a value in place of one that was not recorded, such that the endpoint takes it."""
    meaning = vocabulary(kind).meanings.get(name)
    texts = [[_UNSEEN] * items] if meaning and meaning.max_items is not None else []
    return next((value for value in (*texts, _UNSEEN, {}, [{}]) if kind.takes(name, value)), _UNSEEN)


def _leave_out_untold(policy: EffectivePolicy, rebuilt: _Rebuilt) -> tuple[EffectivePolicy, tuple[Untold, ...]]:
    """Return a policy less the parts of rules that a record cannot tell about, and these."""
    parameters, untold = _without_untold(policy.parameters, rebuilt)
    observed, untold_observed = _without_untold(policy.observed, rebuilt)
    if not (untold or untold_observed):
        return policy, ()
    return replace(policy, parameters=parameters, observed=observed), (*untold, *untold_observed)


def _without_untold(
    rules: Mapping[str, MergedRule], rebuilt: _Rebuilt
) -> tuple[Mapping[str, MergedRule], tuple[Untold, ...]]:
    told, untold = dict(rules), []
    for name in sorted(rebuilt.unseen & rules.keys() - COMPUTED.keys()):
        parts = dict(_untold_parts(name, rules[name], rebuilt))
        told[name] = _without(rules[name], [part for said in parts.values() for part in said])
        untold += [Untold(name, said, part.policy) for said, each in parts.items() for part in each]
    return told, tuple(untold)


def _without(rule: MergedRule, parts: Collection[Part]) -> MergedRule:
    """Return a rule less some of its parts."""
    allowed, add = (tuple(part for part in said if part not in parts) for said in (rule.allowed, rule.add))
    nothing: dict[str, Any] = dict.fromkeys(name for name in _SINGLE if getattr(rule, name) in parts)
    return replace(rule, allowed=allowed, add=add, **nothing)


def _untold_parts(name: str, rule: MergedRule, rebuilt: _Rebuilt) -> Iterator[tuple[str, tuple[Part, ...]]]:
    """Yield the parts of a rule that ask for the value of a member, of which only is known that it is no number.

    Of a member that the endpoint's API does not name not even that is known. A forced value replaces whatever it was.
    """
    kind = rebuilt.kind
    if rule.forbid and (rule.force or rule.add):
        yield "forbid", (rule.forbid,)  # what policy itself writes may be sent
    if rule.force and may_write(kind, name, _forced(rule.force.value)):
        return
    if _has_no_room(name, rule, rebuilt):
        yield "add", rule.add  # unless what is added was sent
    if rule.strip and vocabulary(kind).forms.get(name) is input_form:
        yield "strip_trailing_space", (rule.strip,)
    if kind.has_parameter(name) or name in OUTPUT_NAMES:
        yield "allowed", tuple(part for part in rule.allowed if not all(map(is_number, part.value)))  # which it is not
    else:
        yield "allowed", rule.allowed
        yield from ((said, (part,)) for said, part in (("max", rule.max), ("min", rule.min)) if part is not None)


def _has_no_room(name: str, rule: MergedRule, rebuilt: _Rebuilt) -> bool:
    """Tell whether a rule refuses to add its texts beside those that were sent."""
    meaning, sent = vocabulary(rebuilt.kind).meanings.get(name), rebuilt.fields[name]
    if meaning is None or meaning.max_items is None or not isinstance(sent, list):
        return False
    is_refused = any(part.on_violation == "reject" for part in rule.add)
    return is_refused and len(sent) + len(rule.add) > meaning.max_items


def _forced(value: Any) -> Any:  # noqa: ANN401  a JSON value
    return _UNSEEN if value is Forced.PSEUDONYM else value


_SINGLE: Final = ("max", "min", "forbid", "strip")
"""Parts that can be left out, of which a rule has one."""
