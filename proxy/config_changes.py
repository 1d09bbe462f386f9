"""What a new configuration may change in a gateway that runs, and what has to wait for its next start (SPEC §13).

Pure: it compares two configurations, and knows neither where they come from nor who is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from proxy.config import Configuration

FIXED: Final = (
    *("listen", "admin_listen", "workers", "data_dir"),
    *("state", "cache_state", "cache_store_bytes", "lease"),
)
"""Settings that hold for as long as the gateway runs: its sockets, processes, stores, and what stands in those."""
FIXED_OF_ORGANIZATION: Final = ("id", "time_zone")


class Change(NamedTuple):
    """What can be put in force of a new configuration, and the settings of it that wait for a restart."""

    configuration: Configuration
    waiting: tuple[str, ...]


def change(running: Configuration, new: Configuration) -> Change:
    """Return the new configuration with what is fixed as it is in the running one."""
    kept = {name: getattr(running, name) for name in FIXED if getattr(new, name) != getattr(running, name)}
    waiting = list(kept)
    ours, theirs = running.organization, new.organization
    fixed = {
        name: getattr(ours, name) for name in FIXED_OF_ORGANIZATION if getattr(theirs, name) != getattr(ours, name)
    }
    waiting += [f"organization.{name}" for name in fixed]
    update: dict[str, Any] = {**kept, "organization": theirs.model_copy(update=fixed)} if fixed else kept
    return Change(new.model_copy(update=update) if update else new, tuple(waiting))
