"""`tidegate worker`: what the supervisor starts; not for people, and therefore not listed.

Knows the two file descriptors that a worker inherits, and nothing of what they are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace

    from proxy.commands.parsers import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "worker", description="One worker process; the supervisor of `tidegate run` starts it."
    )
    parser.add_argument("channel", type=int, metavar="FD", help="socket to the supervisor")
    parser.add_argument("listening", type=int, metavar="FD", help="socket to accept clients on")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Serve until told to stop."""
    from proxy.worker import main  # noqa: PLC0415  other commands need no server

    main(arguments.channel, arguments.listening)
    return 0
