"""The tree of settings: defaults, what follows from them, and the way to the gateway's own workers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config import Configuration

HASHES = [f"{number:064x}" for number in range(4)]


def configure(**settings: Any) -> Configuration:  # noqa: ANN401  whatever YAML can say
    return Configuration.model_validate(settings)


def many_levels(**key: Any) -> Configuration:  # noqa: ANN401
    """Configure a policy on every level, and one key."""
    return configure(
        organization={"id": "org", "policy": "all"},
        upstreams={"u": {"kind": "openai", "base_url": "http://u"}},
        models={name: {"deployments": [{"upstream": "u"}]} for name in ("a", "b", "a[1]")},
        policies={name: {} for name in ("all", "team", "person", "one")},
        projects=[{"id": "proj", "policy": "team", "models": key.pop("project_models", ["*"])}],
        users=[{"id": "alice", "policy": "person"}],
        keys=[{"id": "key", "project": "proj", "sha256": HASHES[0], "user": "alice", **key}],
    )


@pytest.mark.parametrize(
    ("settings", "state", "cache", "shares"),
    [
        pytest.param({}, None, None, False, id="both embedded by default"),
        pytest.param({"state": "redis://a"}, "redis://a", "redis://a", True, id="the cache follows the state"),
        pytest.param({"state": "redis://a", "cache_state": "embedded"}, "redis://a", None, False, id="apart: embedded"),
        pytest.param({"cache_state": "unix:///s"}, None, "unix:///s", False, id="apart: a server for the cache"),
    ],
)
def test_stores_are_where_they_are_said_to_be(
    settings: dict[str, str], state: str | None, cache: str | None, *, shares: bool
) -> None:
    made = configure(**settings)
    assert (made.state_url, made.cache_state_url, made.cache_shares_state) == (state, cache, shares)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90.0), ("250ms", 0.25), ("2m", 120.0), (5, 5.0), (0.5, 0.5)],
    ids=["seconds", "milliseconds", "minutes", "a number is seconds", "a fraction of one"],
)
def test_durations_are_read(written: object, seconds: float) -> None:
    assert configure(drain_timeout=written).drain_timeout_seconds == seconds


def test_defaults_are_the_specifications() -> None:
    made = configure()
    timeouts, bounds = made.timeouts, made.bounds
    assert (timeouts.connect_seconds, timeouts.first_byte_seconds, timeouts.silence_seconds) == (5, 600, 300)
    assert (made.drain_timeout_seconds, made.lease_seconds) == (30, 30)
    assert (bounds.body_bytes, bounds.decompressed_body_bytes, bounds.head_bytes) == (2**25, 2**26, 2**16)
    assert (bounds.json_depth, bounds.body_seconds) == (64, 30)
    assert (made.listen_address.port, made.admin_listen_address.port) == (8080, 8081)


def test_a_principal_has_the_policies_of_all_its_levels_outermost_first() -> None:
    principal = many_levels(policy="one").principals()[HASHES[0]]
    assert principal.policies == (
        ("organization", "all"),
        ("project", "team"),
        ("user", "person"),
        ("key", "one"),
    )
    assert (principal.organization, principal.project, principal.owner, principal.key) == (
        "org",
        "proj",
        "alice",
        "key",
    )


def test_a_policy_named_on_two_levels_stands_on_both_and_is_named_once() -> None:
    principal = many_levels(policy="team").principals()[HASHES[0]]
    assert [applied.level for applied in principal.policies if applied.name == "team"] == ["project", "key"]
    assert principal.policy_names == ("all", "team", "person")


def test_a_service_account_has_no_users_policy() -> None:
    principal = many_levels(user=None, service_account="alice").principals()[HASHES[0]]
    assert principal.is_service_account
    assert principal.policy_names == ("all", "team")


@pytest.mark.parametrize(
    ("project", "key", "usable"),
    [
        pytest.param(["*"], ["*"], ["a", "b", "a[1]"], id="all"),
        pytest.param(["a"], ["*"], ["a"], id="what the project may"),
        pytest.param(["*"], ["b"], ["b"], id="what the key may"),
        pytest.param(["a*", "b"], ["b", "a"], ["a", "b"], id="what both may"),
        pytest.param(["a"], ["b"], [], id="nothing in common"),
        pytest.param(["a*"], ["a[[]1]"], ["a[1]"], id="a name that looks like a pattern"),
    ],
)
def test_a_key_may_use_what_it_and_its_project_may(project: list[str], key: list[str], usable: list[str]) -> None:
    principal = many_levels(project_models=project, models=key).principals()[HASHES[0]]
    assert [model for model in ("a", "b", "a[1]") if principal.may_use(model)] == usable


def test_workers_receive_the_same_configuration_secrets_included() -> None:
    made = configure(
        state="redis://:pw@h",
        metrics_key="secret",
        data_dir="/srv",
        drain_timeout="1500ms",
        upstreams={"u": {"kind": "azure", "base_url": "http://u", "api_key": "secret", "api_version": "client"}},
        models={"m": {"deployments": [{"upstream": "u"}], "price": {"input": 1.5, "output": 2}}},
        policies={"p": {"parameters": {"n": {"max": 4}}, "cache": {"ttl": "7d"}}},
    )
    received = Configuration.from_resolved_json(made.resolved_json())
    assert received == made
    assert received.version == made.version
    # What was written with its default stays apart from what was not written.
    assert received.model_fields_set == made.model_fields_set


def test_no_secret_is_shown() -> None:
    made = configure(
        state="redis://:hidden@h",
        metrics_key="hidden",
        upstreams={"u": {"kind": "openai", "base_url": "http://u", "api_key": "hidden"}},
    )
    assert "hidden" not in f"{made!r} {made} {made.model_dump()} {made.model_dump_json()}"


def test_the_version_follows_what_decides_and_nothing_else() -> None:
    first = configure(policies={"p": {}})
    moved = configure(policies={"p": {}}, data_dir="/elsewhere", workers=2, listen="0.0.0.0:80", metrics_key="k")
    changed = configure(policies={"p": {"parameters": {"n": {"max": 1}}}})
    assert first.version == moved.version
    assert first.version != changed.version


def test_settings_made_in_code_are_held_to_the_same() -> None:
    with pytest.raises(ValidationError, match='unknown policy "x"'):
        configure(organization={"policy": "x"})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        pytest.param({}, "pseudonyms are made with a secret: give pseudonym_key", id="no secret"),
        pytest.param({"pseudonym_key": "secret"}, None, id="a secret"),
    ],
)
def test_pseudonyms_need_a_secret(settings: dict[str, Any], problem: str | None) -> None:
    policies = {"p": {"parameters": {"user": {"pseudonymise": True}}}}
    if problem is None:
        assert configure(policies=policies, **settings).rulebook().pseudonym_key == b"secret"
    else:
        with pytest.raises(ValidationError, match=problem):
            configure(policies=policies, **settings)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        configure().workers = 2  # type: ignore[misc]
