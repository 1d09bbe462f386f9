"""`tidegate schema`: JSON Schema of the configuration, for editors.

The same models as `tidegate check`, seen from outside; nothing is said here that they don't say.
"""

from __future__ import annotations

import json
from argparse import RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from proxy.config import Configuration

if TYPE_CHECKING:
    from argparse import Namespace

    from proxy.commands.parsers import Subparsers

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON Schema of the configuration",
        description="Print the JSON Schema of the configuration file, for editors that complete and check YAML.",
        epilog="example:\n  tidegate schema > tidegate.schema.json\n"
        "  # first line of tidegate.yaml, for the YAML language server:\n"
        "  # yaml-language-server: $schema=./tidegate.schema.json",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)


def run(_arguments: Namespace) -> int:
    """Print the schema."""
    print(json.dumps(make_schema(), indent=2, ensure_ascii=False))
    return 0


def make_schema() -> dict[str, Any]:  # a JSON document
    """Return the schema of a configuration file."""
    return {"$schema": _DIALECT, **Configuration.model_json_schema(mode="validation")}
