"""Names of all keys in the stores; nobody else makes one.

Everything that one script may touch shares the hash tag of its organization, so that the scripts run on a cluster.
Cached answers spread over all slots; an answer and the lease of its fetch share one, so that one script may touch both.
This file knows no command and no life time.

    {org}:limit:<policy>:<limit>:<of>:<per>:<scope…>[:<window's start>]   hash    what is spent and held
    {org}:queue:<policy>:<limit>:<of>:<per>:<scope…>     zset    requests that wait for a limit, by when they came
    {org}:waiters:<policy>:<limit>:<of>:<per>:<scope…>   hash    until when each of them is alive, and what it asks
    {org}:hold:<request id>                   hash    what one request holds, or how it ended
    {org}:leases                              zset    live holds by the end of their lease
    {org}:outbox                              stream  usage records until they are drained
    {org}:data                                hash    since when the store has its data, whose records are added to it
    {org}:drainer                             string  who drains
    {org}:audit                               stream  the audit tail: what administrators did
    {org}:audited:<call's id>                 string  what such a call answered, should it be repeated
    {org}:probe                               string  written to find out whether one may write
    {org}:cache                               hash    the cache's epoch, what was purged, what fingerprints are retired
    {org}:fingerprints                        hash    for each deployment the fingerprints that it has shown
    entry:{<cache key>}                       string  one stored answer, in whatever form it was fetched
    flight:{<cache key>}                      string  who fetches an answer: a lease
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from policies.limits import BoundLimit

PREFIX: Final = "tidegate"

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~@-]{1,64}", re.ASCII)
_MAX_QUOTED: Final = 96
_DIGEST_BYTES: Final = 16


def part(text: str) -> str:
    """Write any text so that it can stand between colons: quoted, and a digest where that would be long."""
    if _PLAIN.fullmatch(text):
        return text
    quoted = quote(text, safe="@", errors="surrogatepass")
    if len(quoted) <= _MAX_QUOTED:
        return quoted
    return "%" + blake2b(quoted.encode(), digest_size=_DIGEST_BYTES).hexdigest()


class Keys:
    """The keys of one organization."""

    __slots__ = (
        "_audited",
        "_holds",
        "_limits",
        "_queues",
        "_waiters",
        "audit",
        "cache",
        "data",
        "drainer",
        "fingerprints",
        "leases",
        "outbox",
        "probe",
    )

    def __init__(self, organization: str) -> None:
        """Make the names of an organization by its id."""
        tag = f"{PREFIX}:{{{part(organization)}}}"
        self.leases = f"{tag}:leases"
        self.outbox = f"{tag}:outbox"
        self.data = f"{tag}:data"
        self.drainer = f"{tag}:drainer"
        self.audit = f"{tag}:audit"
        self.probe = f"{tag}:probe"
        self.cache = f"{tag}:cache"
        self.fingerprints = f"{tag}:fingerprints"
        self._audited = f"{tag}:audited:"
        self._holds = f"{tag}:hold:"
        self._limits = f"{tag}:limit:"
        self._queues = f"{tag}:queue:"
        self._waiters = f"{tag}:waiters:"

    def hold(self, request_id: str) -> str:
        """Return where a request's hold stands, and afterwards how it ended."""
        return self._holds + part(request_id)

    def audited(self, call_id: str) -> str:
        """Return where it stands what a call answered that left an audit record."""
        return self._audited + part(call_id)

    def limit(self, bound: BoundLimit, window_start: int | None = None) -> str:
        """Return where a limit counts; `window_start` (Unix milliseconds) tells calendar windows apart."""
        base = self._limits + _scoped(bound)
        return base if window_start is None else f"{base}:{window_start}"

    def line(self, bound: BoundLimit) -> tuple[str, str]:
        """Return where those stand who wait for a limit: their order, and what each asks; one for all its windows."""
        name = _scoped(bound)
        return self._queues + name, self._waiters + name


def stored(cache_key: str) -> str:
    """Return where the stored answer of a cache key stands."""
    return f"{PREFIX}:entry:{{{cache_key}}}"


def flight(cache_key: str) -> str:
    """Return where it stands who fetches the answer of a cache key."""
    return f"{PREFIX}:flight:{{{cache_key}}}"


def _scoped(bound: BoundLimit) -> str:
    return _counter(bound.policy, bound.counter, bound.limit.of, bound.limit.per or "-", bound.scope)


@lru_cache(maxsize=16_384)
def _counter(policy: str, counter: str, of: str, per: str, scope: tuple[str, ...]) -> str:
    return f"{part(policy)}:{part(counter)}:{of}:{part(per)}:{':'.join(map(part, scope))}"
