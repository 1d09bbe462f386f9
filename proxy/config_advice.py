"""What is odd about a configuration that can be used: told by `tidegate check`, never a reason to refuse.

Pure: it looks at settings only, and says of each policy what is so wherever it applies. What is odd about rules and
limits is known by `policies/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from policies.contradictions import contradictions
from policies.limit_advice import impassable, unpriced
from policies.merging import merge
from policies.rule_advice import Idle, idle_by_itself, idle_observed, idle_within
from proxy.config_references import listed
from proxy.config_upstreams import CLIENTS_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from policies.catalog import Model
    from policies.limit_advice import OddLimit
    from policies.limits import NamedLimit
    from policies.merging import EffectivePolicy
    from policies.policy import Policy
    from policies.principals import Principal
    from proxy.config import Configuration

_Names = tuple[str, ...]


def advise(configuration: Configuration) -> list[str]:
    """Return sentences on what is probably not meant, or costs more than it seems; none of them names a secret."""
    audience = list(_audience(configuration))
    return [
        *_on_stores(configuration),
        *_on_access(configuration),
        *(f"upstreams.{name} is used by no model" for name in _unused_upstreams(configuration)),
        *_on_api_versions(configuration),
        *_on_upstreams(configuration),
        *_on_deployments(configuration),
        *(
            f"policies.{name} applies to nobody: no organization, project, user or key names it"
            for name in _unused_policies(configuration)
        ),
        *_on_idle_settings(configuration, [group.policies for group in audience]),
        *_on_refusals(configuration, audience),
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


def _used_upstreams(configuration: Configuration) -> set[str]:
    models = configuration.models.values()
    shadows = {model.shadow.upstream for model in models if model.shadow is not None}
    return shadows | {deployment.upstream for model in models for deployment in model.deployments}


def _unused_upstreams(configuration: Configuration) -> list[str]:
    used = _used_upstreams(configuration)
    return [name for name in configuration.upstreams if name not in used]


def _on_api_versions(configuration: Configuration) -> Iterator[str]:
    used = _used_upstreams(configuration)
    for name, upstream in configuration.upstreams.items():
        if name in used and upstream.kind == "azure" and upstream.api_version is None:
            yield (
                f"upstreams.{name} has no api_version: only requests in Azure's dialect, which bring one, can go "
                f"there; set api_version (or `{CLIENTS_VERSION}` if that is meant)"
            )


def _on_upstreams(configuration: Configuration) -> Iterator[str]:
    for name, upstream in configuration.upstreams.items():
        if upstream.concurrency is not None and upstream.concurrency < configuration.workers:
            yield (
                f"upstreams.{name}.concurrency is {upstream.concurrency}, and each of the {configuration.workers} "
                "workers has one place at least: so many requests may be there at once"
            )
        if upstream.concurrency is None and "queue" in upstream.model_fields_set:
            yield f"upstreams.{name}.queue does nothing: without concurrency there is always a place"


def _on_deployments(configuration: Configuration) -> Iterator[str]:
    for name, model in configuration.models.items():
        is_alone = len(model.deployments) == 1
        if is_alone and model.hedge_after is not None:
            yield f"models.{name}.hedge_after does nothing: there is no second deployment"
        if model.max_attempts == 1 and model.hedge_after is not None:
            yield f"models.{name}.hedge_after does nothing: max_attempts is 1, and a hedge is one more"
        if model.auth == "passthrough" and (model.hedge_after is not None or model.shadow is not None):
            yield f"models.{name} sends the client's own credential, so that nothing is hedged or shadowed"
        if model.breaker.longest_open < model.breaker.open_for:
            yield (
                f"models.{name}.breaker.open_for is not obeyed: longest_open is shorter "
                f"({model.breaker.longest_open / 1000:g} s), and that is how long the breaker stays open"
            )


def _unused_policies(configuration: Configuration) -> list[str]:
    used = {configuration.organization.policy}
    for holders in (configuration.projects, configuration.users, configuration.keys):
        used.update(holder.policy for holder in holders)
    return [name for name in configuration.policies if name not in used]


@dataclass(frozen=True, slots=True)
class _Group:
    """Keys to which the same policies apply, outermost first, and that may use the same models."""

    policies: _Names
    models: tuple[Model, ...]
    policy: EffectivePolicy
    keys: _Names


def _audience(configuration: Configuration) -> Iterator[_Group]:
    rulebook = configuration.rulebook()
    grouped: dict[tuple[tuple[object, ...], _Names], list[Principal]] = {}
    for principal in configuration.principals().values():
        policy = rulebook.policy_for(principal)
        usable = (n for n in rulebook.models if principal.may_use(n) and policy.refusing_model(n) is None)
        grouped.setdefault((principal.policies, tuple(usable)), []).append(principal)
    for (_, models), principals in grouped.items():
        policies = tuple(applied.name for applied in principals[0].policies)
        keys = tuple(principal.key for principal in principals)
        policy = rulebook.policy_for(principals[0])
        yield _Group(policies, tuple(rulebook.models[name] for name in models), policy, keys)


def _on_idle_settings(configuration: Configuration, chains: Sequence[_Names]) -> Iterator[str]:
    """Tell what changes nothing, wherever the policy in which it stands applies."""
    policies = configuration.policies

    def levels(names: _Names) -> list[tuple[str, Policy]]:
        return [(name, policies[name]) for name in names]

    for name, policy in policies.items():
        by_itself = idle_by_itself(policy)
        outer = {chain[:position] for chain in chains for position, each in enumerate(chain) if each == name}
        whole = {chain for chain in chains if name in chain}
        within = _everywhere([idle_within(levels(each), policy) for each in sorted(outer)])
        observed = _everywhere([idle_observed(levels(each), policy) for each in sorted(whole)])
        known = {(idle.place, idle.said) for idle in by_itself}
        beside = [idle for idle in (*within, *observed) if (idle.place, idle.said) not in known]
        yield from _idle_lines(name, [*by_itself, *beside])


def _everywhere(findings: Sequence[Sequence[Idle]]) -> Iterator[Idle]:
    """Yield what was found every time, with all the reasons that there are."""
    for first in findings[0] if findings else ():
        reasons = [
            [idle.because for idle in found if (idle.place, idle.said) == (first.place, first.said)]
            for found in findings
        ]
        if all(reasons):
            yield first._replace(because=listed(dict.fromkeys(because for each in reasons for because in each)))


def _idle_lines(policy: str, idle: Iterable[Idle]) -> Iterator[str]:
    """Yield one line for a place and a reason, whatever number of settings they are about."""
    said: dict[Idle, list[str]] = {}
    for each in idle:
        said.setdefault(each._replace(said=""), []).append(each.said)
    for each, settings in said.items():
        told = f"{' and '.join(settings)} {each.verdict[len(settings) > 1]}, since {each.because}; {each.right}"
        yield f"policies.{policy}.{each.place}: {told}"


class _Refusal(NamedTuple):
    """Something that refuses requests of some keys: where it stands, and what it is."""

    place: str
    message: str


def _on_refusals(configuration: Configuration, audience: Sequence[_Group]) -> Iterator[str]:
    """Tell once of each cause for which requests are refused whatever they say, with the keys that meet it."""
    met: dict[_Refusal, list[str]] = {}
    for group in audience:
        for refusal in _refusals(configuration, group):
            met.setdefault(refusal, []).extend(group.keys)
    for name in _unused_policies(configuration):
        alone = merge([(name, configuration.policies[name])])
        for found in contradictions(alone, tuple(configuration.rulebook().models.values())):
            met.setdefault(_Refusal(f"policies.{found.policy}.{found.place}", found.message), [])
    for refusal, keys in met.items():
        whose = f" (key{'s' if len(keys) > 1 else ''} {listed(keys)})" if keys else ""
        yield f"{refusal.place}: {refusal.message}{whose}"
    yield from _on_unmet_limits(configuration, audience)


def _refusals(configuration: Configuration, group: _Group) -> Iterator[_Refusal]:
    if configuration.models and not group.models:
        yield _Refusal(
            "keys", "no model is left of those that policies, project and key allow: every request is refused"
        )
    for found in contradictions(group.policy, group.models):
        yield _Refusal(f"policies.{found.policy}.{found.place}", found.message)
    judges: tuple[Callable[[EffectivePolicy, Sequence[Model]], Iterator[OddLimit]], ...] = (impassable, unpriced)
    for judge in judges:
        for odd in judge(group.policy, group.models):
            yield _Refusal(_place(configuration, odd.limit), odd.message)


def _on_unmet_limits(configuration: Configuration, audience: Sequence[_Group]) -> Iterator[str]:
    met: dict[str, bool] = {}
    for group in audience:
        for named in group.policy.limits if group.models else ():
            place = _place(configuration, named)
            met[place] = met.get(place, False) or any(named.covers(model.name) for model in group.models)
    for place, is_met in met.items():
        if not is_met:
            yield f"{place}.models: nobody to whom the policy applies may use any of these; the limit counts nothing"


def _place(configuration: Configuration, named: NamedLimit) -> str:
    position = next(n for n, limit in enumerate(configuration.policies[named.policy].limits) if limit is named.limit)
    return f"policies.{named.policy}.limits[{position}]"
