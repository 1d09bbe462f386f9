from __future__ import annotations

import pytest

from policies.errors import InvalidRequest
from proxy.admin.bodies import Members, read_members


class Asked(Members):
    """A question of the test."""

    name: str
    """a string: who"""
    count: int | None = None
    """a whole number: how many"""


def read(raw: bytes) -> Asked:
    return read_members(Asked, raw, noun="The question", max_depth=3)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(b'{"name": "a", "count": 2}', Asked(name="a", count=2), id="all members"),
        pytest.param(b'{"name": "a"}', Asked(name="a"), id="one left out"),
        pytest.param(b'{"name": "a", "count": null}', Asked(name="a"), id="one that is null"),
    ],
)
def test_members_are_read(raw: bytes, expected: Asked) -> None:
    assert read(raw) == expected


@pytest.mark.parametrize(
    ("raw", "param", "message"),
    [
        pytest.param(b"{}", "name", "name is missing: it must be a string: who.", id="one is missing"),
        pytest.param(b'{"name": 1}', "name", "name must be a string: who.", id="one is of another type"),
        pytest.param(
            b'{"name": "a", "count": "2"}', "count", "count must be a whole number: how many.", id="digits in a string"
        ),
        pytest.param(
            b'{"nam": 1, "x": 2}',
            "nam",
            "The question has unknown members: 'nam', 'x'; did you mean \"name\"?.",
            id="members that there are not",
        ),
    ],
)
def test_what_is_wrong_is_said(raw: bytes, param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(raw)
    assert (caught.value.param, caught.value.message) == (param, message)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"name": [[[[]]]]}', b'{"name": "a", "name": "b"}'])
def test_what_is_no_body_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(raw)
