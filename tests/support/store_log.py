"""The log of a run, for `log_oracle`: what a real store was told, in the order in which it executed it, and answered.

`Tap` stands between gateways and the store: it passes bytes on, keeps the answers to admissions and ends, and meanwhile
listens to `MONITOR`, which says the order. Knows the heads of `admit.lua` and `settle.lua`; judges nothing.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections import defaultdict, deque
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

import hiredis
from log_oracle import Admit, Ask, End, Entry, Leave, Look, Taken, Terms

from proxy.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from stores import StoreServer

_READ_BYTES: Final = 1 << 20
_LINE_BYTES: Final = 1 << 24
_WORD: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SCRIPTS: Final = ("admit", "settle", "look", "renew", "expired")
_NAMES: Final = {Script(name).sha.decode(): name for name in ("admit", "settle")}
_ESCAPED: Final = re.compile(r'["\\]|[^ -~]')
_BY_SCRIPT: Final = " lua] "
_FIRST_ADMIT, _PER_ADMIT, _FIRST_END, _PER_END = 10, 10, 7, 5
_FIRST_LIMIT: Final = 3
_PER_LEVEL: Final = 3
_MILLISECONDS: Final = 1_000

Call: TypeAlias = tuple[str, ...]
"""What tells one call from the others."""
Answer: TypeAlias = Any  # has whatever shape its command gives it
"""What the store answered."""


class Promised(NamedTuple):
    """What a limit's settings say, before a gateway makes numbers of them; `window` in milliseconds."""

    burst: int
    limit: int
    window: int


class Told(NamedTuple):
    """One command of MONITOR: Unix seconds, whether a script gave it, and its words."""

    at: float
    is_by_script: bool
    words: list[str]


class Tap:
    """Stands before a store from `async with` on; `url` is where gateways connect to."""

    def __init__(self, server: StoreServer) -> None:
        """Take a server that runs; it is taught the scripts, so that none is sent as text."""
        self.lines: list[bytes] = []
        self.answers: dict[Call, list[Answer]] = defaultdict(list)
        self._server = server
        self._directory = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
        self._tasks: set[asyncio.Task[None]] = set()
        self._front: asyncio.Server | None = None
        self._ear: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Address as the configuration would have it."""
        return f"unix://{self._directory}/s"

    async def __aenter__(self) -> Self:
        """Listen on both sides."""
        with self._server.client() as client:
            for name in _SCRIPTS:
                client.script_load(Script(name).source)
        self._front = await asyncio.start_unix_server(self._serve, f"{self._directory}/s")
        reader, writer = await self._connect()
        writer.write(b"MONITOR\r\n")
        await reader.readline()
        self._ear = asyncio.create_task(self._listen(reader, writer))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up on both sides."""
        assert self._front is not None
        assert self._ear is not None
        self._front.close()
        for task in list(self._tasks):
            task.cancel()
        self._ear.cancel()
        await asyncio.gather(*self._tasks, self._ear, return_exceptions=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def last_words(self) -> None:
        """Have MONITOR end behind all that was told so far."""
        with self._server.client() as client:
            client.echo("the end")
        assert self._ear is not None
        await asyncio.shield(self._ear)

    def log(self, promised: Callable[[str], Promised | None] = lambda _key: None) -> list[Entry]:
        """Return the log, with what `promised` says of a limit's key instead of what the store was told."""
        return list(_entries([_read(line) for line in self.lines], self.answers, promised))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = self._server.url.removeprefix("unix://")
        return await asyncio.open_unix_connection(path, limit=_LINE_BYTES)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if b'"ECHO" "the end"' in line or b'"echo" "the end"' in line:
                break
            if b'"EVALSHA"' in line or b'"ZREM"' in line:
                self.lines.append(line)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await self._connect()
        asked: deque[Call | None] = deque()
        ways = (
            self._pass_on(
                reader, back_writer, lambda command: asked.append(_call([word.decode("latin-1") for word in command]))
            ),
            self._pass_on(back_reader, writer, lambda answer: self._answered(asked.popleft(), answer)),
        )
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.CancelledError):  # asyncio would report it: nobody awaits who serves
                await asyncio.gather(*ways)
        finally:
            self._tasks.discard(task)
            writer.close()
            back_writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: Callable[[Answer], None]
    ) -> None:
        parser = hiredis.Reader()
        with suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                parser.feed(data)
                while (message := parser.gets()) is not False:
                    heard(message)
                writer.write(data)
        writer.close()

    def _answered(self, call: Call | None, answer: Answer) -> None:
        if call is not None:
            self.answers[call].append(answer)


