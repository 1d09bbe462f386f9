"""A storm on several gateways that share one store, while one after another is killed and started again.

    python tests/benchmarks/storm.py [--clients 300] [--gateways 4] [--seconds 30] [--seed 1]
    python tests/benchmarks/storm.py --cluster restart | failover

Clients ask for completions of all shapes, leave, and are refused; the upstream fails and keeps a bill. All the while it
is sampled in the store that no limit is fuller than it promises. When all is quiet, limits, usage records and the bill
are held against each other. With --cluster the store is a cluster of three primaries, and half-way the one that counts
is killed: it comes back from its append-only file, or its replica takes over, and then every difference is explained by
the writes that were lost. Prints what was seen; exits 1 when anything was wrong. Loopback only; ends by itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from stores import StoreCluster, StoreServer  # noqa: E402
from storm_failover import cluster_storm  # noqa: E402  the path is set above
from storming import Outcome, Plan, storm, told_lines  # noqa: E402


def run_on_one(folder: Path, plan: Plan) -> Outcome:
    """Run a storm on one store."""
    with StoreServer(keeps_data=True) as store:
        return storm(folder, store.url, plan)


def run_on_cluster(folder: Path, plan: Plan, end: str) -> Outcome:
    """Run a storm on three primaries, of which one is killed."""
    with StoreCluster(replicas=int(end == "failover")) as cluster:
        return cluster_storm(folder, cluster, plan, fails_over=end == "failover")


def main() -> int:
    """Run one storm and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=Plan.clients)
    parser.add_argument("--gateways", type=int, default=Plan.gateways)
    parser.add_argument("--workers", type=int, default=Plan.workers, help="of each gateway")
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--think", type=float, default=Plan.think_seconds, help="seconds between two requests")
    parser.add_argument("--cluster", choices=["restart", "failover"], help="what follows when a primary is killed")
    parser.add_argument("--folder", type=Path, help="keep in it what gateways and watchers wrote")
    chosen = parser.parse_args()
    plan = Plan(
        clients=chosen.clients,
        gateways=chosen.gateways,
        workers=chosen.workers,
        seconds=chosen.seconds,
        think_seconds=chosen.think,
        seed=chosen.seed,
    )
    with tempfile.TemporaryDirectory() as passing:
        folder = chosen.folder or Path(passing)
        outcome = run_on_one(folder, plan) if chosen.cluster is None else run_on_cluster(folder, plan, chosen.cluster)
    print("\n".join(told_lines(outcome)))
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
