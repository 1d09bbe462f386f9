"""Addresses of stores: what the configuration may write under `state` and `cache_state`, taken apart.

    unix:///run/store.sock                                       one server
    redis://[user:password@]host[:6379][/database]               one server
    redis+sentinel://[user:password@]host[:26379],…/service[/database]      whom the sentinels name
    redis+cluster://[user:password@]host[:6379],…                           all primaries of a cluster

`rediss` in place of `redis` means TLS, to sentinels too. Options of a connection follow a `?`. User and password are
the servers'; sentinels that want some get `sentinel_username` and `sentinel_password` among the options. This file
connects to nothing and does not know which options there are; `finders` does. No message here repeats what it was
given: that may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

DEFAULT_PORT = 6_379
SENTINEL_PORT = 26_379

_MAX_PORT = 65_535
_FORM = re.compile(
    r"(?P<scheme>[A-Za-z+]+)://(?:(?P<credentials>[^/?#]*)@)?(?P<hosts>[^/?#@]*)"
    r"(?P<path>/[^?#]*)?(?:\?(?P<options>[^#]*))?"
)
_HOST = re.compile(r"(?P<host>[^\s:,\[\]]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_DATABASE = re.compile(r"/?|/[0-9]+", re.ASCII)
_SERVICE = re.compile(r"/(?P<service>[^/@\s]+)(?P<database>/?|/[0-9]+)", re.ASCII)
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}

_NO_STORE = (
    "no store: write embedded, or an address such as redis://host:6379/0, rediss://host:6380/0, "
    "redis+sentinel://host:26379,host:26379/service/0, redis+cluster://host:6379,host:6379 or unix:///run/store.sock"
)
_MALFORMED = "no address: the host or the port is malformed"
_NO_DATABASE = "no store: the path of its address is a database's number, as in redis://host:6379/0"
_NO_SERVICE = (
    "no store: the path of its address is the name that sentinels know the service by, and a database's number, "
    "as in redis+sentinel://host:26379/service/0"
)
_ONE_HOST = "no store: redis:// takes one host; several are for redis+sentinel:// and redis+cluster://"
_ONE_DATABASE = "no store: a cluster has only database 0; leave out what follows the hosts"
_NOT_ESCAPED = "no address: characters such as / ? # @ in a user or password are written as %2F %3F %23 %40"


class Kind(Enum):
    """How one gets from an address to a server."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class Node(NamedTuple):
    """One server's host, an IPv6 one without brackets, and port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Write it as one does."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """An address taken apart.

    `server_url` is how a server behind it is spoken to, with credentials, options and, where `seeds` are to be asked,
    the host of the first in place of the server's own. `sentinel_credentials` are arguments of a connection.
    """

    kind: Kind
    server_url: str = field(repr=False)
    seeds: tuple[Node, ...] = ()
    service: str = ""
    sentinel_credentials: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def parse(text: str) -> Address:
    """Take an address apart; raises ValueError that says what would be right and repeats nothing of it."""
    form = _FORM.fullmatch(text)
    scheme, _, kind = (form["scheme"].lower() if form else "").partition("+")
    if form is None or (scheme, kind) not in _READERS:
        raise ValueError(_explain(text))
    if "@" in (form["options"] or ""):
        raise ValueError(_NOT_ESCAPED)
    return _READERS[scheme, kind](text, form)


def is_cluster(text: str) -> bool:
    """Tell whether an address is a cluster's; raises as `parse` does."""
    return parse(text).kind is Kind.CLUSTER


def _explain(text: str) -> str:
    """Say what is wrong with what has not even the form of an address."""
    scheme, colon, rest = text.partition("://")
    if colon and tuple(scheme.lower().partition("+")[::2]) in _READERS:
        return _NOT_ESCAPED if "@" in rest else _MALFORMED
    return _NO_STORE


def _read_socket(text: str, form: re.Match[str]) -> Address:
    if not form["path"]:
        raise ValueError(_NO_STORE)
    return Address(Kind.SERVER, text)


def _read_server(text: str, form: re.Match[str]) -> Address:
    if not form["hosts"]:
        raise ValueError(_NO_STORE)
    if len(_read_hosts(form["hosts"], DEFAULT_PORT)) > 1:
        raise ValueError(_ONE_HOST)
    if _DATABASE.fullmatch(form["path"] or "") is None:
        raise ValueError(_NO_DATABASE)
    return Address(Kind.SERVER, text)


def _read_sentinel(_text: str, form: re.Match[str]) -> Address:
    seeds = _read_hosts(form["hosts"], SENTINEL_PORT)
    path = _SERVICE.fullmatch(form["path"] or "")
    if path is None:
        raise ValueError(_NO_SERVICE)
    options = parse_qsl(form["options"] or "")
    return Address(
        Kind.SENTINEL,
        _server_url(form, seeds[0], path["database"], [each for each in options if each[0] not in _OF_SENTINELS]),
        seeds,
        unquote(path["service"]),
        tuple((_OF_SENTINELS[name], value) for name, value in options if name in _OF_SENTINELS),
    )


def _read_cluster(_text: str, form: re.Match[str]) -> Address:
    seeds = _read_hosts(form["hosts"], DEFAULT_PORT)
    options = parse_qsl(form["options"] or "")
    if (form["path"] or "/") not in ("/", "/0") or any(name == "db" for name, _ in options):
        raise ValueError(_ONE_DATABASE)
    return Address(Kind.CLUSTER, _server_url(form, seeds[0], "", options), seeds)


def _read_hosts(text: str, default_port: int) -> tuple[Node, ...]:
    found = [_HOST.fullmatch(each) for each in text.split(",")]
    nodes = [Node(unquote(each["host"].strip("[]")), int(each["port"] or default_port)) for each in found if each]
    if len(nodes) < len(found) or not all(0 < node.port <= _MAX_PORT for node in nodes):
        raise ValueError(_MALFORMED)
    return tuple(nodes)


def _server_url(form: re.Match[str], node: Node, database: str, options: list[tuple[str, str]]) -> str:
    credentials = "" if form["credentials"] is None else f"{form['credentials']}@"
    scheme = form["scheme"].lower().partition("+")[0]
    return f"{scheme}://{credentials}{node}{database}?{urlencode(options)}"


_READERS = {
    ("unix", ""): _read_socket,
    ("redis", ""): _read_server,
    ("rediss", ""): _read_server,
    ("redis", "sentinel"): _read_sentinel,
    ("rediss", "sentinel"): _read_sentinel,
    ("redis", "cluster"): _read_cluster,
    ("rediss", "cluster"): _read_cluster,
}
