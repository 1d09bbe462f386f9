"""What clients feel of a store that hangs, dies or comes back empty, and what was counted after (SPEC §10).

    python tests/benchmarks/bench_outage.py [--clients 12] [--away 5]

Under load, one after the other: the store is frozen for some seconds; killed, and back from its append-only file;
killed, and back empty. A third of the clients has limits that allow while it is away, deny, or count locally. Printed
are times and answers before, during and after, and for every limit what was counted before and after, beside what the
usage records and the upstream's bill say. Exits 1 on any 500, double charge, missing count of a store that kept its
data, or request that took longer than the store may add: 50 ms dead, 0.6 s hung, and nothing once that is known.
Loopback only; ends by itself within two minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from stores import StoreServer  # noqa: E402
from storm_outages import OUTAGES, run_outage  # noqa: E402  the path is set above
from storming import Plan  # noqa: E402

WORKERS = 2


def main() -> int:
    """Run every outage, each with a store and a gateway of its own, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--away", type=float, default=5.0, help="seconds that the store is away")
    chosen = parser.parse_args()
    plan = Plan(
        clients=chosen.clients, gateways=1, workers=WORKERS, rest_seconds=3.0, think_seconds=0.1, pace_seconds=0.0
    )
    violations: list[str] = []
    for outage in OUTAGES:
        with tempfile.TemporaryDirectory() as folder, StoreServer(keeps_data=True) as store:
            seen = run_outage(Path(folder), store, outage, plan, away_seconds=chosen.away)
        print("\n".join(seen.lines), flush=True)
        violations += [*seen.violations, *seen.delays]
    print("\n".join([*(f"VIOLATION {each}" for each in violations), f"{len(violations)} violations"]))
    return 1 if violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
