"""`POST /v1/tidegate/cache/warm`: requests as JSON lines, sent through the gateway's own data plane (SPEC §6).

Answers JSON lines too: how far it has come, about every second, and what came of it at the end. Knows the query's
parameters; sending and counting is `proxy/warming`.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from aiohttp import web

from policies.errors import InvalidRequest
from proxy.admin.bodies import leave_it_to_the_reader
from proxy.admin.explain import Running
from proxy.explanation import DEFAULT_PATH
from proxy.queries import check_names, read_parameters
from proxy.server import ServedRequest
from proxy.warming import DEFAULT_AT_ONCE, MOST_AT_ONCE, CannotWarm, Warming, is_key, is_path, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.warming import Failed, Line

PATH: Final = "/v1/tidegate/cache/warm"
KEY_HEADER: Final = "x-tidegate-api-key"

_PARAMETERS: Final = ("path", "concurrency")
_TELLING_SECONDS: Final = 1.0
_NUMBER: Final = re.compile(r"[0-9]{1,4}", re.ASCII)
_HEADERS: Final = {
    "Content-Type": "application/jsonl",
    "Cache-Control": "no-cache, no-store",
    "X-Accel-Buffering": "no",
}


class Serving(Running, Protocol):
    """A gateway that also says where it serves clients."""

    @property
    def data_url(self) -> str:
        """Where the data plane is reached from the control plane."""


def warm_route(gateway: Serving) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        path, at_once = _read(request.rel_url.raw_query_string)
        key = _key(request)
        lines = (await ServedRequest(request, gateway.configuration.bounds).read()).split(b"\n")
        total = sum(1 for line in lines if line.strip())
        if not total:
            raise InvalidRequest("The body has no request: send one JSON object a line.")
        warming = Warming(gateway.data_url, key, at_once=at_once)
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        with suppress(ConnectionError):  # whoever reads no more has ended it
            await _tell(response, warming, read_lines(lines, path), total)
            await response.write_eof()
        return response

    return web.post(PATH, answer, expect_handler=leave_it_to_the_reader)


async def _tell(response: web.StreamResponse, warming: Warming, lines: Iterable[Line | Failed], total: int) -> None:
    """Send all, and tell of it. Raises ConnectionError when nobody reads any more: requests under way are given up."""
    sending = asyncio.create_task(warming.send(lines))
    try:
        while not (await asyncio.wait({sending}, timeout=_TELLING_SECONDS))[0]:
            await _write(response, {"event": "progress", "requests": total, **warming.tally.describe()})
        try:
            await sending
            stopped = None
        except CannotWarm as error:
            stopped = str(error)
        await _write(response, {"event": "end", "requests": total, **warming.tally.describe(), "stopped": stopped})
    finally:
        sending.cancel()
        await asyncio.wait({sending})


async def _write(response: web.StreamResponse, told: Mapping[str, Any]) -> None:
    await response.write(msgspec.json.encode(told) + b"\n")


def _read(query: str) -> tuple[str, int]:
    """Return the path and how many requests at once. Raises InvalidRequest, saying what they may be."""
    check_names(query, _PARAMETERS)
    found = read_parameters(query, _PARAMETERS)
    path, at_once = found.get("path", DEFAULT_PATH), found.get("concurrency", str(DEFAULT_AT_ONCE))
    if not is_path(path):
        raise InvalidRequest(f"path must be one such as {DEFAULT_PATH}.", param="path")
    if not _NUMBER.fullmatch(at_once) or not 1 <= int(at_once) <= MOST_AT_ONCE:
        raise InvalidRequest(f"concurrency must be a number from 1 to {MOST_AT_ONCE}.", param="concurrency")
    return path, int(at_once)


def _key(request: web.Request) -> str:
    key = request.headers.get(KEY_HEADER, "")
    if not is_key(key):
        raise InvalidRequest(f"Give the API key that sends the requests in the header {KEY_HEADER}.", param=KEY_HEADER)
    return key
