"""The clients of a storm: what each asks, when it leaves, and what it remembers of every request.

A request is named in its `user`, with the fate that the upstream of `bill` shall give it. Clients know addresses of
gateways, which may die at any time, and nothing of limits but that a 429 is one.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gateway import bearer
from storm_world import MODEL, MOST_TOKENS
from swarm import ANSWER_SECONDS, read_head, read_pieces, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storm_world import Member, World

_FATES: Final = (
    (0.78, "ok"),
    (0.03, "500"),
    (0.03, "429"),
    (0.04, "once"),
    (0.04, "reset"),
    (0.04, "late"),
    (0.04, "cut"),
)
_CONTENT: Final = b'"tok "'
_CACHEABLE: Final = 0.25
_POOL: Final = 30
"""How many prompts there are that the cache may answer."""
_LEAVES: Final = 0.15
_STREAMS: Final = 0.55
_CONNECT_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Errand:
    """One request before it is sent. `leaves_after` events of content the client closes; at once for 0."""

    name: str
    path: str
    body: dict[str, Any]
    leaves_after: int | None


@dataclass
class Told:
    """What a client knows of one request. Times are Unix seconds; `events` are those of content that have come.

    `is_whole`: the answer came to its proper end; `is_left`: the client closed before that; `is_broken`: the connection
    did.
    """

    name: str
    member: Member
    is_stream: bool
    started: float
    ended: float = 0.0
    status: int = 0
    request_id: str = ""
    cache: str = ""
    events: int = 0
    body: bytes = b""
    is_whole: bool = False
    is_left: bool = False
    is_broken: bool = False

    @property
    def seconds(self) -> float:
        """From the first byte sent to the end."""
        return self.ended - self.started


@dataclass
class Load:
    """All clients of a world, asking until `stop` is set; `told` fills as they go.

    `base_urls` gives the addresses of the gateways that live just now; a client stays with one while it lives. `draw`
    makes a client's next errand of a name.
    """

    world: World
    base_urls: Callable[[], Sequence[str]]
    seed: int
    think_seconds: float
    draw: Callable[[Random, str], Errand]
    told: list[Told] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Let all clients ask until it is stopped, and finish what they have begun."""
        async with asyncio.TaskGroup() as clients:
            for member in self.world.members:
                clients.create_task(self._be(member))

    async def _be(self, member: Member) -> None:
        random = Random(f"{self.seed}-{member.number}")  # noqa: S311  a seed is the point
        connection, count = None, 0
        await self._pause(random.uniform(0, self.think_seconds))
        while not self.stop.is_set():
            count += 1
            errand = self.draw(random, f"r{member.number}x{count}")
            told = Told(errand.name, member, errand.body.get("stream") is True, time.time())
            try:
                connection = connection or await self._connect(member.number + random.randrange(2))
                async with asyncio.timeout(ANSWER_SECONDS):
                    is_kept = await _ask(connection, errand, told)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                told.is_broken, is_kept = True, False
            told.ended = time.time()
            self.told.append(told)
            if connection is not None and not is_kept:
                connection[1].transport.abort() if told.is_left else connection[1].close()
                connection = None
            await self._pause(random.uniform(0, 2 * self.think_seconds))
        if connection is not None:
            connection[1].close()

    async def _connect(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        urls = self.base_urls()
        if not urls:
            raise ConnectionError("no gateway lives")
        where = urlsplit(urls[number % len(urls)])
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await asyncio.open_connection(where.hostname, where.port)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)


