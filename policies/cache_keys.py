"""The canonical key of a request: equal for requests that ask the same, different for all others (SPEC §6).

A key is one SHA-256 over one JSON text: version, scope, endpoint family, model and the canonical effective request.
JSON with sorted members is typed (`1`, `1.0`, `true` and `"1"` are four texts) and cannot be read in two ways, so no
client's string can forge a scope or another request's fields. Every field is part of the key unless a table below
says otherwise. This file does not know whether a request is cacheable, nor who may share its answer.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from policies.requests.asked import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policies.requests.asked import EffectiveRequest

KEY_VERSION: Final = 1
"""Part of every key; counts up when equal requests would get another key than before."""

IGNORED: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "stream",
        "stream_options",
        "user",
    }
)
"""Members that say nothing about the answer's content."""


def cache_key(
    effective: EffectiveRequest, model: str, *, scope: tuple[str, ...], api_version: str | None = None
) -> str:
    """Return the key in hex; `model` is the canonical name, `scope` who shares the answer, such as `("user", "alice")`.

    `api_version` is given where the client's choice changes the forwarded address (SPEC §2).
    """
    fields = canonical_fields(effective.endpoint, effective.fields)
    return sha256(_encode([KEY_VERSION, scope, effective.endpoint, model, api_version, fields])).hexdigest()


def canonical_fields(endpoint: Endpoint, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that make a difference, each in the one form that stands for all its spellings.

    An absent member, `null` and the API's default are the same, and so are `0` and `0.0` where the API wants a number;
    nested values and unknown members stay as they are, type included.
    """
    forms = _FORMS[endpoint]
    defaults = _DEFAULTS[endpoint]
    canonical: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name in IGNORED:
            continue
        form = forms.get(name)
        kept = value if form is None else form(value)
        if name not in defaults or not _same(kept, defaults[name]):
            canonical[name] = kept
    if endpoint is Endpoint.COMPLETIONS and canonical.get("best_of") == canonical.get("n", 1):
        del canonical["best_of"]  # absent counts as n (SPEC §3)
    if canonical.get("cache_level") == _FULL_CACHE:
        del canonical["cache_level"]
    return canonical


def _number(value: object) -> object:
    """Write a whole number as an integer: `0.0` and `-0.0` are `0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _numbers(value: object) -> object:
    """Write the numbers of a map, as `logit_bias` is one."""
    return {name: _number(each) for name, each in value.items()} if isinstance(value, dict) else value


def _one_or_many(value: object) -> object:
    """Write an array of one as its element: one prompt, one stop."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list) else value


def _input(value: object) -> object:
    """Write a prompt or input: an array of one as its element, token ids as integers."""
    only = _one_or_many(value)
    if not isinstance(only, list):
        return only
    ids = chain.from_iterable(only) if only and isinstance(only[0], list) else only
    return _whole_numbers(only) if float in set(map(type, ids)) else only


def _whole_numbers(value: object) -> object:
    return list(map(_whole_numbers, value)) if isinstance(value, list) else _number(value)


def _same(value: object, default: object) -> bool:
    """Compare with type: `false` is not `0`."""
    return type(value) is type(default) and value == default


_FULL_CACHE: Final = 2

_SAMPLING: Final[dict[str, Callable[[object], object]]] = {
    "cache_level": _number,
    "frequency_penalty": _number,
    "logit_bias": _numbers,
    "max_tokens": _number,
    "n": _number,
    "presence_penalty": _number,
    "seed": _number,
    "stop": _one_or_many,
    "temperature": _number,
    "top_p": _number,
}

_FORMS: Final[dict[Endpoint, dict[str, Callable[[object], object]]]] = {
    Endpoint.COMPLETIONS: {**_SAMPLING, "best_of": _number, "logprobs": _number, "prompt": _input},
    Endpoint.CHAT: {**_SAMPLING, "max_completion_tokens": _number, "top_logprobs": _number},
    Endpoint.EMBEDDINGS: {"cache_level": _number, "dimensions": _number, "input": _input},
}
"""Parameters whose value has several spellings, by endpoint, and the function that picks one."""

_DEFAULTS: Final[dict[Endpoint, dict[str, Any]]] = {
    Endpoint.COMPLETIONS: {"echo": False, "frequency_penalty": 0, "n": 1, "presence_penalty": 0},
    Endpoint.CHAT: {"frequency_penalty": 0, "logprobs": False, "n": 1, "presence_penalty": 0},
    Endpoint.EMBEDDINGS: {},
}
"""The API's defaults that every server shares; those of suffix, stop, logit_bias and logprobs are `null`.

Temperature, top_p and max_tokens are not among them: servers take these from the model.
"""

_encode: Final = msgspec.json.Encoder(order="sorted").encode
