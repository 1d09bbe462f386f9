"""Limits that nothing can pass, and limits of money for models without a price."""

from __future__ import annotations

from typing import Any

import pytest

from policies.catalog import Deployment, Model, ModelSettings, Price
from policies.limit_advice import impassable, unpriced
from policies.merging import EffectivePolicy, merge
from policies.policy import Limit, Policy, Rule


def model(name: str, **more: Any) -> Model:  # noqa: ANN401  a model's settings
    return Model(name, ModelSettings(deployments=(Deployment(upstream="u"),), **more))


FREE, PRICED = model("free"), model("priced", price=Price(input=1, output=2))


def under(of: Any, limit: float, *, rules: dict[str, Rule] | None = None, **more: Any) -> EffectivePolicy:  # noqa: ANN401  settings
    per = None if of == "concurrency" else "day"
    limits = (Limit(of=of, limit=limit, **{"per": per, "by": ("user",), **more}),)
    return merge([("p", Policy(parameters=rules or {}, limits=limits))])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(under("tokens", 24), None, id="room for the smallest of every endpoint"),
        pytest.param(under("tokens", 23), "to chat/completions and responses pass", id="room for token ids only"),
        pytest.param(under("tokens", 0), "lets no request pass", id="no tokens"),
        pytest.param(under("requests", 0), "lets no request pass", id="no requests"),
        pytest.param(under("output_tokens", 0), None, id="input only, which some requests are"),
        pytest.param(under("tokens", 0, models=("other",)), None, id="for models that nobody has"),
        pytest.param(under("usd", 0.000024), None, id="a micro-dollar for each token"),
        pytest.param(under("usd", 0), "lets no request pass: give it 0.000024 USD", id="no money"),
        pytest.param(
            under("completions", 3, rules={"n": Rule(min=4)}), "to completions and chat/completions", id="fewer than n"
        ),
        pytest.param(under("concurrency", 0), "lets no request pass", id="none at once"),
        pytest.param(under("tokens", 0, mode="observe"), None, id="no tokens, only observed"),
        pytest.param(under("tokens", 1, hold="none"), None, id="a token, and all is settled after"),
        pytest.param(
            under("tokens", 0, hold="none"), "lets no request pass: give it 1 or more", id="nothing left ever"
        ),
    ],
)
def test_limits_that_nothing_can_pass(policy: EffectivePolicy, expected: str | None) -> None:
    found = [odd.message for odd in impassable(policy, [PRICED])]
    assert found == [] if expected is None else [message for message in found if expected in message]


def test_a_model_that_asks_for_more_is_named() -> None:
    large = model("large", request_overhead_tokens=100)
    [odd] = impassable(under("tokens", 50), [PRICED, large])
    assert "no request for large to chat/completions and responses pass: give it 116 or more" in odd.message


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(under("usd", 5), ["free"], id="all models, of which one has no price"),
        pytest.param(under("usd", 5, models=("priced",)), [], id="only the one with a price"),
        pytest.param(under("tokens", 5), [], id="tokens need none"),
        pytest.param(under("usd", 5, hold="none"), ["free"], id="also where it is settled after"),
    ],
)
def test_models_without_a_price_are_named(policy: EffectivePolicy, expected: list[str]) -> None:
    told = [odd.message for odd in unpriced(policy, [FREE, PRICED])]
    assert [
        f"every request for {name} is refused" in message for name, message in zip(expected, told, strict=True)
    ] == [True for _ in expected]


def test_an_observed_limit_refuses_no_model_without_a_price() -> None:
    [odd] = unpriced(under("usd", 5, mode="observe"), [FREE, PRICED])
    assert "every request for free counts as nothing: give its price" in odd.message
