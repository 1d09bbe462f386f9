"""Who a request was identified as, and which models that principal may use.

Knows nothing of keys' texts or hashes, nor of where identities are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Principal:
    """Organization, project, owner, key and end user of one request (SPEC §1).

    `owner` is the id of the user or, when `is_service_account`, of the service account that owns the key.
    `models` are the patterns of model names it may use; `policies` the names of the policies that apply,
    outermost level first.
    """

    organization: str
    project: str
    owner: str
    key: str
    models: tuple[str, ...] = ("*",)
    policies: tuple[str, ...] = ()
    is_service_account: bool = False

    def may_use(self, model: str) -> bool:
        """Tell whether one of the principal's patterns matches this canonical model name."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)
