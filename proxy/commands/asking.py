"""What commands that ask a configuration's gateway have in common: reading the configuration, telling, misuse.

Whatever is in the way of an answer is one line on standard error and status 2. Knows no command and no question.
"""

from __future__ import annotations

import os
import pwd
import sys
from argparse import SUPPRESS, ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxy.commands.questions import CannotRead
from proxy.commands.table import printable
from proxy.commands.wording import as_json
from proxy.config_file import DEFAULT_NAME, default_path, load

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Mapping

    from proxy.config import Configuration

MISUSED: Final = 2


def add_config(parser: ArgumentParser) -> None:
    """Add the argument that names the configuration; one that is not given has the value that it had before."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=SUPPRESS,
        help=f"the configuration (default: ./{DEFAULT_NAME})",
    )


def add_json(parser: ArgumentParser) -> None:
    """Add the argument that asks for JSON; one that is not given has the value that it had before."""
    parser.add_argument("--json", action="store_true", default=SUPPRESS, help="print JSON")


def text(argument: str) -> str:
    """Return an argument that is text, for argparse."""
    from proxy.queries import is_text  # noqa: PLC0415  other commands need none

    if not is_text(argument):
        raise ArgumentTypeError("it must be text in UTF-8")
    return argument


def tell(
    arguments: Namespace,
    program: str,
    ask: Callable[[Configuration], dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[str]],
    options: Mapping[str, str],
) -> int:
    """Ask by the configuration and print what is told, as `ask_configured` does."""
    told = ask_configured(arguments, program, ask, options)
    if told is None:
        return MISUSED
    print(as_json(told) if arguments.json else "\n".join(lines(told)))
    return 0


def ask_configured(
    arguments: Namespace,
    program: str,
    ask: Callable[[Configuration], dict[str, Any]],
    options: Mapping[str, str],
) -> dict[str, Any] | None:
    """Ask by the configuration that is named; None where something is in the way of that, which was told.

    `options` are how options are spelled whose members of a question are called otherwise. Raises ConfigurationError.
    """
    from proxy.errors import StoreUnavailable  # noqa: PLC0415  other commands need no store
    from proxy.named_principal import CannotAnswer  # noqa: PLC0415

    path = arguments.config or default_path()
    if path is None:
        misused(program, f"there is no ./{DEFAULT_NAME}; name the configuration with --config FILE")
        return None
    configuration = load(path)
    try:
        return ask(configuration)
    except CannotAnswer as error:
        misused(program, f"{options.get(error.member, f'--{error.member}')}: {error.reason}")
    except StoreUnavailable as error:
        misused(program, error.message)
    except CannotRead as error:
        misused(program, str(error))
    return None


def misused(program: str, reason: str) -> int:
    """Say in one line what would be right, and return the exit status."""
    print(f"{program}: {printable(reason)}", file=sys.stderr)
    return MISUSED


def operator() -> str:
    """Return the operating system's name of whoever runs the command, or their number where they have none."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
