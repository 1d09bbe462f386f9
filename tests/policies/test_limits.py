from __future__ import annotations

from typing import Any

import pytest

from policies.catalog import Model, ModelSettings
from policies.charges import Charged, WorstCase
from policies.errors import InvalidRequest
from policies.limits import (
    MORE_THAN_ANY,
    BoundLimit,
    NamedLimit,
    bind_limits,
    find_standings,
    level_words,
    made_name,
    needs_ceiling,
    needs_input,
    taken,
    taken_by_hit,
)
from policies.policy import Limit
from policies.principals import Principal
from policies.windows import MAX_COUNT, Tank

ALICE = Principal("org", "research", "alice", "key_a")
ROBOT = Principal("org", "research", "alice", "key_r", is_service_account=True)
UNPRICED = Model("m", ModelSettings(deployments=[{"upstream": "u"}]))
MODEL = Model("m", ModelSettings(deployments=[{"upstream": "u"}], price={"input": 1.0, "output": 1.0}))
WORST = WorstCase(30, 70, 500, candidates=4)


def limit(**settings: Any) -> Limit:  # noqa: ANN401  settings of a limit
    return Limit(**{"of": "requests", "limit": 5, "per": "minute", "by": ["user"], **settings})


def bind(
    *limits: NamedLimit,
    principal: Principal = ALICE,
    model: Model = MODEL,
    end_user: str | None = "customer",
    worst: WorstCase = WORST,
) -> tuple[BoundLimit, ...]:
    return bind_limits(limits, principal, model, end_user, worst)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        pytest.param({}, "requests-per-minute-by-user", id="quantity, window and scope"),
        pytest.param({"by": ["project", "end_user"]}, "requests-per-minute-by-project-end_user", id="several levels"),
        pytest.param({"of": "concurrency", "per": None}, "concurrency-by-user", id="no window"),
        pytest.param({"of": "usd", "limit": 0.5}, "usd-per-minute-by-user", id="the amount is no part of it"),
        pytest.param({"per": "90s", "models": ["gpt-*", "a/b"]}, "requests-per-90s-by-user-for-gpt-a-b", id="models"),
    ],
)
def test_limits_are_named_after_what_they_say(settings: dict[str, Any], name: str) -> None:
    assert made_name(limit(**settings)) == name


@pytest.mark.parametrize(
    ("by", "principal", "scope"),
    [
        pytest.param(["organization"], ALICE, ("org",), id="organization"),
        pytest.param(["project", "model"], ALICE, ("research", "m"), id="project and model"),
        pytest.param(["user"], ALICE, ("alice",), id="user"),
        pytest.param(["user"], ROBOT, ("service-account:alice",), id="a service account is no user of its name"),
        pytest.param(["key"], ALICE, ("key_a",), id="key"),
        pytest.param(["end_user"], ALICE, ("customer",), id="end user"),
    ],
)
def test_scopes(by: list[str], principal: Principal, scope: tuple[str, ...]) -> None:
    assert bind(NamedLimit("p", limit(by=by)), principal=principal)[0].scope == scope


def test_requests_without_an_end_user_share_one_count() -> None:
    assert bind(NamedLimit("p", limit(by=["end_user"])), end_user=None)[0].scope == ("",)


TOKENS = {"of": "tokens"}
FULL = {"of": "tokens", "charge_hits": "full"}
AT_ONCE = {"of": "concurrency", "per": None}
USD = {"of": "usd", "limit": 0.5, "per": "month"}
OBSERVED = {"mode": "observe"}
AFTER = {"hold": "none"}


@pytest.mark.parametrize(
    ("settings", "ask", "takes"),
    [
        pytest.param({}, 1, 1, id="a request is one"),
        pytest.param(TOKENS, 100, 12, id="tokens at their worst, and as charged"),
        pytest.param(USD, 500, 11, id="usd in micro-dollars"),
        pytest.param(AT_ONCE, 1, 0, id="concurrency takes nothing in the end"),
    ],
)
def test_asks_and_takings(settings: dict[str, Any], ask: int, takes: int) -> None:
    bound = bind(NamedLimit("p", limit(**settings)))[0]
    assert (bound.ask, bound.worst, taken(bound, Charged(5, 7, cost_microdollars=11))) == (ask, ask, takes)


