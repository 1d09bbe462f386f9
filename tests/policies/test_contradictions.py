"""What is said to refuse every request does refuse whatever is sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.catalog import Deployment, Model, ModelSettings
from policies.contradictions import Contradiction, contradictions
from policies.errors import InvalidRequest, PolicyViolation
from policies.merging import merge
from policies.parameters import apply_rules
from policies.policy import Policy, Rule
from policies.requests.asked import Dialect, Endpoint
from policies.requests.dialects import read_request

MODEL = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),)))
COUNTS = st.integers(1, 6)


def told(*policies: Policy) -> list[Contradiction]:
    """Return the contradictions of policies p, q and so on, outermost first."""
    return list(contradictions(merge(list(zip("pqr", policies, strict=False))), [MODEL]))


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        pytest.param([{"n": Rule(max=4)}], [], id="a bound"),
        pytest.param([{"n": Rule(min=2, max=2)}, {"best_of": Rule(max=2)}], [], id="one pair is left"),
        pytest.param([{"n": Rule(allowed=(2,))}, {"n": Rule(allowed=(3,))}], [("q", "n")], id="no common value"),
        pytest.param([{"n": Rule(force=4)}, {"best_of": Rule(max=2)}], [("q", "best_of")], id="forced above a cap"),
        pytest.param([{"n": Rule(min=3)}, {"candidates": Rule(max=2)}], [("q", "candidates")], id="too many choices"),
        pytest.param([{"n": Rule(default=3)}, {"candidates": Rule(max=2)}], [], id="a client may send less"),
        pytest.param(
            [{"n": Rule(default=3, forbid=None)}, {"n": Rule(forbid="drop"), "candidates": Rule(max=2)}],
            [],
            id="what is dropped is one",
        ),
        pytest.param([{"prompt_tokens": Rule(max=0)}], [("p", "prompt_tokens")], id="no input at all"),
        pytest.param(
            [{"n": Rule(allowed=(2,))}, {"n": Rule(allowed=(3,)), "candidates": Rule(max=1)}],
            [("q", "n")],
            id="what follows from another contradiction is not told",
        ),
        pytest.param(
            [{"user": Rule(default="a")}, {"user": Rule(allowed=("b",))}], [("p", "user")], id="another's text"
        ),
        pytest.param([{"n": Rule(default=9)}, {"n": Rule(max=2)}], [], id="another's number is moved"),
        pytest.param(
            [{"stop": Rule(add=("a", "b", "c"))}, {"stop": Rule(add=("d", "e"))}], [("q", "stop")], id="stops"
        ),
    ],
)
def test_what_contradicts_is_told_where_it_stands(
    policies: list[dict[str, Rule]], expected: list[tuple[str, str]]
) -> None:
    found = told(*(Policy(parameters=parameters) for parameters in policies))
    assert [(each.policy, each.place) for each in found] == [
        (policy, f"parameters.{name}") for policy, name in expected
    ]


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    bounds = st.fixed_dictionaries({}, optional={"max": COUNTS, "min": COUNTS, "default": COUNTS, "force": COUNTS})
    names = draw(st.sets(st.sampled_from(["n", "best_of", "max_tokens"]), min_size=1))
    rules = {name: Rule(on_violation=draw(st.sampled_from(["reject", "clamp"])), **draw(bounds)) for name in names}
    computed = draw(st.dictionaries(st.sampled_from(["candidates", "worst_case_tokens"]), COUNTS, max_size=1))
    return Policy(parameters={**rules, **{name: Rule(max=most) for name, most in computed.items()}})


SENT = st.fixed_dictionaries(
    {}, optional={"n": COUNTS, "best_of": COUNTS, "max_tokens": COUNTS, "stream": st.booleans()}
)


@given(policies(), policies(), SENT)
def test_every_request_is_refused_as_told(outer: Policy, inner: Policy, sent: dict[str, Any]) -> None:
    words = [each.message for each in told(outer, inner)]
    refused = ["every request to completions", "every request: ", "every request is"]
    refused += ["every request for a stream"] if sent.get("stream") else []
    if not any(which in each for which in refused for each in words):
        return
    try:
        asked = read_request(
            endpoint=Endpoint.COMPLETIONS,
            dialect=Dialect.OPENAI,
            fields={"model": "m", "prompt": [1], **sent},
            path_model=None,
            api_version=None,
        )
    except InvalidRequest:
        return
    with pytest.raises(PolicyViolation):
        apply_rules(asked, merge([("p", outer), ("q", inner)]), MODEL, lambda _: "")
