"""The lists of models, in the shapes of the three dialects: only what the asking principal may use (SPEC §2).

Knows no route and no model's settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from policies.errors import InvalidRequest, UnknownModel
from policies.requests.api_version import read_api_version
from proxy.identify import identify

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.exchange import Exchange, Request
    from proxy.handler import Snapshot

JSONObject = dict[str, object]


def _model_object(name: str) -> JSONObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tidegate"}


def _engine_object(name: str) -> JSONObject:
    return {"id": name, "object": "engine", "owner": "tidegate", "ready": True}


def _all(request: Request, exchange: Exchange, snapshot: Snapshot, shape: Callable[[str], JSONObject]) -> bytes:
    principal = exchange.principal = identify(request, snapshot.principals)
    names = snapshot.rulebook.usable_names(principal)
    return msgspec.json.encode({"object": "list", "data": [shape(name) for name in names]})


def _one(
    request: Request, exchange: Exchange, snapshot: Snapshot, name: str, shape: Callable[[str], JSONObject]
) -> bytes:
    principal = exchange.principal = identify(request, snapshot.principals)
    if name not in snapshot.rulebook.usable_names(principal):  # one that is for others only does not exist either
        raise UnknownModel(f"The model {name[:100]!r} does not exist, or your key may not use it.")
    return msgspec.json.encode(shape(name))


def models(request: Request, exchange: Exchange, snapshot: Snapshot, _: str | None) -> bytes:
    """Answer `GET /v1/models`."""
    return _all(request, exchange, snapshot, _model_object)


def model(request: Request, exchange: Exchange, snapshot: Snapshot, name: str) -> bytes:
    """Answer `GET /v1/models/{model}`. Raises UnknownModel."""
    return _one(request, exchange, snapshot, name, _model_object)


def engines(request: Request, exchange: Exchange, snapshot: Snapshot, _: str | None) -> bytes:
    """Answer `GET /v1/engines` of the first API."""
    return _all(request, exchange, snapshot, _engine_object)


def engine(request: Request, exchange: Exchange, snapshot: Snapshot, name: str) -> bytes:
    """Answer `GET /v1/engines/{model}`. Raises UnknownModel."""
    return _one(request, exchange, snapshot, name, _engine_object)


def azure_models(request: Request, exchange: Exchange, snapshot: Snapshot, _: str | None) -> bytes:
    """Answer `GET /openai/models?api-version=…`. Raises InvalidRequest without the version."""
    _check_version(request)
    return _all(request, exchange, snapshot, _model_object)


def azure_model(request: Request, exchange: Exchange, snapshot: Snapshot, name: str) -> bytes:
    """Answer `GET /openai/models/{model}?api-version=…`. Raises InvalidRequest without the version, UnknownModel."""
    _check_version(request)
    return _one(request, exchange, snapshot, name, _model_object)


def _check_version(request: Request) -> None:
    if not read_api_version(request.query):
        raise InvalidRequest("Azure's dialect needs `?api-version=…` in the address.", param="api-version")


def health(_request: Request, _exchange: Exchange, _snapshot: Snapshot, _: str | None) -> bytes:
    """Answer `GET /healthz`: the process lives."""
    return b'{"status":"ok"}'
