"""`tidegate limits`: every limit that binds a principal, and how it stands, for people or as JSON; and their reset.

Knows the command's arguments and the layout; what there is to tell is made by `proxy/standings` and `proxy/resets`.
"""

from __future__ import annotations

import asyncio
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any, Final

from proxy.commands.asking import add_config, add_json, operator, tell, text
from proxy.commands.table import labelled, section
from proxy.commands.wording import amount_words, duration_words, mode_words, principal_words

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from proxy.commands.parsers import Subparsers
    from proxy.config import Configuration
    from proxy.standings import Standings

_EXAMPLES: Final = """\
examples:
  tidegate limits --as key_alice                    all that binds requests with this key
  tidegate limits --project proj_research           what binds everybody in the project
  tidegate limits --project proj_research --user alice --json
  tidegate limits reset --as key_alice --reason "billed twice"
"""
_RESET_EXAMPLES: Final = """\
examples:
  tidegate limits reset --as key_alice --reason "billed twice"
  tidegate limits reset --project proj_research --user alice --limit tokens-per-day-by-user
"""
_OPTIONS: Final = {"limits": "--limit"}
"""How options are spelled whose members of a question are called otherwise."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "limits",
        help="print the limits that bind somebody, and what is left of them; reset them",
        description="Print every limit that binds somebody's requests: used, held, left, and when it is reset. "
        "Asks the store of the gateway that runs, and takes nothing. Limits by user and by key are told of those who "
        "are named.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    _add_who(parser)
    parser.set_defaults(run=run, config=None, key=None, project=None, user=None, end_user=None, json=False)
    verbs = parser.add_subparsers(title="verbs", metavar="[VERB]", required=False)
    _add_reset(verbs)


def _add_reset(verbs: Subparsers) -> None:
    # A default here would replace what was said before the verb.
    parser = verbs.add_parser(
        "reset",
        help="have limits forget what is used of them",
        description="Set to 0 what is used of the limits that bind somebody's requests, or of those that are named. "
        "What requests under way hold stays held, and they are charged when they end. Leaves an audit record.",
        epilog=_RESET_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
        argument_default=SUPPRESS,
    )
    _add_who(parser)
    parser.add_argument(
        "--limit",
        dest="limits",
        action="append",
        type=text,
        metavar="NAME",
        help="only the limit of this name, as `tidegate limits` prints it; may be given several times",
    )
    parser.add_argument("--reason", type=text, metavar="TEXT", help="why, for the audit record")
    parser.set_defaults(run=reset)


def _add_who(parser: ArgumentParser) -> None:
    """Add the arguments that say whose limits are meant; one that is not given has the value that it had before."""
    add_config(parser)
    parser.add_argument(
        "--as",
        dest="key",
        metavar="KEY",
        default=SUPPRESS,
        help="a key's id, or the key (the only key need not be named)",
    )
    parser.add_argument("--project", metavar="ID", default=SUPPRESS, help="somebody in this project, without a key")
    parser.add_argument("--user", metavar="ID", default=SUPPRESS, help="with --project: this user")
    parser.add_argument(
        "--end-user",
        type=text,
        metavar="NAME",
        default=SUPPRESS,
        help="whom the requests name as `user` (default: nobody)",
    )
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Print the limits; 2 where nobody is meant, or the store cannot be asked."""
    from proxy.commands.live import look_live  # noqa: PLC0415  other commands need no store
    from proxy.standings import describe  # noqa: PLC0415

    def look(configuration: Configuration) -> dict[str, Any]:
        standings = _standings(arguments, configuration)
        return describe(standings, asyncio.run(look_live(configuration, standings.limits)))

    return tell(arguments, "tidegate limits", look, as_lines, _OPTIONS)


def reset(arguments: Namespace) -> int:
    """Reset limits and print which; 2 where there is none that is meant, or the store cannot be asked."""
    from proxy.commands.live import reset_live  # noqa: PLC0415  other commands need no store
    from proxy.resets import describe_reset, event_of, order_reset  # noqa: PLC0415
    from proxy.store.audit import Actor  # noqa: PLC0415

    def do(configuration: Configuration) -> dict[str, Any]:
        standings = _standings(arguments, configuration)
        names, reason = getattr(arguments, "limits", None), getattr(arguments, "reason", None)
        order = order_reset(standings, names, end_user=arguments.end_user, reason=reason)
        event = event_of(order, Actor("session", operator()))
        return describe_reset(order, asyncio.run(reset_live(configuration, order.standings.limits, event)))

    return tell(arguments, "tidegate limits reset", do, reset_lines, _OPTIONS)


def _standings(arguments: Namespace, configuration: Configuration) -> Standings:
    from proxy.named_principal import find_principal  # noqa: PLC0415
    from proxy.standings import standings_of  # noqa: PLC0415

    principal = find_principal(configuration, key=arguments.key, project=arguments.project, user=arguments.user)
    return standings_of(principal, configuration.rulebook(), arguments.end_user)


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
        levels = ", ".join(each["levels"])
        yield each["name"], each["quota"] + mode_words(each), ", ".join(each["models"]), each["policy"], levels


def _levels(limits: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    yield "limit", "for", "used", "held", "left", "resets in"
    for each in limits:
        amounts = (amount_words(each, each[name]) for name in ("used", "held", "left"))
        yield each["name"], each["whose"], *amounts, duration_words(each["reset_seconds"])


def reset_lines(told: dict[str, Any]) -> Iterator[str]:
    """Write for people what `describe_reset` returns."""
    yield from labelled("whose", [principal_words(told["principal"])])
    if told["end_user"] is not None:
        yield from labelled("end user", [told["end_user"]])
    if told["reason"] is not None:
        yield from labelled("reason", [told["reason"]])
    yield from labelled("audit log", [told["audit_log"]])
    yield from section("reset", _resets(told["limits"]), right=(2, 3, 4, 5))


def _resets(limits: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    yield "limit", "for", "used before", "used", "held", "left"
    for each in limits:
        amounts = [each["before"]["used"], *(each["after"][name] for name in ("used", "held", "left"))]
        yield each["name"], each["whose"], *(amount_words(each, amount) for amount in amounts)