@pytest.mark.parametrize(
    ("settings", "at_worst", "takes"),
    [
        pytest.param({**TOKENS, **AFTER}, 100, 12, id="tokens"),
        pytest.param({**USD, **AFTER}, 500, 11, id="usd"),
        pytest.param({"of": "completions", **AFTER}, 4, 2, id="completions"),
    ],
)
def test_what_is_settled_after_wants_room_for_one_and_holds_nothing(
    settings: dict[str, Any], at_worst: int, takes: int
) -> None:
    bound = bind(NamedLimit("p", limit(**settings)))[0]
    charged = Charged(5, 7, cost_microdollars=11, completions=2)
    assert (bound.ask, bound.takes, bound.at_worst, taken(bound, charged)) == (1, 0, at_worst, takes)
    assert bound.taking == "miss"


@pytest.mark.parametrize("of", ["requests", "concurrency"])
def test_what_is_known_before_the_answer_cannot_be_settled_after(of: str) -> None:
    with pytest.raises(ValueError, match=f"what {of} takes is known before the answer: leave `hold` out"):
        limit(of=of, per=None if of == "concurrency" else "day", **AFTER)


def test_an_observed_limit_asks_for_the_worst_case_that_it_would_hold() -> None:
    held, observed = NamedLimit("p", limit(**TOKENS)), NamedLimit("p", limit(**TOKENS, **OBSERVED, name="seen"))
    bound = bind_limits([held, observed], ALICE, MODEL, None, WORST, observed_worst=WorstCase(30, 500, 0))
    assert [(each.is_observed, each.ask, each.takes, each.at_worst) for each in bound] == [
        (False, 100, 100, 100),
        (True, 530, 530, 530),
    ]


@pytest.mark.parametrize(
    ("settings", "quota", "tank"),
    [
        pytest.param({}, 5, Tank(5, 1, 12_000), id="requests"),
        pytest.param(USD, 500_000, Tank(500_000), id="usd a month"),
        pytest.param(
            {**USD, "per": "hour", "burst": 1.25}, 500_000, Tank(1_250_000, 5, 36), id="usd that refill, with a burst"
        ),
    ],
)
def test_limits_are_counted_in_whole_units(settings: dict[str, Any], quota: int, tank: Tank) -> None:
    named = NamedLimit("p", limit(**settings))
    assert (named.quota, named.tank) == (quota, tank)


@pytest.mark.parametrize(
    ("settings", "does"),
    [
        pytest.param({}, "local", id="requests are counted here"),
        pytest.param(USD, "deny", id="usd is not given away"),
        pytest.param({**USD, "on_store_failure": "allow"}, "allow", id="unless somebody says so"),
        pytest.param({**USD, **OBSERVED}, "local", id="one that is observed denies nothing"),
        pytest.param({**OBSERVED, "on_store_failure": "deny"}, "local", id="though somebody says so"),
        pytest.param({**OBSERVED, "on_store_failure": "allow"}, "allow", id="but need not be counted here"),
    ],
)
def test_what_limits_do_without_a_store(settings: dict[str, Any], does: str) -> None:
    assert NamedLimit("p", limit(**settings)).on_store_failure == does


def test_a_limit_in_usd_refuses_a_model_without_a_price_and_says_what_is_missing() -> None:
    with pytest.raises(InvalidRequest) as caught:
        bind(NamedLimit("p", limit(**USD)), model=UNPRICED)
    assert (caught.value.code, caught.value.param) == ("price_missing", "model")
    assert caught.value.message == (
        "Limit 'usd-per-month-by-user' of policy 'p' counts what requests cost, and the model 'm' has no price. "
        "Have models.m.price set in the configuration, or ask for another model."
    )


def test_an_observed_limit_in_usd_counts_a_model_without_a_price_as_nothing() -> None:
    [bound] = bind(NamedLimit("p", limit(**USD, **OBSERVED)), model=UNPRICED, worst=WorstCase(30, 70, 0))
    assert bound.ask == 0


def test_a_limit_in_usd_that_is_settled_after_needs_a_price_too() -> None:
    with pytest.raises(InvalidRequest, match="has no price"):
        bind(NamedLimit("p", limit(**USD, **AFTER)), model=UNPRICED)


