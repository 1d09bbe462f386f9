"""No request that a policy lets through is smaller than those that are said to be the smallest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.catalog import Deployment, Model, ModelSettings
from policies.charges import worst_case
from policies.errors import Rejection
from policies.merging import EffectivePolicy, merge
from policies.parameters import apply_rules
from policies.policy import Policy, Rule
from policies.requests.asked import Dialect, Endpoint
from policies.requests.dialects import read_request
from policies.smallest_requests import smallest_requests

MODEL = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),)))


def under(**parameters: Rule) -> EffectivePolicy:
    return merge([("p", Policy(parameters=parameters))])


@pytest.mark.parametrize(
    ("policy", "endpoint", "expected"),
    [
        pytest.param(under(), Endpoint.COMPLETIONS, (1, 0), id="a prompt of one token, and nothing generated"),
        pytest.param(under(), Endpoint.EMBEDDINGS, (1, 0), id="an input of one token"),
        pytest.param(under(), Endpoint.CHAT, (24, 0), id="a message's overhead"),
        pytest.param(under(max_tokens=Rule(min=5)), Endpoint.CHAT, (24, 5), id="the least ceiling"),
        pytest.param(under(max_tokens=Rule(force=7)), Endpoint.RESPONSES, (24, 7), id="a forced ceiling"),
        pytest.param(
            under(max_tokens=Rule(default=9)), Endpoint.COMPLETIONS, (1, 0), id="a default that none must take"
        ),
        pytest.param(
            under(max_tokens=Rule(forbid="reject")), Endpoint.COMPLETIONS, (1, 16), id="the API's own ceiling"
        ),
        pytest.param(
            under(n=Rule(min=3), max_tokens=Rule(min=5)), Endpoint.COMPLETIONS, (1, 15), id="as many choices as must be"
        ),
        pytest.param(
            under(best_of=Rule(allowed=(4, 2)), max_tokens=Rule(min=5)), Endpoint.COMPLETIONS, (1, 10), id="candidates"
        ),
        pytest.param(
            under(n_cmpl=Rule(default=8), max_tokens=Rule(min=5)), Endpoint.CHAT, (24, 5), id="a default by any name"
        ),
        pytest.param(
            under(n_cmpl=Rule(force=4), max_tokens=Rule(min=5)),
            Endpoint.CHAT,
            (24, 20),
            id="what is forced by any name",
        ),
        pytest.param(under(prompts=Rule(max=0)), Endpoint.CHAT, None, id="nothing that is let through"),
    ],
)
def test_the_smallest(policy: EffectivePolicy, endpoint: Endpoint, expected: tuple[int, int] | None) -> None:
    worst = [worst_case(each, MODEL) for each in smallest_requests(policy, MODEL, endpoint)]
    bounded = [(each.input_tokens, each.output_tokens) for each in worst if each.is_bounded]
    assert min(bounded, default=None) == expected


COUNTS = st.integers(1, 6)
RULES = st.builds(
    Rule,
    on_violation=st.sampled_from(["reject", "clamp"]),
    max=st.none() | COUNTS,
    min=st.none() | COUNTS,
    default=st.none() | COUNTS,
    force=st.none() | COUNTS,
)
SENT = st.fixed_dictionaries({}, optional={"n": COUNTS, "best_of": COUNTS, "max_tokens": COUNTS})


@given(st.dictionaries(st.sampled_from(["n", "best_of", "max_tokens"]), RULES), SENT)
def test_none_is_smaller(rules: dict[str, Rule], sent: dict[str, Any]) -> None:
    policy = under(**rules)
    try:
        asked = read_request(
            endpoint=Endpoint.COMPLETIONS,
            dialect=Dialect.OPENAI,
            fields={"model": "m", "prompt": [1], **sent},
            path_model=None,
            api_version=None,
        )
        effective, _ = apply_rules(asked, policy, MODEL, lambda _: "")
    except Rejection:
        return
    smallest = [worst_case(each, MODEL) for each in smallest_requests(policy, MODEL, Endpoint.COMPLETIONS)]
    worst = worst_case(effective, MODEL)
    assert min(each.output_tokens for each in smallest) <= worst.output_tokens
    assert min(each.candidates for each in smallest) <= worst.candidates
