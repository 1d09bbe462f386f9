"""Tools that a model may call, as far as it matters who runs them.

Knows the tools' types, and neither what they do nor what becomes of it.
"""

from __future__ import annotations

from typing import Any, Final

_CLIENT_TOOLS: Final = ("function", "custom")


def has_hosted_tool(tools: Any) -> bool:  # noqa: ANN401  any JSON value
    """Tell whether a tool runs upstream: any type but those that the client itself runs, which is a function's."""
    if not isinstance(tools, list):
        return False
    return any(isinstance(tool, dict) and tool.get("type", "function") not in _CLIENT_TOOLS for tool in tools)
