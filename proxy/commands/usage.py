"""`tidegate usage`: sums the usage records in `data_dir/usage.jsonl` by user, project, model or day.

Reads the file that the outbox drains into, and knows how its lines may be broken: a torn last line, a request booked
twice. It talks to no store and needs no running gateway.
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

from proxy.records import ORPHANED, USAGE_FILE_NAME

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from proxy.commands.parsers import Subparsers

_MICRODOLLARS_PER_USD: Final = 1_000_000
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


@dataclass(slots=True)
class Sum:
    """Totals of one group: counts, and money in whole micro-dollars."""

    requests: int = 0
    hits: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microdollars: int = 0
    saved_microdollars: int = 0

    def add(self, line: Line) -> None:
        """Count one request."""
        self.requests += 1
        self.hits += line.cache == "hit"
        self.input_tokens += line.input_tokens
        self.output_tokens += line.output_tokens
        self.cost_microdollars += line.cost_microdollars
        self.saved_microdollars += line.saved_microdollars


@dataclass(frozen=True, slots=True)
class Reading:
    """The lines of a file, each request once, and how many lines in its midst could not be read."""

    lines: tuple[Line, ...]
    unreadable: int


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
        type=_groups,
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
            reading = read_lines(file)
    except OSError as error:
        print(f"tidegate usage: {path}: {error.strerror}; point --data-dir at the gateway's data_dir", file=sys.stderr)
        return 2
    sums = sum_by(arguments.by, _since(reading.lines, arguments), arguments.time_zone)
    print(_as_json(arguments.by, sums) if arguments.json else _as_table(arguments.by, sums))
    if reading.unreadable:
        print(f"tidegate usage: {path}: {reading.unreadable} unreadable lines left out", file=sys.stderr)
    return 0


def _since(lines: Iterable[Line], arguments: Namespace) -> Iterator[Line]:
    since: datetime | None = arguments.since
    if since is None:
        return iter(lines)
    start = since if since.tzinfo else since.replace(tzinfo=arguments.time_zone)
    first = start.timestamp() * 1000
    return (line for line in lines if line.started_milliseconds >= first)


def read_lines(raw: Iterable[bytes]) -> Reading:
    """Read the lines of a usage file, each request once: of several records the last, but the truth before an orphan's.

    A last line without its end is still being written and is left out.
    """
    decode = msgspec.json.Decoder(Line).decode
    by_request: dict[str, Line] = {}
    unreadable = 0
    for text in raw:
        if not text.endswith(b"\n"):
            break
        try:
            line = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            unreadable += 1
            continue
        if line.outcome != ORPHANED or line.request_id not in by_request:
            by_request[line.request_id] = line
    return Reading(tuple(by_request.values()), unreadable)


def sum_by(groups: Sequence[str], lines: Iterable[Line], zone: tzinfo = UTC) -> dict[tuple[str, ...], Sum]:
    """Sum lines by the values of their groups, in alphabetical order; days are those of `zone`."""
    readers = [_GROUPS[group] for group in groups]
    sums: dict[tuple[str, ...], Sum] = {}
    for line in lines:
        sums.setdefault(tuple(reader(line, zone) for reader in readers), Sum()).add(line)
    return dict(sorted(sums.items()))


def _as_json(groups: Sequence[str], sums: dict[tuple[str, ...], Sum]) -> str:
    rows = [{**dict(zip(groups, values, strict=True)), **msgspec.to_builtins(total)} for values, total in sums.items()]
    return "\n".join(msgspec.json.encode(row).decode() for row in rows)


def _as_table(groups: Sequence[str], sums: dict[tuple[str, ...], Sum]) -> str:
    total = Sum()
    for each in sums.values():
        for name in Sum.__slots__:
            setattr(total, name, getattr(total, name) + getattr(each, name))
    titles = (*groups, "requests", "hits", "input tokens", "output tokens", "cost USD", "saved USD")
    rows = [titles, *((*map(_printable, values), *_cells(each)) for values, each in sums.items())]
    rows.append(("total", *("" for _ in groups[1:]), *_cells(total)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    return "\n".join(_aligned(row, widths, len(groups)) for row in rows)


def _cells(total: Sum) -> tuple[str, ...]:
    counts = (total.requests, total.hits, total.input_tokens, total.output_tokens)
    return (*map(str, counts), _usd(total.cost_microdollars), _usd(total.saved_microdollars))


def _usd(microdollars: int) -> str:
    return f"{microdollars // _MICRODOLLARS_PER_USD}.{microdollars % _MICRODOLLARS_PER_USD:06d}"


def _aligned(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = (
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _printable(text: str) -> str:
    """Show control characters as escapes, so that no name can steer a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _groups(text: str) -> tuple[str, ...]:
    groups = tuple(part.strip() for part in text.split(","))
    for group in groups:
        if group not in _GROUPS:
            raise ArgumentTypeError(f"{group!r} is none of {', '.join(_GROUPS)}")
    return tuple(dict.fromkeys(groups))


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
