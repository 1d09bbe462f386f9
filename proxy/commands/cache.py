"""`tidegate cache`: purge cached answers, look at what stands there for a request, and how the cache does; and warm it.

Knows the arguments; what there is to tell is made by `proxy/purges`, `proxy/cached_entries` and `proxy/cache_report`,
and laid out by `cache_layout`. How it is warmed is in `warm`.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any, Final

from proxy.commands.asking import MISUSED, add_config, add_json, ask_configured, misused, operator, tell, text
from proxy.commands.questions import add_question, read_question
from proxy.commands.warm import add_warm
from proxy.commands.wording import as_json

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from proxy.commands.parsers import Subparsers
    from proxy.config import Configuration

_NOT_SERVED: Final = 1
_EXAMPLES: Final = """\
examples:
  tidegate cache purge --model smollm2 --reason "new weights"
  tidegate cache get request.json --as key_alice
  tidegate cache status
  tidegate cache warm requests.jsonl --api-key env:TIDEGATE_API_KEY
"""
_PURGE_EXAMPLES: Final = """\
examples:
  tidegate cache purge --model smollm2 --reason "new weights"
  tidegate cache purge --key key_alice --key key_bob
  tidegate cache purge --entry 9f2c…64-hexadecimal-digits…
  tidegate cache purge --all
"""
_GET_EXAMPLES: Final = """\
examples:
  tidegate cache get request.json --as key_alice
  tidegate cache get chat.json --path /v1/chat/completions --project proj_research --json
  echo '{"model": "m", "prompt": "Hi", "temperature": 0}' | tidegate cache get - --body

exit status: 0 it would be served from the cache, 1 it would not, 2 misused
"""
_STATUS_EXAMPLES: Final = """\
examples:
  tidegate cache status
  tidegate cache status --admin-url http://10.0.0.7:8081 --json