def test_a_limit_in_usd_for_other_models_needs_no_price_of_this_one() -> None:
    assert bind(NamedLimit("p", limit(**USD, models=["x"])), model=UNPRICED) == ()


@pytest.mark.parametrize(
    ("settings", "taking", "at_worst"),
    [
        pytest.param({}, "spend", 1, id="requests are spent at once"),
        pytest.param(TOKENS, "miss", 100, id="tokens are held, and not by hits"),
        pytest.param(FULL, "hold", 100, id="unless hits are charged"),
        pytest.param(USD, "miss", 500, id="usd likewise"),
        pytest.param(AT_ONCE, "hold", 0, id="concurrency is held, and takes nothing in the end"),
    ],
)
def test_when_a_limit_is_taken_from(settings: dict[str, Any], taking: str, at_worst: int) -> None:
    bound = bind(NamedLimit("p", limit(**settings)))[0]
    assert (bound.taking, bound.at_worst) == (taking, at_worst)


@pytest.mark.parametrize(
    ("settings", "takes"),
    [
        pytest.param({}, 1, id="a hit is a request"),
        pytest.param(AT_ONCE, 0, id="it takes no concurrency in the end"),
        pytest.param(TOKENS, 0, id="and no tokens"),
        pytest.param(FULL, 12, id="unless it is charged in full"),
        pytest.param(USD, 0, id="nor usd"),
        pytest.param({**USD, "charge_hits": "full"}, 11, id="unless it is charged in full too"),
    ],
)
def test_what_a_hit_takes(settings: dict[str, Any], takes: int) -> None:
    full = Charged(5, 7, cost_microdollars=11)
    assert taken_by_hit(bind(NamedLimit("p", limit(**settings)))[0], full) == takes


def test_an_absurd_ask_is_more_than_any_limit() -> None:
    bound = bind(NamedLimit("p", limit(of="tokens", limit=MAX_COUNT)), worst=WorstCase(1, 10**40, 0))[0]
    assert bound.ask == MORE_THAN_ANY > bound.tank.capacity


def test_limits_of_several_policies_apply_together_under_different_names() -> None:
    bound = bind(
        NamedLimit("outer", limit()), NamedLimit("inner", limit(limit=3)), NamedLimit("inner", limit(per="hour"))
    )
    assert [(each.name, each.policy) for each in bound] == [
        ("requests-per-minute-by-user", "outer"),
        ("requests-per-minute-by-user-in-inner", "inner"),
        ("requests-per-hour-by-user", "inner"),
    ]


def test_a_policy_that_applies_at_two_levels_counts_once() -> None:
    assert len(bind(NamedLimit("p", limit()), NamedLimit("p", limit()))) == 1


def test_the_count_is_the_same_whatever_other_policies_apply() -> None:
    alone = bind(NamedLimit("inner", limit()))[0]
    beside = bind(NamedLimit("outer", limit()), NamedLimit("inner", limit()))[1]
    assert (alone.counter, alone.scope) == (beside.counter, beside.scope)


@pytest.mark.parametrize(
    ("models", "binds"),
    [
        pytest.param(None, True, id="no filter is every model"),
        pytest.param(["x", "m"], True, id="a name"),
        pytest.param(["*"], True, id="a wildcard"),
        pytest.param(["m-*"], False, id="another one"),
        pytest.param(["M"], False, id="in another case"),
    ],
)
def test_limits_bind_the_models_they_name(models: list[str] | None, binds: bool) -> None:  # noqa: FBT001
    named = NamedLimit("p", limit(of="tokens", models=models))
    assert bool(bind(named)) is binds
    assert needs_ceiling([named], MODEL) is binds


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        pytest.param({}, (False, False), id="requests need neither"),
        pytest.param(AT_ONCE, (False, False), id="nor does concurrency"),
        pytest.param({"of": "completions"}, (False, False), id="nor do completions"),
        pytest.param({"of": "input_tokens"}, (True, False), id="input needs its own size"),
        pytest.param({"of": "output_tokens"}, (False, True), id="output its ceiling"),
        pytest.param(TOKENS, (True, True), id="tokens both"),
        pytest.param(USD, (True, True), id="and so does what they cost"),
        pytest.param({**USD, "models": ["x"]}, (False, False), id="but not for other models"),
        pytest.param({**USD, **AFTER}, (False, False), id="nor where all is settled after"),
        pytest.param({**USD, **OBSERVED}, (False, False), id="nor where it is only observed"),
    ],
)
def test_what_has_to_be_known_of_a_request(settings: dict[str, Any], needed: tuple[bool, bool]) -> None:
    limits = [NamedLimit("p", limit(**settings))]
    assert (needs_input(limits, MODEL), needs_ceiling(limits, MODEL)) == needed


