"""The `api-version` of Azure's dialect, as it stands in the query of an address (SPEC §2).

Which routes need one is known there.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from policies.errors import InvalidRequest


def read_api_version(query: str) -> str | None:
    """Return the query's `api-version`; None without one. Raises InvalidRequest where it stands there twice."""
    versions = [value for name, value in parse_qsl(query, keep_blank_values=True) if name == "api-version"]
    if len(versions) > 1:
        raise InvalidRequest("The query names `api-version` more than once; name it once.", param="api-version")
    return versions[0] if versions else None
