from __future__ import annotations

from typing import Any

import pytest

from proxy.commands.wording import amount_words, as_json, duration_words, mode_words, principal_words

WHO = {"organization": "org", "project": "proj", "owner": "al", "is_service_account": False, "key": "key_a"}


@pytest.mark.parametrize(
    ("who", "said"),
    [
        pytest.param({}, "key key_a of user al", id="the owner of a key"),
        pytest.param({"is_service_account": True}, "key key_a of service account al", id="a service account"),
        pytest.param({"key": None}, "user al without a key", id="a user"),
        pytest.param({"key": None, "owner": None}, "somebody without a key", id="nobody in particular"),
    ],
)
def test_somebody_is_named_from_the_key_outwards(who: dict[str, Any], said: str) -> None:
    assert principal_words({**WHO, **who}) == f"{said}, project proj, organization org"


@pytest.mark.parametrize(
    ("of", "amount", "said"), [("usd", 0.5, "0.500000"), ("usd", 0.000001, "0.000001"), ("tokens", 12, "12")]
)
def test_amounts(of: str, amount: float, said: str) -> None:
    assert amount_words({"of": of}, amount) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7_505, "2 h 5 min"), (86_401, "1 d 1 s"), (2_678_400, "31 d")],
)
def test_durations_have_two_units_at_most(seconds: int, said: str) -> None:
    assert duration_words(seconds) == said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({}, "", id="a limit that refuses at once"),
        pytest.param({"mode": "observe"}, ", observed only", id="one that is observed"),
        pytest.param({"on_exceed": "wait", "max_wait_seconds": 0.5}, ", waits up to 0.5 s", id="one that lets wait"),
    ],
)
def test_what_a_limit_does(settings: dict[str, Any], said: str) -> None:
    limit = {"mode": "enforce", "on_exceed": "refuse", "max_wait_seconds": None}
    assert mode_words({**limit, **settings}) == said


def test_json_is_written_as_bodies_are() -> None:
    assert as_json({"x": 1e-7}) == '{\n  "x": 1e-7\n}'
