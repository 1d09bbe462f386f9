"""The benchmark runs; what it measures is for people to read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("bench_cache.py")
TARGETS = ("bare aiohttp, constant answer", "gateway, hit from memory", "gateway, hit from the store")


def test_it_prints_a_cost_and_a_ratio_for_each_hit_and_number_of_connections() -> None:
    told = subprocess.run(
        [sys.executable, str(PROGRAM), "--rounds", "1", "--requests", "64"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    lines = re.findall(r"^(\w.*?\w) +(\d+)((?: +(?:\d+|-) +(?:\d+\.\d\d|-)){6})$", told, re.MULTILINE)
    beside = () if shutil.which("nginx") is None else ("nginx, proxy cache",)
    names = (TARGETS[0], *beside, *TARGETS[1:])
    assert [(name, int(connections)) for name, connections, _ in lines] == [
        (name, connections) for connections in (1, 16, 64) for name in names
    ]
    assert all(float(number) > 0 for _, _, numbers in lines for number in numbers.split() if number != "-")
    assert [(name, numbers.count(" -")) for name, _, numbers in lines[: len(names)]] == [
        (name, 0 if name.startswith("gateway") else 4) for name in names
    ]
    assert told.endswith("as no nginx is on the PATH\n") is not bool(beside)
