from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, subprocess, sys
for descriptor in {closed}:
    os.close(descriptor)
child = "import os; print(sorted(d for d in (0, 1, 2) if os.path.exists(f'/proc/self/fd/{{d}}')))"
restarted = [sys.executable, "-c", '''
import os, subprocess, sys
from proxy.standard_streams import open_missing_streams
open_missing_streams()
print("said", file=sys.stderr, flush=True)
print("said", flush=True)
sys.stdin.read()
other = os.open(os.devnull, os.O_RDONLY)
seen = subprocess.run([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, check=True).stdout
os.write(int(sys.argv[2]), str(other > 2).encode() + b" " + seen)
''', child, sys.argv[1]]
os.execv(restarted[0], restarted)
"""


@pytest.mark.parametrize("closed", [(), (2,), (1,), (0,), (0, 1, 2)], ids=str)
def test_a_stream_that_is_closed_is_there_for_the_process_and_its_children(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    with told.open("wb") as report:
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(closed=closed), str(report.fileno())],
            cwd=ROOT,
            pass_fds=[report.fileno()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=30,
        )
    assert told.read_text().strip() == "True [0, 1, 2]"
