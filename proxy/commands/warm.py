"""`tidegate cache warm`: send a file's requests through the data plane, so that the cache has their answers.

Knows the arguments, the file and how people are told; sending and counting is `proxy/warming`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxy.commands.asking import MISUSED, add_config, add_json, misused
from proxy.commands.progress import Progress
from proxy.commands.questions import STANDARD_INPUT, CannotRead
from proxy.commands.table import INDENT, labelled, wrapped
from proxy.commands.wording import as_json
from proxy.config_file import DEFAULT_NAME, default_path, load, read_secret
from proxy.listening import is_web_address, own_url

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator

    from proxy.commands.parsers import Subparsers
    from proxy.warming import Failed, Line, Tally, Warming

_PROGRAM: Final = "tidegate cache warm"
_KEY_VARIABLE: Final = "env:TIDEGATE_API_KEY"
_DEFAULT_PATH: Final = "/v1/completions"
_LOOK_SECONDS: Final = 0.1
_FAILED: Final = 1
_INTERRUPTED: Final = 130
_EXPECTED: Final = "a file with one JSON request a line"
_EXAMPLES: Final = """\
examples:
  TIDEGATE_API_KEY=… tidegate cache warm requests.jsonl
  tidegate cache warm batch.jsonl --url http://10.0.0.7:8080 --api-key file:/run/secrets/key
  tidegate cache warm chats.jsonl --path /v1/chat/completions --concurrency 16

exit status: 0 all were answered, 1 some failed, 2 misused, 130 interrupted
"""


def add_warm(verbs: Subparsers) -> None:
    """Add the verb's arguments."""
    parser = verbs.add_parser(
        "warm",
        help="send a file of requests through, so that the cache has their answers",
        description="Send every request of a file through the gateway like any client's, so that the cache has its "
        "answer. They are served, limited, charged and recorded under the API key that sends them. FILE has one JSON "
        "body a line, or lines as in OpenAI's batch files, which name their paths. Who has no room in a limit waits as "
        "long as told.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="file with one JSON request a line, or - for standard input")
    add_config(parser)
    parser.add_argument(
        "--url", type=_url, metavar="URL", help="where clients are served (default: the configuration's listen)"
    )
    parser.add_argument(
        "--api-key",
        default=_KEY_VARIABLE,
        metavar="KEY",
        help="an API key of the gateway: env:NAME, file:PATH or itself (default: %(default)s)",
    )
    parser.add_argument(
        "--concurrency",
        type=_count,
        metavar="N",
        help="so many requests at once (default: 4)",
    )
    parser.add_argument(
        "--path",
        type=_path,
        default=_DEFAULT_PATH,
        metavar="PATH",
        help="path that requests are sent to whose lines name none (default: %(default)s)",
    )
    add_json(parser)
    parser.set_defaults(run=warm, config=None, json=False, url=None, concurrency=None)


def warm(arguments: Namespace) -> int:
    """Send the requests and print what became of them; 1 where some failed, 2 where none could be sent."""
    from proxy.warming import CannotWarm, Warming, read_lines  # noqa: PLC0415  other commands send nothing

    given = {} if arguments.concurrency is None else {"at_once": arguments.concurrency}
    stopped = None
    with ExitStack() as opened:
        try:
            raw, total = _open(arguments.file, opened)
            warming = Warming(_find_url(arguments), _read_key(arguments.api_key), **given)
            progress = opened.enter_context(Progress("warming", total))
            asyncio.run(_send(warming, read_lines(raw, arguments.path), progress))
        except (_Misuse, CannotRead) as error:
            return misused(_PROGRAM, str(error))
        except OSError as error:
            stopped = str(CannotRead(arguments.file, error, _EXPECTED))
        except CannotWarm as error:
            stopped = str(error)
        except KeyboardInterrupt:
            stopped = "interrupted"
    return _conclude(arguments, warming.tally, total, stopped)


def _conclude(arguments: Namespace, tally: Tally, total: int, stopped: str | None) -> int:
    if stopped is not None and not tally.done:
        misused(_PROGRAM, stopped)
    elif not tally.done:
        misused(_PROGRAM, f"{arguments.file} has no request; give {_EXPECTED}")
    else:
        told = {"requests": total, **tally.describe(), "stopped": stopped}
        print(as_json(told) if arguments.json else "\n".join(warm_lines(told)))
    if stopped == "interrupted":
        return _INTERRUPTED
    if not tally.done:
        return MISUSED
    return _FAILED if tally.failed or stopped else 0


class _Misuse(Exception):  # noqa: N818  the message says what would be right
    """The gateway or the key is not known from what was given."""


def _find_url(arguments: Namespace) -> str:
    """Return where clients are served: as told, else as configured, else as the default has it."""
    if arguments.url is not None:
        return str(arguments.url)
    path = arguments.config or default_path()
    if path is None:
        raise _Misuse(f"there is no ./{DEFAULT_NAME}; say where the gateway serves with --url, or --config FILE")
    address = load(path).listen_address
    if not address.port:
        raise _Misuse("listen takes any free port; say which it is with --url")
    return own_url(*address)


def _read_key(text: str) -> str:
    from proxy.warming import is_key  # noqa: PLC0415  other commands send nothing

    try:
        key = read_secret(text)
    except ValueError as error:
        raise _Misuse(f"--api-key: {error}; give an API key of the gateway as env:NAME or file:PATH") from None
    if not is_key(key):
        raise _Misuse("--api-key: no key: it must hold printable ASCII characters without spaces, and not be empty")
    return key


def _open(name: str, opened: ExitStack) -> tuple[Iterable[bytes], int]:
    """Return the lines of a file, and how many hold something; pipes are read to their end. Raises CannotRead."""
    lines: Iterable[bytes]
    try:
        if name == STANDARD_INPUT:
            lines = [] if sys.stdin is None else sys.stdin.buffer.readlines()
            return lines, _count_filled(lines)
        file = opened.enter_context(Path(name).open("rb"))  # noqa: SIM115  it is one
        lines = file if file.seekable() else file.readlines()
        total = _count_filled(lines)
        if lines is file:
            file.seek(0)
    except OSError as error:
        raise CannotRead(name, error, _EXPECTED) from error
    return lines, total


def _count_filled(lines: Iterable[bytes]) -> int:
    return sum(1 for line in lines if line.strip())


async def _send(warming: Warming, lines: Iterable[Line | Failed], progress: Progress) -> None:
    """Send all, and show how far that has come. Raises as `Warming.send` does."""
    sending = asyncio.create_task(warming.send(lines))
    try:
        while not sending.done():
            await asyncio.wait({sending}, timeout=_LOOK_SECONDS)
            progress.show(warming.tally.done, _words(warming.tally))
        await sending
    finally:
        sending.cancel()
        await asyncio.wait({sending})


def _words(tally: Tally) -> str:
    counts = {
        "stored": tally.stored,
        "there before": tally.known,
        "bypassed": tally.bypassed.total(),
        "failed": tally.failed,
    }
    wait = tally.waiting_until - time.monotonic()
    waits = f"; no room for {wait:.0f} s" if wait >= 1 else ""
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) + waits


