"""Advice on configurations that can be used."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.config import Configuration
from proxy.config_advice import advise

SOUND: dict[str, Any] = {
    "upstreams": {"u": {"kind": "openai", "base_url": "http://u"}},
    "models": {"m": {"deployments": [{"upstream": "u"}]}},
    "policies": {"p": {}},
    "projects": [{"id": "proj", "policy": "p"}],
    "keys": [{"id": "key", "project": "proj", "user": "alice", "sha256": "ab" * 32}],
}


def test_nothing_is_said_of_a_sound_configuration() -> None:
    assert advise(Configuration.model_validate(SOUND)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"state": "redis://:hidden@h"}, "cached answers share the state store", id="one store for both"),
        pytest.param({"models": {}}, "models is empty", id="no models"),
        pytest.param({"keys": []}, "keys is empty", id="no keys"),
        pytest.param({"policies": {"p": {}, "q": {}}}, "policies.q applies to nobody", id="a policy for nobody"),
        pytest.param(
            {
                "policies": {
                    "p": {"parameters": {"n": {"allowed": [1, 2]}}},
                    "q": {"parameters": {"n": {"allowed": [3]}}},
                },
                "keys": [{**SOUND["keys"][0], "policy": "q"}],
            },
            "policies p and q together let no value of n through: key key can send none",
            id="levels that allow no common value",
        ),
        pytest.param(
            {
                "policies": {"p": {"parameters": {"n": {"max": 2}}}, "q": {"parameters": {"n": {"min": 3}}}},
                "keys": [{**SOUND["keys"][0], "policy": "q"}],
            },
            "policies p and q together let no value of n through",
            id="levels whose bounds cross",
        ),
        pytest.param(
            {"upstreams": {**SOUND["upstreams"], "v": SOUND["upstreams"]["u"]}},
            "upstreams.v is used by no model",
            id="an upstream for no model",
        ),
    ],
)
def test_what_is_odd_is_said(change: dict[str, Any], expected: str) -> None:
    said = advise(Configuration.model_validate({**SOUND, **change}))
    assert [line for line in said if line.startswith(expected)]
    assert "hidden" not in "".join(said)
