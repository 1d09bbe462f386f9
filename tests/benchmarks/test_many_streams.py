"""Many streams at once, as the thousands are and few enough for a test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("many_streams.py")


def test_all_streams_complete_while_plain_requests_pass() -> None:
    told = subprocess.run(
        [sys.executable, str(PROGRAM), "--streams", "200", "--events", "3", "--every", "0.5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "200 of 200; 200 open at once\n" in told.stdout, told.stdout + told.stderr
    assert re.search(
        r"^memory of the worker +\d+ MiB before, +\d+ MiB at its peak: +\d+\.\d KiB a stream$",
        told.stdout,
        re.MULTILINE,
    )
    assert re.search(r"^event loop late by +half ≤ .* 99 % ≤ .* \(\d+ of them\)$", told.stdout, re.MULTILINE)
    assert re.search(r"^plain requests +half .* \([1-9]\d* of them\), 0 failed$", told.stdout, re.MULTILINE)
    assert told.returncode == 0
