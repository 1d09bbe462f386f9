"""Whether a body's declared type is one that is read as JSON (SPEC §3).

Knows the `Content-Type` field; the body itself is read in `body`.
"""

from __future__ import annotations

from policies.errors import UnsupportedMedia

_UTF8 = {"utf-8", "utf8", "us-ascii"}


def check_media(content_type: str | None) -> None:
    """Pass an absent type and JSON in UTF-8; raise UnsupportedMedia for another type or charset."""
    if content_type is None or not content_type.strip():
        return
    media, *parameters = (part.strip() for part in content_type.lower().split(";"))
    kind, _, subtype = media.partition("/")
    if not (kind in {"application", "text"} and (subtype == "json" or subtype.endswith("+json"))):
        raise UnsupportedMedia(
            f"The body's Content-Type {media[:100]!r} is not read here; send application/json.",
            code="unsupported_media_type",
        )
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in _UTF8:
            raise UnsupportedMedia(
                f"The body's charset {value.strip()[:40]!r} is not read here; JSON is UTF-8 (RFC 8259 §8.1).",
                code="unsupported_charset",
            )
