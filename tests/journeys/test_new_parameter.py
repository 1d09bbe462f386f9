"""A parameter that is declared once is known everywhere: nothing but its request type is told of it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field
from sending import fake_upstream, up
from whole import configuration, whole_gateway

from policies.policy import Rule
from policies.requests.asked import Endpoint
from policies.requests.completions import CompletionRequest
from policies.requests.dialects import REQUEST_TYPES
from policies.requests.meaning import Meaning
from policies.rule_checks import check_rule
from proxy.commands.schema import make_schema
from proxy.metrics import render
from proxy.parameter_reference import reference_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer
    from whole import Whole

__all__ = ["fake_upstream", "up"]


class SparklingRequest(CompletionRequest):
    """Completions, with a parameter that no API has."""

    sparkle: Annotated[Annotated[float, Field(ge=0, le=8)] | None, Meaning(default=0, is_shared_default=True)] = None
    """How much the answer sparkles."""


CAPPED = {"default": {"parameters": {"sparkle": {"max": 5, "on_violation": "clamp"}}}}
ASKED = {"model": "m", "prompt": "hello", "temperature": 0, "max_tokens": 4}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REQUEST_TYPES, Endpoint.COMPLETIONS, SparklingRequest)  # type: ignore[arg-type]  a dict


@asynccontextmanager
async def gateway(up: FakeUpstream, valkey: StoreServer, data_dir: Path) -> AsyncIterator[Whole]:
    async with whole_gateway(configuration(up.url, data_dir, policies=CAPPED), valkey.url) as whole:
        yield whole


def records(valkey: StoreServer) -> Iterator[dict[str, Any]]:
    """Yield the usage records that wait in the outbox."""
    with valkey.client() as client:
        for key in client.scan_iter(_type="stream"):
            for _, entry in client.xrange(key):
                yield from (json.loads(value) for value in entry.values())


@pytest.mark.parametrize("sent", [9, -1, "much", True])
async def test_it_is_validated(sent: object, up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        answer, _ = await whole.ask("POST", "/v1/completions", {**ASKED, "sparkle": sent})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"]) == (400, "sparkle")
    assert "it must be a number from 0 to 8" in error["message"]
    assert up.served == []


async def test_it_is_clamped_and_reported(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        answer, _ = await whole.ask("POST", "/v1/completions", {**ASKED, "sparkle": 7})
        metrics = render(whole.metrics.snapshot()).decode()
    assert answer.header("x-tidegate-adjusted") == "sparkle;from=7;to=5;rule=clamp"
    assert [request.json()["sparkle"] for request in up.served] == [5]
    assert 'tidegate_adjustments_total{parameter="sparkle",rule="clamp"} 1.0' in metrics
    [record] = records(valkey)
    assert record["parameters"]["sparkle"] == 7
    assert [each["parameter"] for each in record["adjustments"]] == ["sparkle"]
    assert record["unknown_fields"] == []


@pytest.mark.parametrize(
    ("first", "second", "is_hit"),
    [
        pytest.param({"sparkle": 2.0}, {"sparkle": 2}, True, id="a number in two spellings"),
        pytest.param({"sparkle": 0.0}, {"sparkle": 0}, True, id="zero in two spellings"),
        pytest.param({"sparkle": 0}, {}, True, id="its default and nothing"),
        pytest.param({"sparkle": 7}, {"sparkle": 5}, True, id="what policy makes the same"),
        pytest.param({"sparkle": 2}, {"sparkle": 3}, False, id="two values"),
        pytest.param({"sparkle": 2}, {}, False, id="a value and nothing"),
    ],
)
async def test_it_is_part_of_the_cache_key(
    first: dict[str, Any],
    second: dict[str, Any],
    *,
    is_hit: bool,
    up: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await whole.ask("POST", "/v1/completions", {**ASKED, **first})
        answer, _ = await whole.ask("POST", "/v1/completions", {**ASKED, **second})
    assert str(answer.header("cache-status")).startswith("tidegate;hit") is is_hit
    assert len(up.served) == 1 + (not is_hit)


def test_it_is_documented() -> None:
    row = "| `sparkle` | a number from 0 to 8 | = `0` | key | How much the answer sparkles. |"
    assert row in reference_page().splitlines()
    described = make_schema()["$defs"]["Policy"]["properties"]["parameters"]["properties"]["sparkle"]
    assert described["description"] == "How much the answer sparkles. Takes a number from 0 to 8: completions."
    assert described["properties"]["default"]["anyOf"][0] == {"maximum": 8, "minimum": 0, "type": "number"}


def test_rules_on_it_are_checked() -> None:
    assert check_rule("sparkle", Rule(max=8)) == []
    assert check_rule("sparkle", Rule(default=9)) == ["default is 9; sparkle must be a number from 0 to 8"]
    assert check_rule("sparkel", Rule(max=1)) == ["no endpoint has a parameter sparkel; did you mean sparkle?"]