def warm_lines(told: dict[str, Any]) -> Iterator[str]:
    """Write for people what became of the requests."""
    stopped = "" if told["stopped"] is None else f"; {told['stopped']}"
    yield from labelled("answered", [f"{told['done']} of {told['requests']}{stopped}"])
    yield from labelled("stored", [str(told["stored"])])
    yield from labelled("there before", [str(told["known"])])
    if told["streamed"]:
        yield from labelled("streamed", [f"{told['streamed']}: of streams it is not told whether they were stored"])
    if told["unstored"]:
        yield from labelled("not stored", [f"{told['unstored']}: not complete, too large, or the cache store is away"])
    if told["bypassed"]:
        reasons = ", ".join(f"{reason} {count}" for reason, count in told["bypassed"].items())
        yield from labelled("bypassed", [f"{sum(told['bypassed'].values())}: {reasons}"])
    yield from labelled("failed", [str(told["failed"])])
    for each in told["errors"]:
        yield from wrapped(f"line {each['line']}: {each['reason']}", INDENT)


def _url(text: str) -> str:
    if not is_web_address(text):
        raise ArgumentTypeError(f"{text!r} is no address; write one such as http://127.0.0.1:8080")
    return text.rstrip("/").removesuffix("/v1")


def _path(text: str) -> str:
    from proxy.warming import is_path  # noqa: PLC0415  other commands send nothing

    if not is_path(text):
        raise ArgumentTypeError(f"{text!r} is no path; write one such as {_DEFAULT_PATH}")
    return text


def _count(text: str) -> int:
    from proxy.warming import MOST_AT_ONCE  # noqa: PLC0415  other commands send nothing

    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_AT_ONCE):
        raise ArgumentTypeError(f"{text!r} is no number from 1 to {MOST_AT_ONCE}")
    return int(text)
