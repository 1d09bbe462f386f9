"""Who a request was identified as, and which models that principal may use.

Knows nothing of keys' texts or hashes, nor of where identities are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

Level = Literal["organization", "project", "user", "key"]
"""Where a policy is assigned, outermost first."""


class AppliedPolicy(NamedTuple):
    """A policy that applies to a principal, and the level that names it."""

    level: Level
    name: str


@dataclass(frozen=True, slots=True)
class Principal:
    """Organization, project, owner, key and end user of one request (SPEC §1).

    `owner` is the id of the user or, when `is_service_account`, of the service account that owns the key.
    `models` are the patterns of model names it may use; `policies` the policies that apply, outermost level
    first; one that stands at several levels stands there as often.
    """

    organization: str
    project: str
    owner: str
    key: str
    models: tuple[str, ...] = ("*",)
    policies: tuple[AppliedPolicy, ...] = ()
    is_service_account: bool = False

    @property
    def policy_names(self) -> tuple[str, ...]:
        """Names of the policies that apply, each once."""
        return tuple(dict.fromkeys(applied.name for applied in self.policies))

    def may_use(self, model: str) -> bool:
        """Tell whether one of the principal's patterns matches this canonical model name."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)
