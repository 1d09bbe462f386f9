"""Where a request goes at an upstream, and what is sent there: address, header fields, body.

One target is one upstream under one configuration, all that never changes prepared. Only configured text makes an
address, and what else there is in it is percent-encoded. Knows neither attempts nor the client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from policies.requests.asked import Endpoint
from policies.requests.body import encode_body
from proxy.config_upstreams import CLIENTS_VERSION
from proxy.errors import UpstreamUnusable
from proxy.upstreams.headers import upstream_headers

if TYPE_CHECKING:
    from policies.decision import Decision
    from proxy.config_upstreams import Upstream
    from proxy.upstreams.connections import Way


class Target:
    """One upstream: its settings, the way there, and the fields that every request to it carries."""

    __slots__ = ("_base", "headers", "name", "settings", "way")

    def __init__(self, name: str, settings: Upstream, way: Way) -> None:
        self.name = name
        self.settings = settings
        self.way = way
        self.headers = upstream_headers(settings)
        self._base = settings.base_url

    def address(self, name: str, decision: Decision) -> str:
        """Return where a request for a deployment of this name goes.

        Raises UpstreamUnusable where an api-version is needed and nobody says one.
        """
        endpoint = decision.effective.endpoint.value
        if self.settings.kind == "openai":
            return f"{self._base}/{endpoint}"
        version = self.settings.api_version
        if version is None or version == CLIENTS_VERSION:
            version = decision.asked.api_version
        if version is None:
            raise UpstreamUnusable(
                f"The upstream {self.name!r} needs an api-version and the request has none: "
                f"set upstreams.{self.name}.api_version, or use a path of Azure's dialect, which carries one."
            )
        place = endpoint if self._names_model(decision) else f"deployments/{quote(name, safe='')}/{endpoint}"
        return f"{self._base}/openai/{place}?api-version={quote(version, safe='')}"

    def body(self, name: str, decision: Decision, *, asks_usage: bool) -> bytes:
        """Return the effective request's body, with the model's name where the address does not say it."""
        fields: dict[str, Any] = dict(decision.effective.fields)
        if self._names_model(decision):
            fields = {"model": name, **fields}
        if self.settings.kind == "openai":
            fields.pop("cache_level", None)
        if asks_usage:
            fields["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
        return encode_body(fields)

    def _names_model(self, decision: Decision) -> bool:
        """Tell whether the body names the model: Azure's addresses do, but for responses."""
        return self.settings.kind == "openai" or decision.effective.endpoint is Endpoint.RESPONSES
