"""What a storm is made of: limits of every kind with the promise that each makes, and a gateway's configuration.

The promises are read by those who watch and those who close the books; nothing here is taken from the gateway's code.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from math import gcd
from typing import TYPE_CHECKING, Any, Final

from gateway import ADMIN_KEY, key_of, sha256

if TYPE_CHECKING:
    from gateway import Settings

ORGANIZATION: Final = "org_storm"
MODEL: Final = "m"
INPUT_PRICE: Final = 1_500_000
OUTPUT_PRICE: Final = 2_300_000
"""Micro-dollars for a million tokens."""
MOST_TOKENS: Final = 12
"""Largest ceiling that a request sends."""

_UNIT_MILLISECONDS: Final = {"ms": 1, "s": 1000}
_NOON: Final = 12
_WAITS: Final = (("on_exceed", "wait"), ("max_wait", "700ms"))


@dataclass(frozen=True)
class Promise:
    """One limit: as configured, and in numbers. `limit` and `burst` are in whole units, usd in micro-dollars."""

    name: str
    of: str
    limit: int
    by: tuple[str, ...]
    per: str | None = None
    burst: int | None = None
    on_store_failure: str = "deny"
    """So that nothing passes uncounted: what is promised is for what is counted."""
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def is_calendar(self) -> bool:
        """Tell whether its windows are of the calendar, so that nothing of it comes back."""
        return self.per in {"day", "week", "month"}

    @property
    def capacity(self) -> int:
        """What passes at once at most."""
        return self.limit if self.burst is None else self.burst

    @cached_property
    def refill(self) -> tuple[int, int]:
        """Return (amount, period): so much comes back every so many milliseconds; (0, 1) for nothing."""
        if self.per is None or self.is_calendar:
            return 0, 1
        milliseconds = next(
            int(self.per[: -len(unit)]) * each for unit, each in _UNIT_MILLISECONDS.items() if self.per.endswith(unit)
        )
        shared = gcd(self.limit, milliseconds)
        return self.limit // shared, milliseconds // shared

    @property
    def includes_hits(self) -> bool:
        """Tell whether answers from the cache take of it what their first answer took."""
        return ("charge_hits", "full") in self.more

    def settings(self) -> Settings:
        """Return it as configurations say it."""
        written: Settings = {"name": self.name, "of": self.of, "limit": self._amount(self.limit), "by": list(self.by)}
        if self.per is not None:
            written["per"] = self.per
        if self.burst is not None:
            written["burst"] = self._amount(self.burst)
        return {**written, "on_store_failure": self.on_store_failure, **dict(self.more)}

    def _amount(self, units: int) -> float:
        return units / 1_000_000 if self.of == "usd" else units


@dataclass(frozen=True)
class Member:
    """One client: the key it sends, whose it is, and the policy of its user."""

    number: int
    key: str
    user: str
    project: str
    policy: str = "user"

    def scope(self, by: tuple[str, ...]) -> tuple[str, ...]:
        """Return what a limit's `by` is for this client."""
        values = {
            "organization": ORGANIZATION,
            "project": self.project,
            "user": self.user,
            "key": self.key,
            "model": MODEL,
        }
        return tuple(values[each] for each in by)


