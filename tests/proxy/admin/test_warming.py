"""`POST /v1/tidegate/cache/warm` over a real socket; a scripted server stands where the data plane is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import FakeUpstream, json_reply
from gateway import free_port
from quiet_gateway import QuietGateway, plane
from stores import eventually

from proxy.admin.warming import KEY_HEADER, PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

STORED = json_reply({"choices": []}, headers=[("Cache-Status", "tidegate; fwd=miss; stored")])
LINES = b'{"prompt": "a"}\n\n{"url": "/v1/chat/completions", "body": {"n": 1.50}}\n[]'
HEADERS = {KEY_HEADER: "sk-warm", "Content-Type": "application/jsonl"}


@pytest.fixture(scope="module")
def server() -> FakeUpstream:
    return FakeUpstream().start()


@pytest.fixture
def data_plane(server: FakeUpstream) -> Iterator[FakeUpstream]:
    server.reset()
    server.default = STORED
    yield server
    server.reset()


async def warmed(
    url: str, body: bytes = LINES, query: str = "", headers: dict[str, str] | None = None
) -> tuple[int, list[dict[str, Any]]]:
    gateway = QuietGateway(data_url=url)
    async with (
        plane(gateway) as session,
        session.post(f"{PATH}?{query}", data=body, headers=headers or HEADERS) as answer,
    ):
        return answer.status, [json.loads(line) for line in (await answer.read()).splitlines()]


async def test_requests_go_through_the_data_plane_and_the_end_is_told(data_plane: FakeUpstream) -> None:
    status, told = await warmed(data_plane.url, query="path=/v1/embeddings&concurrency=1")
    assert status == 200
    assert told[-1] == {
        "event": "end",
        "requests": 3,
        "done": 3,
        "stored": 2,
        "known": 0,
        "streamed": 0,
        "unstored": 0,
        "bypassed": {},
        "failed": 1,
        "errors": [{"line": 4, "reason": "no request: Expected `object`, got `array`"}],
        "stopped": None,
    }
    sent = [(each.target, each.body, each.header("Authorization")) for each in data_plane.log]
    assert sent == [
        ("/v1/embeddings", b'{"prompt": "a"}', "Bearer sk-warm"),
        ("/v1/chat/completions", b'{"n": 1.50}', "Bearer sk-warm"),
    ]


async def test_progress_is_told_meanwhile(data_plane: FakeUpstream) -> None:
    data_plane.script(STORED, [("sleep", 1.5), *STORED])
    _, told = await warmed(data_plane.url, b'{"n": 1}\n{"n": 2}', "concurrency=1")
    assert [(each["event"], each["done"]) for each in told] == [("progress", 1), ("end", 2)]


async def test_whoever_reads_no_more_ends_it(data_plane: FakeUpstream) -> None:
    data_plane.default = [("hold", 30), *STORED]
    gateway = QuietGateway(data_url=data_plane.url)
    async with plane(gateway) as session:
        answer = await session.post(PATH, data=b'{"n": 1}', headers=HEADERS)
        await eventually(lambda: len(data_plane.log) == 1)
        answer.close()
        await eventually(lambda: data_plane.log[0].aborted_at is not None)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        pytest.param(
            json_reply({"error": {"message": "Who?"}}, 401), "does not take the API key (401: Who?)", id="key"
        ),
        pytest.param(None, "no gateway answers at http://127.0.0.1:", id="nobody serves"),
    ],
)
async def test_what_ends_it_is_told(data_plane: FakeUpstream, reply: list[Any] | None, said: str) -> None:
    url = f"http://127.0.0.1:{free_port()}" if reply is None else data_plane.url
    data_plane.script(*([] if reply is None else [reply]))
    status, told = await warmed(url, query="concurrency=1")
    assert (status, told[-1]["event"], told[-1]["stored"]) == (200, "end", 0)
    assert said in told[-1]["stopped"]


@pytest.mark.parametrize(
    ("query", "body", "key", "param", "said"),
    [
        pytest.param("", LINES, "", KEY_HEADER, f"in the header {KEY_HEADER}", id="no key"),
        pytest.param("", LINES, "two words", KEY_HEADER, f"in the header {KEY_HEADER}", id="no such key"),
        pytest.param("", b"\n \n", "sk", None, "The body has no request", id="no requests"),
        pytest.param("path=v1", LINES, "sk", "path", "path must be one such as /v1/completions", id="no path"),
        pytest.param("concurrency=0", LINES, "sk", "concurrency", "a number from 1 to 256", id="nobody"),
        pytest.param("concurrency=1e2", LINES, "sk", "concurrency", "a number from 1 to 256", id="no number"),
        pytest.param("paths=/v1", LINES, "sk", "paths", 'did you mean "path"?', id="an unknown parameter"),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_anything_is(
    data_plane: FakeUpstream, query: str, body: bytes, key: str, param: str | None, said: str
) -> None:
    status, [told] = await warmed(data_plane.url, body, query, {KEY_HEADER: key})
    assert (status, told["error"]["param"], data_plane.log) == (400, param, [])
    assert said in told["error"]["message"]


async def test_an_admin_key_is_needed_besides_the_api_key(data_plane: FakeUpstream) -> None:
    gateway = QuietGateway(data_url=data_plane.url)
    async with plane(gateway, key="sk-warm") as session, session.post(PATH, data=LINES, headers=HEADERS) as answer:
        assert answer.status == 401
    assert data_plane.log == []
