"""`tidegate usage`: sums the usage records in `data_dir/usage.jsonl` by user, project, model or day.

How the file is read is known by `usage_file`. The command talks to no store and needs no running gateway.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.structs import replace

from policies.usage import Provided  # noqa: TC001  the decoder reads the annotation
from proxy.commands.grouping import several_of
from proxy.commands.table import lay_out, usd
from proxy.records import USAGE_FILE_NAME
from proxy.usage_file import read_lines, unreadable_words

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from proxy.commands.parsers import Subparsers

_EXAMPLES: Final = """\
examples:
  tidegate usage                                    by user, all that is recorded in ./data
  tidegate usage --by project,model --since 2026-08-01
  tidegate usage --by day --time-zone Europe/Berlin --json
"""


class Line(msgspec.Struct, frozen=True):
    """What of a usage record is summed; members that are not named here are skipped."""

    request_id: str
    started_milliseconds: int
    organization: str = ""
    project: str = ""
    owner: str = ""
    key: str = ""
    endpoint: str | None = None
    model: str | None = None
    outcome: str = ""
    cache: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microdollars: int = 0
    saved_microdollars: int = 0
    provided: tuple[Provided, ...] = ()

    def seen_from(self, provided: Provided) -> Line:
        """Return the line as it would stand had it been sent by one who provided for it."""
        return replace(self, project=provided.project, owner=provided.owner, key=provided.key)


@dataclass(slots=True)
class Sum:
    """Totals of one group: counts, and money in whole micro-dollars.

    `saved_microdollars` is what stored answers saved the group's requests, `provided_microdollars` what answers that it
    had paid for saved anybody's, its own included.
    """

    requests: int = 0
    hits: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microdollars: int = 0
    saved_microdollars: int = 0
    provided_microdollars: int = 0

    def add(self, line: Line) -> None:
        """Count one request."""
        self.requests += 1
        self.hits += line.cache == "hit"
        self.input_tokens += line.input_tokens
        self.output_tokens += line.output_tokens
        self.cost_microdollars += line.cost_microdollars
        self.saved_microdollars += line.saved_microdollars


_GROUPS: Final[dict[str, Callable[[Line, tzinfo], str]]] = {
    "user": lambda line, _zone: line.owner,
    "project": lambda line, _zone: line.project,
    "key": lambda line, _zone: line.key,
    "model": lambda line, _zone: line.model or "-",
    "endpoint": lambda line, _zone: line.endpoint or "-",
    "day": lambda line, zone: datetime.fromtimestamp(line.started_milliseconds / 1000, zone).date().isoformat(),
}


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "usage",
        help="sum the usage records by user, project, model and day",
        description="Sum the usage records by user, project, key, model, endpoint or day.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the gateway's data_dir (default: data)")
    parser.add_argument(
        "--by",
        type=several_of(_GROUPS),
        default=("user",),
        metavar="GROUPS",
        help=f"one or several of {', '.join(_GROUPS)}, joined by commas (default: user)",
    )
    parser.add_argument(
        "--since", type=_moment, metavar="TIME", help="leave out earlier ones: a date, or date and time"
    )
    parser.add_argument("--time-zone", type=_zone, default=UTC, metavar="NAME", help="whose days (default: UTC)")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a group, money in micro-dollars")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the sums; 2 when there is no file to read."""
    path: Path = arguments.data_dir / USAGE_FILE_NAME
    try:
        with path.open("rb") as file:
            reading = read_lines(file, Line)
    except OSError as error:
        print(f"tidegate usage: {path}: {error.strerror}; point --data-dir at the gateway's data_dir", file=sys.stderr)
        return 2
    sums = sum_by(arguments.by, _since(reading.lines, arguments), arguments.time_zone)
    print(_as_json(arguments.by, sums) if arguments.json else _as_table(arguments.by, sums))
    if reading.unreadable:
        print(f"tidegate usage: {path}: {unreadable_words(reading)}", file=sys.stderr)
    return 0


def _since(lines: Iterable[Line], arguments: Namespace) -> Iterator[Line]:
    since: datetime | None = arguments.since
    if since is None:
        return iter(lines)
    start = since if since.tzinfo else since.replace(tzinfo=arguments.time_zone)
    first = start.timestamp() * 1000
    return (line for line in lines if line.started_milliseconds >= first)


def sum_by(groups: Sequence[str], lines: Iterable[Line], zone: tzinfo = UTC) -> dict[tuple[str, ...], Sum]:
    """Sum lines by the values of their groups, in alphabetical order; days are those of `zone`.

    What was provided counts for who provided it, on the day and for the model of the request that was served with it.
    """
    readers = [_GROUPS[group] for group in groups]
    sums: dict[tuple[str, ...], Sum] = {}

    def sum_of(line: Line) -> Sum:
        return sums.setdefault(tuple(reader(line, zone) for reader in readers), Sum())

    for line in lines:
        sum_of(line).add(line)
        for provided in line.provided:
            sum_of(line.seen_from(provided)).provided_microdollars += provided.microdollars
    return dict(sorted(sums.items()))


def _as_json(groups: Sequence[str], sums: dict[tuple[str, ...], Sum]) -> str:
    rows = [{**dict(zip(groups, values, strict=True)), **msgspec.to_builtins(total)} for values, total in sums.items()]
    return "\n".join(msgspec.json.encode(row).decode() for row in rows)


def _as_table(groups: Sequence[str], sums: dict[tuple[str, ...], Sum]) -> str:
    total = Sum()
    for each in sums.values():
        for name in Sum.__slots__:
            setattr(total, name, getattr(total, name) + getattr(each, name))
    titles = (*groups, "requests", "hits", "input tokens", "output tokens", "cost USD", "saved USD", "provided USD")
    rows = [titles, *((*values, *_cells(each)) for values, each in sums.items())]
    rows.append(("total", *("" for _ in groups[1:]), *_cells(total)))
    # Names are never cut: whoever sums by them may want to copy one.
    return "\n".join(lay_out(rows, right=range(len(groups), len(titles)), width=sys.maxsize))


def _cells(total: Sum) -> tuple[str, ...]:
    counts = (total.requests, total.hits, total.input_tokens, total.output_tokens)
    money = (total.cost_microdollars, total.saved_microdollars, total.provided_microdollars)
    return (*map(str, counts), *map(usd, money))


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no time; write 2026-08-01 or 2026-08-01T12:00") from None


def _zone(text: str) -> ZoneInfo:
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ArgumentTypeError(f"{text!r} is no time zone; write one such as Europe/Berlin") from None