@dataclass(frozen=True)
class World:
    """Who takes part, and what is promised."""

    members: tuple[Member, ...]
    promises: dict[str, tuple[Promise, ...]]
    """By the name of the policy that holds them."""

    @cached_property
    def by_name(self) -> dict[str, Promise]:
        """The promises by their names."""
        return {each.name: each for held in self.promises.values() for each in held}

    def settings(self, base_url: str, state: str, *, workers: int, lease: str) -> Settings:
        """Return a gateway's configuration."""
        users = {member.user: member.policy for member in self.members}
        shared = {level: {"policy": level} if level in self.promises else {} for level in ("organization", "project")}
        return {
            "admin_keys": [{"name": "tests", "sha256": sha256(ADMIN_KEY)}],
            "organization": {"id": ORGANIZATION, "time_zone": zone_where_it_is_noon(), **shared["organization"]},
            "state": state,
            "workers": workers,
            "lease": lease,
            "drain_timeout": "5s",
            "upstreams": {"only": {"kind": "openai", "base_url": base_url}},
            "models": {
                MODEL: {
                    "deployments": [{"upstream": "only"}],
                    "context_window": 100_000,
                    "max_output_tokens": MOST_TOKENS,
                    "price": {"input": INPUT_PRICE / 1_000_000, "output": OUTPUT_PRICE / 1_000_000},
                }
            },
            "policies": {name: {"limits": [each.settings() for each in held]} for name, held in self.promises.items()},
            "projects": [
                {"id": project, **shared["project"]} for project in sorted({each.project for each in self.members})
            ],
            "users": [{"id": user, "policy": policy} for user, policy in sorted(users.items())],
            "keys": [
                {"id": member.key, "project": member.project, "user": member.user, "sha256": sha256(key_of(member.key))}
                for member in self.members
            ],
        }


ON_STORE_FAILURE: Final = ("allow", "deny", "local")


def make_outage_world(clients: int) -> World:
    """Make a world of three users, whose limits do each something else while the store is away, and never bind."""
    return World(
        tuple(
            Member(number, f"key-{number}", f"user-{policy}", "project", policy)
            for number, policy in zip(range(clients), cycle(ON_STORE_FAILURE))
        ),
        {
            policy: tuple(
                Promise(f"{policy}-{of}", of, 10**9, ("user",), "day", on_store_failure=policy)
                for of in ("requests", "tokens", "usd")
            )
            for policy in ON_STORE_FAILURE
        },
    )


def make_world(clients: int, seconds: float) -> World:
    """Make a world whose buckets bind at once, and whose budgets run out for some within the time."""
    users, projects = max(3, clients // 10), 3
    members = tuple(
        Member(number, f"key-{number}", f"user-{number % users}", f"project-{number % users % projects}")
        for number in range(clients)
    )
    return World(
        members,
        {
            "organization": (
                Promise("org-rate", "requests", round(clients * 0.8), ("organization",), "2s", clients // 6),
                Promise("org-concurrency", "concurrency", clients // 6, ("organization",), more=_WAITS),
                Promise("org-completions", "completions", 10**9, ("organization",), "day"),
                Promise("org-usd", "usd", 10**12, ("organization",), "month"),
                Promise("model-requests", "requests", 10**9, ("organization", "model"), "day"),
                Promise("org-with-hits", "tokens", 10**9, ("organization",), "day", more=(("charge_hits", "full"),)),
            ),
            "project": (
                Promise("project-rate", "requests", clients // 6, ("project",), "1s", clients // 15),
                Promise("project-tokens", "tokens", round(clients * seconds * 2), ("project",), "month"),
            ),
            "user": (
                Promise("user-tokens", "tokens", 300, ("user",), "3s", 400, more=_WAITS),
                Promise("user-output", "output_tokens", 150, ("user",), "1500ms"),
                Promise("user-usd", "usd", round(seconds * 150), ("user",), "day"),
                Promise("user-concurrency", "concurrency", 4, ("user",), more=_WAITS),
            ),
        },
    )


def cost(input_tokens: int, output_tokens: int) -> int:
    """Return what tokens cost in micro-dollars, rounded up once."""
    return -(-(input_tokens * INPUT_PRICE + output_tokens * OUTPUT_PRICE) // 1_000_000)


def zone_where_it_is_noon() -> str:
    """Return a time zone in which no day ends for hours, so that a short run stays within one calendar window."""
    hours = time.gmtime().tm_hour - _NOON
    return f"Etc/GMT{'+' if hours >= 0 else '-'}{abs(hours)}"  # POSIX: west is positive
