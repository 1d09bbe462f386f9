"""What is odd about a configuration that can be used: told by `tidegate check`, never a reason to refuse.

Pure: it looks at settings only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.parameters import lets_nothing_through

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.config import Configuration


def advise(configuration: Configuration) -> list[str]:
    """Return sentences on what is probably not meant, or costs more than it seems; none of them names a secret."""
    return [
        *_on_stores(configuration),
        *_on_access(configuration),
        *(f"upstreams.{name} is used by no model" for name in _unused_upstreams(configuration)),
        *(
            f"policies.{name} applies to nobody: no organization, project, user or key names it"
            for name in _unused_policies(configuration)
        ),
        *_on_levels(configuration),
    ]


def _on_stores(configuration: Configuration) -> Iterator[str]:
    if configuration.cache_shares_state:
        yield (
            "cached answers share the state store, which must not evict; "
            "give cache_state a server of its own with maxmemory and allkeys-lfu"
        )


def _on_access(configuration: Configuration) -> Iterator[str]:
    if not configuration.models:
        yield "models is empty: every request will be refused with 404"
    if not configuration.keys:
        yield "keys is empty: every request will be refused with 401; `tidegate keys create` makes one"


def _unused_upstreams(configuration: Configuration) -> list[str]:
    used = {deployment.upstream for model in configuration.models.values() for deployment in model.deployments}
    return [name for name in configuration.upstreams if name not in used]


def _unused_policies(configuration: Configuration) -> list[str]:
    used = {configuration.organization.policy}
    for holders in (configuration.projects, configuration.users, configuration.keys):
        used.update(holder.policy for holder in holders)
    return [name for name in configuration.policies if name not in used]


def _on_levels(configuration: Configuration) -> Iterator[str]:
    rulebook = configuration.rulebook()
    for principal in configuration.principals().values():
        for name, rule in rulebook.policy_for(principal).parameters.items():
            if lets_nothing_through(rule):
                policies = " and ".join(principal.policies)
                yield f"policies {policies} together let no value of {name} through: key {principal.key} can send none"
