"""What a configuration would have done to all requests of a usage file: sums by group, by rule and by limit.

What it would have done to one of them is told by `policies/simulation`, whether limits had room by `limit_replay`.
Knows no file; how the sums are laid out is known by `commands/simulate`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from policies.decision import Decision
from policies.errors import Forbidden, PolicyViolation
from policies.requests.asked import Action
from policies.simulation import Untold, charge_again, not_spent, simulate
from policies.usage import CLIENT
from proxy.config import Key, Project
from proxy.limit_replay import LimitReplay
from proxy.store.reservations import Hits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from policies.errors import Rejection
    from policies.limits import BoundLimit
    from policies.principals import Principal
    from policies.requests.asked import Adjustment
    from policies.simulation import RecordedRequest, Simulated
    from proxy.config import Configuration
    from proxy.limit_replay import Replayed


class Ruling(NamedTuple):
    """What a rule did: `rule` is an adjustment's action, or `reject`; `policy` is None where no policy says so."""

    parameter: str
    rule: str
    policy: str | None


class FullLimit(NamedTuple):
    """A limit that had no room."""

    limit: str
    policy: str


@dataclass(slots=True)
class Effect:
    """Sums of one group: counts of requests, tokens, and money in whole micro-dollars.

    `served_again` were refused then and would be served now, which takes what nobody knows; `untold` have something
    that their record cannot tell.
    """

    requests: int = 0
    refused_by_rules: int = 0
    refused_by_limits: int = 0
    adjusted: int = 0
    served_again: int = 0
    untold: int = 0
    tokens_not_spent: int = 0
    microdollars_not_spent: int = 0

    def add(self, other: Effect) -> None:
        """Add another's sums to these."""
        for name in Effect.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Findings:
    """What came of a simulation; counters count requests.

    Observed ones would have done something to requests that were served, and did nothing. `unread` are requests that
    could not be read when they came, so that nothing was decided on them. `organizations`, `keys` and `projects` are
    those that the configuration does not have.
    """

    groups: dict[tuple[str, ...], Effect] = field(default_factory=dict)
    rules: Counter[Ruling] = field(default_factory=Counter)
    observed: Counter[Ruling] = field(default_factory=Counter)
    limits: Counter[FullLimit] = field(default_factory=Counter)
    observed_limits: Counter[FullLimit] = field(default_factory=Counter)
    untold: Counter[Untold] = field(default_factory=Counter)
    organizations: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    projects: Counter[str] = field(default_factory=Counter)
    unread: int = 0

    @property
    def total(self) -> Effect:
        """All groups together."""
        total = Effect()
        for each in self.groups.values():
            total.add(each)
        return total


def simulate_all(
    configuration: Configuration, records: Iterable[RecordedRequest], by: Sequence[Callable[[RecordedRequest], str]]
) -> Findings:
    """Simulate requests in the order in which they came, and sum what became of them by what `by` reads of them."""
    simulation = _Simulation(configuration, by)
    asked = (record for record in records if record.origin == CLIENT)
    for record in sorted(asked, key=lambda record: record.started_milliseconds):
        simulation.add(record)
    simulation.findings.groups = dict(sorted(simulation.findings.groups.items()))
    return simulation.findings


