"""Streams with pauses, as the long one has them and short enough for a test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("long_stream.py")
STREAMS = [
    ("without heartbeats, passed on", False),
    ("without heartbeats, kept for the cache", False),
    ("a heartbeat every 200ms, passed on", True),
    ("a heartbeat every 200ms, kept for the cache", True),
]


def test_what_comes_is_what_was_sent_and_comments_come_where_there_are_heartbeats() -> None:
    told = subprocess.run(
        [sys.executable, str(PROGRAM), "--pauses", "2", "--pause", "1", "--heartbeat", "200ms"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = re.findall(r"^(\w.*?\w) +\d+\.\d s +(\d+) comments   as it was sent$", told.stdout, re.MULTILINE)
    assert [(name, int(comments) > 0) for name, comments in lines] == STREAMS, told.stdout + told.stderr
    assert told.returncode == 0
