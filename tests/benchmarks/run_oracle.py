"""Random requests under random policies, each judged by the oracle of tests/support/oracle.py.

    python tests/benchmarks/run_oracle.py [--requests 6000] [--seed 1]

A round is one gateway with one random configuration (an organization, projects, users and sixty keys, each with
policies of their own) and 400 requests. Prints what is wrong with the request it is about, then counts by status and by
kind of rule; exits 1 when anything was wrong. 6000 requests take about a minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from judging import Findings, run_round  # noqa: E402  the path is set above

REQUESTS_A_ROUND = 400


def main() -> int:
    """Run as many rounds as there are requests for, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each has the next")
    chosen = parser.parse_args()
    findings = Findings()
    for number in range(-(-chosen.requests // REQUESTS_A_ROUND)):
        with tempfile.TemporaryDirectory() as folder:
            run_round(Path(folder), chosen.seed + number, REQUESTS_A_ROUND, findings)
        print(
            f"seed {chosen.seed + number}: {findings.asked} requests, {len(findings.complaints)} complaints", flush=True
        )
    print(findings)
    print("by status:  ", dict(findings.statuses.most_common()))
    print("by endpoint:", dict(sorted(findings.classes.items())))
    print("by rule:    ", dict(findings.kinds.most_common()))
    return 1 if findings.complaints or findings.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
