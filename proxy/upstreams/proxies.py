"""Whether an upstream is reached through a proxy, and through which: the environment's variables and what they mean.

There is no standard; this reads them as curl and Python do, and NO_PROXY also by address ranges. Knows no connection;
the variables are read elsewhere and handed in.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""The variables that are looked at, also in capitals; where both stand, these win."""

_FOR_ALL = "all_proxy"
_NOT_FOR = "no_proxy"
_LOOPBACK_NAME = "localhost"
_EVERY_HOST = "*"
_PORTS = {"http": 80, "https": 443}


class UnusableProxy(ValueError):  # noqa: N818  what it is, not that it is an error
    """A variable names a proxy that cannot be used; the text says which variable, and never what stands in it."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy's address without credentials, and the value of Proxy-Authorization, None where it asks for none."""

    address: str
    authorization: str | None = field(default=None, repr=False)


def find_proxy(base_url: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy through which an address is reached; None when it is reached directly, as loopback always is.

    Raises UnusableProxy.
    """
    parts = urlsplit(base_url)
    host = (parts.hostname or "").rstrip(".")
    if _is_loopback(host) or _is_exempt(host, parts.port or _PORTS[parts.scheme], _value(_NOT_FOR, environment)):
        return None
    for name in (f"{parts.scheme}_proxy", _FOR_ALL):
        if value := _value(name, environment):
            return _read(value, name.upper())
    return None


def _value(name: str, environment: Mapping[str, str]) -> str:
    return environment.get(name, environment.get(name.upper(), "")).strip()


def _read(value: str, variable: str) -> Proxy:
    unusable = UnusableProxy(
        f"the environment's {variable} is no address of a proxy: write http://host:port, "
        "or set proxy: none for this upstream"
    )
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise unusable from None
    if parts.scheme.startswith("socks"):
        raise UnusableProxy(
            f"the environment's {variable} names a SOCKS proxy, and those are not supported: name one that speaks "
            "HTTP (http://host:port), or set proxy: none for this upstream"
        )
    is_bare = parts.path in {"", "/"} and not parts.query and not parts.fragment
    if parts.scheme not in _PORTS or not host or not is_bare or re.search(r"\s", value):
        raise unusable
    shown = f"[{host}]" if ":" in host else host
    return Proxy(
        f"{parts.scheme}://{shown}:{port or _PORTS[parts.scheme]}", _authorization(parts.username, parts.password)
    )


def _authorization(user: str | None, password: str | None) -> str | None:
    """Write credentials as RFC 7617 has them."""
    if user is None and password is None:
        return None
    told = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {b64encode(told.encode()).decode()}"


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if address is not None:
        return address.is_loopback
    return host == _LOOPBACK_NAME or host.endswith(f".{_LOOPBACK_NAME}")


def _is_exempt(host: str, port: int, exempt: str) -> bool:
    return any(_matches(entry, host, port) for entry in re.split(r"[,\s]+", exempt.lower()) if entry)


def _matches(entry: str, host: str, port: int) -> bool:
    """Tell whether one entry of NO_PROXY means a host: `*`, a name and what is below it, an address or a range.

    Names and addresses may be followed by a port. An entry that is none of these means no host.
    """
    if entry == _EVERY_HOST:
        return True
    address = _address(host)
    if "/" in entry:
        return address is not None and _holds(entry, address)
    if address is not None and _address(entry.strip("[]")) == address:
        return True
    name, colon, its_port = entry.rpartition(":")
    if not colon:
        name, its_port = entry, ""
    if its_port and its_port != str(port):
        return False
    if address is not None:
        return _address(name.strip("[]")) == address
    name = name.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _holds(network: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(network, strict=False)
    except ValueError:
        return False
