"""May this answer be stored, and may a stored one be served: the determinism verdict of SPEC §6.

Knows requests and cache settings; how a key is computed is in `cache_keys`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keyed:
    """The answer may be stored under `key` (hex) for `ttl_seconds`.

    `look_up` is False when the client said `no-cache`, `store` False when it said `no-store`; `max_age_seconds`
    bounds the age of a stored answer, `only_if_cached` forbids going upstream.
    """

    key: str
    ttl_seconds: int
    look_up: bool = True
    store: bool = True
    max_age_seconds: int | None = None
    only_if_cached: bool = False


@dataclass(frozen=True, slots=True)
class Bypass:
    """The cache is not involved; `reason` is a short token such as `not-deterministic`."""

    reason: str
    only_if_cached: bool = False


CachePlan = Keyed | Bypass
