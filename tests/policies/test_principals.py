from __future__ import annotations

import pytest

from policies.principals import Principal


@pytest.mark.parametrize(
    ("patterns", "model", "may"),
    [
        (("*",), "anything/at-all", True),
        (("gpt-*",), "gpt-4", True),
        (("gpt-*",), "my-gpt-4", False),
        (("a", "b"), "b", True),
        ((), "a", False),
        pytest.param(("GPT-4",), "gpt-4", False, id="names are told apart by case"),
        pytest.param(("org/*",), "org/team/model", True, id="a wildcard spans slashes"),
        pytest.param(("m[12]",), "m1", True, id="a set of characters"),
    ],
)
def test_a_principal_may_use_what_one_of_its_patterns_matches(
    patterns: tuple[str, ...], model: str, *, may: bool
) -> None:
    assert Principal("org", "proj", "alice", "key", models=patterns).may_use(model) is may
