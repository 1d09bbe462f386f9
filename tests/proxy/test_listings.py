from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from whole import configuration, whole_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from stores import StoreServer


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("/v1/models", ["davinci", "m"]),
        ("/v1/engines", ["davinci", "m"]),
        ("/openai/v1/models", ["davinci", "m"]),
        ("/openai/models?api-version=2024-10-21", ["davinci", "m"]),
    ],
)
async def test_a_list_holds_what_the_key_may_use(
    target: str, names: list[str], valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("GET", target)
    assert answer.status == 200
    assert [each["id"] for each in json.loads(answer.body)["data"]] == names


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        pytest.param("/v1/models/hidden", 404, "model_not_found", id="one that this key may not use does not exist"),
        pytest.param("/v1/models/none", 404, "model_not_found", id="one that is not configured"),
        pytest.param("/v1/engines/hidden", 404, "model_not_found", id="the same by its first name"),
        pytest.param("/openai/models", 400, None, id="Azure's list wants its version"),
        pytest.param("/openai/models/m", 400, None, id="as does one of its models"),
        pytest.param("/openai/models?xapi-version=1", 400, None, id="under its own name"),
        pytest.param("/openai/models?api-version=", 400, None, id="and not an empty one"),
    ],
)
async def test_what_is_not_there(
    target: str, status: int, code: str | None, valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("GET", target)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        ("/v1/models/davinci", {"id": "davinci", "object": "model", "created": 0, "owned_by": "tidegate"}),
        ("/openai/models/m?api-version=1", {"id": "m", "object": "model", "created": 0, "owned_by": "tidegate"}),
        ("/v1/engines/m", {"id": "m", "object": "engine", "owner": "tidegate", "ready": True}),
    ],
)
async def test_one_model_in_its_dialects_shape(
    target: str, shape: dict[str, object], valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("GET", target)
    assert json.loads(answer.body) == shape


@pytest.mark.parametrize("target", ["/v1/models", "/v1/models/m", "/v1/engines", "/openai/models?api-version=1"])
async def test_nobody_is_told_without_a_key(target: str, valkey: StoreServer, tmp_path: Path) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("GET", target, Authorization="Bearer nobody")
    assert answer.status == 401
    assert b"davinci" not in answer.body


async def test_health_needs_no_key(valkey: StoreServer, tmp_path: Path) -> None:
    async with whole_gateway(configuration("http://127.0.0.1:9", tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("GET", "/healthz", Authorization="")
    assert (answer.status, answer.body) == (200, b'{"status":"ok"}')
