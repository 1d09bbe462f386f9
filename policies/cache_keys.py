"""The canonical key of a request: equal for requests that ask the same, different for all others (SPEC §6).

A key is one SHA-256 over one JSON text: version, scope, endpoint family, model and the canonical effective request.
JSON with sorted members is typed (`1`, `1.0`, `true` and `"1"` are four texts) and cannot be read in two ways, so no
client's string can forge a scope or another request's fields. A member that is a long text stands there as its own
digest, behind a mark that no JSON value begins with. Every field is part of the key unless a table below says
otherwise. This file does not know whether a request is cacheable, nor who may share its answer.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.catalog import ModelDefaults
from policies.requests.completions import CompletionRequest
from policies.requests.dialects import REQUEST_TYPES
from policies.requests.forms import number
from policies.requests.long_texts import LONG_CHARACTERS
from policies.requests.meaning import vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policies.requests.asked import EffectiveRequest
    from policies.requests.fields import EndpointRequest

KEY_VERSION: Final = 3
"""Part of every key; counts up when equal requests would get another key than before."""

IGNORED: Final = frozenset().union(*(vocabulary(kind).unkeyed for kind in REQUEST_TYPES.values()))
"""Members that say nothing about the answer's content, but where an endpoint's own API has them say something."""


NO_DEFAULTS: Final = ModelDefaults()
"""A model of whose servers' own defaults nothing is said."""


def cache_key(
    effective: EffectiveRequest,
    model: str,
    *,
    scope: tuple[str, ...],
    api_version: str | None = None,
    defaults: ModelDefaults = NO_DEFAULTS,
) -> str:
    """Return the key in hex; `model` is the canonical name, `scope` who shares the answer, such as `("user", "alice")`.

    `api_version` is given where the client's choice changes the forwarded address (SPEC §2), `defaults` are what the
    model's servers take for absent parameters.
    """
    fields = canonical_fields(REQUEST_TYPES[effective.endpoint], effective.fields, defaults)
    for name, value in fields.items():
        if type(value) is str and len(value) >= LONG_CHARACTERS:
            fields[name] = _digest(value)
    return sha256(_encode([KEY_VERSION, scope, effective.endpoint, model, api_version, fields])).hexdigest()


def canonical_fields(
    kind: type[EndpointRequest], fields: Mapping[str, Any], declared: ModelDefaults = NO_DEFAULTS
) -> dict[str, Any]:
    """Return the members that make a difference, each in the one form that stands for all its spellings.

    An absent member, `null` and the API's default are the same, and so are `0` and `0.0` where the API wants a number;
    nested values and unknown members stay as they are, type included. Of the API's defaults only those count that
    every server shares, and those that the model declares: temperature, top_p and the token ceiling are taken from the
    model by some.
    """
    forms, defaults, left_out = _forms(kind), _defaults(kind, declared), _left_out(kind)
    canonical: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name in left_out:
            continue
        form = forms.get(name)
        kept = value if form is None else form(value)
        if kept is not None and (name not in defaults or not _same(kept, defaults[name])):
            canonical[name] = kept
    for name, other in vocabulary(kind).counts_as.items():
        if name in canonical and canonical[name] == canonical.get(other, defaults.get(other)):
            del canonical[name]
    return canonical


@lru_cache
def _left_out(kind: type[EndpointRequest]) -> frozenset[str]:
    """Return the members that are no part of the keys of an endpoint's requests."""
    tables = vocabulary(kind)
    return tables.unkeyed | (IGNORED - tables.meanings.keys())


@lru_cache
def _forms(kind: type[EndpointRequest]) -> Mapping[str, Callable[[object], object]]:
    """Return what writes the one form of a member; `cache_level` is the cache's on every endpoint."""
    return {"cache_level": vocabulary(CompletionRequest).forms["cache_level"], **vocabulary(kind).forms}


@lru_cache
def _defaults(kind: type[EndpointRequest], declared: ModelDefaults) -> Mapping[str, Any]:
    """Return the values that are the same as nothing; a model's only where the endpoint's API has one."""
    tables = vocabulary(kind)
    own = {name: number(value) for name, value in declared if value is not None and name in tables.defaults}
    return {**tables.shared_defaults, **own}


def _digest(text: str) -> msgspec.Raw:
    """Write a long text as its digest: escaping it takes half as long as hashing it."""
    return msgspec.Raw(b"~" + sha256(text.encode()).hexdigest().encode())


def _same(value: object, default: object) -> bool:
    """Compare with type: `false` is not `0`."""
    return type(value) is type(default) and value == default


_encode: Final = msgspec.json.Encoder(order="sorted").encode
