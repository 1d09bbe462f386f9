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
    assert (bound.ask, taken(bound, Charged(5, 7, cost_microdollars=11))) == (ask, takes)


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
