from __future__ import annotations

from typing import Any

import pytest

from proxy.config import Configuration
from proxy.config_changes import FIXED, FIXED_OF_ORGANIZATION, change

OTHERS: dict[str, Any] = {
    "listen": "127.0.0.1:1",
    "admin_listen": "127.0.0.1:2",
    "workers": 7,
    "data_dir": "elsewhere",
    "state": "redis://127.0.0.1:1/0",
    "cache_state": "redis://127.0.0.1:2/0",
    "cache_store_bytes": 1_048_576,
    "lease": "7s",
}
RUNNING = Configuration.model_validate({"drain_timeout": "1s"})


def read(**plain: Any) -> Configuration:  # noqa: ANN401  any setting
    return Configuration.model_validate(plain)


@pytest.mark.parametrize("name", FIXED)
def test_what_is_fixed_stays_and_is_named(name: str) -> None:
    found = change(RUNNING, read(**{name: OTHERS[name]}, drain_timeout="2s"))
    assert getattr(found.configuration, name) == getattr(RUNNING, name)
    assert found.configuration.drain_timeout == 2_000
    assert found.waiting == (name,)


@pytest.mark.parametrize(
    ("name", "value"), [("id", "org_other"), ("time_zone", "Europe/Berlin")], ids=FIXED_OF_ORGANIZATION
)
def test_what_is_fixed_of_the_organization_stays_and_the_rest_of_it_changes(name: str, value: str) -> None:
    found = change(RUNNING, read(organization={name: value, "name": "Other"}))
    assert getattr(found.configuration.organization, name) == getattr(RUNNING.organization, name)
    assert found.configuration.organization.name == "Other"
    assert found.waiting == (f"organization.{name}",)


def test_all_that_waits_is_named() -> None:
    found = change(RUNNING, read(**OTHERS, organization={"id": "org_other"}, drain_timeout="1s"))
    assert found.configuration == RUNNING
    assert set(found.waiting) == {*FIXED, "organization.id"}


def test_what_can_change_is_taken_as_it_is() -> None:
    new = read(bounds={"json_depth": 7}, cache_memory_bytes=1, join_wait="1s", organization={"name": "Other"})
    assert change(RUNNING, new) == (new, ())


def test_a_secret_that_is_kept_is_handed_on() -> None:
    running = read(state="redis://:secret@127.0.0.1:1/0")
    found = change(running, read(state="redis://:other@127.0.0.1:1/0"))
    assert Configuration.from_resolved_json(found.configuration.resolved_json()).state_url == running.state_url
