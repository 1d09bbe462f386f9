"""What commands ask about a request: its body, where it is sent, and who sends it; as arguments, and as a `Question`.

Knows what standard input and files do; nothing of what is answered.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from proxy.explanation import Question

STANDARD_INPUT: Final = "-"


class CannotRead(Exception):  # noqa: N818  the message says what to give instead
    """A file that a command was given cannot be read."""

    def __init__(self, name: str, error: OSError, expected: str) -> None:
        """Say why, and what was expected in its place."""
        said = (error.strerror or type(error).__name__).lower()
        super().__init__(f"{name} cannot be read: {said}; give {expected}, or - for standard input")


def add_question(parser: ArgumentParser) -> None:
    """Add the arguments that say which request is meant, and whose."""
    parser.add_argument("request", metavar="REQUEST", help="file with the request's JSON body, or - for standard input")
    parser.add_argument(
        "--as",
        dest="key",
        metavar="KEY",
        help="a key's id, or the key: it sends the request (the only key need not be named)",
    )
    parser.add_argument("--project", metavar="ID", help="somebody in this project sends it, without a key")
    parser.add_argument("--user", metavar="ID", help="with --project: this user sends it")
    parser.add_argument("--path", metavar="PATH", help="path that it is sent to (default: /v1/completions)")
    parser.add_argument("--cache-control", metavar="VALUE", help="the request's Cache-Control header")


def read_question(arguments: Namespace, most_bytes: int) -> Question:
    """Return what is asked; of a body above `most_bytes` only enough is read to tell that it is. Raises CannotRead."""
    from proxy.explanation import DEFAULT_PATH, Question  # noqa: PLC0415  other commands need no decision

    try:
        body = _body(arguments.request, most_bytes)
    except OSError as error:
        raise CannotRead(arguments.request, error, "a file with a JSON body") from error
    return Question(
        body=body,
        path=DEFAULT_PATH if arguments.path is None else arguments.path,
        key=arguments.key,
        project=arguments.project,
        user=arguments.user,
        cache_control=arguments.cache_control,
    )


def _body(name: str, most_bytes: int) -> bytes:
    if name == STANDARD_INPUT:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        return sys.stdin.buffer.read(most_bytes + 1)
    with Path(name).open("rb") as file:
        return file.read(most_bytes + 1)
