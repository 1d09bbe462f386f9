"""`tidegate check`: whether a configuration can be used, and what is odd about it.

Prints no secret. What makes a configuration wrong is known by `config` and `config_references`, what makes it odd by
`config_advice`.
"""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.commands.table import printable
from proxy.config_advice import advise
from proxy.config_file import load

if TYPE_CHECKING:
    from argparse import Namespace

    from proxy.commands.parsers import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "check",
        help="tell whether a configuration can be used",
        description="Read a configuration, with the environment and the files it names, and tell all that is wrong.",
        epilog="example:\n  tidegate check tidegate.yaml\n\nexit status: 0 usable, 2 not",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the configuration")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print what the configuration holds, and advice; raises ConfigurationError with all that is wrong."""
    configuration = load(arguments.file)
    for advice in advise(configuration):
        print(printable(f"{arguments.file}: {advice}"))
    counts = ("upstreams", "models", "policies", "projects", "keys")
    held = ", ".join(f"{name} {len(getattr(configuration, name))}" for name in counts)
    print(f"{arguments.file}: usable; version {configuration.version}; {held}")
    return 0
