from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from proxy.commands.grouping import several_of

NAMES = {"user": 1, "project": 2, "day": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("user", ("user",), id="one"),
        pytest.param("project,user", ("project", "user"), id="several, in the order given"),
        pytest.param(" user , day", ("user", "day"), id="spaces do not count"),
        pytest.param("user,day,user", ("user", "day"), id="each once"),
    ],
)
def test_names_are_read(text: str, expected: tuple[str, ...]) -> None:
    assert several_of(NAMES)(text) == expected


@pytest.mark.parametrize("text", ["colour", "", "user,", "user,colour", "User"])
def test_another_name_is_told_with_those_there_are(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is none of user, project, day"):
        several_of(NAMES)(text)
