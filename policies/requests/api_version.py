"""The `api-version` of Azure's dialect, as it stands in the query of an address (SPEC §2).

Which routes need one is known there.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from policies.errors import InvalidRequest


def read_api_version(query: str) -> str | None:
    """Return the query's `api-version`; None without one. Raises InvalidRequest for two, and for no text."""
    members = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    versions = [value for name, value in members if name == "api-version"]
    if len(versions) > 1:
        raise InvalidRequest("The query names `api-version` more than once; name it once.", param="api-version")
    if not all(map(str.isprintable, versions)):
        raise InvalidRequest(
            "The query's `api-version` must be text in UTF-8 without control characters, such as 2024-10-21.",
            param="api-version",
        )
    return versions[0] if versions else None
