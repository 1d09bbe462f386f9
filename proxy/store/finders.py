"""Where a store is now: the server that an address names, whom sentinels name, or a slot's primary in a cluster.

A finder is asked each time a connection is made, and hears what the server refused and what failed, so that the next
connection goes where the store has gone. Seeds are asked in order; one that does not answer, or whose word turned out
to be old, is asked last the next time. This file sends none of the store's own commands and knows no breaker; what it
raises (redis-py's errors, OSError, TimeoutError, NoPrimary) ends in `connection` and `cluster`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, MasterDownError, MovedError, ReadOnlyError, RedisError, ResponseError

from proxy.store.addresses import Address, Kind, Node, parse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

SLOTS = 16_384
"""Of every cluster."""

SEED_SECONDS = 0.1
"""Longest wait for one seed's word, connecting included."""

Settings: TypeAlias = dict[str, Any]  # redis-py's own arguments, of every type

Answer = TypeVar("Answer")

_FAILURES = (RedisError, OSError, TimeoutError)
_UNKNOWN_HOSTS = (None, b"", b"?")


class NoPrimary(Exception):  # noqa: N818  it says what was found
    """There is no server to connect to, or what answers there is not it; the message names no address."""


def slot_of(key: str | bytes) -> int:
    """Return a key's slot in a cluster; what stands in its first `{…}`, if anything does, decides alone."""
    return key_slot(key.encode() if isinstance(key, str) else key)


class Dialer:
    """Makes connections by an address, not yet connected. redis-py is to repeat nothing itself."""

    def __init__(self, address: Address, timeout_seconds: float) -> None:
        """Raise ValueError for an option that no connection has."""
        self._settings: Settings = dict(parse_url(address.server_url))
        self._class: type[AbstractConnection] = self._settings.pop("connection_class", Connection)
        self._sentinel = dict(address.sentinel_credentials)
        self._timeout_seconds = timeout_seconds
        try:
            self.to_server()
        except (TypeError, ValueError, RedisError) as error:
            raise ValueError(f"the address of a store has an option that is not known or not right: {error}") from None

    def to_server(self, node: Node | None = None) -> AbstractConnection:
        """Make a connection to a server, by default to the one in the address."""
        return self._make({} if node is None else node._asdict())

    def to_sentinel(self, node: Node) -> AbstractConnection:
        """Make a connection to a sentinel: likewise, but it has no database, and credentials of its own."""
        anonymous = {"db": 0, "username": None, "password": None}
        return self._make({**anonymous, **self._sentinel, **node._asdict()})

    def _make(self, settings: Settings) -> AbstractConnection:
        return self._class(
            **{**self._settings, **settings},
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=self._timeout_seconds,
            health_check_interval=0,
            driver_info=None,  # a trip less, and no need for the permission to say it
        )


class Finder(ABC):
    """Says where one store is; shared by the lanes of one `Store`."""

    @abstractmethod
    async def find(self) -> AbstractConnection:
        """Make a connection to where the store is now, not yet connected."""

    async def confirm(self, connection: AbstractConnection) -> None:  # noqa: B027  most have nothing to add
        """Raise NoPrimary if what has answered there turns out not to be the store."""

    def is_left_for(self, error: ResponseError) -> bool:
        """Hear what a command was refused with; True if the store has gone elsewhere, and one has to connect anew."""
        return isinstance(error, ReadOnlyError | MasterDownError)

    def doubt(self, error: Exception) -> None:  # noqa: B027  likewise
        """Hear that a connection could not be made, and why."""

    async def has_moved(self) -> bool:
        """Tell whether the store is known to be elsewhere than where it was found, though nothing there says so."""
        return False

    @property
    def place(self) -> str | None:
        """Where the store was found last, for the log; None where the address says it."""
        return None


