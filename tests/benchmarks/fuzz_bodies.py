"""Broken, odd and mutated bodies through a real gateway with two workers, each answer judged by the oracle.

    python tests/benchmarks/fuzz_bodies.py [--bodies 200000] [--seed 1]

A round is one gateway with one random configuration and 20 000 bodies. How bodies are spoiled stands in
tests/support/fuzzing.py, what is checked in tests/support/oracle.py. Prints counts by status and by
kind; exits 1 when anything was wrong. 200 000 bodies take some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from judging import Findings, fire  # noqa: E402  the path is set above

BODIES_A_ROUND = 20_000
WORKERS = 2


def main() -> int:
    """Run as many rounds as there are bodies for, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--bodies", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each has the next")
    chosen = parser.parse_args()
    findings, seed = Findings(), chosen.seed
    while findings.asked < chosen.bodies:
        with tempfile.TemporaryDirectory() as folder:
            fire(Path(folder), seed, min(BODIES_A_ROUND, chosen.bodies - findings.asked), findings, workers=WORKERS)
        print(f"seed {seed}: {findings.asked} bodies, {len(findings.complaints)} complaints", flush=True)
        seed += 1
    print(findings)
    print("by status:", dict(findings.statuses.most_common()))
    print("by kind:")
    for kind, count in sorted(findings.classes.items()):
        print(f"  {count:7d}  {kind}")
    return 1 if findings.complaints or findings.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