"""
_SELECTED: Final = ("models", "projects", "keys", "entries")
_OPTIONS: Final = {"models": "--model", "projects": "--project", "keys": "--key", "entries": "--entry"}
"""How options are spelled whose members of an order are called otherwise."""
_WHAT: Final = "say what: --model NAME, --project ID, --key ID, --entry KEY, or --all"


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "cache",
        help="purge, look into, and warm the cache",
        description="Purge cached answers, look at what the cache has for a request, see how it does, or warm it.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_purge(verbs)
    _add_get(verbs)
    _add_status(verbs)
    add_warm(verbs)


def _add_purge(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "purge",
        help="have cached answers served no more",
        description="Have cached answers served no more: those for a model, those that a project or an API key paid "
        "for, single ones, or all; of several options, what any of them names. It holds in every worker within a "
        "second, and for answers that are being fetched. Leaves an audit record.",
        epilog=_PURGE_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_config(parser)
    _add_names(parser, "--model", "models", "NAME", "answers for this model, by its name or an alias")
    _add_names(parser, "--project", "projects", "ID", "answers that this project's requests paid for")
    _add_names(parser, "--key", "keys", "ID", "answers that requests with this API key paid for")
    _add_names(
        parser, "--entry", "entries", "KEY", "the answer under this cache key, as `tidegate cache get` prints it"
    )
    parser.add_argument("--all", action="store_true", help="every answer")
    parser.add_argument("--reason", type=text, metavar="TEXT", help="why, for the audit record")
    add_json(parser)
    parser.set_defaults(run=purge, config=None, json=False)


def _add_names(parser: ArgumentParser, option: str, member: str, metavar: str, said: str) -> None:
    parser.add_argument(
        option,
        dest=member,
        action="append",
        type=text,
        default=[],
        metavar=metavar,
        help=f"{said}; may be given several times",
    )


def _add_get(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "get",
        help="print what the cache has for a request",
        description="Print the cache key of a request, or why it has none, and the answer that stands there: whether "
        "it would be served, how old it is, who answered it and who paid. Nothing is sent and nothing counted.",
        epilog=_GET_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_config(parser)
    add_question(parser)
    parser.add_argument("--body", action="store_true", help="print the stored body itself, and nothing else")
    add_json(parser)
    parser.set_defaults(run=get, config=None, json=False)


def _add_status(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "status",
        help="print fingerprints, purges, and how the cache does",
        description="Print the fingerprints that deployments show, live and retired, what was purged, and how full the "
        "cache store is; and what the running workers have counted: look-ups, their memory, and how often models "
        "answered otherwise than the cache did. The latter is asked of the control plane's metrics, which need the "
        "configuration's metrics_key where there is one.",
        epilog=_STATUS_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_config(parser)
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        default=SUPPRESS,
        help="where the control plane answers (default: the configuration's admin_listen)",
    )
    add_json(parser)
    parser.set_defaults(run=status, config=None, json=False, admin_url=None)


def purge(arguments: Namespace) -> int:
    """Purge and print what; 2 where nothing is named, or something that there is not, or the store is away."""
    from proxy.commands.cache_layout import purge_lines  # noqa: PLC0415  other commands need no store
    from proxy.commands.live import purge_live  # noqa: PLC0415
    from proxy.purges import describe_purge, event_of, order_purge  # noqa: PLC0415
    from proxy.store.audit import Actor  # noqa: PLC0415

    program = "tidegate cache purge"
    named = {member: getattr(arguments, member) for member in _SELECTED}
    if not arguments.all and not any(named.values()):
        return misused(program, _WHAT)

    def do(configuration: Configuration) -> dict[str, Any]:
        order = order_purge(configuration, everything=arguments.all, reason=arguments.reason, **named)
        event = event_of(order, Actor("session", operator()))
        return describe_purge(order, asyncio.run(purge_live(configuration, order.selection.scopes, event)))

    return tell(arguments, program, do, purge_lines, _OPTIONS)


def get(arguments: Namespace) -> int:
    """Print what stands in the cache for a request; 1 where it would not be served from there."""
    from proxy.cached_entries import HIT, describe_entries, plan_of  # noqa: PLC0415  other commands need no decision
    from proxy.commands.cache_layout import bodies, entry_lines  # noqa: PLC0415
    from proxy.commands.live import entries_live  # noqa: PLC0415
    from proxy.explanation import explain  # noqa: PLC0415

    def ask(configuration: Configuration) -> dict[str, Any]:
        explained = explain(configuration, read_question(arguments, configuration.bounds.body_bytes))
        plan = plan_of(explained)
        entries = () if plan is None else asyncio.run(entries_live(configuration, plan))
        return describe_entries(explained, entries, with_body=arguments.body)

    told = ask_configured(arguments, "tidegate cache get", ask, {"as": "--as"})
    if told is None:
        return MISUSED
    if arguments.json:
        print(as_json(told))
    elif arguments.body:
        sys.stdout.writelines(bodies(told, is_for_people=sys.stdout.isatty()))
    else:
        print("\n".join(entry_lines(told)))
    return 0 if told["verdict"] == HIT else _NOT_SERVED


def status(arguments: Namespace) -> int:
    """Print how the cache does; 2 where the store is away. What only the workers know may be missing."""
    from proxy.cache_report import describe_report  # noqa: PLC0415  other commands need no store
    from proxy.commands.cache_layout import status_lines  # noqa: PLC0415
    from proxy.commands.live import report_live  # noqa: PLC0415
    from proxy.commands.metrics_access import NoMetrics, fetch_metrics  # noqa: PLC0415

    def ask(configuration: Configuration) -> dict[str, Any]:
        report = asyncio.run(report_live(configuration))
        page, missing = None, None
        try:
            page = fetch_metrics(configuration, arguments.admin_url)
        except NoMetrics as error:
            missing = str(error)
        return {**describe_report(report, page), "workers_unknown": missing}

    return tell(arguments, "tidegate cache status", ask, status_lines, {})