class Named(Finder):
    """The one server that the address names."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    async def find(self) -> AbstractConnection:
        """Make a connection to it."""
        return self._dialer.to_server()


class Member(Finder):
    """One node of a cluster, whatever it serves: that slots have moved elsewhere is told and ends no connection."""

    def __init__(self, dialer: Dialer, node: Node, note_moved: Callable[[], None]) -> None:
        self._dialer = dialer
        self._node = node
        self._note_moved = note_moved

    async def find(self) -> AbstractConnection:
        """Make a connection to it."""
        return self._dialer.to_server(self._node)

    def is_left_for(self, error: ResponseError) -> bool:
        """Tell of slots that are elsewhere."""
        if isinstance(error, MovedError | ClusterDownError):
            self._note_moved()
        return super().is_left_for(error)

    @property
    def place(self) -> str:
        """The node."""
        return str(self._node)


class Seeds:
    """Nodes that can be asked where others are, in the order in which they are."""

    def __init__(self, nodes: Sequence[Node], dial: Callable[[Node], AbstractConnection]) -> None:
        self._configured = tuple(dict.fromkeys(nodes))
        self._dial = dial
        self._order = list(self._configured)

    async def ask(self, question: Callable[[Node, AbstractConnection], Awaitable[Answer]]) -> Answer:
        """Return the first answer. Raises what the last one failed with when none has one."""
        failure: Exception = NoPrimary("there is nobody to ask")
        for node in tuple(self._order):
            answered = False
            try:
                async with asyncio.timeout(SEED_SECONDS):
                    answer = await self._ask_one(node, question)
                answered = True
            except (*_FAILURES, NoPrimary) as error:
                failure = error
            else:
                return answer
            finally:
                if not answered:
                    self.put_last(node)
        raise failure

    async def _ask_one(self, node: Node, question: Callable[[Node, AbstractConnection], Awaitable[Answer]]) -> Answer:
        connection = self._dial(node)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it bare
            return await question(node, connection)
        finally:
            await connection.disconnect(nowait=True)

    def put_last(self, node: Node | None = None) -> None:
        """Ask this node, by default the one that is asked first, after all others from now on."""
        node = self._order[0] if node is None else node
        if node in self._order:
            self._order.remove(node)
            self._order.append(node)

    def learn(self, nodes: Sequence[Node]) -> None:
        """Take the nodes that there are now; those of the configuration stay, whether or not they are among them."""
        known = dict.fromkeys((*self._configured, *nodes))
        self._order = [node for node in self._order if node in known]
        self._order += [node for node in known if node not in self._order]


class Watched(Finder):
    """The primary of the service that sentinels watch."""

    def __init__(self, dialer: Dialer, address: Address) -> None:
        self._dialer = dialer
        self._service = address.service
        self._sentinels = Seeds(address.seeds, dialer.to_sentinel)
        self._found: Node | None = None

    async def find(self) -> AbstractConnection:
        """Ask the sentinels."""
        self._found = await self._sentinels.ask(self._ask)
        return self._dialer.to_server(self._found)

    async def confirm(self, connection: AbstractConnection) -> None:
        """Ask the server itself: a sentinel that was cut off still names the old one."""
        await connection.send_command("ROLE", check_health=False)
        role, *_ = await connection.read_response()
        if role != b"master":
            raise NoPrimary("whom its sentinels name is not, or not yet, its primary")

    def doubt(self, error: Exception) -> None:  # noqa: ARG002  whatever it was
        """Begin with another sentinel the next time."""
        self._sentinels.put_last()

    async def has_moved(self) -> bool:
        """Ask the sentinels again: a primary that was cut off from them does not know that it is none any more."""
        try:
            return await self._sentinels.ask(self._ask) != self._found
        except (*_FAILURES, NoPrimary):
            return False

    @property
    def place(self) -> str:
        """Whom the sentinels named."""
        return str(self._found)

    async def _ask(self, _sentinel: Node, connection: AbstractConnection) -> Node:
        await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service, check_health=False)
        reply = await connection.read_response()
        if reply is None:
            raise NoPrimary("its sentinels do not know the service")
        host, port = reply
        return Node(host.decode(), int(port))


@dataclass(frozen=True, slots=True)
class Range:
    """A run of slots, its end included, and the primary that owns it."""

    start: int
    end: int
    primary: Node


class ClusterMap:
    """Who owns which slots, as the nodes of a cluster say that are asked."""

    def __init__(self, dialer: Dialer, address: Address) -> None:
        self._seeds = Seeds(address.seeds, dialer.to_server)

    async def read(self, slot: int | None = None) -> tuple[Range, ...]:
        """Ask for all ranges; of one who names no owner of `slot`, others are asked. Raises NoPrimary at the end."""

        async def ask(node: Node, connection: AbstractConnection) -> tuple[Range, ...]:
            await connection.send_command("CLUSTER", "SLOTS", check_health=False)
            reply = await connection.read_response()
            ranges = tuple(Range(start, end, _node(primary, node)) for start, end, primary, *_ in reply)
            if not any(slot is None or each.start <= slot <= each.end for each in ranges):
                raise NoPrimary("no node of its cluster has what it is needed for")
            self._seeds.learn([_node(each, node) for _, _, *members in reply for each in members])
            return ranges

        return await self._seeds.ask(ask)

    def doubt(self) -> None:
        """Hear that the map was wrong: begin with another node the next time."""
        self._seeds.put_last()


def _node(told: Sequence[Any], teller: Node) -> Node:
    """Read a node; one that does not know its own host is where the node is that told of it."""
    host, port, *_ = told
    return Node(teller.host if host in _UNKNOWN_HOSTS else host.decode(), int(port))


class Owner(Finder):
    """The primary that owns one slot of a cluster."""

    def __init__(self, dialer: Dialer, address: Address, slot: int) -> None:
        self._dialer = dialer
        self._map = ClusterMap(dialer, address)
        self._slot = slot
        self._found: Node | None = None
        self._pointed_to: Node | None = None

    async def find(self) -> AbstractConnection:
        """Go where one was pointed to, else ask the nodes."""
        pointed_to, self._pointed_to = self._pointed_to, None
        self._found = pointed_to or await self._ask()
        return self._dialer.to_server(self._found)

    async def _ask(self) -> Node:
        ranges = await self._map.read(self._slot)
        return next(each.primary for each in ranges if each.start <= self._slot <= each.end)

    def is_left_for(self, error: ResponseError) -> bool:
        """Leave a node that does not own the slot any more, and one that is cut off from its cluster."""
        self._follow(error)
        return isinstance(error, MovedError | ClusterDownError) or super().is_left_for(error)

    def doubt(self, error: Exception) -> None:
        """Follow a pointer, else begin with another node the next time."""
        self._follow(error)
        if self._pointed_to is None:
            self._map.doubt()

    def _follow(self, error: Exception) -> None:
        if isinstance(error, MovedError) and self._found is not None:
            self._pointed_to = Node(error.host or self._found.host, error.port)

    @property
    def place(self) -> str:
        """The primary."""
        return str(self._found)


def finder_of(url: str, timeout_seconds: float, anchor: str | None) -> Finder:
    """Make the finder for an address; `anchor` is a key of the slot that counts if it is a cluster's.

    Raises ValueError for what is no address, or a cluster's where there is no `anchor`.
    """
    address = parse(url)
    dialer = Dialer(address, timeout_seconds)
    if address.kind is Kind.SENTINEL:
        return Watched(dialer, address)
    if address.kind is Kind.SERVER:
        return Named(dialer)
    if anchor is None:
        raise ValueError("the address of a store is a cluster's, where one server was meant")
    return Owner(dialer, address, slot_of(anchor))
