"""Purging cached answers as an operator asks for it: which ones, what the audit record says, and what is told of it.

The store does it, in `proxy/store/purges`. Knows no command and no page.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from proxy.config_references import suggest
from proxy.credentials import digest
from proxy.named_principal import CannotAnswer, UnknownName
from proxy.resets import check_reason
from proxy.store.audit import Event
from proxy.store.purges import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from proxy.config import Configuration
    from proxy.store.audit import Actor
    from proxy.store.purges import Purged

EVENT_TYPE: Final = "cache.purged"
HOW_TO_SAY: Final = "models, projects, keys or entries by their names, or all"
"""What has to be named: for messages."""

_IS_CACHE_KEY: Final = "if it is the key of a cached answer, say --entry (over the control plane: `entries`)"
_IS_API_KEY: Final = "for all that an API key has paid for, say --key and its id (over the control plane: `keys`)"
_CACHE_KEY: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be purged: the union of answers for models, that projects or API keys paid for, and of single ones.

    Models by their own names, keys by their ids, entries by their cache keys; each once, in the order of naming.
    """

    all: bool = False
    models: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """What the store is told."""
        return tuple(self._scopes())

    def _scopes(self) -> Iterator[Scope]:
        if self.all:
            yield Scope("all")
        yield from (Scope("model", name) for name in self.models)
        yield from (Scope("project", name) for name in self.projects)
        yield from (Scope("key", name) for name in self.keys)
        yield from (Scope("entry", name) for name in self.entries)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be purged, of which there is something, in which project if it is all of one (else ""), and why."""

    selection: Selection
    project: str
    reason: str | None


def order_purge(  # noqa: PLR0913  each is one thing that may be named
    configuration: Configuration,
    *,
    everything: bool = False,
    models: Iterable[str] = (),
    projects: Iterable[str] = (),
    keys: Iterable[str] = (),
    entries: Iterable[str] = (),
    reason: str | None = None,
) -> Order:
    """Return the order to purge what is named: models by name or alias, API keys by id, entries by cache key.

    Raises CannotAnswer, and UnknownName for what is not configured.
    """
    check_reason(reason)
    selection = Selection(
        all=everything,
        models=_each(models, lambda name: _find_model(configuration, name)),
        projects=_each(projects, lambda name: _find_project(configuration, name)),
        keys=_each(keys, lambda name: _find_key(configuration, name)),
        entries=_each(entries, lambda name: _find_entry(configuration, name)),
    )
    if not selection.scopes:
        raise CannotAnswer("all", f"nothing is named that is to be purged; name {HOW_TO_SAY}")
    return Order(selection, _project_of(configuration, selection), reason)


def event_of(order: Order, actor: Actor) -> Event:
    """Return what the audit record says."""
    return Event(EVENT_TYPE, actor, order.project, _describe_order(order))


def describe_purge(order: Order, done: Purged) -> dict[str, Any]:
    """Tell what was purged and why, the generation below which answers are stale, and the id of the audit record."""
    return {**_describe_order(order), "generation": done.generation, "audit_log": done.record}


def _describe_order(order: Order) -> dict[str, Any]:
    return {**asdict(order.selection), "reason": order.reason}


def _each(names: Iterable[str], find: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(find(name) for name in names))


def _find_model(configuration: Configuration, name: str) -> str:
    own = {alias: model for model, settings in configuration.models.items() for alias in (model, *settings.aliases)}
    if name not in own:
        raise UnknownName("models", f"no model has this name; {suggest(name, own)}")
    return own[name]


def _find_project(configuration: Configuration, name: str) -> str:
    known = {each.id for each in configuration.projects}
    if name not in known:
        raise UnknownName("projects", f"no project has this id; {suggest(name, known)}")
    return name


def _find_key(configuration: Configuration, name: str) -> str:
    """Find an API key by its id, or by itself: then it is not repeated."""
    known = {each.id for each in configuration.keys}
    if name in known:
        return name
    found = configuration.principals().get(digest(name))
    if found is not None:
        return found.key
    if _CACHE_KEY.fullmatch(name.lower()):
        raise UnknownName("keys", f"no API key has this id; {_IS_CACHE_KEY}")
    raise UnknownName("keys", f"no API key has this id; {suggest(name, known)}")


def _find_entry(configuration: Configuration, name: str) -> str:
    if _CACHE_KEY.fullmatch(name.lower()):
        return name.lower()
    if any(each.id == name for each in configuration.keys):
        raise CannotAnswer("entries", f"must be a cache key; {_IS_API_KEY}")
    raise CannotAnswer("entries", "must be a cache key: 64 hexadecimal digits, as `tidegate cache get` prints them")


def _project_of(configuration: Configuration, selection: Selection) -> str:
    """Return the project that all that is named belongs to, if there is one."""
    of_keys: Mapping[str, str] = {each.id: each.project for each in configuration.keys}
    projects = {*selection.projects, *(of_keys[key] for key in selection.keys)}
    if selection.all or selection.models or selection.entries or len(projects) != 1:
        return ""
    return projects.pop()
