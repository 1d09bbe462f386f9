"""`tidegate keys`: make API keys, and hash those that exist, for the configuration file.

The gateway knows keys by their hash only; a key is shown once, here. Knows no store.
"""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from getpass import getpass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from proxy.config_values import Identifier
from proxy.credentials import digest, new_admin_key, new_key

if TYPE_CHECKING:
    from argparse import Namespace

    from proxy.commands.parsers import Subparsers

_MISUSED = 2


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "keys",
        help="make API keys, and hash those that exist",
        description="Make API keys and hash them; the configuration holds hashes only.",
        epilog="example:\n  tidegate keys create --id key_alice --project proj_research --user alice",
        formatter_class=RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_create(verbs)
    _add_hash(verbs)


def _add_create(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "create",
        help="make a key, and the line for the configuration",
        description="Make a random key. It is shown once; the line below it goes under `keys` of the configuration.",
        epilog="example:\n  tidegate keys create --id key_alice --project proj_research --user alice\n"
        "  tidegate keys create --admin --id ops",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--id", default="key_new", type=identifier, help="id of the key (default: key_new)")
    parser.add_argument("--project", default="proj_default", type=identifier, help="project (default: proj_default)")
    owner = parser.add_mutually_exclusive_group()
    owner.add_argument("--user", type=identifier, help="user who owns the key (default: you)")
    owner.add_argument("--service-account", type=identifier, help="service account that owns the key")
    parser.add_argument("--admin", action="store_true", help="a key for the control plane")
    parser.set_defaults(run=create)


def _add_hash(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "hash",
        help="print the SHA-256 of a key",
        description="Print the SHA-256 of a key that is asked for, or read from standard input.",
        epilog='example:\n  printf %s "$KEY" | tidegate keys hash',
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=hash_key)


def identifier(text: str) -> str:
    """Return an id that the configuration takes; raises ValueError, which argparse tells."""
    try:
        return TypeAdapter[str](Identifier).validate_python(text)
    except ValidationError:
        raise ValueError(text) from None


def create(arguments: Namespace) -> int:
    """Print a new key, and what the configuration needs to know it by."""
    if arguments.admin:
        key = new_admin_key()
        place, line = "admin_keys", f"{{name: {arguments.id}, sha256: {digest(key)}}}"
    else:
        key = new_key()
        owner = f"service_account: {arguments.service_account}"
        if arguments.service_account is None:
            owner = f"user: {arguments.user or 'you'}"
        place = "keys"
        line = f"{{id: {arguments.id}, project: {arguments.project}, {owner}, sha256: {digest(key)}}}"
    print(f"key, shown this once: {key}\n\nunder {place}: in the configuration:\n  - {line}")
    return 0


def hash_key(_arguments: Namespace) -> int:
    """Print the hash of the key that is typed, or stands on standard input."""
    key = getpass("key: ") if sys.stdin.isatty() else sys.stdin.read()
    key = key.strip()
    if not key:
        print("tidegate keys hash: no key was given; pipe one in, or type it when asked", file=sys.stderr)
        return _MISUSED
    print(f"sha256: {digest(key)}")
    return 0
