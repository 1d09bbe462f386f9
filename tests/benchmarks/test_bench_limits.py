"""The benchmark runs; what it measures is for people to read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_it_prints_times_beside_two_trivial_scripts_and_memory() -> None:
    program = Path(__file__).with_name("bench_limits.py")
    told = subprocess.run(
        [sys.executable, str(program), "--rounds", "1", "--requests", "200", "--users", "200"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    times = re.findall(r"^(\w.*?\w) +((?: +\d+\.\d+){6})$", told, re.MULTILINE)
    bound = [
        f"{what}, {limits}"
        for limits in ("1 limit", "4 limits", "12 limits")
        for what in ("scripts alone", "admission")
    ]
    assert [name for name, _ in times] == ["two trivial scripts", *bound]
    assert all(float(number) > 0 for _, numbers in times for number in numbers.split())
    sizes = re.findall(r"^(\w.*?) +(-?\d+)$", told, re.MULTILINE)
    assert len(sizes) == 5
    # Of few requests, what little is left is less than how far the server's own memory moves meanwhile.
    assert all(int(size) > 0 for name, size in sizes if not name.startswith("what is left"))