def test_a_limit_says_whose_it_is() -> None:
    assert level_words(bind(NamedLimit("p", limit(by=["user", "end_user"])))[0]) == "user alice and end user customer"


def test_a_window_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="fortnight"):
        NamedLimit("p", limit(per="fortnight"))


def small(name: str, *, is_priced: bool = True) -> Model:
    price = {"input": 1.0, "output": 1.0} if is_priced else None
    return Model(name, ModelSettings(deployments=[{"upstream": "u"}], price=price))


THREE = (small("big-1"), small("big-2"), small("free", is_priced=False))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param([limit()], [("alice", "big-1 big-2 free")], id="one count for all models"),
        pytest.param([limit(models=["big-*"])], [("alice", "big-1 big-2")], id="those that it covers"),
        pytest.param([limit(models=["none"])], [], id="it covers none"),
        pytest.param(
            [limit(by=["model"]), limit(by=["organization"])],
            [("big-1", "big-1"), ("big-2", "big-2"), ("free", "free"), ("org", "big-1 big-2 free")],
            id="a count for each model, in the order of the limits",
        ),
        pytest.param([limit(by=["end_user"])], [("customer", "big-1 big-2 free")], id="of the end user who is named"),
        pytest.param([limit(**USD)], [("alice", "big-1 big-2")], id="models without a price are not had under usd"),
        pytest.param(
            [limit(), limit(models=["big-2"]), limit(by=["key"])],
            [("alice", "big-1 big-2 free"), ("alice", "big-2"), ("key_a", "big-1 big-2 free")],
            id="several of which one is for few models",
        ),
        pytest.param(
            [limit(name="a", limit=7, models=["big-1"]), limit(name="a", models=["big-2"])],
            [("alice", "big-1"), ("alice", "big-2")],
            id="two quotas by one name",
        ),
        pytest.param([limit(), limit()], [("alice", "big-1 big-2 free")], id="the same one twice"),
        pytest.param([], [], id="none"),
    ],
)
def test_what_binds_a_principal_whatever_is_asked_for(limits: list[Limit], expected: list[tuple[str, str]]) -> None:
    found = find_standings([NamedLimit("p", each) for each in limits], ALICE, THREE, "customer")
    assert [(" ".join(each.bound.scope), " ".join(each.models)) for each in found] == expected


def test_a_standing_counts_where_requests_do() -> None:
    # Named alike, the second limit has another counter for the model that both are for, as its requests have.
    limits = [NamedLimit("p", limit(limit=9, name="a", models=["big-*"])), NamedLimit("p", limit(name="a"))]
    standings = find_standings(limits, ALICE, THREE, None)
    counted = {(each.bound.counter, each.bound.named.quota, name) for each in standings for name in each.models}
    bound = {(each.counter, each.named.quota, model.name) for model in THREE for each in bind(*limits, model=model)}
    assert counted == bound
    assert len(standings) == 3


@pytest.mark.parametrize(
    ("principal", "scopes"),
    [
        pytest.param(Principal("org", "research", "", ""), ["org"], id="nobody in particular"),
        pytest.param(Principal("org", "research", "alice", ""), ["org", "alice"], id="a user without a key"),
        pytest.param(ALICE, ["org", "alice", "key_a alice"], id="the owner of a key"),
    ],
)
def test_limits_of_those_who_are_not_named_bind_nobody(principal: Principal, scopes: list[str]) -> None:
    limits = [NamedLimit("p", limit(by=by)) for by in (["organization"], ["user"], ["key", "user"])]
    found = find_standings(limits, principal, THREE, None)
    assert [" ".join(each.bound.scope) for each in found] == scopes
