"""The benchmark runs, draws its picture, and finds nothing that it has to complain of."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def test_it_prints_what_was_felt_of_each_fault_and_draws_the_breakers(tmp_path: Path) -> None:
    program, plot = Path(__file__).with_name("bench_failover.py"), tmp_path / "plot.svg"
    short = ["--rate", "30", "--fault-seconds", "0.7", "--rest-seconds", "0.3"]
    chosen = ["--variants", "default", "alone", "--faults", "killed", "500", "--plot", str(plot)]
    run = subprocess.run(
        [sys.executable, str(program), *short, *chosen], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = re.findall(r"^(quiet|killed|500) +(\d+) +(\d+\.\d)% ", run.stdout, re.MULTILINE)
    assert [name for name, _, _ in lines] == ["quiet", "killed", "500", "quiet", "500"]
    assert all(int(requests) > 0 for _, requests, _ in lines)
    assert run.stdout.endswith("0 violations\n")
    drawn = ET.fromstring(plot.read_text())  # noqa: S314  drawn by ourselves
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in {"killed", "500", "breaker of a", "breaker of b"}] == [
        "killed",
        "500",
        "breaker of a",
        "breaker of b",
    ]
