"""A bar on a terminal, and lines elsewhere."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from proxy.commands.progress import Progress
from proxy.commands.table import WIDTH, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that moves by so much at each look."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.step = 1.0

    def __call__(self) -> float:
        self.seconds += self.step
        return self.seconds


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    with patch("proxy.commands.progress.time.monotonic", made):
        yield made


@pytest.mark.usefixtures("clock")
def test_a_terminal_has_a_bar_that_is_taken_away_at_the_end() -> None:
    terminal = Terminal()
    with Progress("warming", 96, terminal) as progress:
        progress.show(0, "")
        progress.show(50, "stored 50")
        progress.show(96, "")
    shown = terminal.getvalue().split("\r")
    assert shown[1] == "warming ░░░░░░░░░░░░░░░░░░░░░░░░ 0/96"
    assert shown[2] == "warming ████████████░░░░░░░░░░░░ 50/96  stored 50"
    assert shown[3] == "warming ████████████████████████ 96/96" + " " * 11  # what was longer is gone
    assert shown[4].strip() == ""
    assert shown[5] == ""


def test_it_is_not_drawn_more_often_than_people_look(clock: Clock) -> None:
    terminal = Terminal()
    clock.step = 0.06
    with Progress("warming", None, terminal) as progress:
        for done in range(5):
            progress.show(done, "")
    assert terminal.getvalue().count("warming") == 3  # at 0.06, 0.18 and 0.30 s


def test_elsewhere_it_is_a_line_now_and_then(clock: Clock) -> None:
    lines = StringIO()
    clock.step = 4.0
    with Progress("warming", 10, lines) as progress:
        for done in range(6):
            progress.show(done, "stored 1")
    assert lines.getvalue() == "warming 2 of 10  stored 1\nwarming 5 of 10  stored 1\n"


@pytest.mark.usefixtures("clock")
def test_nothing_is_wider_than_a_terminal_and_nothing_steers_it() -> None:
    terminal = Terminal()
    with Progress("warming", None, terminal) as progress:
        progress.show(7, "\x1b[2J" + "x" * 200)
    line = terminal.getvalue().split("\r")[1]
    assert line.startswith("warming 7  \\x1b[2Jxxx")
    assert width_of(line) == WIDTH - 1
