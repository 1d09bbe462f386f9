"""Levels combine: the stricter bound wins, every limit applies, and every part remembers where it came from."""

from __future__ import annotations

from typing import Any

import pytest

from policies.merging import BUILT_IN, EffectivePolicy, Forced, MergedRule, Part, is_same, merge
from policies.policy import CacheSettings, Limit, Policy, Rule


def merged_rule(*levels: dict[str, Any]) -> MergedRule:
    """Merge what levels called a, b, … say of one parameter, outermost first."""
    named = [(name, Policy(parameters={"n": Rule(**level)})) for name, level in zip("abc", levels, strict=False)]
    return merge(named).parameters["n"]


@pytest.mark.parametrize(
    ("levels", "part", "expected"),
    [
        pytest.param([{"max": 8}, {"max": 4}], "max", Part(4, "b"), id="the inner level is stricter"),
        pytest.param([{"max": 4}, {"max": 8}], "max", Part(4, "a"), id="an inner level loosens nothing"),
        pytest.param([{"max": 4, "on_violation": "clamp"}, {"max": 8}], "max", Part(4, "a", "clamp"), id="own manner"),
        pytest.param([{"max": 4, "on_violation": "clamp"}, {"max": 4}], "max", Part(4, "b"), id="equal: refuse"),
        pytest.param([{"min": 1}, {"min": 2}, {"min": 0}], "min", Part(2, "b"), id="the largest minimum"),
        pytest.param([{"max": 8}, {"min": 2}], "max", Part(8, "a"), id="parts come from different levels"),
        pytest.param(
            [{"allowed": [1, 2]}, {"allowed": [1, 3], "on_violation": "clamp"}, {"allowed": [1, 4]}],
            "allowed",
            (Part((1, 2), "a"), Part((1, 3), "b", "clamp"), Part((1, 4), "c")),
            id="every list holds, each under its own name and in its own manner",
        ),
        pytest.param([{"allowed": [1, 2, 3]}, {"allowed": [3, 2, 9]}], "listed", (2, 3), id="common values"),
        pytest.param([{"allowed": [True]}, {"allowed": [1]}], "listed", (), id="true is no 1"),
        pytest.param([{"max": 1}], "listed", None, id="no list at all"),
        pytest.param([{"default": 1}, {"default": 2}], "default", Part(2, "b"), id="the inner default"),
        pytest.param([{"default": 1}, {"max": 2}], "default", Part(1, "a"), id="the only default"),
        pytest.param([{"force": 1}, {"force": 2}], "force", Part(1, "a"), id="the outer level forces"),
        pytest.param(
            [{"force": 1}, {"forbid": "drop"}], "force", Part(1, "a"), id="what is forced stays forced within"
        ),
        pytest.param(
            [{"force": 1}, {"forbid": "drop"}], "forbid", Part("drop", "b"), id="and is forbidden where it does not fit"
        ),
        pytest.param([{"forbid": "drop"}, {"force": 1}], "force", None, id="what is forbidden cannot be forced within"),
        pytest.param([{"forbid": "reject"}, {"force": 1}], "force", None, id="however it is forbidden"),
        pytest.param([{"force": 1}, {"forbid": "reject"}], "forbid", Part("reject", "b"), id="refusing beats forcing"),
        pytest.param([{"force": 1}, {"forbid": "reject"}], "force", Part(1, "a"), id="without lifting it"),
        pytest.param(
            [{"force": 1}, {"forbid": "reject"}, {"forbid": "drop"}], "forbid", Part("reject", "b"), id="for all levels"
        ),
        pytest.param(
            [{"forbid": "drop"}, {"forbid": "reject"}], "forbid", Part("reject", "b"), id="refusing is stricter"
        ),
        pytest.param([{"forbid": "reject"}, {"forbid": "drop"}], "forbid", Part("reject", "a"), id="and stays"),
        pytest.param([{"default": 3}, {"forbid": "drop"}], "default", None, id="what is forbidden has no default"),
        pytest.param([{"max": 4}, {"max": 8, "override": True}], "max", Part(8, "b"), id="an override loosens"),
        pytest.param([{"forbid": "reject"}, {"override": True}], "forbid", None, id="an override alone lifts all"),
        pytest.param([{"min": 2}, {"max": 8, "override": True}], "min", None, id="and lifts what it does not repeat"),
        pytest.param(
            [{"max": 4}, {"max": 8, "override": True}, {"max": 6}], "max", Part(6, "c"), id="levels within still bind"
        ),
        pytest.param(
            [{"max": 4, "override": True}, {"max": 8}], "max", Part(4, "a"), id="an outer override overrides nothing"
        ),
        pytest.param(
            [{"strip_trailing_space": True}, {"max": 1}], "strip", Part(value=True, policy="a"), id="stripping stays"
        ),
        pytest.param(
            [{"add": ["x", "y"]}, {"add": ["y", "z"]}],
            "add",
            (Part("x", "a"), Part("y", "a"), Part("z", "b")),
            id="every added text once, named after the outermost",
        ),
        pytest.param(
            [{"add": ["x"], "on_violation": "clamp"}, {"add": ["x"]}],
            "add",
            (Part("x", "a", "reject"),),
            id="what one level refuses for is refused for",
        ),
        pytest.param([{"pseudonymise": True}, {"force": "u"}], "force", Part(Forced.PSEUDONYM, "a"), id="a pseudonym"),
    ],
)
def test_the_stricter_part_wins(levels: list[dict[str, Any]], part: str, expected: object) -> None:
    assert getattr(merged_rule(*levels), part) == expected


