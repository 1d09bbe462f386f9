from __future__ import annotations

import pytest

from policies.catalog import Deployment, ModelSettings
from policies.errors import UnknownModel
from policies.policy import Limit, Policy, Rule
from policies.principals import AppliedPolicy, Principal
from policies.rulebook import Rulebook

MODELS = {
    "instruct": ModelSettings(deployments=(Deployment(upstream="a"), Deployment(upstream="b")), aliases=("davinci",)),
    "org/small": ModelSettings(deployments=(Deployment(upstream="a"),)),
}
POLICIES = {
    "wide": Policy(parameters={"n": Rule(max=8)}, limits=(Limit(of="requests", limit=9, per="day", by=("user",)),)),
    "narrow": Policy(parameters={"n": Rule(max=2)}),
}
RULEBOOK = Rulebook(MODELS, POLICIES, {"b"})


def principal(*, models: tuple[str, ...] = ("*",), policies: tuple[str, ...] = ()) -> Principal:
    return Principal(
        "org", "proj", "alice", "key", models=models, policies=tuple(AppliedPolicy("key", name) for name in policies)
    )


def test_a_model_is_found_by_its_name_and_its_aliases() -> None:
    assert RULEBOOK.model("davinci") is RULEBOOK.model("instruct")
    assert RULEBOOK.model("davinci").name == "instruct"


def test_a_model_that_is_not_there_is_not_found() -> None:
    assert RULEBOOK.find_model("none") is None


@pytest.mark.parametrize("name", ["", "Instruct", "instruct ", "org", "org/smal", "*"])
def test_any_other_name_is_no_model(name: str) -> None:
    with pytest.raises(UnknownModel) as refused:
        RULEBOOK.model(name)
    assert (refused.value.status_hint, refused.value.code, refused.value.param) == (404, "model_not_found", "model")


def test_a_long_name_is_cut_in_the_message() -> None:
    with pytest.raises(UnknownModel) as refused:
        RULEBOOK.model("x" * 10_000)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (("*",), ["davinci", "instruct", "org/small"]),
        (("org/*",), ["org/small"]),
        (("instruct",), ["davinci", "instruct"]),
        pytest.param(("davinci",), [], id="permission is for models, not for their aliases"),
        ((), []),
    ],
)
def test_a_principal_is_told_the_names_it_may_use(models: tuple[str, ...], names: list[str]) -> None:
    assert list(RULEBOOK.usable_names(principal(models=models))) == names


def test_levels_merge_to_the_stricter_bound_and_all_limits() -> None:
    policy = RULEBOOK.policy_for(principal(policies=("wide", "narrow")))
    assert policy.parameters["n"].max.value == 2
    assert [named.policy for named in policy.limits] == ["wide"]
    assert RULEBOOK.policy_for(principal(policies=("wide", "narrow"))) is policy


def test_only_a_model_behind_such_an_upstream_forwards_the_clients_version() -> None:
    assert [m.forwards_api_version for m in RULEBOOK.models.values()] == [True, False]


def test_a_principal_may_use_models_by_its_patterns_and_its_policies() -> None:
    book = Rulebook(MODELS, {"small": Policy(models=("org/*",))})
    assert [model.name for model in book.usable_models(principal())] == ["instruct", "org/small"]
    assert [model.name for model in book.usable_models(principal(policies=("small",)))] == ["org/small"]
    assert book.usable_models(principal(models=("instruct",), policies=("small",))) == []


def test_a_model_counts_by_its_tokenizer() -> None:
    models = {"counting": MODELS["instruct"].model_copy(update={"tokenizer": "qwen3"}), "plain": MODELS["instruct"]}
    book = Rulebook(models, {}, counters={"qwen3": len})
    assert (book.model("counting").count_tokens, book.model("plain").count_tokens) == (len, None)