async def _ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], errand: Errand, told: Told) -> bool:
    """Send one request and read its answer as far as the client stays; tell whether the connection can go on."""
    reader, writer = connection
    fields = [*bearer(told.member.key), ("X-Client-Request-Id", errand.name)]
    writer.write(request_bytes(errand.path, fields, json.dumps(errand.body).encode()))
    if errand.leaves_after == 0 or (errand.leaves_after is not None and not told.is_stream):
        return await _leave_early(reader, told, errand.leaves_after / 100)
    told.status, headers = await read_head(reader)
    told.request_id, told.cache = headers.get("x-request-id", ""), headers.get("cache-status", "")
    rest = b""
    async for piece in read_pieces(reader, headers):
        if not told.is_stream or told.status != 200:
            told.body += piece
            continue
        told.events += (rest + piece).count(_CONTENT)
        rest = (rest + piece)[-len(_CONTENT) + 1 :]
        if errand.leaves_after is not None and told.events >= errand.leaves_after:
            told.is_left = True
            return False
    told.is_whole = True
    return headers.get("connection", "").lower() != "close"


async def _leave_early(reader: asyncio.StreamReader, told: Told, seconds: float) -> bool:
    """Wait a moment without reading, and leave."""
    del reader
    await asyncio.sleep(seconds)
    told.is_left = True
    return False


def draw_plain(random: Random, name: str) -> Errand:
    """Draw a request that nothing happens to, and that no other is like."""
    body: dict[str, Any] = {"model": MODEL, "user": f"{name}.ok", "max_tokens": MOST_TOKENS, "prompt": _prompt(random)}
    if random.random() < _STREAMS:
        body["stream"] = True
    return Errand(name, "/v1/completions", body, None)


def draw_any(random: Random, name: str) -> Errand:
    """Draw a request of any kind, with any fate, which is perhaps left or answered from the cache."""
    if random.random() < _CACHEABLE:
        return _cacheable(random, name)
    is_stream, is_chat = random.random() < _STREAMS, random.random() < 0.2
    fate = random.choices([each for _, each in _FATES], [share for share, _ in _FATES])[0]
    if fate in {"late", "cut"} and not is_stream:
        fate = "ok"
    if fate == "cut":
        fate = f"cut{random.randint(1, 4)}"
    body: dict[str, Any] = {"model": MODEL, "user": f"{name}.{fate}", "max_tokens": random.randint(2, MOST_TOKENS)}
    if is_chat:
        body["messages"] = [{"role": "user", "content": _words(random)}]
    else:
        body["prompt"] = _prompt(random)
    each = random.choices([1, 2, 3], [6, 3, 1])[0]
    if each > 1:
        body["n"] = each
    if is_stream:
        body["stream"] = True
        if random.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
    elif not is_chat and random.random() < 0.3:
        body["best_of"] = each + random.randint(0, 2)
    leaves_after = random.randint(0, 6) if fate == "ok" and random.random() < _LEAVES else None
    return Errand(name, "/v1/chat/completions" if is_chat else "/v1/completions", body, leaves_after)


def _cacheable(random: Random, name: str) -> Errand:
    """Ask what others ask too, so that the cache may answer."""
    number = random.randrange(_POOL)
    same = Random(number)  # noqa: S311  the same for everybody
    body = {
        "model": MODEL,
        "user": f"{name}.ok",
        "max_tokens": same.randint(2, MOST_TOKENS),
        "prompt": _words(same),
        "temperature": 0,
        "n": same.randint(1, 2),
    }
    if number % 2:
        body["stream"] = True
    return Errand(name, "/v1/completions", body, None)


def _prompt(random: Random) -> str | list[str] | list[int] | list[list[int]]:
    """Draw one or some prompts, as text or as token ids."""
    shape, count = random.randrange(4), random.randint(2, 3)
    if shape == 0:
        return [_words(random) for _ in range(count)]
    if shape == 1:
        return [random.randrange(1000) for _ in range(random.randint(2, 20))]
    if shape == 2:
        return [[random.randrange(1000) for _ in range(random.randint(2, 8))] for _ in range(count)]
    return _words(random)


def _words(random: Random) -> str:
    """Draw words of three letters: with its space each is four bytes, which is what a token counts for."""
    return " ".join("".join(random.choices("abcdefgh", k=3)) for _ in range(random.randint(2, 12)))
