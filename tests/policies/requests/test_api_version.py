from __future__ import annotations

import pytest

from policies.errors import InvalidRequest
from policies.requests.api_version import read_api_version


@pytest.mark.parametrize(
    ("query", "version"),
    [("", None), ("api-version=2024-10-21", "2024-10-21"), ("a=b&api-version=", ""), ("Api-Version=1", None)],
)
def test_the_querys_version_is_read_as_it_stands(query: str, version: str | None) -> None:
    assert read_api_version(query) == version


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("api-version=%ff", id="a byte that begins no character"),
        pytest.param("api-version=2024%ED%A0%80", id="a surrogate"),
        pytest.param("api-version=1\udcff", id="a byte that nobody encoded"),
        pytest.param("api-version=1%0d%0ax:%201", id="the end of a line"),
        pytest.param("api-version=%00", id="a zero"),
        pytest.param("api-version=1%7f", id="a delete"),
        pytest.param("api-version=1%c2%85", id="a control character above ASCII"),
    ],
)
def test_a_version_that_is_no_text_is_refused(query: str) -> None:
    with pytest.raises(InvalidRequest, match="UTF-8") as refused:
        read_api_version(query)
    assert refused.value.param == "api-version"


def test_what_other_parameters_of_the_query_hold_does_not_matter() -> None:
    assert read_api_version("x=%ff&api-version=1&y=%0a") == "1"


def test_two_versions_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than once"):
        read_api_version("api-version=1&api-version=1")
