"""Pydantic's findings in our words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.config import Configuration
from proxy.config_problems import told_problems, valid_names
from proxy.config_references import written


def told(values: Any) -> list[str]:  # noqa: ANN401  whatever YAML can say
    with pytest.raises(ValidationError) as caught:
        Configuration.model_validate(values)
    return [f"{written(problem.path)}: {problem.message}" for problem in told_problems(caught.value, values)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(("upstreams", "any name"), "base_url", id="behind a name"),
        pytest.param(("models", "m", "deployments", 0), "weight", id="in a list within a name"),
        pytest.param(("models", "m", "price"), "cached_input", id="in what may be absent"),
        pytest.param(("policies", "p", "parameters", "n"), "on_violation", id="behind two names"),
        pytest.param(("keys", 3), "service_account", id="in a list"),
    ],
)
def test_valid_names_are_found_anywhere(path: tuple[str | int, ...], expected: str) -> None:
    assert expected in valid_names(path)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            {"policies": {"p": {"parameters": {"n": {"max": "4"}}}}},
            ["policies.p.parameters.n.max: must be a number, not text"],
            id="the members of a union are told as one",
        ),
        pytest.param(
            {"policies": {"p": {"limits": [{"of": "tokens", "limit": 1, "per": "day", "by": ["x", "y"]}]}}},
            [
                f"policies.p.limits[0].by[{n}]: must be 'organization', 'project', 'user', 'key', 'end_user' or 'model'"
                for n in (0, 1)
            ],
            id="a list is not too short because its entries are wrong",
        ),
        pytest.param(
            {"policies": {"p": {"unknown_parameters": False}}},
            ["policies.p.unknown_parameters: must be 'forward', 'drop' or 'reject', not false"],
            id="a boolean is written as YAML does",
        ),
        pytest.param(
            {"policies": {"p": {"cache": {"ttl": -1}}}},
            ["policies.p.cache.ttl: -1 is no duration"],
            id="a duration as it was written",
        ),
        pytest.param({"workers": 0}, ["workers: must be a number above 0, not 0"], id="a number"),
        pytest.param({"upstreams": {"a": None}}, ["upstreams.a: must be a mapping, not nothing"], id="nothing"),
        pytest.param(
            {"upstreams": {"a/b": {"kind": "openai", "base_url": "http://u"}}},
            ["upstreams.a/b: may hold letters"],
            id="a name",
        ),
        pytest.param({"models": {"a\nb": {}}}, ["models.a\nb: deployments"], id="a name with a line's end"),
        pytest.param(
            {"upstreams": {"a": {"kind": "openai", "base_url": "http://u", "api_key": ["hidden"]}}},
            ["upstreams.a.api_key: must be text, not a list"],
            id="a list for a secret",
        ),
    ],
)
def test_findings_are_told(values: Any, expected: list[str]) -> None:  # noqa: ANN401
    found = told(values)
    assert len(found) >= len(expected)
    assert "hidden" not in "".join(found)
    for line, beginning in zip(found, expected, strict=False):
        assert line.startswith(beginning.partition(": deployments")[0])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(Configuration.model_fields)), VALUES))
def test_whatever_is_wrong_is_told(values: dict[str, Any]) -> None:
    error = None
    try:
        Configuration.model_validate(values)
    except ValidationError as caught:
        error = caught
    assert error is None or told_problems(error, values)
