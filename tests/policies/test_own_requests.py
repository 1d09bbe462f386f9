from __future__ import annotations

from typing import Any

import pytest
from admitting import decision

from policies.cacheability import Bypass
from policies.catalog import ModelSettings
from policies.own_requests import for_organization
from policies.policy import Policy
from policies.principals import AppliedPolicy, Principal
from policies.rulebook import Rulebook

ORGANIZATION = Principal("org_acme", "", "", "", policies=(AppliedPolicy("organization", "all"),))
DECIDED = decision([{"of": "tokens", "limit": 7, "per": "day", "by": ["organization"]}], user="alice", temperature=0)


def own(*limits: dict[str, Any]) -> Any:  # noqa: ANN401  a Decision
    rulebook = Rulebook({"m": ModelSettings(deployments=[{"upstream": "u"}])}, {"all": Policy(limits=limits)})
    return for_organization(DECIDED, ORGANIZATION, rulebook, reason="drift-check")


@pytest.mark.parametrize(
    ("by", "binds"),
    [
        pytest.param(["organization"], True, id="a limit of the organization binds"),
        pytest.param(["organization", "model"], True, id="so does one of each of its models"),
        pytest.param(["user"], False, id="one of users does not: it is nobody's"),
        pytest.param(["organization", "key"], False, id="nor one of keys"),
    ],
)
def test_limits_of_the_whole_organization_bind(by: list[str], *, binds: bool) -> None:
    made = own({"of": "requests", "limit": 5, "per": "day", "by": by})
    assert [bound.named.policy for bound in made.limits] == (["all"] if binds else [])


def test_it_waits_for_no_room() -> None:
    [bound] = own(
        {"of": "requests", "limit": 5, "per": "day", "by": ["organization"], "on_exceed": "wait", "max_wait": "9s"}
    ).limits
    assert not bound.named.waits


def test_what_is_sent_is_the_clients_and_all_else_the_organizations() -> None:
    made = own()
    assert (made.effective, made.worst_case, made.candidates) == (
        DECIDED.effective,
        DECIDED.worst_case,
        DECIDED.candidates,
    )
    assert (made.principal, made.cache, made.limits) == (ORGANIZATION, Bypass("drift-check"), ())
