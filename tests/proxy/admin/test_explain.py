"""`POST /v1/tidegate/explain` over a real socket: the same answer as the command's, and a strict question."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from quiet_gateway import QuietGateway, plane

from policies.room import Room
from policies.windows import Level
from proxy.admin.explain import PATH
from proxy.config import Configuration
from proxy.explanation import Question, describe, explain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from policies.limits import BoundLimit

CONFIGURATION = Configuration.model_validate(
    {
        "upstreams": {"u": {"kind": "openai", "base_url": "http://u", "api_key": "hidden"}},
        "models": {"m": {"deployments": [{"upstream": "u"}]}},
        "policies": {
            "default": {
                "parameters": {"n": {"max": 4, "on_violation": "clamp"}},
                "limits": [{"of": "tokens", "limit": 100, "per": "minute", "by": ["user"]}],
            }
        },
        "projects": [{"id": "proj", "policy": "default"}],
        "keys": [
            {"id": "key_a", "project": "proj", "user": "alice", "sha256": sha256(b"sk-alice").hexdigest()},
            {"id": "key_b", "project": "proj", "user": "bob", "sha256": "cd" * 32},
        ],
        "bounds": {"body_bytes": 4_096, "json_depth": 4, "body_seconds": 0.3},
    }
)
REQUEST = {"model": "m", "prompt": "Hi", "n": 9, "max_tokens": 1}


@dataclass
class StandIn(QuietGateway):
    """A gateway whose limits stand at one level, or whose store is away."""

    level: Level | None = None
    configuration: Configuration = CONFIGURATION

    async def rooms(self, limits: Sequence[BoundLimit]) -> Sequence[Room]:
        if self.level is None:
            return await super().rooms(limits)
        return [Room(bound, self.level, bound.tank) for bound in limits]


async def answered(body: object, gateway: StandIn | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with plane(gateway or StandIn()) as session, session.post(PATH, data=raw, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_the_answer_is_what_the_command_prints() -> None:
    status, told = await answered({"request": REQUEST, "as": "key_a", "cache_control": "no-cache"})
    question = Question(json.dumps(REQUEST).encode(), key="key_a", cache_control="no-cache")
    assert status == 200
    assert told == json.loads(json.dumps(describe(explain(CONFIGURATION, question))))
    assert told["adjustments"][0]["levels"] == ["project"]


async def test_a_refusal_is_an_answer_too() -> None:
    status, told = await answered({"request": {"model": "nope"}, "as": "sk-alice"})
    assert (status, told["verdict"], told["status"]) == (200, "refused", 404)
    assert told["principal"]["key"] == "key_a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param('{"model": "m", "n": 1, "n": 2}', '"n" stands twice', id="a key that stands twice"),
        pytest.param('{"model": ', "not valid JSON", id="no JSON"),
        pytest.param("", "empty", id="nothing"),
        pytest.param('{"model": "m", "x": [[[[[]]]]]}', "deeper than 4", id="nested too deep for a request"),
    ],
)
async def test_a_raw_text_is_read_as_the_gateway_would(text: str, said: str) -> None:
    status, told = await answered({"request": text, "as": "key_a"})
    assert (status, told["verdict"], told["status"]) == (200, "refused", 400)
    assert said in told["error"]["message"]


async def test_a_request_may_be_as_deep_as_at_the_door() -> None:
    status, told = await answered({"request": {"model": "m", "max_tokens": 1, "x": [[[]]]}, "as": "key_a"})
    assert (status, told["verdict"]) == (200, "served")


@pytest.mark.parametrize("number", ["1e-7", "123456789012345678901234567890", "1.0"])
async def test_numbers_are_told_as_they_are_forwarded(number: str) -> None:
    raw = f'{{"request": {{"model": "m", "max_tokens": 1, "x": {number}}}, "as": "key_a"}}'.encode()
    async with plane(StandIn()) as session, session.post(PATH, data=raw) as answer:
        assert f'"x":{number}' in await answer.text()


async def test_nobody_in_particular_may_send_it() -> None:
    _, told = await answered({"request": REQUEST, "project": "proj", "user": "bob", "path": None})
    assert (told["principal"]["key"], told["principal"]["owner"], told["path"]) == (None, "bob", "/v1/completions")


async def test_how_limits_stand_is_told_when_asked_for() -> None:
    # "Hi" and its overheads count 26, four candidates of one token 4: without what others hold that would fit.
    status, told = await answered(
        {"request": REQUEST, "as": "key_a", "live": True}, StandIn(level=Level(spent=60, held=20))
    )
    assert status == 200
    assert told["limits"][0]["now"] == {
        "used": 60,
        "held": 20,
        "left": 20,
        "reset_seconds": 36,
        "fits": False,
        "fits_in_seconds": 5,
    }
    assert (told["verdict"], told["status"]) == ("refused", 429)


async def test_a_store_that_is_away_is_503_and_only_where_it_is_asked() -> None:
    question = {"request": REQUEST, "as": "key_a"}
    status, told = await answered({**question, "live": True})
    assert (status, told["error"]["code"]) == (503, "store_unavailable")
    assert (await answered({**question, "live": False}))[0] == 200


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        pytest.param(b"{", None, "not valid JSON", id="no JSON"),
        pytest.param(b"[]", None, "must be a JSON object", id="no object"),
        pytest.param(b'{"as": "key_a", "as": "key_b"}', None, "stands twice", id="a member that stands twice"),
        pytest.param({"as": "key_a"}, "request", "request is missing: it must be the body", id="no request"),
        pytest.param({"request": [1]}, "request", "request must be the body", id="a request that is none"),
        pytest.param({"request": None}, "request", "request must be the body", id="a request that is null"),
        pytest.param({"request": {}, "as": 1}, "as", "as must be a string: the id", id="a key that is none"),
        pytest.param({"request": {}, "live": 1}, "live", "live must be true or false", id="a number for a boolean"),
        pytest.param(
            {"request": {}, "key": "a", "pth": "/"},
            "key",
            "unknown members: 'key', 'pth'; there is as, cache_control",
            id="unknown members",
        ),
        pytest.param({"request": {}, "projekt": "a"}, "projekt", 'did you mean "project"?', id="a typing error"),
        pytest.param({"request": {}}, "as", "as: say which key, or name a project", id="nobody sends it"),
        pytest.param({"request": {}, "as": "key_c"}, "as", 'did you mean "key_', id="an unknown key"),
        pytest.param({"request": {}, "as": "key_a", "project": "proj"}, "project", "one of both", id="two senders"),
        pytest.param({"request": {}, "project": "prj"}, "project", 'did you mean "proj"?', id="an unknown project"),
        pytest.param({"request": {}, "project": "proj", "user": "alise"}, "user", "alice", id="an unknown user"),
        pytest.param({"request": {}, "as": "key_a", "path": "/v1#x"}, "path", "cannot be read", id="no path"),
        pytest.param({"request": {}, "as": "key_a", "path": ""}, "path", "cannot be read", id="an empty path"),
    ],
)
async def test_a_question_that_is_none_is_a_400_that_names_the_member(
    body: object, param: str | None, said: str
) -> None:
    status, told = await answered(body)
    error = told["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert said in error["message"]


async def test_other_methods_are_not_taken() -> None:
    async with plane(StandIn()) as session, session.get(PATH) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_another_type_is_a_415() -> None:
    assert (await answered({"request": {}}, **{"Content-Type": "text/html"}))[0] == 415


async def test_a_body_is_bounded_as_at_the_data_plane() -> None:
    status, told = await answered({"request": {"model": "m", "prompt": "x" * 4_096}, "as": "key_a"})
    assert (status, told["error"]["code"]) == (413, "body_too_large")


async def test_a_compressed_body_is_read() -> None:
    body = gzip.compress(json.dumps({"request": REQUEST, "as": "key_a"}).encode())
    status, told = await answered(body, **{"Content-Encoding": "gzip"})
    assert (status, told["verdict"]) == (200, "served")


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b'{"request"'
        await asyncio.Event().wait()

    async with plane(StandIn()) as session, session.post(PATH, data=slow()) as answer:
        assert answer.status == 408


async def test_whoever_expects_to_be_told_to_go_on_is_told() -> None:
    body = json.dumps({"request": REQUEST, "as": "key_a"}).encode()
    async with plane(StandIn()) as session, session.post(PATH, data=body, expect100=True) as answer:
        assert answer.status == 200


async def test_the_configuration_in_force_decides() -> None:
    gateway = StandIn()
    async with plane(gateway) as session:
        for models, verdict in ((CONFIGURATION.models, "served"), ({}, "refused")):
            gateway.configuration = CONFIGURATION.model_copy(update={"models": models})
            async with session.post(PATH, json={"request": REQUEST, "as": "key_a"}) as answer:
                assert (await answer.json())["verdict"] == verdict
