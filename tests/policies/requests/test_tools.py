from __future__ import annotations

import pytest

from policies.requests.tools import has_hosted_tool


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        pytest.param(None, False, id="no tools"),
        pytest.param([], False, id="an empty list"),
        pytest.param([{"type": "function"}], False, id="a function of the client"),
        pytest.param([{"name": "f"}], False, id="a tool without a type is a function"),
        pytest.param([{"function": {"name": "f"}}], False, id="in either form"),
        pytest.param([{"google_search": {}}], True, id="unless it is none by its members"),
        pytest.param([{"type": "custom"}], False, id="a custom tool of the client"),
        pytest.param([{"type": "function"}, {"type": "web_search"}], True, id="one of two runs upstream"),
        pytest.param([{"type": "something_new"}], True, id="a type that nobody here knows"),
        pytest.param([{"type": ["function"]}], True, id="a type that is none"),
        pytest.param("web_search", False, id="no list"),
        pytest.param([7], False, id="no tool"),
    ],
)
def test_who_runs_a_tool(tools: object, *, expected: bool) -> None:
    assert has_hosted_tool(tools) is expected
