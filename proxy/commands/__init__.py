"""The command line: one module a command, each with `add_parser` and a `run` that returns the exit status.

Errors are lines on standard error that say what to do, and status 2. Knows no option of any command.
"""

from __future__ import annotations

import errno
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

from proxy import __version__
from proxy.commands import cache, check, demo, explain, keys, limits, run, schema, simulate, usage
from proxy.commands.table import printable
from proxy.config_file import ConfigurationError
from proxy.config_references import suggest

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = (run, demo, check, explain, simulate, limits, cache, keys, usage, schema)

_FAILED = 1
_MISUSED = 2
_INTERRUPTED = 130
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class CommandParser(ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line that says what was wrong and where to read on."""
        self.exit(_MISUSED, f"{self.prog}: {printable(message)}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; `arguments` are the process's own unless given."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = make_parser()
    _check_command(parser, given)
    parsed = parser.parse_args(given)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character is no reason to show nothing.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status: int = parsed.run(parsed)
        if sys.stdout is not None:
            sys.stdout.flush()
    except ConfigurationError as error:
        for line in error.lines:  # which repeat names as the file has them
            print(printable(line), file=sys.stderr)
        return _MISUSED
    except BrokenPipeError:
        # Whoever read the output has seen enough, as `head` does; nothing more can be written.
        sys.stdout = None
        return _FAILED
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        sys.stdout = None  # what is left in it would fail once more at exit
        print(f"tidegate: cannot write: {str(error.strerror).lower()}; make room or write elsewhere", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _check_command(parser: ArgumentParser, given: Sequence[str]) -> None:
    names = [command.__name__.rpartition(".")[2] for command in COMMANDS]
    wrong = next((word for word in given[:1] if not word.startswith("-") and word not in names), None)
    if wrong is not None:
        parser.error(f'unknown command "{wrong}"; {suggest(wrong, set(names))}')


def make_parser() -> ArgumentParser:
    """Return the parser of all commands."""
    parser = CommandParser(
        prog="tidegate",
        description="Gateway in front of model servers.",
        epilog="example:\n  tidegate check tidegate.yaml && tidegate run --config tidegate.yaml",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser
