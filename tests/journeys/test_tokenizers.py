"""A model with a tokenizer, through a whole gateway: what is refused by bytes is let in by tokens, and explained so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from whole import KEY, configuration, whole_gateway

from proxy.explanation import Question, describe, explain

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    from proxy.config import Configuration

pytest.importorskip("quicktok", reason="there is no wheel of quicktok-v1 for this Python")

ASKED = {"model": "m", "prompt": "hello world", "max_tokens": 10}
"""Two tokens, eleven bytes; 24 for the request and its prompt, and 10 to generate."""


def limited(url: str, data_dir: Path, **model: Any) -> Configuration:  # noqa: ANN401  settings
    models = {"m": {"deployments": [{"upstream": "only"}], **model}}
    policies = {"default": {"limits": [{"of": "tokens", "limit": 40, "per": "365d", "by": ["user"]}]}}
    return configuration(url, data_dir, models=models, policies=policies)


@pytest.mark.parametrize(
    ("model", "served", "input_tokens"),
    [
        pytest.param({}, 0, 11 + 24, id="by bytes"),
        pytest.param({"tokenizer": "cl100k_base"}, 1, 2 + 24, id="by its tokenizer"),
    ],
)
async def test_a_limit_holds_what_the_tokenizer_counts(
    upstream: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    model: dict[str, str],
    served: int,
    input_tokens: int,
) -> None:
    settings = limited(upstream.url, tmp_path, **model)
    async with whole_gateway(settings, valkey.url) as whole:
        answer, _ = await whole.ask("POST", "/v1/completions", ASKED)
    assert (len(upstream.served), answer.status == 200) == (served, bool(served))
    told = describe(explain(settings, Question(json.dumps(ASKED).encode(), key=KEY)))
    assert told["worst_case"]["input_tokens"] == input_tokens
