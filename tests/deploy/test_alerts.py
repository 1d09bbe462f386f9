"""When the alert rules call whom, judged by Prometheus' own tool."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

RULES = Path(__file__).parents[2] / "deploy" / "alerts.yml"
ATTEMPTS = 'tidegate_upstream_request_duration_seconds_count{upstream="llama"}'
GROWING, STEADY = "0+60x20", "1x20"


def errors(kind: str) -> str:
    return f'tidegate_upstream_errors_total{{upstream="llama",kind="{kind}"}}'


def breaker(upstream: str, state: str) -> str:
    return f'tidegate_upstream_breaker_state{{model="m",upstream="{upstream}",deployment="m",state="{state}"}}'


def firing(alert: str, series: Mapping[str, str], folder: Path) -> bool:
    """Tell whether an alert fires after a quarter of an hour of these series, a sample a minute."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, which evaluates alert rules, is not installed (Debian: prometheus)")
    silence = {"eval_time": "15m", "alertname": alert, "exp_alerts": []}
    values: list[dict[str, Any]] = [{"series": name, "values": numbers} for name, numbers in series.items()]
    tests = [{"interval": "1m", "input_series": values, "alert_rule_test": [silence]}]
    asked = folder / "asked.yml"  # YAML holds JSON
    asked.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(asked)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "got:" in done.stderr + done.stdout, done.stderr
    return done.returncode != 0


CALLS: dict[str, tuple[str, dict[str, str], bool]] = {
    "an upstream that fails": ("TidegateUpstreamFailing", {ATTEMPTS: GROWING, errors("5xx"): GROWING}, True),
    "an upstream out of reach": ("TidegateUpstreamFailing", {ATTEMPTS: GROWING, errors("connect"): GROWING}, True),
    "clients' bad requests page nobody": (
        "TidegateUpstreamFailing",
        {ATTEMPTS: GROWING, errors("4xx"): GROWING},
        False,
    ),
    "an upstream's own limits page nobody": (
        "TidegateUpstreamFailing",
        {ATTEMPTS: GROWING, errors("429"): GROWING},
        False,
    ),
    "an upstream's own limits are told": ("TidegateUpstreamBusy", {ATTEMPTS: GROWING, errors("429"): GROWING}, True),
    "a model whose only deployment is avoided": (
        "TidegateModelWithoutUpstream",
        {breaker("one", "open"): STEADY, breaker("one", "closed"): "0x20"},
        True,
    ),
    "a model with one deployment left": (
        "TidegateModelWithoutUpstream",
        {
            breaker("one", "open"): STEADY,
            breaker("one", "closed"): "0x20",
            breaker("two", "open"): "0x20",
            breaker("two", "closed"): STEADY,
        },
        False,
    ),
    "an upstream that fails its checks": (
        "TidegateUpstreamUnhealthy",
        {'tidegate_upstream_healthy{upstream="llama"}': "0x20"},
        True,
    ),
    "a configuration that would not start": (
        "TidegateConfigurationRejected",
        {"tidegate_config_last_reload_successful": "0x20"},
        True,
    ),
    "a configuration that was mended": (
        "TidegateConfigurationRejected",
        {"tidegate_config_last_reload_successful": "0x12 1x8"},
        False,
    ),
    "limits that may be forgotten": ("TidegateStoreEvicts", {'tidegate_store_evicts{store="state"}': STEADY}, True),
    "a cache that is away": ("TidegateStoreAway", {'tidegate_store_up{store="cache_state"}': "0x20"}, True),
    "stores that are there": ("TidegateStoreAway", {'tidegate_store_up{store="cache_state"}': STEADY}, False),
}


@pytest.mark.parametrize(("alert", "series", "expected"), CALLS.values(), ids=CALLS.keys())
def test_an_alert_fires_when_it_should(alert: str, series: dict[str, str], expected: bool, tmp_path: Path) -> None:  # noqa: FBT001  a row's column
    assert firing(alert, series, tmp_path) is expected
