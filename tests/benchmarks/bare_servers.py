"""The least that aiohttp can do, to measure the gateway beside: `constant` answers, `forward URL` passes through.

`constant BYTES whole` and `constant BYTES stream` answer with nearly so many bytes, in one of the two forms, and
`relay URL` passes streams through.

Prints its port on the first line and serves until it is terminated.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

USAGE = {"prompt_tokens": 200, "completion_tokens": 150, "total_tokens": 350}
ANSWER = json.dumps(
    {
        "id": "cmpl-benchmark",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"text": "word " * 150, "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }
).encode()
MAX_BODY_BYTES = 32 * 1024 * 1024
ROUTE = "/v1/{endpoint:completions|chat/completions}"


def _completion(text: str, finish_reason: str | None) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "cmpl-benchmark", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def whole_answer(size: int) -> bytes:
    """Return an answer of nearly `size` bytes, as JSON."""
    least = json.dumps({**_completion("", "stop"), "usage": USAGE})
    text = "word " * ((size - len(least)) // len("word "))
    return json.dumps({**_completion(text, "stop"), "usage": USAGE}).encode()


def streamed_answer(size: int) -> bytes:
    """Return an answer of nearly `size` bytes, as events of a word each, one of the usage, and `[DONE]`."""
    word = _event(_completion("word ", None))
    last = _event(_completion("", "stop")) + _event({**_completion("", None), "choices": [], "usage": USAGE})
    return (word * ((size - len(last)) // len(word)) + last + "data: [DONE]\n\n").encode()


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


class Constant:
    """Answer the same, whatever is asked."""

    def __init__(self, body: bytes = ANSWER, content_type: str = "application/json") -> None:
        self._body, self._content_type = body, content_type

    async def __call__(self, request: web.Request) -> web.Response:
        """Answer one request."""
        await request.read()
        return web.Response(body=self._body, content_type=self._content_type)


def _constant(size: str, form: str) -> Constant:
    if form == "stream":
        return Constant(streamed_answer(int(size)), "text/event-stream")
    return Constant(whole_answer(int(size)))


class Forward:
    """Pass requests on to one address, and whole answers back."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._session: aiohttp.ClientSession | None = None

    async def open(self, _: web.Application) -> None:
        """Open the client's session within the running loop."""
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Forward one request."""
        assert self._session is not None
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._target, data=await request.read(), headers=headers) as answer:
            return await self._pass_back(answer, request)

    async def _pass_back(self, answer: aiohttp.ClientResponse, request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")


class Relay(Forward):
    """Pass requests on to one address, and streams back as they come."""

    async def _pass_back(self, answer: aiohttp.ClientResponse, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response


async def serve(arguments: list[str]) -> None:
    """Serve until cancelled."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    if arguments[0] == "constant":
        constant = _constant(*arguments[1:]) if arguments[1:] else Constant()
        app.router.add_post(ROUTE, constant.__call__)
    else:
        forward = (Relay if arguments[0] == "relay" else Forward)(arguments[1])
        app.on_startup.append(forward.open)
        app.router.add_post(ROUTE, forward.__call__)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:]))
