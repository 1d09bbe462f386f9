"""A whole gateway in this process: a real store, the scripted upstream, and requests that need no socket in front."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sending import MemoryWriter

from proxy.app import Gateway, open_gateway
from proxy.config import Configuration
from proxy.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

KEY = "sk-alice"


@dataclass
class Sent:
    """A request as its sender wrote it."""

    method: str
    path: str
    query: str = ""
    fields: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    is_read: bool = False

    def header(self, name: str) -> str | None:
        return next(iter(self.headers(name)), None)

    def headers(self, name: str) -> Sequence[str]:
        return [value for each, value in self.fields if each.lower() == name.lower()]

    async def read(self) -> bytes:
        self.is_read = True
        return self.body


def configuration(upstream_url: str, data_dir: Path, **more: Any) -> Configuration:  # noqa: ANN401  any setting
    """One upstream, models `m` (alias `davinci`) and `hidden`, one project, one key; `more` replaces settings."""
    plain: dict[str, Any] = {
        "data_dir": str(data_dir),
        "upstreams": {"only": {"kind": "openai", "base_url": f"{upstream_url}/v1"}},
        "models": {
            "m": {"deployments": [{"upstream": "only"}], "aliases": ["davinci"]},
            "hidden": {"deployments": [{"upstream": "only"}]},
        },
        "policies": {"default": {}},
        "projects": [{"id": "proj", "policy": "default", "models": ["m"]}],
        "keys": [{"id": "key_alice", "project": "proj", "user": "alice", "sha256": sha256(KEY.encode()).hexdigest()}],
        **more,
    }
    return Configuration.model_validate(plain)


@asynccontextmanager
async def whole_gateway(configuration: Configuration, store_url: str) -> AsyncIterator[Whole]:
    metrics = Metrics()
    async with open_gateway(
        configuration, state_url=store_url, cache_url=store_url, metrics=metrics, worker=0
    ) as gateway:
        yield Whole(gateway, metrics)


@dataclass
class Whole:
    gateway: Gateway
    metrics: Metrics

    async def ask(
        self, method: str, target: str, body: Mapping[str, Any] | bytes = b"", **fields: str
    ) -> tuple[MemoryWriter, Sent]:
        """Send a request with alice's key, unless `fields` (underscores for hyphens) bring another."""
        path, _, query = target.partition("?")
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Authorization": f"Bearer {KEY}", **{name.replace("_", "-"): value for name, value in fields.items()}}
        sent, writer = Sent(method, path, query, tuple(named.items()), raw), MemoryWriter()
        await self.gateway.answer(sent, writer)
        return writer, sent
