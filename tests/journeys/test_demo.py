"""The demo as a newcomer meets it: start it, paste the two lines it prints, stop it."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from gateway import ROOT, Command, descendants_of, eventually, is_alive
from relay import read_answers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness import Resp

FREE_PORTS = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Command]:
    with Command(tmp_path / "demo", ["demo", *FREE_PORTS, "--data-dir", str(tmp_path / "data")]) as running:
        eventually(lambda: running.output.count("curl ") == 2)
        yield running


def _paste(line: str) -> Resp:
    if shutil.which("curl") is None:
        pytest.skip("curl, which the pasted line is for, is not installed")
    pasted = subprocess.run(["/bin/sh", "-c", line], capture_output=True, timeout=60, check=False)
    assert pasted.returncode == 0, pasted.stderr.decode()
    head_is_shown = pasted.stdout.startswith(b"HTTP/")
    return read_answers(pasted.stdout if head_is_shown else b"HTTP/1.1 200 OK\r\n\r\n" + pasted.stdout)[0]


def test_the_printed_lines_give_a_real_completion_and_then_a_hit(demo: Command, tmp_path: Path) -> None:
    lines = re.findall(r"^ *(curl .+)$", demo.output, re.MULTILINE)
    model_log = tmp_path / "data" / "model-server.log"
    assert str(model_log) in demo.output

    plain = _paste(lines[0])
    assert plain.text().strip()
    before = _generations(model_log)
    first, second = _paste(lines[1]), _paste(lines[1])

    assert first.text().strip()
    assert "fwd=miss" in first.header("cache-status")
    assert "hit" in second.header("cache-status").split(";")[1]
    assert first.body == second.body
    assert _generations(model_log) == before + 1, "the model server was asked again"


def _generations(model_log: Path) -> int:
    return model_log.read_text().count("processing task")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_all_of_it_with_status_0(demo: Command, how: signal.Signals) -> None:
    family = descendants_of(demo.pid)
    assert family, "no model server, no workers?"
    demo.process.send_signal(how)
    assert demo.process.wait(30) == 0
    assert eventually(lambda: not any(map(is_alive, family)))
    assert "Traceback" not in demo.log


def test_a_killed_demo_leaves_no_process_behind(demo: Command) -> None:
    family = descendants_of(demo.pid)
    demo.kill()
    assert eventually(lambda: not any(map(is_alive, family)))


@pytest.mark.parametrize("option", ["--listen", "--admin-listen"])
def test_a_port_that_is_taken_is_one_clear_line(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ports = [*FREE_PORTS]
        ports[ports.index(option) + 1] = address
        ended = subprocess.run(
            [sys.executable, "-m", "proxy", "demo", *ports], cwd=ROOT, capture_output=True, timeout=60, check=False
        )
    assert ended.returncode == 2
    assert address in ended.stderr.decode()
    assert len(ended.stderr.decode().strip().splitlines()) == 1
