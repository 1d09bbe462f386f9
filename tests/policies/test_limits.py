from __future__ import annotations

from typing import Any

import pytest

from policies.catalog import Model, ModelSettings
from policies.charges import Charged, WorstCase
from policies.limits import (
    MORE_THAN_ANY,
    BoundLimit,
    NamedLimit,
    bind_limits,
    level_words,
    made_name,
    needs_ceiling,
    taken,
    taken_by_hit,
)
from policies.policy import Limit
from policies.principals import Principal
from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.dialects import view_of
from policies.usage import Usage
from policies.windows import MAX_COUNT

FIELDS = {"prompt": "hi", "user": "customer"}
EFFECTIVE = EffectiveRequest(Endpoint.COMPLETIONS, FIELDS, view_of(Endpoint.COMPLETIONS, FIELDS))
ALICE = Principal("org", "research", "alice", "key_a")
ROBOT = Principal("org", "research", "alice", "key_r", is_service_account=True)
MODEL = Model("m", ModelSettings(deployments=[{"upstream": "u"}]))
WORST = WorstCase(30, 70, 5)


def limit(**settings: Any) -> Limit:  # noqa: ANN401  settings of a limit
    return Limit(**{"of": "requests", "limit": 5, "per": "minute", "by": ["user"], **settings})


def bind(*limits: NamedLimit, principal: Principal = ALICE, worst: WorstCase = WORST) -> tuple[BoundLimit, ...]:
    return bind_limits(limits, principal, MODEL, EFFECTIVE, worst)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        pytest.param({}, "requests-per-minute-by-user", id="quantity, window and scope"),
        pytest.param({"by": ["project", "end_user"]}, "requests-per-minute-by-project-end_user", id="several levels"),
        pytest.param({"of": "concurrency", "per": None}, "concurrency-by-user", id="no window"),
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


@pytest.mark.parametrize(
    ("of", "ask", "takes"),
    [
        pytest.param("requests", 1, 1, id="a request is one"),
        pytest.param("tokens", 100, 12, id="tokens are input and output"),
        pytest.param("concurrency", 1, 0, id="concurrency takes nothing in the end"),
    ],
)
def test_asks_and_takings(of: str, ask: int, takes: int) -> None:
    bound = bind(NamedLimit("p", limit(of=of, per=None if of == "concurrency" else "minute")))[0]
    assert (bound.ask, taken(bound, Charged(5, 7))) == (ask, takes)


TOKENS = {"of": "tokens"}
FULL = {"of": "tokens", "charge_hits": "full"}
AT_ONCE = {"of": "concurrency", "per": None}


@pytest.mark.parametrize(
    ("settings", "taking", "at_worst"),
    [
        pytest.param({}, "spend", 1, id="requests are spent at once"),
        pytest.param(TOKENS, "miss", 100, id="tokens are held, and not by hits"),
        pytest.param(FULL, "hold", 100, id="unless hits are charged"),
        pytest.param(AT_ONCE, "hold", 0, id="concurrency is held, and takes nothing in the end"),
    ],
)
def test_when_a_limit_is_taken_from(settings: dict[str, Any], taking: str, at_worst: int) -> None:
    bound = bind(NamedLimit("p", limit(**settings)))[0]
    assert (bound.taking, bound.at_worst) == (taking, at_worst)


@pytest.mark.parametrize(
    ("settings", "usage", "takes"),
    [
        pytest.param({}, Usage(5, 7), 1, id="a hit is a request"),
        pytest.param(AT_ONCE, Usage(5, 7), 0, id="it takes no concurrency in the end"),
        pytest.param(TOKENS, Usage(5, 7), 0, id="and no tokens"),
        pytest.param(FULL, Usage(5, 7), 12, id="unless it is charged in full: what was reported"),
        pytest.param(FULL, None, 100, id="or what was asked, where nothing was"),
    ],
)
def test_what_a_hit_takes(settings: dict[str, Any], usage: Usage | None, takes: int) -> None:
    assert taken_by_hit(bind(NamedLimit("p", limit(**settings)))[0], usage) == takes


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


def test_only_limits_that_hold_need_a_ceiling() -> None:
    assert not needs_ceiling([NamedLimit("p", limit()), NamedLimit("p", limit(of="concurrency", per=None))], MODEL)


def test_a_limit_says_whose_it_is() -> None:
    assert level_words(bind(NamedLimit("p", limit(by=["user", "end_user"])))[0]) == "user alice and end user customer"


def test_a_window_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="fortnight"):
        NamedLimit("p", limit(per="fortnight"))