def limit(amount: int) -> Limit:
    return Limit(of="requests", limit=amount, per="minute", by=("user",))


def test_limits_of_all_levels_apply_and_remember_their_policy() -> None:
    merged = merge([("a", Policy(limits=(limit(1), limit(2)))), ("b", Policy(limits=(limit(3),)))])
    assert [(named.policy, named.limit.limit) for named in merged.limits] == [("a", 1), ("a", 2), ("b", 3)]
    assert merged.name == "b"


def test_a_policy_at_several_levels_counts_once() -> None:
    policy = Policy(limits=(limit(1),), parameters={"n": Rule(max=4)})
    merged = merge([("a", policy), ("b", Policy()), ("a", policy)])
    assert len(merged.limits) == 1
    assert merged.parameters["n"].max == Part(4, "a")


@pytest.mark.parametrize(
    ("modes", "mode", "policy"),
    [
        pytest.param([], "deterministic", BUILT_IN, id="no policy: the built-in settings"),
        pytest.param([None, None], "deterministic", BUILT_IN, id="no policy speaks of the cache"),
        pytest.param(["off", None], "off", "a", id="the only one that does"),
        pytest.param(["off", "everything"], "everything", "b", id="the innermost that does"),
    ],
)
def test_the_innermost_cache_settings_win(modes: list[Any], mode: str, policy: str) -> None:
    caches = [None if m is None else CacheSettings(mode=m) for m in modes]
    merged = merge([(name, Policy(cache=cache)) for name, cache in zip("ab", caches, strict=False)])
    assert (merged.cache.mode, merged.cache_policy) == (mode, policy)


def test_nothing_configured_is_nothing_ruled() -> None:
    assert merge([]) == EffectivePolicy()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, None, True),
        ("1", 1, False),
        ([1, [True]], [1.0, [True]], True),
        ([1, [True]], [1, [1]], False),
        ([1], [1, 2], False),
        ({"a": {"b": 0}}, {"a": {"b": 0.0}}, True),
        ({"a": 0}, {"a": False}, False),
        ({"a": 0}, {"b": 0}, False),
    ],
)
def test_json_values_are_compared_with_their_type(one: object, other: object, *, expected: bool) -> None:
    assert is_same(one, other) is expected


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        pytest.param([{}, {}], None, id="nothing said: forward"),
        pytest.param([{"unknown_parameters": "drop"}, {}], Part("drop", "a"), id="the outer level stays"),
        pytest.param(
            [{"unknown_parameters": "drop"}, {"unknown_parameters": "reject"}], Part("reject", "b"), id="the stricter"
        ),
        pytest.param(
            [{"unknown_parameters": "reject"}, {"unknown_parameters": "forward"}], Part("reject", "a"), id="not looser"
        ),
        pytest.param(
            [{"unknown_parameters": "reject"}, {"unknown_parameters": "forward", "override": True}],
            None,
            id="an override forwards",
        ),
    ],
)
def test_the_stricter_word_on_unknown_parameters_wins(levels: list[dict[str, Any]], expected: Part | None) -> None:
    assert merge([(name, Policy(**level)) for name, level in zip("abc", levels, strict=False)]).unknown == expected


@pytest.mark.parametrize(
    ("levels", "refused_by"),
    [
        pytest.param([{}, {}], None, id="no list"),
        pytest.param([{"models": ["gpt-*"]}, {}], None, id="on the only list, by a wildcard"),
        pytest.param([{"models": ["gpt-*"]}, {"models": ["gpt-3"]}], "b", id="on one of two lists"),
        pytest.param([{"models": ["gpt-3"]}, {"models": ["*"]}], "a", id="an inner list lifts nothing"),
        pytest.param([{"models": ["gpt-3"]}, {"models": ["*"], "override": True}], None, id="but an override does"),
        pytest.param([{"models": ["gpt-3"]}, {"override": True}], "a", id="one that says nothing of models does not"),
    ],
)
def test_a_model_must_be_on_every_list(levels: list[dict[str, Any]], refused_by: str | None) -> None:
    merged = merge([(name, Policy(**level)) for name, level in zip("abc", levels, strict=False)])
    refusing = merged.refusing_model("gpt-4")
    assert (refusing and refusing.policy) == refused_by


def test_a_policy_marked_override_overrides_with_all_its_rules() -> None:
    outer = Policy(parameters={"n": Rule(max=1), "best_of": Rule(max=1)})
    merged = merge([("a", outer), ("b", Policy(parameters={"n": Rule(max=9)}, override=True))])
    assert (merged.parameters["n"].max, merged.parameters["best_of"].max) == (Part(9, "b"), Part(1, "a"))


def test_observed_rules_bind_nobody_and_combine_among_themselves() -> None:
    observing = Policy(parameters={"n": Rule(max=2, mode="observe")})
    merged = merge([("a", Policy(parameters={"n": Rule(max=4)})), ("b", observing)])
    assert merged.parameters["n"].max == Part(4, "a")
    assert merged.observed["n"].max == Part(2, "b")
