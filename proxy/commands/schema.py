"""`tidegate schema`: JSON Schema of the configuration, for editors, and the page of all parameters, for readers.

The same models as `tidegate check`, seen from outside; nothing is said here that they don't say.
"""

from __future__ import annotations

import json
from argparse import RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr

from proxy.config import Configuration
from proxy.parameter_reference import duration_text, parameters_schema, reference_page

if TYPE_CHECKING:
    from argparse import Namespace

    from proxy.commands.parsers import Subparsers

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_RULE: Final = "#/$defs/Rule"
_BOUNDS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""What pydantic calls the bounds of a union, and what JSON Schema calls them."""
_DURATION: Final = {"integer", "number", "string"}


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON Schema of the configuration, or the page of all parameters",
        description="Print the JSON Schema of the configuration file, for editors that complete and check YAML.",
        epilog="example:\n  tidegate schema > tidegate.schema.json\n"
        "  # first line of tidegate.yaml, for the YAML language server:\n"
        "  # yaml-language-server: $schema=./tidegate.schema.json\n"
        "  tidegate schema --parameters > PARAMETERS.md",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--parameters", action="store_true", help="print a Markdown page of all parameters and what a policy may say"
    )
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the schema, or the page."""
    print(reference_page() if arguments.parameters else schema_text(), end="")
    return 0


def schema_text() -> str:
    """Return the schema as it is printed, ending in a newline."""
    return json.dumps(make_schema(), indent=2, ensure_ascii=False) + "\n"


def make_schema() -> dict[str, Any]:  # a JSON document
    """Return the schema of a configuration file, in which known parameters have their own sentence and range."""
    schema = _corrected(Configuration.model_json_schema(mode="validation"))
    for name, field in Configuration.model_fields.items():
        if isinstance(field.default, SecretStr):  # a default is none
            schema["properties"][name]["default"] = field.default.get_secret_value()
    parameters = schema["$defs"]["Policy"]["properties"]["parameters"]
    parameters.update(parameters_schema(_RULE))
    return {"$schema": _DIALECT, **schema}


def _corrected(schema: Any) -> Any:  # noqa: ANN401  any part of a JSON document
    """Write bounds as JSON Schema has them, and default durations as a file would say them."""
    if isinstance(schema, list):
        return [_corrected(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    corrected = {_BOUNDS.get(name, name): _corrected(each) for name, each in schema.items()}
    kinds = {option.get("type") for option in corrected.get("anyOf", ()) if isinstance(option, dict)}
    if kinds == _DURATION and isinstance(corrected.get("default"), int):
        corrected["default"] = duration_text(corrected["default"])
    return corrected
