from __future__ import annotations

import pytest

from policies.errors import InvalidRequest
from proxy.queries import check_names, is_text, read_parameters

NAMES = ("project", "user")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("user=a%20b+c", {"user": "a b c"}, id="escapes"),
        pytest.param("user=%C3%A9&project=", {"user": "é", "project": ""}, id="UTF-8, and an empty one"),
        pytest.param("x=1&x=2&%ff=3&user=a", {"user": "a"}, id="others do not matter"),
        pytest.param("user", {"user": ""}, id="a name alone"),
    ],
)
def test_named_parameters_are_read(query: str, found: dict[str, str]) -> None:
    assert read_parameters(query, NAMES) == found


@pytest.mark.parametrize(
    ("query", "said"),
    [
        pytest.param("user=a&user=a", "`user` more than once", id="twice"),
        pytest.param("user=%ff", "`user` must be text", id="no UTF-8"),
        pytest.param("user=%ed%a0%80", "`user` must be text", id="half a character"),
    ],
)
def test_what_can_not_be_read_names_its_parameter(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        read_parameters(query, NAMES)
    assert refused.value.param == "user"


@pytest.mark.parametrize(
    ("query", "param", "said"),
    [
        pytest.param("user=a&usr=b", "usr", 'did you mean "user"?', id="a typing error"),
        pytest.param("%ff=1", "\ufffd", "there is project, user", id="no text"),
        pytest.param("x" * 9_000, "x" * 100, "there is project, user", id="a long one is cut"),
    ],
)
def test_a_name_that_is_unknown_is_told_the_nearest(query: str, param: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_names(query, NAMES)
    assert refused.value.param == param
    assert said in refused.value.message
    assert len(refused.value.message) < 250


def test_names_that_are_known_pass() -> None:
    check_names("user=a&project=b&user=c", NAMES)


@pytest.mark.parametrize(("value", "expected"), [("é😀", True), ("\udcff", False), ("a\ud83d", False), ("", True)])
def test_text(value: str, *, expected: bool) -> None:
    assert is_text(value) is expected
