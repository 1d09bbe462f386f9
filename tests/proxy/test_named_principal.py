"""Whom a question is about; `test_explanation` has the table of questions that have no answer."""

from __future__ import annotations

from hashlib import sha256

import pytest

from proxy.config import Configuration
from proxy.named_principal import CannotAnswer, UnknownName, find_principal

KEY = "sk-alice"
CONFIGURATION = Configuration.model_validate(
    {
        "projects": [{"id": "proj"}],
        "users": [{"id": "alice"}],
        "keys": [
            {"id": "key_a", "project": "proj", "user": "alice", "sha256": sha256(KEY.encode()).hexdigest()},
            {"id": "key_r", "project": "proj", "service_account": "batch", "sha256": "cd" * 32},
        ],
    }
)


@pytest.mark.parametrize(
    ("named", "owner", "key"),
    [
        pytest.param({"key": "key_a"}, "alice", "key_a", id="a key by its id"),
        pytest.param({"key": KEY}, "alice", "key_a", id="the key itself"),
        pytest.param({"key": "key_r"}, "batch", "key_r", id="a service account's"),
        pytest.param({"project": "proj", "user": "alice"}, "alice", "", id="a user in a project"),
        pytest.param({"project": "proj"}, "", "", id="somebody in a project"),
    ],
)
def test_somebody_is_found(named: dict[str, str], owner: str, key: str) -> None:
    found = find_principal(CONFIGURATION, **named)
    assert (found.project, found.owner, found.key) == ("proj", owner, key)


@pytest.mark.parametrize(
    ("named", "member", "is_unknown"),
    [
        pytest.param({}, "as", False, id="nobody is named"),
        pytest.param({"key": "key_a", "project": "proj"}, "project", False, id="a key and a project"),
        pytest.param({"user": "alice"}, "user", False, id="a user of no project"),
        pytest.param({"key": "key_b"}, "as", True, id="an unknown key"),
        pytest.param({"project": "prj"}, "project", True, id="an unknown project"),
        pytest.param({"project": "proj", "user": "alise"}, "user", True, id="an unknown user"),
        pytest.param({"project": ""}, "project", True, id="an empty project"),
    ],
)
def test_what_is_not_configured_is_told_from_what_is_no_question(
    named: dict[str, str], member: str, *, is_unknown: bool
) -> None:
    with pytest.raises(CannotAnswer) as caught:
        find_principal(CONFIGURATION, **named)
    assert (caught.value.member, isinstance(caught.value, UnknownName)) == (member, is_unknown)
