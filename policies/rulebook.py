"""All that a configuration says about deciding, prepared for look-ups: models by any of their names, merged policies.

Immutable once built; a reload builds another. Knows no keys of clients, and no addresses.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from policies.catalog import Model
from policies.errors import UnknownModel
from policies.merging import EffectivePolicy, merge

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from policies.catalog import ModelSettings, TextCounter
    from policies.policy import Policy
    from policies.principals import AppliedPolicy, Principal


class Rulebook:
    """The models and policies of one configuration."""

    def __init__(
        self,
        models: Mapping[str, ModelSettings],
        policies: Mapping[str, Policy],
        version_forwarding_upstreams: Collection[str] = (),
        pseudonym_key: bytes = b"",
        counters: Mapping[str, TextCounter] = MappingProxyType({}),
    ) -> None:
        # `counters` by the name of the tokenizer.
        self.pseudonym_key = pseudonym_key
        self.models = {
            name: Model(
                name,
                settings,
                forwards_api_version=any(d.upstream in version_forwarding_upstreams for d in settings.deployments),
                count_tokens=None if settings.tokenizer is None else counters[settings.tokenizer],
            )
            for name, settings in models.items()
        }
        self._by_name = dict(self.models)
        for model in self.models.values():
            self._by_name.update(dict.fromkeys(model.settings.aliases, model))
        self._policies = policies
        self._merged: dict[tuple[AppliedPolicy, ...], EffectivePolicy] = {}

    def find_model(self, name: str) -> Model | None:
        """Find the model that clients call `name`, by its own name or an alias."""
        return self._by_name.get(name)

    def model(self, name: str) -> Model:
        """Return the model that clients call `name`, by its own name or an alias. Raises UnknownModel."""
        found = self.find_model(name)
        if found is None:
            raise UnknownModel(f"The model {name[:100]!r} does not exist; GET /v1/models lists those you may use.")
        return found

    def usable_names(self, principal: Principal) -> Iterable[str]:
        """Every name, aliases included, under which a principal may ask for a model, in alphabetical order."""
        usable = {model.name for model in self.usable_models(principal)}
        return sorted(name for name, model in self._by_name.items() if model.name in usable)

    def usable_models(self, principal: Principal) -> Sequence[Model]:
        """Every model that a principal may ask for, in alphabetical order."""
        policy = self.policy_for(principal)
        return [
            model
            for name, model in sorted(self.models.items())
            if principal.may_use(name) and policy.refusing_model(name) is None
        ]

    def policy_for(self, principal: Principal) -> EffectivePolicy:
        """Return the merged policy of a principal's levels."""
        merged = self._merged.get(principal.policies)
        if merged is None:
            merged = merge([(applied.name, self._policies[applied.name]) for applied in principal.policies])
            self._merged[principal.policies] = merged
        return merged
