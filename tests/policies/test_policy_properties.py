"""What holds for any request under any policies, restated without the code that applies rules (SPEC §4).

The worlds are drawn by `drawn_policies`; single cases, and what a client is told, are in the tables beside this file.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
from drawn_policies import LEVELS, PLAIN_LEVELS, REQUESTS, RULED, RULES, WILD_REQUESTS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from policies.catalog import Deployment, ModelSettings, Price
from policies.charges import worst_case
from policies.decision import Decision, decide
from policies.errors import PolicyViolation, Rejection
from policies.merging import EffectivePolicy, Forced, MergedRule, Part, as_merged, is_same, merge, merge_rules
from policies.policy import Policy, Rule
from policies.principals import AppliedPolicy, Principal
from policies.pseudonyms import pseudonym
from policies.requests.asked import Action, Dialect, Endpoint
from policies.requests.body import decode_body, encode_body
from policies.requests.ceilings import CEILING_NAMES
from policies.requests.dialects import REQUEST_TYPES, read_request, view_of
from policies.requests.meaning import vocabulary
from policies.rulebook import Rulebook
from policies.tokens import bound_input_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Fields = dict[str, Any]
Levels = dict[str, Policy]

PLAINLY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
KEY = b"a key of pseudonyms"
MODELS = {
    "m": ModelSettings(
        deployments=(Deployment(upstream="u"),),
        context_window=4096,
        max_output_tokens=50,
        price=Price(input=1, output=2),
    ),
    "open": ModelSettings(deployments=(Deployment(upstream="u"),), token_ceiling="max_tokens"),  # noqa: S106  a name
}
LEVEL_NAMES = ("organization", "project", "user", "key")
COMPUTED = ("prompts", "candidates", "prompt_tokens", "worst_case_tokens")
PAIR = ("n", "best_of")
models = st.sampled_from(list(MODELS))
dialects = st.sampled_from(list(Dialect))


def principal_of(levels: Levels) -> Principal:
    applied = tuple(AppliedPolicy(level, name) for level, name in zip(LEVEL_NAMES, levels, strict=False))
    return Principal(organization="o", project="p", owner="u", key="k", policies=applied)


def decided(
    levels: Levels, endpoint: Endpoint, fields: Fields, model: str = "m", dialect: Dialect = Dialect.OPENAI
) -> Decision:
    """Decide on a request as it comes in a dialect."""
    named: Fields = {"model": model, **fields} if dialect is Dialect.OPENAI else fields
    asked = read_request(
        endpoint=endpoint,
        dialect=dialect,
        fields=named,
        path_model=None if dialect is Dialect.OPENAI else model,
        api_version="v" if dialect is Dialect.AZURE else None,
    )
    rulebook = Rulebook(MODELS, levels, pseudonym_key=KEY)
    return decide(asked, principal_of(levels), rulebook, cache_control=None, draw=0.5)


def passed(*args: Any) -> Decision:  # noqa: ANN401  as `decided` takes them
    """Decide on a request; one that is refused is no example."""
    try:
        return decided(*args)
    except Rejection:
        assume(False)  # noqa: FBT003  hypothesis's own signature
        raise


def refusal_of(*args: Any) -> Rejection | None:  # noqa: ANN401  as `decided` takes them
    """Return what a request is refused with, if it is."""
    try:
        decided(*args)
    except Rejection as refused:
        return refused
    return None


# ---------------------------------------------------------------- SPEC §4, restated
def is_number(value: Any) -> bool:  # noqa: ANN401  a JSON value
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_within(value: Any, rule: MergedRule) -> bool:  # noqa: ANN401  a JSON value
    """Tell whether every bound of a rule lets a value through."""
    listed = all(any(is_same(value, each) for each in part.value) for part in rule.allowed)
    ends = (rule.max is None or (is_number(value) and value <= rule.max.value)) and (
        rule.min is None or (is_number(value) and value >= rule.min.value)
    )
    return listed and ends


def clients_own(value: Any, rule: MergedRule) -> list[Any]:  # noqa: ANN401  a JSON value
    """Return what may be meant by what a client sent, less the texts that policy adds: as a text and as an array."""
    if not rule.add or value is None:
        return [value]
    own = [each for each in (value if isinstance(value, list) else [value]) if each not in [p.value for p in rule.add]]
    return [own, own[0]] if len(own) == 1 else [own] if own else [None]


def is_bound_as_it_is(decision: Decision, name: str, value: Any, rule: MergedRule) -> bool:  # noqa: ANN401
    """Tell whether a value is within bounds, or not what they are for."""
    kind = REQUEST_TYPES[decision.asked.endpoint]
    is_other = isinstance(value, bool) and name in kind.model_fields
    if is_other and not any(isinstance(each, bool) for part in rule.allowed for each in part.value):
        return True
    owns = clients_own(value, rule)
    if rule.add:
        return owns == [None] or all(
            any(is_same(own, other) for own in owns for each in part.value for other in clients_own(each, rule))
            for part in rule.allowed
        )
    return value is None or is_within(value, rule)


def meant(decision: Decision, name: str) -> Any:  # noqa: ANN401  a JSON value
    """Return a parameter's value in the effective request, by the API's default where it is absent."""
    words, fields = vocabulary(REQUEST_TYPES[decision.asked.endpoint]), decision.effective.fields
    value = fields.get(name)
    if value is None and name in words.counts_as:
        return meant(decision, words.counts_as[name])
    return words.defaults.get(name) if value is None else value


def written_by(decision: Decision, name: str, part: Part) -> Any:  # noqa: ANN401  a JSON value
    """Return the value that a `force` or `default` writes; None where the endpoint does not take it."""
    kind, asked = REQUEST_TYPES[decision.asked.endpoint], decision.asked
    value = part.value
    if value is Forced.PSEUDONYM:
        sent = asked.fields.get(name)
        value = pseudonym(KEY, decision.principal, sent if isinstance(sent, str) else asked.view.end_user)
    named = kind.ceilings[0] if kind.ceilings and name in CEILING_NAMES else name
    is_anywhere = any(named in each.model_fields for each in REQUEST_TYPES.values())
    is_clients = asked.fields.get(name) is not None and name not in kind.model_fields
    takes = is_clients or (kind.takes(named, value) if is_anywhere else bool(kind.ceilings))
    return value if takes else None


def complaints_of(decision: Decision, name: str, rule: MergedRule) -> Iterator[str]:
    """Say which parts of one rule the effective request does not obey under one name."""
    if not is_bound_as_it_is(decision, name, meant(decision, name), rule):
        yield "is outside a bound"
    forced = written_by(decision, name, rule.force) if rule.force else None
    yield from complaints_of_written(decision, name, rule, forced)
    value = decision.effective.fields.get(name)
    is_written = rule.bounds or (name in CEILING_NAMES and closes_ceiling(decision.policy))
    if rule.forbid and forced is None and not is_written and any(own is not None for own in clients_own(value, rule)):
        yield "is forbidden"
    yield from complaints_of_texts(decision, name, rule)


def closes_ceiling(policy: EffectivePolicy) -> bool:
    """Tell whether a bounded worst case has an open ceiling written."""
    worst = policy.parameters.get("worst_case_tokens")
    return worst is not None and worst.max is not None


def complaints_of_written(decision: Decision, name: str, rule: MergedRule, forced: Any) -> Iterator[str]:  # noqa: ANN401
    value, needs = decision.effective.fields.get(name), vocabulary(REQUEST_TYPES[decision.asked.endpoint]).needs
    if name in needs and not decision.effective.fields.get(needs[name]):
        return  # it says nothing, so it need not be there
    if forced is not None:
        is_forced = any(is_same(one, other) for one in clients_own(value, rule) for other in clients_own(forced, rule))
        if is_within(forced, rule) and not is_forced:
            yield "is not what is forced"
    elif rule.default and decision.asked.fields.get(name) is None and name not in PAIR and not rule.add:
        default = written_by(decision, name, rule.default)
        if default is not None and is_within(default, rule) and not is_same(value, default):
            yield "is not the default"


def complaints_of_texts(decision: Decision, name: str, rule: MergedRule) -> Iterator[str]:
    value, endpoint = decision.effective.fields.get(name), decision.asked.endpoint
    texts = value if isinstance(value, list) else [value]
    is_stripped = rule.strip and not rule.force and name == "prompt" and endpoint is Endpoint.COMPLETIONS
    if is_stripped and any(isinstance(text, str) and text.endswith(" ") for text in texts):
        yield "ends in a space"
    known = vocabulary(REQUEST_TYPES[endpoint]).meanings.get(name)
    is_list = known is not None and known.max_items is not None
    if rule.add and is_list and (len(texts) > 4 or not {part.value for part in rule.add} <= set(texts)):
        yield "lacks what is added, or has too many"


def complaints_of_ceiling(decision: Decision, rule: MergedRule) -> Iterator[str]:
    kind, fields = REQUEST_TYPES[decision.asked.endpoint], decision.effective.fields
    given = {name: fields[name] for name in CEILING_NAMES if fields.get(name) is not None}
    for name, value in given.items():
        yield from complaints_of(decision, name, rule)
        if rule.bounds and (not is_number(value) or value < 0 or value != int(value)):
            yield f"is no number of tokens as {name}"
    is_open = not given.keys() & set(kind.ceilings)
    if is_open and (rule.max or any(map(is_number, rule.listed or ()))):
        yield "is open"


def computed(decision: Decision) -> dict[str, int | None]:
    """Return the virtual parameters of the effective request; None where nothing bounds them."""
    effective, model = decision.effective, decision.model
    given = effective.fields.get({"completions": "prompt", "embeddings": "input"}.get(effective.endpoint, ""))
    prompts = len(given) if isinstance(given, list) and isinstance(given[0], str | list) else 1
    asked = [effective.fields.get(name) for name in ("n", "best_of", "n_cmpl")]
    most = max([1, *(value for value in asked if is_number(value) and value == int(value))])
    worst = worst_case(effective, model)
    return {
        "prompts": prompts,
        "candidates": 0 if effective.endpoint is Endpoint.EMBEDDINGS else prompts * int(most),
        "prompt_tokens": bound_input_tokens(effective, model),
        "worst_case_tokens": worst.tokens if worst.is_bounded else None,
    }


def complaints(decision: Decision) -> Iterator[str]:
    """Say what of the merged policy the effective request does not obey."""
    policy, kind, effective = decision.policy, REQUEST_TYPES[decision.asked.endpoint], decision.effective
    values = computed(decision)
    for name, rule in policy.parameters.items():
        if name in COMPUTED:
            value = values[name]
            if (value is None and rule.max) or (value is not None and not is_within(value, rule)):
                yield f"{name} is {value}"
        elif name == "max_tokens" and kind.ceilings:
            yield from (f"the ceiling {said}" for said in complaints_of_ceiling(decision, rule))
        else:
            yield from (f"{name} {said}" for said in complaints_of(decision, name, rule))
    known = {*kind.model_fields, *policy.parameters}
    if policy.unknown is not None:
        unknown = [name for name, value in effective.fields.items() if value is not None and name not in known]
        yield from (f"{name} is unknown" for name in unknown)


# ---------------------------------------------------------------- what comes of a request
@PLAINLY
@given(LEVELS, REQUESTS, models, dialects)
def test_the_effective_request_obeys_the_merged_policy(
    levels: Levels, request: tuple[Endpoint, Fields], model: str, dialect: Dialect
) -> None:
    decision = passed(levels, *request, model, dialect)
    assert list(complaints(decision)) == [], dict(decision.effective.fields)


@PLAINLY
@given(LEVELS, REQUESTS, models, dialects)
def test_the_effective_request_is_valid_and_ruled_no_further(
    levels: Levels, request: tuple[Endpoint, Fields], model: str, dialect: Dialect
) -> None:
    once = passed(levels, *request, model, dialect)
    fields = decode_body(encode_body(once.effective.fields))
    assert view_of(request[0], fields) == once.effective.view
    again = decided(levels, request[0], fields, model, dialect)
    assert again.adjustments == ()
    assert encode_body(again.effective.fields) == encode_body(fields)
    assert again.observed == once.observed


@PLAINLY
@given(LEVELS, REQUESTS, models)
def test_adjustments_name_exactly_what_changed_and_all_else_is_as_it_was(
    levels: Levels, request: tuple[Endpoint, Fields], model: str
) -> None:
    decision = passed(levels, *request, model)
    before, after = decision.asked.fields, decision.effective.fields
    changed = {name for name in {*before, *after} if not is_same(before.get(name), after.get(name))}
    assert [a.parameter for a in decision.adjustments] == [*dict.fromkeys(a.parameter for a in decision.adjustments)]
    assert {a.parameter for a in decision.adjustments} == changed
    for told in decision.adjustments:
        assert repr((told.before, told.after)) == repr((before.get(told.parameter), after.get(told.parameter)))
        assert told.policy in levels
        assert told.action is not Action.REJECT
    untouched = [(name, repr(value)) for name, value in before.items() if name not in changed]
    assert [(name, repr(value)) for name, value in after.items() if name not in changed] == untouched


def enforcing(levels: Levels) -> Levels:
    """Return levels without the rules that are only observed."""
    return {
        name: policy.model_copy(
            update={"parameters": {each: rule for each, rule in policy.parameters.items() if rule.mode == "enforce"}}
        )
        for name, policy in levels.items()
    }


def outcome(levels: Levels, endpoint: Endpoint, fields: Fields, model: str) -> Decision | tuple[type, str, str | None]:
    """Return a decision less what is observed, or what it is refused with."""
    try:
        decision = decided(levels, endpoint, fields, model)
    except Rejection as refused:
        return type(refused), refused.message, refused.param
    return msgspec.structs.replace(decision, observed=(), policy=replace(decision.policy, observed={}))


@PLAINLY
@given(LEVELS, REQUESTS, models)
def test_observed_rules_change_nothing(levels: Levels, request: tuple[Endpoint, Fields], model: str) -> None:
    assert outcome(levels, *request, model) == outcome(enforcing(levels), *request, model)


@PLAINLY
@given(LEVELS, WILD_REQUESTS, models, dialects)
def test_a_request_is_decided_on_or_refused_whatever_its_members_are(
    levels: Levels, request: tuple[Endpoint, Fields], model: str, dialect: Dialect
) -> None:
    refused = refusal_of(levels, *request, model, dialect)
    if isinstance(refused, PolicyViolation):
        assert refused.param is not None
        assert set(refused.policies) <= levels.keys()
        assert refused.policies
        assert "not valid" in refused.message or all(repr(name) in refused.message for name in refused.policies[:1])
    assert refused is None or refused.message


@PLAINLY
@given(LEVELS, REQUESTS, models)
def test_what_is_forbidden_is_as_if_it_had_not_been_sent(
    levels: Levels, request: tuple[Endpoint, Fields], model: str
) -> None:
    decision = passed(levels, *request, model)
    kind = REQUEST_TYPES[request[0]]
    for name, rule in decision.policy.parameters.items():
        names = CEILING_NAMES if name == "max_tokens" and kind.ceilings else (name,)
        if not rule.forbid or rule.force or name in {*PAIR, "stream", "stream_options"}:
            continue
        without = {each: value for each, value in request[1].items() if each not in names}
        refused = refusal_of(levels, request[0], without, model)
        if refused is None:
            other = decided(levels, request[0], without, model).effective.fields
            assert all(is_same(decision.effective.fields.get(each), other.get(each)) for each in names)


# ---------------------------------------------------------------- levels
ONE_PARAMETER = st.sampled_from([name for name in RULED if name not in COMPUTED])


def merged_of(rule: Rule, policy: str) -> MergedRule:
    return as_merged(rule, policy, overrides=rule.override)


@PLAINLY
@given(ONE_PARAMETER.flatmap(lambda name: st.tuples(*[RULES[name]] * 3)))
def test_merging_is_associative(rules: tuple[Rule, Rule, Rule]) -> None:
    a, b, c = (merged_of(rule, name) for rule, name in zip(rules, "abc", strict=True))
    assert merge_rules(merge_rules(a, b), c) == merge_rules(a, merge_rules(b, c))


@PLAINLY
@given(LEVELS)
def test_levels_are_merged_rule_by_rule(levels: Levels) -> None:
    merged = merge(list(levels.items()))
    for mode, rules in (("enforce", merged.parameters), ("observe", merged.observed)):
        said: dict[str, list[MergedRule]] = {}
        for policy, configured in levels.items():
            for name, rule in configured.parameters.items():
                if rule.mode == mode:
                    overrides = rule.override or configured.override
                    said.setdefault(name, []).append(as_merged(rule, policy, overrides=overrides))
        assert dict(rules) == {name: reduce(merge_rules, each) for name, each in said.items()}


def judging(rule: Rule) -> Rule:
    """Return what a level's rule says of values, less what it would write, which may be another level's to say."""
    return rule.model_copy(update={"default": None, "force": None, "pseudonymise": False})


def is_settled_elsewhere(name: str, rule: Rule, policy: EffectivePolicy) -> bool:
    """Tell whether a level cannot judge a value alone: policy itself writes what this level forbids or lists."""
    merged = policy.parameters[name]
    if rule.forbid:
        is_closed = name == "max_tokens" and closes_ceiling(policy)
        return bool(merged.force or merged.bounds or merged.add or is_closed)
    return rule.allowed is not None and bool(merged.add)


@PLAINLY
@given(PLAIN_LEVELS, REQUESTS, models)
def test_no_level_refuses_what_passes_all_of_them(levels: Levels, request: tuple[Endpoint, Fields], model: str) -> None:
    decision = passed(levels, *request, model)
    merged = decision.policy.parameters
    named = [name for name in decision.effective.fields if name in merged]
    for name, policy in levels.items():
        rules = {
            each: judging(rule)
            for each, rule in policy.parameters.items()
            if not is_settled_elsewhere(each, rule, decision.policy)
        }
        # What any level has a rule on is unknown to none.
        known = {each: Rule() for each in named if each not in rules}
        alone = {name: policy.model_copy(update={"parameters": {**known, **rules}})}
        decided(alone, request[0], dict(decision.effective.fields), model)


# ---------------------------------------------------------------- coupled parameters
CLAMPING = st.builds(
    lambda low, high, default: {
        name: value for name, value in (("min", low), ("max", high), ("default", default)) if value
    },
    st.none() | st.integers(1, 4),
    st.none() | st.integers(4, 12),
    st.none() | st.just(4),
)


@PLAINLY
@given(
    said=st.fixed_dictionaries({}, optional=dict.fromkeys(PAIR, CLAMPING)), request=REQUESTS, is_stream=st.booleans()
)
def test_rules_that_clamp_refuse_only_what_no_pair_fits(
    said: dict[str, dict[str, int]], request: tuple[Endpoint, Fields], *, is_stream: bool
) -> None:
    fields = {name: value for name, value in request[1].items() if name in PAIR}
    rules = {name: Rule(**rule, on_violation="clamp") for name, rule in said.items() if rule}
    pairs = [(n, best_of) for n in range(1, 129) for best_of in range(n, n + 1 if is_stream else 129)]
    is_possible = any(
        all(
            is_within(value, merged_of(rules[name], ""))
            for name, value in zip(PAIR, pair, strict=True)
            if name in rules
        )
        for pair in pairs
    )
    levels = {"a": Policy(parameters={**rules, "stream": Rule(force=is_stream)})}
    assert (refusal_of(levels, Endpoint.COMPLETIONS, fields) is None) == is_possible


@PLAINLY
@given(REQUESTS, st.integers(1, 6), st.integers(1, 6))
def test_two_caps_that_clamp_refuse_nothing_and_write_no_best_of(
    request: tuple[Endpoint, Fields], n: int, best_of: int
) -> None:
    rules = {"n": Rule(max=n, on_violation="clamp"), "best_of": Rule(max=best_of, on_violation="clamp")}
    fields = {name: value for name, value in request[1].items() if name in (*PAIR, "stream")}
    effective = decided({"a": Policy(parameters=rules)}, Endpoint.COMPLETIONS, fields).effective
    assert (fields.get("best_of") is None) == (effective.fields.get("best_of") is None)
    assert effective.view.candidates <= max(n, best_of)


# ---------------------------------------------------------------- what it costs at most
SMALL = st.integers(1, 9)
CAPS = st.fixed_dictionaries(
    {}, optional={"n": SMALL, "best_of": SMALL, "max_tokens": SMALL | st.sampled_from([40, 60, 4000, 9999])}
)


def worst_tokens(caps: Mapping[str, int], endpoint: Endpoint, fields: Fields, model: str) -> float:
    rules = {name: Rule(max=cap, on_violation="clamp") for name, cap in caps.items()}
    decision = decided({"a": Policy(parameters=rules)}, endpoint, fields, model)
    return decision.worst_case.tokens if decision.worst_case.is_bounded else float("inf")


@PLAINLY
@given(CAPS, st.dictionaries(st.sampled_from(["n", "best_of", "max_tokens"]), st.integers(0, 9)), REQUESTS, models)
def test_a_stricter_cap_never_raises_the_worst_case(
    caps: dict[str, int], looser_by: dict[str, int], request: tuple[Endpoint, Fields], model: str
) -> None:
    endpoint, fields = request
    elsewhere = {*CEILING_NAMES} - {*REQUEST_TYPES[endpoint].ceilings}
    own = {name: value for name, value in fields.items() if name not in elsewhere}
    looser = {name: caps[name] + by for name, by in looser_by.items() if name in caps}
    try:
        loose, strict = (worst_tokens(each, endpoint, own, model) for each in (looser, caps))
    except Rejection:
        assume(False)  # noqa: FBT003  hypothesis's own signature
        return
    assert strict <= loose
