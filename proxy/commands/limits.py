"""`tidegate limits`: every limit that binds a principal, and how it stands, laid out for people or as JSON.

Knows the command's arguments and the layout; what there is to tell is made by `proxy/standings`.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxy.commands.table import labelled, printable, section
from proxy.commands.wording import amount_words, as_json, duration_words, principal_words
from proxy.config_file import DEFAULT_NAME, default_path, load

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from proxy.commands.parsers import Subparsers

_MISUSED: Final = 2
_EXAMPLES: Final = """\
examples:
  tidegate limits --as key_alice                    all that binds requests with this key
  tidegate limits --project proj_research           what binds everybody in the project
  tidegate limits --project proj_research --user alice --json
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "limits",
        help="print the limits that bind somebody, and what is left of them",
        description="Print every limit that binds somebody's requests: used, held, left, and when it is reset. "
        "Asks the store of the gateway that runs, and takes nothing. Limits by user and by key are told of those who "
        "are named.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"the configuration (default: ./{DEFAULT_NAME})")
    parser.add_argument(
        "--as", dest="key", metavar="KEY", help="a key's id, or the key (the only key need not be named)"
    )
    parser.add_argument("--project", metavar="ID", help="somebody in this project, without a key")
    parser.add_argument("--user", metavar="ID", help="with --project: this user")
    parser.add_argument(
        "--end-user", type=_text, metavar="NAME", help="whom the requests name as `user` (default: nobody)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _text(argument: str) -> str:
    from proxy.queries import is_text  # noqa: PLC0415  other commands need none

    if not is_text(argument):
        raise ArgumentTypeError("it must be text in UTF-8")
    return argument


def run(arguments: Namespace) -> int:
    """Print the limits; 2 where nobody is meant, or the store cannot be asked."""
    from proxy.commands.live import look_live  # noqa: PLC0415  other commands need no store
    from proxy.errors import StoreUnavailable  # noqa: PLC0415
    from proxy.named_principal import CannotAnswer, find_principal  # noqa: PLC0415
    from proxy.standings import describe, standings_of  # noqa: PLC0415

    path = arguments.config or default_path()
    if path is None:
        return _misused(f"there is no ./{DEFAULT_NAME}; name the configuration with --config FILE")
    configuration = load(path)
    try:
        principal = find_principal(configuration, key=arguments.key, project=arguments.project, user=arguments.user)
        standings = standings_of(principal, configuration.rulebook(), arguments.end_user)
        rooms = asyncio.run(look_live(configuration, standings.limits))
    except CannotAnswer as error:
        return _misused(f"--{error.member}: {error.reason}")
    except StoreUnavailable as error:
        return _misused(error.message)
    told = describe(standings, rooms)
    print(as_json(told) if arguments.json else "\n".join(as_lines(told)))
    return 0


def _misused(reason: str) -> int:
    print(f"tidegate limits: {printable(reason)}", file=sys.stderr)
    return _MISUSED


def as_lines(told: dict[str, Any]) -> Iterator[str]:
    """Write for people what `describe` returns."""
    yield from labelled("whose", [principal_words(told["principal"])])
    yield from labelled("models", [", ".join(told["models"]) or "none"])
    yield from section("limits", _quotas(told["limits"]))
    if told["limits"]:
        yield from section("limits now", _levels(told["limits"]), right=(2, 3, 4))


def _quotas(limits: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    if limits:
        yield "limit", "quota", "models", "policy", "level"
    for each in limits:
        observed = ", observed only" if each["mode"] == "observe" else ""
        levels = ", ".join(each["levels"])
        yield each["name"], each["quota"] + observed, ", ".join(each["models"]), each["policy"], levels


def _levels(limits: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    yield "limit", "for", "used", "held", "left", "resets in"
    for each in limits:
        amounts = (amount_words(each, each[name]) for name in ("used", "held", "left"))
        yield each["name"], each["whose"], *amounts, duration_words(each["reset_seconds"])
