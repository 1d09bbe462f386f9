"""Names that must exist and names that must be unique, on values of any shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import Configuration
from proxy.config_references import find_problems, listed, suggest, written


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        pytest.param("defalt", ["default", "other"], 'did you mean "default"?', id="a near one"),
        pytest.param("x", ["b", "a"], "there is a, b", id="a few, none near"),
        pytest.param("x", [], "none is configured", id="none"),
        pytest.param(
            "zz", [f"n{n}" for n in range(10)], "there is n0, n1, n2, n3, n4, n5, n6, n7 and 2 more", id="many"
        ),
    ],
)
def test_what_would_be_right_is_suggested(wrong: str, right: list[str], expected: str) -> None:
    assert suggest(wrong, right) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [((), "the file"), (("keys", 2, "project"), "keys[2].project"), (("models", "a.b"), "models.a.b")],
)
def test_paths_are_written_for_people(path: tuple[str | int, ...], expected: str) -> None:
    assert written(path) == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
SECTIONS = st.sampled_from(sorted(Configuration.model_fields))


@given(st.dictionaries(SECTIONS, VALUES) | VALUES)
def test_malformed_values_are_shrugged_at(data: object) -> None:
    assert all(problem.message for problem in find_problems(data))


def test_settings_already_made_are_looked_at_too() -> None:
    made = Configuration()
    assert find_problems(made) == []
    assert find_problems({"projects": made.projects, "organization": {"policy": "x"}})[0].path == (
        "organization",
        "policy",
    )


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param({"models": ["gpt-5"]}, id="a policy's list"),
        pytest.param({"limits": [{"models": ["gpt-5"]}]}, id="a limit's list"),
    ],
)
def test_models_that_nobody_serves_are_found_in_every_list(policy: dict[str, object]) -> None:
    [problem] = find_problems({"models": {"gpt-4": {}}, "policies": {"p": policy}})
    assert problem.message == 'unknown model "gpt-5"; did you mean "gpt-4"?'


def test_an_unknown_shadow_is_found() -> None:
    [problem] = find_problems({"upstreams": {"main": {}}, "models": {"m": {"shadow": {"upstream": "mian"}}}})
    assert problem.path == ("models", "m", "shadow", "upstream")
    assert problem.message == 'unknown upstream "mian"; did you mean "main"?'


def test_telling_an_upstream_the_user_takes_a_key_for_pseudonyms() -> None:
    telling = {"upstreams": {"u": {"identity_headers": ["project", "user"]}}}
    [problem] = find_problems(telling)
    assert problem.path == ("upstreams", "u", "identity_headers", 1)
    assert "give pseudonym_key" in problem.message
    assert find_problems({**telling, "pseudonym_key": "secret"}) == []


@pytest.mark.parametrize(
    ("names", "expected"), [([], ""), (["a", "b"], "a, b"), (list("abcdefghij"), "a, b, c, d, e, f, g, h and 2 more")]
)
def test_many_names_are_cut_short(names: list[str], expected: str) -> None:
    assert listed(names) == expected