class _Simulation:
    """One configuration at work on requests that come in order."""

    def __init__(self, configuration: Configuration, by: Sequence[Callable[[RecordedRequest], str]]) -> None:
        organization = configuration.organization
        self.findings = Findings()
        self._readers = by
        self._rulebook = configuration.rulebook()
        self._limits = LimitReplay(organization.id, organization.zone)
        self._principals = Principals(configuration)

    def add(self, record: RecordedRequest) -> None:
        findings = self.findings
        if not record.was_read:
            findings.unread += 1
            return
        principal = self._principals.of(record)
        findings.organizations.update(self._principals.missing_organizations(record))
        findings.keys.update(self._principals.missing_keys(record))
        findings.projects.update(self._principals.missing_projects(record))
        simulated = simulate(record, principal, self._rulebook)
        findings.untold.update(set(simulated.untold))
        group = tuple(reader(record) for reader in self._readers)
        findings.groups.setdefault(group, Effect()).add(self._effect(record, simulated))

    def _effect(self, record: RecordedRequest, simulated: Simulated) -> Effect:
        effect, decision = Effect(requests=1, untold=bool(simulated.untold)), None
        if isinstance(simulated.outcome, Decision):
            decision = self._admitted(record, simulated.outcome)
            effect.refused_by_limits = decision is None
        else:
            effect.refused_by_rules = 1
            self.findings.rules[refusing(simulated.outcome)] += 1
        if decision is not None:
            effect.adjusted = bool(decision.adjustments)
            effect.served_again = record.was_refused
            self.findings.rules.update(set(map(_ruling, decision.adjustments)))
            self.findings.observed.update(set(map(_ruling, decision.observed)))
        saved = not_spent(record, decision)
        effect.tokens_not_spent, effect.microdollars_not_spent = saved.tokens, saved.cost_microdollars
        return effect

    def _admitted(self, record: RecordedRequest, decision: Decision) -> Decision | None:
        """Return the decision if the limits have room; None if they have none. Both ways note which had none."""
        refusal, observed = self._replay(record, decision)
        if refusal is None:
            self.findings.observed_limits.update(set(map(_full, observed)))
            return decision
        self.findings.limits[_full(refusal.room.bound)] += 1
        return None

    def _replay(self, record: RecordedRequest, decision: Decision) -> Replayed:
        started, ended = record.started_milliseconds, record.ended_milliseconds
        return self._limits.admit(
            decision.limits,
            charge_again(record, decision),
            started=started,
            ended=started if ended is None else ended,
            hits=_hits(record),
        )


def _full(bound: BoundLimit) -> FullLimit:
    return FullLimit(bound.name, bound.policy)


def _hits(record: RecordedRequest) -> Hits:
    if record.was_only_looked_up:
        return Hits.ONLY
    return Hits.MAYBE if record.was_hit else Hits.NO


def _ruling(adjustment: Adjustment) -> Ruling:
    return Ruling(adjustment.parameter, adjustment.action.value, adjustment.policy)


def refusing(rejection: Rejection) -> Ruling:
    """Return what refuses a request; without a policy, where models, keys, projects or a missing setting do."""
    policies = rejection.policies if isinstance(rejection, PolicyViolation | Forbidden) else ()
    said = rejection.param or rejection.code or rejection.type
    return Ruling(said, Action.REJECT.value, ", ".join(policies) or None)


class Principals:
    """Who the senders of recorded requests are to a configuration, by the ids in their records."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._keys = {key.id: key for key in configuration.keys}
        self._projects = {project.id: project for project in configuration.projects}
        self._made = lru_cache(maxsize=None)(self._make)

    def of(self, record: RecordedRequest) -> Principal:
        """Return who sent a request, with the levels that the configuration has: of an unknown key or project none."""
        return self._made(record.project, record.owner, record.key, is_service_account=record.is_service_account)

    def missing_organizations(self, record: RecordedRequest) -> Sequence[str]:
        """Return the request's organization if it is another than the configured one; its policies are not asked."""
        is_ours = record.organization in {"", self._configuration.organization.id}
        return () if is_ours else (record.organization,)

    def missing_keys(self, record: RecordedRequest) -> Sequence[str]:
        """Return the request's key if it is not configured."""
        return () if record.key in self._keys else (record.key,)

    def missing_projects(self, record: RecordedRequest) -> Sequence[str]:
        """Return the request's project if it is not configured."""
        return () if record.project in self._projects else (record.project,)

    def _make(self, project: str, owner: str, key: str, *, is_service_account: bool) -> Principal:
        unknown = Key.model_construct(id=key, project=project, sha256="")
        user, service_account = (None, owner) if is_service_account else (owner, None)
        sender = {"project": project, "user": user, "service_account": service_account}
        sent_with = self._keys.get(key, unknown).model_copy(update=sender)
        sent_in = self._projects.get(project) or Project.model_construct(id=project)
        asking = self._configuration.model_copy(update={"keys": (sent_with,), "projects": (sent_in,)})
        [principal] = asking.principals().values()
        return principal