def _call(words: Sequence[str]) -> Call | None:
    """Return what tells a call that the log is about from all others: its words, but for texts that MONITOR escapes.

    Two connections may speak of one request at once: then it is heard in another order than it was done.
    """
    is_told = words[0].upper() == "EVALSHA" and words[1] in _NAMES
    return tuple(word for word in words[1:] if not _ESCAPED.search(word)) if is_told else None


def _read(line: bytes) -> Told:
    text = line.decode("latin-1")
    head, _, rest = text.partition("] ")
    return Told(float(head.split()[0]), f"{head}] ".endswith(_BY_SCRIPT), _WORD.findall(rest))


def _entries(
    told: Sequence[Told], answers: dict[Call, list[Answer]], promised: Callable[[str], Promised | None]
) -> Iterator[Entry]:
    unheard = {call: iter(each) for call, each in answers.items()}
    for each in told:
        command, *words = each.words
        if each.is_by_script:
            continue
        if command == "ZREM":
            yield Leave(words[1], int(each.at * _MILLISECONDS), (words[0],))
        elif (call := _call(each.words)) is not None:
            count = int(words[1])
            keys, arguments = words[2 : 2 + count], words[2 + count :]
            read = _admission if _NAMES[words[0]] == "admit" else _end
            yield from read(keys, arguments, next(unheard[call]), promised)


def _admission(
    keys: Sequence[str],
    arguments: Sequence[str],
    answer: Answer,
    promised: Callable[[str], Promised | None],
) -> Iterator[Entry]:
    rows = list(zip(*[iter(arguments[_FIRST_ADMIT:])] * _PER_ADMIT, strict=True))
    lines = iter(keys[_FIRST_LIMIT + len(rows) :: 2])
    asks = []
    for key, row in zip(keys[_FIRST_LIMIT:], rows, strict=False):
        how, mode, *numbers = row
        capacity, amount, period, ask, takes, start, end, patience = map(int, numbers)
        terms = _terms(key, (capacity, amount, period), (start, end), promised)
        line = next(lines) if mode == "wait" else ""
        asks.append(Ask(terms, Taken(how), ask, takes, refuses=mode != "observe", line=line, patience=patience))
    came, waits_for = int(arguments[8]), b""
    if isinstance(answer[-1], bytes):
        _observed, waits_for, told, _epoch = answer[-1].split(b";")
        came = int(told) or came
    positions = tuple(int(number) - 1 for number in waits_for.split()[::3])
    verdict, deadline = answer[0].decode(), int(arguments[1])
    yield Admit(arguments[0], answer[1], arguments[5], tuple(asks), verdict, deadline, came, positions)
    yield from _levels([ask.terms for ask in asks], answer)


def _end(
    keys: Sequence[str],
    arguments: Sequence[str],
    answer: Answer,
    promised: Callable[[str], Promised | None],
) -> Iterator[Entry]:
    if answer[0] in (b"alive", b"absent"):
        return
    truths = []
    for key, row in zip(keys[_FIRST_LIMIT:], zip(*[iter(arguments[_FIRST_END:])] * _PER_END, strict=True), strict=True):
        capacity, amount, period, taken, until = map(int, row)
        truths.append((_terms(key, (capacity, amount, period), (0, until), promised), taken))
    yield End(arguments[0], answer[1], arguments[1], tuple(truths), int(arguments[5]))
    yield from _levels([terms for terms, _taken in truths], answer)


def _terms(
    key: str, tank: tuple[int, int, int], span: tuple[int, int], promised: Callable[[str], Promised | None]
) -> Terms:
    capacity, amount, period = tank
    given = promised(key) or Promised(capacity, amount, period if amount else 0)
    return Terms(key, given.burst, given.limit, given.window, *span, Fraction(amount, period))


def _levels(terms: Sequence[Terms], answer: Answer) -> Iterator[Look]:
    numbers = [number for number in answer[2:] if isinstance(number, int)]
    for each, (spent, _carry, held) in zip(terms, zip(*[iter(numbers)] * _PER_LEVEL, strict=True), strict=False):
        yield Look(each, answer[1], spent, held)
