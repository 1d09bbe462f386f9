"""The benchmark runs; what it measures is for people to read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PARTS = (
    "msgspec alone",
    "decode",
    "validate",
    "model",
    "policy",
    "input size",
    "ceiling",
    "charge",
    "advisories",
    "limits",
    "cache key",
    "routing",
    "the rest",
    "all",
)


def test_it_prints_every_part_of_every_body_beside_decoding_alone() -> None:
    program = Path(__file__).with_name("bench_decide.py")
    told = subprocess.run(
        [sys.executable, str(program), "--rounds", "1"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    tables = re.split(r"^(\w.*) \(\d+ bytes\)$", told, flags=re.MULTILINE)
    kinds = [name.partition(",")[0] for name in tables[1::2]]
    assert kinds[:4] == ["completion", "chat", "response", "embedding"]
    for table in tables[2::2]:
        rows = re.findall(r"^  (\w.*?) +(-?\d+\.\d) µs +(?:-?\d+%)? +(-?\d+\.\d\d)$", table, re.MULTILINE)
        assert tuple(part for part, _, _ in rows) == PARTS
        assert all(float(took) > 0 for part, took, _ in rows if part in {"msgspec alone", "decode", "all"})
