"""Kinds of values that several settings share: addresses, credentials, identifiers, waits, paths.

Says what each must look like; what is read for `env:NAME` and `file:PATH` is the resolver's business, which whoever
reads a file hands in with the validation context.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypedDict, cast
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    SerializationInfo,
    ValidationInfo,
    WithJsonSchema,
)

from policies.settings import Items, Milliseconds
from proxy.store import addresses

if TYPE_CHECKING:
    from collections.abc import Callable

EMBEDDED = "embedded"
_MAX_PORT = 65_535
_SHORTEST_LEASE_MILLISECONDS = 1_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]")


class ReadingContext(TypedDict, total=False):
    """What whoever reads a file may add to validation.

    `resolve` replaces `env:NAME` and `file:PATH` by the secret, raising ValueError with what is missing;
    `directory` is what relative paths are relative to.
    """

    resolve: Callable[[str], str]
    directory: Path


class Address(NamedTuple):
    """Where a socket listens; an IPv6 host stands without brackets, port 0 means any free one."""

    host: str
    port: int


def read_address(text: str) -> Address:
    """Split `host:port`; raises ValueError saying what would be right."""
    host, colon, port = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        msg = f"{text!r} is no address: write host:port, such as 127.0.0.1:8080 or [::1]:8080"
        raise ValueError(msg)
    return Address(host.strip("[]"), int(port))


def _check_address(text: str) -> str:
    read_address(text)
    return text


def _context(info: ValidationInfo) -> ReadingContext:
    return cast("ReadingContext", info.context or {})


def _resolve(value: object, info: ValidationInfo) -> object:
    resolve = _context(info).get("resolve")
    return resolve(value) if resolve is not None and isinstance(value, str) else value


def _serialize_secret(value: SecretStr, info: SerializationInfo) -> str:
    """Keep a secret hidden, except on the way to the gateway's own workers (`Configuration.resolved_json`)."""
    return value.get_secret_value() if info.context == {"reveal": True} else str(value)


def _check_sha256(text: str) -> str:
    # What stands here by mistake is most likely the key itself: it is not repeated.
    if _SHA256.fullmatch(text.lower()) is None:
        has = f"these are {len(text)} characters"
        msg = f"no SHA-256: write 64 hexadecimal digits ({has}); `tidegate keys hash` prints them"
        raise ValueError(msg)
    return text.lower()


def _split(text: str) -> SplitResult:
    """Split an address; raises ValueError that does not repeat it, unlike urllib's own."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        msg = "no address: the host or the port is malformed"
        raise ValueError(msg) from None
    return parts


def _check_base_url(text: str) -> str:
    parts = _split(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or re.search(r"\s", text):
        msg = "no address of a server: write http:// or https:// and a host, such as https://api.openai.com/v1"
        raise ValueError(msg)
    if parts.username is not None or parts.password is not None:
        msg = "must not hold credentials: they belong in api_key"
        raise ValueError(msg)
    if parts.query or parts.fragment:
        msg = "must end with the path: leave out what follows the ? or #"
        raise ValueError(msg)
    return text.rstrip("/")


def _check_store(value: SecretStr) -> SecretStr:
    if value.get_secret_value() != EMBEDDED:
        addresses.parse(value.get_secret_value())
    return value


def _check_credential(value: SecretStr) -> SecretStr:
    # It goes out in a header; it is not repeated.
    if re.fullmatch(r"[!-~]+", value.get_secret_value()) is None:
        msg = "no credential: it must not be empty, and hold printable ASCII characters without spaces"
        raise ValueError(msg)
    return value


def _resolve_path(path: Path, info: ValidationInfo) -> Path:
    directory = _context(info).get("directory")
    return path if directory is None else directory / path


def _at_least(minimum: int) -> Callable[[int], int]:
    def check(milliseconds: int) -> int:
        if milliseconds < minimum:
            msg = f"must be {minimum}ms or longer"
            raise ValueError(msg)
        return milliseconds

    return check


Wait = Annotated[Milliseconds, AfterValidator(_at_least(1))]
Lease = Annotated[Milliseconds, AfterValidator(_at_least(_SHORTEST_LEASE_MILLISECONDS))]
Listen = Annotated[str, AfterValidator(_check_address)]
Secret = Annotated[
    SecretStr,
    BeforeValidator(_resolve, json_schema_input_type=str),
    PlainSerializer(_serialize_secret, return_type=str, when_used="json"),
]
Credential = Annotated[Secret, AfterValidator(_check_credential), WithJsonSchema({"type": "string"}, mode="validation")]
StoreAddress = Annotated[Secret, AfterValidator(_check_store), WithJsonSchema({"type": "string"}, mode="validation")]
Sha256 = Annotated[str, AfterValidator(_check_sha256)]
# Ids become parts of the store's keys and of headers: no spaces, braces, colons or slashes.
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}$")]
# Names of models may hold slashes, spaces and any letter, but nothing that breaks a line.
ModelName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,256}$")]
ModelPatterns = Annotated[Items[str], Field(min_length=1)]
BaseUrl = Annotated[str, BeforeValidator(_resolve, json_schema_input_type=str), AfterValidator(_check_base_url)]
FilePath = Annotated[Path, Field(strict=False), AfterValidator(_resolve_path)]
