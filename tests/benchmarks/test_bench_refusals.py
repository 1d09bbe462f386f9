"""The benchmark runs; what it measures is for people to read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_it_prints_what_is_refused_for_each_way_to_hold() -> None:
    program = Path(__file__).with_name("bench_refusals.py")
    told = subprocess.run(
        [sys.executable, str(program), "--tables", "1", "--seconds", "1", "--rate", "4"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    rows = re.findall(
        r"^ *(\d+) x worst +(\S+: \S+) +(\d+) +(\d+\.\d)% +(\d+)% +(\d+\.\d)% +\d+ +\d+ +\d+$", told, re.MULTILINE
    )
    ways = ("hold: worst_case", "hold: none", "on_exceed: wait")
    assert [(size, way) for size, way, *_ in rows] == [(size, way) for size in ("2", "5", "20", "100") for way in ways]
    assert all(int(requests) > 0 for _, _, requests, *_ in rows)
