from __future__ import annotations

from typing import Any

import pytest

from policies.room import Room
from policies.windows import Level, Span
from proxy.config import Configuration
from proxy.named_principal import find_principal
from proxy.standings import describe, standings_of

CONFIGURATION = Configuration.model_validate(
    {
        "organization": {"id": "org", "policy": "all"},
        "upstreams": {"u": {"kind": "openai", "base_url": "http://u"}},
        "models": {
            "m": {"deployments": [{"upstream": "u"}], "aliases": ["old"], "price": {"input": 1, "output": 1}},
            "hidden": {"deployments": [{"upstream": "u"}]},
        },
        "policies": {
            "all": {
                "limits": [
                    {"of": "usd", "limit": 0.5, "per": "month", "by": ["organization"], "name": "budget"},
                    {"of": "tokens", "limit": 60, "per": "minute", "by": ["end_user", "model"], "mode": "observe"},
                ]
            }
        },
        "projects": [{"id": "proj", "policy": "all", "models": ["m"]}],
        "keys": [{"id": "key_r", "project": "proj", "service_account": "batch", "sha256": "cd" * 32}],
    }
)


def told(end_user: str | None = None) -> dict[str, Any]:
    """Tell how the limits stand with 30 of each spent and 20 held: of the budget, 3 s before its month ends."""
    standings = standings_of(find_principal(CONFIGURATION, key="key_r"), CONFIGURATION.rulebook(), end_user)
    budget, tokens = standings.limits
    level = Level(spent=30, held=20, at=97_000)
    rooms = [Room(budget, level, budget.tank, Span(0, 100_000)), Room(tokens, level, tokens.tank)]
    return describe(standings, rooms)


def test_somebody_is_told_who_they_are_and_which_models_they_may_ask_for() -> None:
    applied = [{"level": "organization", "policy": "all"}, {"level": "project", "policy": "all"}]
    assert told()["principal"] == {
        "organization": "org",
        "project": "proj",
        "owner": "batch",
        "is_service_account": True,
        "key": "key_r",
        "policies": applied,
    }
    assert told()["models"] == ["m", "old"]


def test_a_budget_is_told_in_usd_until_its_month_ends() -> None:
    assert told()["limits"][0] == {
        "name": "budget",
        "policy": "all",
        "levels": ["organization", "project"],
        "quota": "0.5 USD per month",
        "of": "usd",
        "limit": 0.5,
        "per": "month",
        "burst": None,
        "mode": "enforce",
        "on_exceed": "refuse",
        "max_wait_seconds": None,
        "hold": "worst_case",
        "whose": "organization org",
        "scope": {"organization": "org"},
        "models": ["m"],
        "used": 0.00003,
        "held": 0.00002,
        "left": 0.49995,
        "reset_seconds": 3,
    }


@pytest.mark.parametrize(
    ("end_user", "scope", "whose"),
    [
        pytest.param(None, "", "end user (none) and model m", id="nobody"),
        pytest.param("eve", "eve", "end user eve and model m", id="somebody"),
    ],
)
def test_a_bucket_is_told_of_the_end_user_who_is_named(end_user: str | None, scope: str, whose: str) -> None:
    tokens = told(end_user)["limits"][1]
    assert (tokens["scope"], tokens["whose"]) == ({"end_user": scope, "model": "m"}, whose)
    # One token comes back each second.
    assert [tokens[name] for name in ("used", "held", "left", "reset_seconds", "mode")] == [30, 20, 10, 30, "observe"]
