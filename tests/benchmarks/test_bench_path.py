"""The benchmark runs; what it measures is for people to read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_it_prints_a_cost_and_a_ratio_for_each_target() -> None:
    program = Path(__file__).with_name("bench_path.py")
    told = subprocess.run(
        [sys.executable, str(program), "--rounds", "1", "--requests", "300"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    lines = re.findall(
        r"^(bare|gateway).*?, (\S+).*? +(\d+) +(\d+) +(\d+) +(\d+) +(\d+\.\d\d|nan)$", told, re.MULTILINE
    )
    assert [line[:2] for line in lines] == [
        ("bare", "constant"),
        ("gateway", "hit"),
        ("bare", "pass-through"),
        ("gateway", "pass-through"),
    ]
    assert all(int(line[2]) > 0 for line in lines if line[0] == "gateway")
