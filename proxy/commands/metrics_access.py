"""The page of metrics of the gateway that runs by a configuration, for commands that tell what its workers counted.

Asks its control plane as Prometheus would. Knows no metric.
"""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from proxy.listening import is_web_address, own_url

if TYPE_CHECKING:
    from proxy.config import Configuration

PATH: Final = "/metrics"
_TIMEOUT_SECONDS: Final = 5.0
_OK: Final = 200


class NoMetrics(Exception):  # noqa: N818  the message says what to do
    """The page could not be had."""


def fetch_metrics(configuration: Configuration, url: str | None = None) -> bytes:
    """Return the page; `url` is where the control plane answers, if not at `admin_listen`. Raises NoMetrics."""
    base = _own_admin_url(configuration) if url is None else url.rstrip("/")
    headers = {}
    if configuration.metrics_key is not None:
        headers["Authorization"] = f"Bearer {configuration.metrics_key.get_secret_value()}"
    connection = _connection(base)
    try:
        connection.request("GET", urlsplit(base).path + PATH, headers=headers)
        answer = connection.getresponse()
        page = answer.read()
    except (OSError, HTTPException, ValueError) as error:
        said = str(getattr(error, "strerror", None) or error).lower()
        raise NoMetrics(
            f"no control plane answers at {base} ({said}); start it, or say where with --admin-url"
        ) from None
    finally:
        connection.close()
    if answer.status != _OK:
        raise NoMetrics(f"the control plane at {base} answers {answer.status}; look at metrics_key and --admin-url")
    return page


def _connection(base: str) -> HTTPConnection:
    if not is_web_address(base):
        raise NoMetrics(f"{base} is no address; write --admin-url http://127.0.0.1:8081")
    parts = urlsplit(base)
    kind = HTTPConnection if parts.scheme == "http" else HTTPSConnection
    return kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)


def _own_admin_url(configuration: Configuration) -> str:
    address = configuration.admin_listen_address
    if not address.port:
        raise NoMetrics("admin_listen takes any free port; say which it is with --admin-url")
    return own_url(*address)
