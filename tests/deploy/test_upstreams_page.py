"""What the page about upstreams tells people to write and to watch is there, and its numbers are the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from policies.catalog import BreakerSettings, ModelSettings
from proxy.config import Timeouts
from proxy.config_upstreams import Upstream
from proxy.metrics import DECLARED

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PAGE = (DEPLOY / "UPSTREAMS.md").read_text("utf-8")
SAID = " ".join(PAGE.split())


def test_the_metrics_it_speaks_of_exist() -> None:
    said = set(re.findall(r"tidegate_(\w+)", PAGE))
    assert said
    assert said - set(DECLARED) == set()


def test_the_picture_is_there() -> None:
    assert [(DEPLOY / name).exists() for name in re.findall(r"!\[[^]]*\]\((.*?)\)", PAGE)] == [True]


@pytest.mark.parametrize("block", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
def test_the_settings_it_shows_are_taken(block: str) -> None:
    for settings in YAML(typ="safe", pure=True).load(block)["upstreams"].values():
        Upstream.model_validate({"kind": "openai", "base_url": "http://127.0.0.1:8000/v1", **settings})


BREAKER = BreakerSettings()
MODEL = ModelSettings.model_validate({"deployments": [{"upstream": "any"}]})


@pytest.mark.parametrize(
    ("setting", "said", "value"),
    [
        ("failures", "5", BREAKER.failures),
        ("window", "10 s", BREAKER.window / 1000),
        ("share", "half", BREAKER.share),
        ("open_for", "10 s", BREAKER.open_for / 1000),
        ("longest_open", "2 minutes", BREAKER.longest_open / 1000),
        ("max_attempts", "3", MODEL.max_attempts),
        ("retry_max_wait", "1 s", MODEL.retry_max_wait / 1000),
        ("timeouts.first_byte", "600 s", Timeouts().first_byte_seconds),
    ],
)
def test_the_defaults_it_tells_are_those(setting: str, said: str, value: float) -> None:
    assert f"`{setting}` ({said})" in SAID
    assert {"half": 0.5, "2 minutes": 120.0}.get(said, float(re.sub(r"\D", "", said) or 0)) == value
