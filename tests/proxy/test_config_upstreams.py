"""The settings of one upstream: defaults, what goes together, and what is said of what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config_upstreams import Upstream

OPENAI: dict[str, Any] = {"kind": "openai", "base_url": "https://models.example/v1"}
AZURE: dict[str, Any] = {"kind": "azure", "base_url": "https://acme.openai.azure.com"}


def test_an_upstream_is_asked_without_bound_or_checks_unless_told() -> None:
    upstream = Upstream.model_validate(OPENAI)
    assert (upstream.concurrency, upstream.health, upstream.proxy) == (None, None, "environment")
    assert (upstream.queue.length, upstream.queue.max_wait) == (100, 10_000)
    assert (upstream.tls.ca_file, upstream.identity_headers) == (None, ())


def test_health_checks_have_a_path_and_durations() -> None:
    upstream = Upstream.model_validate({**OPENAI, "health": {"every": "5s"}})
    assert upstream.health is not None
    assert (upstream.health.path, upstream.health.every, upstream.health.timeout) == ("/models", 5_000, 2_000)
    assert (upstream.health.failures, upstream.health.successes) == (2, 1)


def test_tls_files_are_relative_to_the_configuration() -> None:
    upstream = Upstream.model_validate({**OPENAI, "tls": {"ca_file": "ca.pem"}}, context={"directory": Path("/etc/x")})
    assert upstream.tls.ca_file == Path("/etc/x/ca.pem")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({**OPENAI, "api_version": "1"}, "for kind: azure only", id="a version that nobody reads"),
        pytest.param({**AZURE, "base_url": "https://a/openai"}, "scheme and host only", id="a path of Azure's own"),
        pytest.param({**AZURE, "health": {}}, "health.path of kind: azure", id="Azure has no path for health"),
        pytest.param({**OPENAI, "tls": {"key_file": "k"}}, "give certificate_file too", id="a key of nothing"),
        pytest.param({**OPENAI, "concurrency": 0}, "greater than 0", id="nobody may pass"),
        pytest.param({**OPENAI, "health": {"path": "models"}}, "pattern", id="a path without its slash"),
        pytest.param({**OPENAI, "identity_headers": ["key"]}, "'project' or 'user'", id="a header that is not known"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Upstream.model_validate(settings)
