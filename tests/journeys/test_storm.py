"""Gateways and stores die under load: no limit is overshot, and limits, records and the upstream's bill agree after.

Small ones of what `tests/benchmarks/storm.py` and `bench_outage.py` do for people to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from stores import StoreCluster, StoreServer
from storm_failover import cluster_storm
from storm_outages import OUTAGES, Outage, run_outage
from storming import Outcome, Plan, storm, told_lines

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Plan(clients=30, gateways=2, seconds=5.0, rest_seconds=1.0, think_seconds=0.5, lease_seconds=1.0)
OUTAGE = Plan(clients=6, gateways=1, workers=2, rest_seconds=1.0, think_seconds=0.1, pace_seconds=0.0)


def _check(outcome: Outcome) -> None:
    assert not outcome.violations, "\n".join(told_lines(outcome))
    assert outcome.books.counts["completed"] > 20
    assert outcome.books.counts["rejected"], "limits were in the way"


def test_limits_are_kept_and_books_agree_while_gateways_are_killed(tmp_path: Path) -> None:
    with StoreServer(keeps_data=True) as store:
        outcome = storm(tmp_path, store.url, SMALL)
    _check(outcome)
    assert any("is killed" in line for line in outcome.lines)


@pytest.mark.parametrize("end", ["restart", "failover"])
def test_a_primary_of_a_cluster_is_killed(tmp_path: Path, end: str) -> None:
    with StoreCluster(replicas=int(end == "failover")) as cluster:
        outcome = cluster_storm(tmp_path, cluster, SMALL, fails_over=end == "failover")
    _check(outcome)


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.name)
def test_a_store_goes_away_under_load(tmp_path: Path, outage: Outage) -> None:
    with StoreServer(keeps_data=True) as store:
        seen = run_outage(tmp_path, store, outage, OUTAGE, away_seconds=1.5)
    assert not seen.violations, "\n".join([*seen.lines, *seen.violations])
