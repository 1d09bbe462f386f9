from __future__ import annotations

from typing import Any

import pytest

from policies.limits import BoundLimit, NamedLimit
from policies.policy import Limit
from policies.room import Room
from policies.waiting import Place, may_wait, pause_milliseconds
from policies.windows import Level, Span

NOW = 1_000_000
MINUTE = {"of": "tokens", "limit": 60, "per": "minute", "by": ["user"]}
DAY = {"of": "tokens", "limit": 60, "per": "day", "by": ["user"]}
AT_ONCE = {"of": "concurrency", "limit": 2, "by": ["user"]}


def room(settings: dict[str, Any], ask: int, *, spent: int = 0, held: int = 0, ahead: int = 0) -> Room:
    named = NamedLimit("p", Limit(**{"on_exceed": "wait", "max_wait": "10s", **settings}))
    bound = BoundLimit("l", "p", named.limit, ("alice",), ask=ask, counter="l", named=named, worst=ask)
    span = Span(NOW - 5_000, NOW + 8_000) if settings is DAY else None
    return Room(bound, Level(spent, 0, held, NOW), named.tank, span, ahead)


@pytest.mark.parametrize(
    ("stands", "waited", "may"),
    [
        pytest.param(room(MINUTE, 10, spent=60), 0, True, id="ten of sixty a minute have refilled after 10 s"),
        pytest.param(room(MINUTE, 11, spent=60), 0, False, id="eleven take 11 s, and it waits 10 s at most"),
        pytest.param(room(MINUTE, 10, spent=60), 1, False, id="nor do ten if it has waited already"),
        pytest.param(room(MINUTE, 60, held=60), 9_999, True, id="what is held may come back at any time"),
        pytest.param(room(MINUTE, 60, held=60), 10_000, False, id="until its time is over"),
        pytest.param(room(MINUTE, 61), 0, False, id="more than the limit never fits"),
        pytest.param(room(DAY, 10, spent=60), 0, True, id="the next day begins in 8 s"),
        pytest.param(room(DAY, 10, spent=60), 2_001, False, id="which is too late after 2 s"),
        pytest.param(room(DAY, 10, held=60), 2_001, True, id="unless the day has room but for what is held"),
        pytest.param(room(AT_ONCE, 1, held=2), 0, True, id="one of those at once may end"),
        pytest.param(room({**AT_ONCE, "limit": 0}, 1), 0, False, id="none may be there at all"),
        pytest.param(room({**MINUTE, "on_exceed": "refuse", "max_wait": None}, 1, spent=60), 0, False, id="it refuses"),
    ],
)
def test_who_may_wait(stands: Room, waited: int, may: bool) -> None:  # noqa: FBT001
    assert may_wait(stands, waited) is may


@pytest.mark.parametrize(
    ("places", "waited", "pause"),
    [
        pytest.param([Place(room(AT_ONCE, 1, held=2))], 0, 100, id="first in line: others may end at any time"),
        pytest.param([Place(room(AT_ONCE, 1, held=2), 4)], 0, 500, id="behind four others it need not ask as often"),
        pytest.param([Place(room(AT_ONCE, 1, held=2), 40)], 0, 1_000, id="but often enough to be known to be alive"),
        pytest.param(
            [Place(room({**MINUTE, "limit": 60_000}, 100, spent=60_000))], 0, 100, id="as long as refills take"
        ),
        pytest.param([Place(room(MINUTE, 9, spent=60))], 0, 1_000, id="long refills in steps of a second"),
        pytest.param([Place(room(MINUTE, 9, spent=60))], 9_600, 400, id="never beyond its time"),
        pytest.param(
            [Place(room(AT_ONCE, 1, held=2)), Place(room({**MINUTE, "limit": 60_000}, 300, spent=60_000))],
            0,
            300,
            id="until the last of several limits may have room",
        ),
    ],
)
def test_how_long_to_pause(places: list[Place], waited: int, pause: int) -> None:
    assert pause_milliseconds(places, waited) == pause
