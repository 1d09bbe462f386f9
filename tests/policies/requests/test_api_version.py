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


def test_two_versions_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than once"):
        read_api_version("api-version=1&api-version=1")
