"""What stands in the log: read as an operator's tools read it, from the standard error of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SET_UP = """
import logging
import structlog
from proxy import logs
from proxy.exchange import Exchange, Outcome
from policies.charges import Charged
from policies.principals import Principal
logs.configure(worker=3)
exchange = Exchange("req_1", 1.7e9, 10.0, route="/v1/completions", status=200, outcome=Outcome.COMPLETED, ended=10.5)
"""


def logged(code: str) -> list[dict[str, Any]]:
    """Run code in a process of its own and return its log lines."""
    done = subprocess.run([sys.executable, "-c", SET_UP + code], cwd=ROOT, capture_output=True, check=True, timeout=30)
    assert done.stdout == b""
    return [json.loads(line) for line in done.stderr.decode().splitlines()]


@pytest.mark.parametrize(
    "breaking",
    [
        pytest.param("os.close(2)", id="closed"),
        pytest.param("reader, writer = os.pipe(); os.dup2(writer, 2); os.close(reader)", id="a pipe nobody reads"),
        pytest.param("reader, writer = os.pipe(); os.dup2(writer, 2)", id="a pipe whose reader has stopped reading"),
    ],
)
def test_a_line_that_cannot_be_written_fails_nobody(breaking: str) -> None:
    often = "for _ in range(2000):\n    logs.log_exchange(exchange, None)\n"
    code = f"import os\n{breaking}\n{often}os.write(1, b'on')"
    done = subprocess.run([sys.executable, "-c", SET_UP + code], cwd=ROOT, capture_output=True, check=False, timeout=30)
    assert done.stdout == b"on"


def test_a_request_is_one_line_with_the_names_of_the_usage_record() -> None:
    [line] = logged(
        "exchange.principal = Principal(organization='o', project='p', owner='alice', key='k')\n"
        "exchange.first_byte = 10.25\n"
        "exchange.answer.content_events = 1\n"
        "logs.log_exchange(exchange, Charged(input_tokens=3, output_tokens=4, cost_microdollars=11, known='reported'))"
    )
    assert line.pop("time").endswith("Z")
    assert line == {
        "event": "request",
        "level": "info",
        "worker": 3,
        "request_id": "req_1",
        "route": "/v1/completions",
        "project": "p",
        "owner": "alice",
        "key": "k",
        "status": 200,
        "outcome": "completed",
        "duration_seconds": 0.5,
        "waited_seconds": 0.0,
        "time_to_first_token_seconds": 0.25,
        "input_tokens": 3,
        "output_tokens": 4,
        "cost_microdollars": 11,
        "known": "reported",
    }


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('\'x\\n{"event":"forged"}\'', id="line breaks do not start a line"),
        pytest.param("'\\ud800'", id="bytes above ASCII are written as escapes"),
        pytest.param("'x' * 100_000", id="long text is cut"),
    ],
)
def test_a_clients_text_stays_in_its_field(text: str) -> None:
    [line] = logged(f"exchange.client_request_id = {text}\nlogs.log_exchange(exchange, None)")
    assert line["event"] == "request"
    assert 0 < len(line["client_request_id"]) <= 256


def test_a_failed_request_is_a_warning() -> None:
    [line] = logged(
        "exchange.status = 502\nexchange.outcome = Outcome.UPSTREAM_ERROR\nlogs.log_exchange(exchange, None)"
    )
    assert (line["level"], line["outcome"]) == ("warning", "upstream_error")


def test_what_libraries_log_has_the_same_form() -> None:
    [line] = logged("logging.getLogger('aiohttp').warning('odd %s', 'thing')")
    assert (line["event"], line["logger"], line["level"], line["worker"]) == ("odd thing", "aiohttp", "warning", 3)


def test_a_traceback_stays_on_its_line() -> None:
    [line] = logged(
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    structlog.get_logger().exception('failed', what=object())"
    )
    assert "ZeroDivisionError" in line["exception"]


def test_a_command_that_speaks_for_itself_logs_nothing() -> None:
    code = "from proxy import logs\nimport structlog\nlogs.silence()\nstructlog.get_logger().error('the store is away')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=30)
    assert (done.stdout, done.stderr) == (b"", b"")
