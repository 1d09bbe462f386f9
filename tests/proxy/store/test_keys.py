from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.limits import BoundLimit, NamedLimit
from policies.policy import Limit
from proxy.store import keys
from proxy.store.finders import slot_of
from proxy.store.keys import Keys


def bound(*scope: str, name: str = "rpm", policy: str = "p", **settings: Any) -> BoundLimit:  # noqa: ANN401
    by = ["user"] * len(scope)
    limit = Limit(**{"of": "requests", "limit": 5, "per": "minute", "by": by, "name": name, **settings})
    return BoundLimit(name, policy, limit, scope, 1, name, NamedLimit(policy, limit), 1)


@given(organization=st.text(min_size=1), scope=st.text(), request_id=st.text())
def test_every_key_of_an_organization_has_its_hash_tag_and_no_other(
    organization: str, scope: str, request_id: str
) -> None:
    made = Keys(organization)
    names = [
        made.leases,
        made.audit,
        made.audited(request_id),
        made.outbox,
        made.data,
        made.drainer,
        made.cache,
        made.fingerprints,
        made.hold(request_id),
        made.limit(bound(scope), 5),
    ]
    tags = {re.findall(r"[{}]|\{[^{}]+\}", name)[0] for name in names}
    assert len(tags) == 1
    assert all(name.count("{") == name.count("}") == 1 and name.isascii() for name in names)
    assert all(len(name) < 600 for name in names)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_different_scopes_count_apart(one: tuple[str, str], other: tuple[str, str]) -> None:
    made = Keys("org")
    assert (made.limit(bound(*one)) == made.limit(bound(*other))) is (one == other)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Keys("org").limit(bound("alice"), 1), id="another window"),
        pytest.param(Keys("org").limit(bound("alice", name="tpm")), id="another limit"),
        pytest.param(Keys("org").limit(bound("alice", policy="q")), id="another policy"),
        pytest.param(Keys("org").limit(bound("alice", per="hour")), id="the same name over another time"),
        pytest.param(Keys("org").limit(bound("alice", of="tokens")), id="the same name of another quantity"),
        pytest.param(Keys("acme").limit(bound("alice")), id="another organization"),
        pytest.param(Keys("org").hold("alice"), id="a hold"),
    ],
)
def test_different_counts_have_different_keys(other: str) -> None:
    assert other != Keys("org").limit(bound("alice"))


def test_raising_a_limit_does_not_begin_a_new_count() -> None:
    assert Keys("org").limit(bound("alice")) == Keys("org").limit(bound("alice", limit=50))


def test_answers_spread_over_all_slots() -> None:
    assert slot_of(keys.stored("0af3")) != slot_of(keys.stored("0af4"))


def test_an_answer_and_the_lease_of_its_fetch_are_two_keys_in_one_slot() -> None:
    entry, lease = keys.stored("0af3"), keys.flight("0af3")
    assert entry != lease
    assert slot_of(entry) == slot_of(lease) == slot_of("0af3")
