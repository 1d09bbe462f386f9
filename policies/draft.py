"""A request while policy works on it: what was sent, what became of it so far, and the changes in between.

Knows what may be written into a request of a kind and how a change is noted; which rule asks for it is known by those
who write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from policies.merging import Forced, is_same
from policies.requests.asked import Action, Adjustment
from policies.requests.ceilings import CEILING_NAMES
from policies.requests.dialects import REQUEST_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from policies.catalog import Model
    from policies.merging import MergedRule, Part
    from policies.requests.asked import AskedRequest
    from policies.requests.fields import EndpointRequest


def is_known(name: str) -> bool:
    """Tell whether some endpoint's API has a parameter of this name."""
    return any(name in kind.model_fields for kind in REQUEST_TYPES.values())


def may_write(kind: type[EndpointRequest], name: str, value: Any) -> bool:  # noqa: ANN401  a JSON value
    """Tell whether policy may write this into a request of a kind; what no endpoint knows, generation may have."""
    if name in CEILING_NAMES and kind.ceilings:
        name = kind.ceilings[0]  # a ceiling under another endpoint's name is one all the same
    return kind.takes(name, value) or (not is_known(name) and bool(kind.ceilings))


def joined(earlier: Iterable[Adjustment], later: Iterable[Adjustment]) -> tuple[Adjustment, ...]:
    """Put changes that were made one after the other together: of each parameter one, and none that was undone."""
    told = {each.parameter: each for each in earlier}
    for each in later:
        known = told.pop(each.parameter, None)
        made = each if known is None else replace(each, before=known.before)
        if not is_same(made.before, made.after):
            told[each.parameter] = made
    return tuple(told.values())


class Draft:
    """A request while policy works on it: `sent` and `view` as it came, `fields` as they became."""

    def __init__(
        self,
        asked: AskedRequest,
        model: Model,
        rules: Mapping[str, MergedRule],
        pseudonymise: Callable[[str | None], str],
    ) -> None:
        self.request_type = REQUEST_TYPES[asked.endpoint]
        self.endpoint = asked.endpoint
        self.model = model
        self.rules = rules
        self.sent = asked.fields
        self.fields = dict(asked.fields)
        self.adjustments: dict[str, Adjustment] = {}
        self.view = asked.view
        self._pseudonymise = pseudonymise

    def write(self, name: str, value: Any, action: Action, policy: str) -> None:  # noqa: ANN401  a JSON value
        """Set a parameter, None taking it out, and note the change; a change undone is none."""
        self.adjustments.pop(name, None)
        before = self.sent.get(name)
        if value is None and (before is not None or name not in self.sent):
            self.fields.pop(name, None)
        else:
            self.fields[name] = value
        if not is_same(before, value):
            self.adjustments[name] = Adjustment(name, before, value, action, policy)

    def takes(self, name: str, value: Any) -> bool:  # noqa: ANN401  a JSON value
        """Tell whether policy may write this into the request; in place of what only the client knows, anything."""
        is_clients = self.sent.get(name) is not None and not self.request_type.has_parameter(name)
        return is_clients or may_write(self.request_type, name, value)

    def forced(self, name: str, force: Part) -> Any:  # noqa: ANN401  a JSON value
        """Return the value that is forced on a parameter."""
        if force.value is not Forced.PSEUDONYM:
            return force.value
        given = self.sent.get(name)
        return self._pseudonymise(given if isinstance(given, str) else self.view.end_user)

    @property
    def ceiling_to_write(self) -> str | None:
        """Name under which an open token ceiling is written; None where nothing is generated."""
        kind = self.request_type
        return kind.ceiling_to_write(self.model.settings) if kind.ceilings else None

    def defaulted(self) -> set[str]:
        """Names of the parameters that policy wrote because none was sent."""
        return {name for name, adjustment in self.adjustments.items() if adjustment.action is Action.DEFAULT}
