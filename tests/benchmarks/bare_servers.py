"""The least that aiohttp can do, to measure the gateway beside: `constant` answers, `forward URL` passes through.

Prints its port on the first line and serves until it is terminated.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
import uvloop
from aiohttp import web

ANSWER = json.dumps(
    {
        "id": "cmpl-benchmark",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"text": "word " * 150, "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 150, "total_tokens": 350},
    }
).encode()
MAX_BODY_BYTES = 32 * 1024 * 1024


async def constant(request: web.Request) -> web.Response:
    """Answer the same, whatever is asked."""
    await request.read()
    return web.Response(body=ANSWER, content_type="application/json")


class Forward:
    """Pass requests on to one address, and whole answers back."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._session: aiohttp.ClientSession | None = None

    async def open(self, _: web.Application) -> None:
        """Open the client's session within the running loop."""
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())

    async def __call__(self, request: web.Request) -> web.Response:
        """Forward one request."""
        assert self._session is not None
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._target, data=await request.read(), headers=headers) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")


async def serve(arguments: list[str]) -> None:
    """Serve until cancelled."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    if arguments[0] == "forward":
        forward = Forward(arguments[1])
        app.on_startup.append(forward.open)
        app.router.add_post("/v1/completions", forward.__call__)
    else:
        app.router.add_post("/v1/completions", constant)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:]))
