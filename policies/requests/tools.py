"""Tools that a model may call, as far as it matters who runs them.

Knows the tools' types, and neither what they do nor what becomes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIENT_TOOLS: Final = ("function", "custom")
_FUNCTION_MEMBERS: Final = frozenset({"function", "name"})
"""By one of them a tool without a type is told to be a function, in a chat's or a response's form."""


def has_hosted_tool(tools: Any) -> bool:  # noqa: ANN401  any JSON value
    """Tell whether a tool runs upstream: any type but those that the client itself runs, which is a function's."""
    if isinstance(tools, dict):
        tools = [tools]  # no API has it so, but some server may read it
    if not isinstance(tools, list):
        return False
    return any(isinstance(tool, dict) and not _is_clients(tool) for tool in tools)


def _is_clients(tool: Mapping[str, Any]) -> bool:
    if "type" in tool:
        return tool["type"] in _CLIENT_TOOLS
    return not _FUNCTION_MEMBERS.isdisjoint(tool)  # an upstream's own tool has a member of its name
