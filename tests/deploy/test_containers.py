"""The containers that ship: what the gateway's configuration names is there, and nothing is set that nobody reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from proxy.config_advice import advise
from proxy.config_file import load

if TYPE_CHECKING:
    from proxy.config import Configuration

ROOT = Path(__file__).parents[2]
CONFIGURED = ROOT / "deploy" / "container.yaml"
SERVICES: dict[str, Any] = YAML(typ="safe", pure=True).load(ROOT / "docker-compose.yml")["services"]


def shipped() -> Configuration:
    return load(CONFIGURED, {"UPSTREAM_API_KEY": "x"})


def test_the_shipped_configuration_draws_no_advice_but_to_make_a_key() -> None:
    [advice] = advise(shipped())
    assert advice.startswith("keys is empty")


@pytest.mark.parametrize(
    ("setting", "eviction"),
    [
        pytest.param("state_url", "noeviction", id="limits forget nothing"),
        pytest.param("cache_state_url", "allkeys-lfu", id="the cache forgets what is least used"),
    ],
)
def test_each_store_is_a_service_that_evicts_as_it_should(setting: str, eviction: str) -> None:
    found = re.fullmatch(r"redis://(\w+):6379/0", getattr(shipped(), setting))
    assert found is not None
    command = SERVICES[found[1]]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == eviction
    assert found[1] in SERVICES["gateway"]["depends_on"]


def test_every_variable_that_the_gateway_is_given_is_read() -> None:
    read = set(re.findall(r"env:(\w+)", CONFIGURED.read_text("utf-8")))
    assert set(SERVICES["gateway"]["environment"]) == read
