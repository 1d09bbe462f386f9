"""Listening sockets: one for the control plane, and one for each worker on the port that they share.

Bound here, before any process serves, so that a taken port is found at once and told in one sentence. This file does
not know who accepts.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.config_values import Address

    SocketAddress = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]

BACKLOG = 1024
"""Connections that wait to be accepted; the kernel may allow fewer."""

_ITSELF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  nothing is bound to it here


class CannotListen(Exception):  # noqa: N818  it says what happened
    """The address cannot be listened on; the message names the setting."""


@contextlib.contextmanager
def listening(address: Address, *, setting: str, count: int) -> Iterator[list[socket.socket]]:
    """Listen on one address with `count` sockets among which the kernel spreads connections; closed on leaving.

    `setting` is where the address was configured. Raises CannotListen.
    """
    with contextlib.ExitStack() as opened:
        try:
            family, where = _resolve(address)
            if address.port:
                # Sockets that share a port share it with any process of the same user: one that does not tells
                # whether somebody is there already.
                _bind(family, where, shared=False).close()
            sockets = []
            for _ in range(count):
                sock = opened.enter_context(_bind(family, where, shared=count > 1))
                where = sock.getsockname()
                sockets.append(sock)
            for sock in sockets:
                sock.listen(BACKLOG)
        except OSError as error:
            raise CannotListen(_explain(error, address, setting)) from error
        yield sockets


def url_of(sock: socket.socket) -> str:
    """Return the address of a listening socket as one pastes it."""
    host, port = sock.getsockname()[:2]
    return _url(host, port)


def own_url(host: str, port: int) -> str:
    """Return the address at which whatever listens on a host and port is reached from this machine itself."""
    return _url(_ITSELF.get(host, host), port)


def is_web_address(text: str) -> bool:
    """Tell whether a text is the address of a server over HTTP."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable() and " " not in text


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolve(address: Address) -> tuple[int, SocketAddress]:
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    return family, where


def _bind(family: int, where: SocketAddress, *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
        sock.setblocking(False)  # noqa: FBT003  the standard library's own signature
    except OSError:
        sock.close()
        raise
    return sock


def _explain(error: OSError, address: Address, setting: str) -> str:
    place = f"{address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is in use by another process: stop that, or give `{setting}` another port"
    return f"cannot listen on {place} ({error.strerror or error}): give `{setting}` another address"
