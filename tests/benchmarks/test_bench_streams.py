"""The benchmark runs; what it measures is for people to read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("bench_streams.py")


def test_it_prints_costs_first_tokens_and_ratios_for_each_target() -> None:
    told = subprocess.run(
        [sys.executable, str(PROGRAM), "--rounds", "1", "--events", "256", "--first-tokens", "5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    row = r"^(\w.*?\w)((?: +\d+\.\d +\d+\.\d\d){3}) +\d+\.\d\d ms +-?\d+\.\d\d +-?\d+\.\d\d$"
    lines = re.findall(row, told, re.MULTILINE)
    beside = () if shutil.which("nginx") is None else ("nginx, unbuffered",)
    assert [name for name, _ in lines] == ["bare aiohttp relay", *beside, "gateway", "gateway, for the cache"]
    assert all(float(number) > 0 for _, numbers in lines for number in numbers.split())
    assert re.search(r"^nothing in between +\d+\.\d\d ms$", told, re.MULTILINE)
    assert told.endswith("as no nginx is on the PATH\n") is not bool(beside)
