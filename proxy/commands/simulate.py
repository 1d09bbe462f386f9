"""`tidegate simulate`: what a changed configuration would have done to the requests of a usage file.

Knows the command's arguments and the layout; what there is to tell is made by `simulation`.
"""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from proxy.commands.grouping import several_of
from proxy.commands.table import lay_out, usd
from proxy.config_file import load

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from policies.simulation import RecordedRequest
    from proxy.commands.parsers import Subparsers
    from proxy.simulation import Effect, Findings

_MISUSED = 2
_NONE = "–"
_GROUPS: Final[Mapping[str, Callable[[RecordedRequest], str]]] = {
    "project": lambda record: record.project,
    "user": lambda record: record.owner,
    "key": lambda record: record.key,
    "model": lambda record: record.model_asked or "-",
    "endpoint": lambda record: record.endpoint or "-",
}
_COUNTS: Final[Mapping[str, str]] = {
    "requests": "requests",
    "refused_by_rules": "refused by rules",
    "refused_by_limits": "by limits",
    "adjusted": "adjusted",
    "served_again": "served again",
    "tokens_not_spent": "unspent tokens",
}
_TITLES: Final = (*_COUNTS.values(), "unspent USD")
_DESCRIPTION = """\
Tell what a changed configuration would have done to requests that have been, from their usage
records: which would have been refused, by rules or by limits, which adjusted, and what would not
have been spent. Nothing is sent and nothing counted; no prompt is needed.

Unspent is all that a refused request took. Of another one it is output: at most candidates × token
ceiling is left, where that is less than it might have had, and output × candidates now / candidates
then where there are fewer, rounded up; the money is the record's cost, by the share of that output
in the price, rounded down. A hit, and a request that was refused, took nothing. "Served again" are
those that were refused then: what they would have taken nobody knows.

Limits are replayed from nothing taken, in the order of the starts: the worst case is held, and
settled to the charge at the end. One that was refused then and is admitted now is charged its worst
case. A limit with `on_exceed: wait` refuses here what it would have had wait. Limits with `mode:
observe` are told apart, by the requests that they would have refused.
"""
_EXAMPLES = """\
examples:
  tidegate simulate --policy changed.yaml --records data/usage.jsonl
  tidegate simulate --policy changed.yaml --records data/usage.jsonl --by model --json

What a record cannot tell (the value of a text, or of a member that the API does not name) is not
guessed: the part of the rule that asks for it is left out, and counted under "cannot be told".
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "simulate",
        help="tell what a changed policy would have done to recorded usage",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--policy", type=Path, required=True, metavar="FILE", help="the whole configuration, with the changed policies"
    )
    parser.add_argument(
        "--records", type=Path, required=True, metavar="FILE", help="usage records: data_dir/usage.jsonl of a gateway"
    )
    parser.add_argument(
        "--by",
        type=several_of(_GROUPS),
        default=("project", "user"),
        metavar="GROUPS",
        help=f"one or several of {', '.join(_GROUPS)}, joined by commas (default: project,user)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, money in micro-dollars")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print what would have been; 2 when there is no file to read. Raises ConfigurationError."""
    from policies.simulation import RecordedRequest  # noqa: PLC0415  other commands simulate nothing
    from proxy.simulation import simulate_all  # noqa: PLC0415  likewise
    from proxy.usage_file import read_lines, unreadable_words  # noqa: PLC0415

    configuration = load(arguments.policy)
    path: Path = arguments.records
    try:
        with path.open("rb") as file:
            reading = read_lines(file, RecordedRequest)
    except OSError as error:
        return _misused(path, str(error.strerror).lower())
    if reading.unreadable and not reading.lines:
        return _misused(path, "no line is a usage record")
    findings = simulate_all(configuration, reading.lines, [_GROUPS[group] for group in arguments.by])
    print(_as_json(arguments.by, findings) if arguments.json else "\n".join(_lines(arguments.by, findings)))
    if reading.unreadable:
        print(f"tidegate simulate: {path}: {unreadable_words(reading)}", file=sys.stderr)
    return 0


def _misused(path: Path, reason: str) -> int:
    print(f"tidegate simulate: {path}: {reason}; point --records at a usage.jsonl", file=sys.stderr)
    return _MISUSED


def _as_json(by: Sequence[str], findings: Findings) -> str:
    told: dict[str, Any] = {
        "total": findings.total,
        "groups": [
            {**dict(zip(by, group, strict=True)), **msgspec.to_builtins(effect)}
            for group, effect in findings.groups.items()
        ],
        "rules": [{**each._asdict(), "requests": count} for each, count in findings.rules.most_common()],
        "observed": [{**each._asdict(), "requests": count} for each, count in findings.observed.most_common()],
        "limits": [{**each._asdict(), "requests": count} for each, count in findings.limits.most_common()],
        "observed_limits": [
            {**each._asdict(), "requests": count} for each, count in findings.observed_limits.most_common()
        ],
        "cannot_be_told": [
            {**msgspec.to_builtins(each), "requests": count} for each, count in findings.untold.most_common()
        ],
        "not_in_the_configuration": {
            "organizations": dict(sorted(findings.organizations.items())),
            "keys": dict(sorted(findings.keys.items())),
            "projects": dict(sorted(findings.projects.items())),
        },
        "never_decided": findings.unread,
    }
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()


def _lines(by: Sequence[str], findings: Findings) -> Iterator[str]:
    """Write for people."""
    yield from _groups(by, findings)
    yield from _section("by rule", ("parameter", "rule", "policy"), findings.rules.most_common())
    yield from _section("observed only", ("parameter", "rule", "policy"), findings.observed.most_common())
    yield from _section("without room", ("limit", "policy"), findings.limits.most_common())
    yield from _section("without room, observed only", ("limit", "policy"), findings.observed_limits.most_common())
    untold = [((each.parameter, each.part, each.policy), count) for each, count in findings.untold.most_common()]
    yield from _section("cannot be told from records", ("parameter", "rule", "policy"), untold)
    absent = {"organization": findings.organizations, "key": findings.keys, "project": findings.projects}
    missing = [((what, each), count) for what, counts in absent.items() for each, count in sorted(counts.items())]
    yield from _section("not in the configuration", ("what", "id"), missing)
    if findings.unread:
        yield from ("", f"{findings.unread} more could not be read when they came: nothing was decided on them")


def _groups(by: Sequence[str], findings: Findings) -> Iterator[str]:
    rows = [
        (*by, *_TITLES),
        *((*group, *_cells(effect)) for group, effect in findings.groups.items()),
        ("total", *("" for _ in by[1:]), *_cells(findings.total)),
    ]
    # Names are never cut: whoever sums by them may want to copy one.
    yield from lay_out(rows, right=range(len(by), len(by) + len(_TITLES)), width=sys.maxsize)


def _cells(effect: Effect) -> tuple[str, ...]:
    return (*(str(int(getattr(effect, name))) for name in _COUNTS), usd(effect.microdollars_not_spent))


def _section(title: str, heads: Sequence[str], counted: Sequence[tuple[Sequence[str | None], int]]) -> Iterator[str]:
    if not counted:
        return
    yield from ("", title)
    rows = [(*heads, "requests"), *((*(cell or _NONE for cell in named), str(count)) for named, count in counted)]
    yield from lay_out(rows, right=(len(heads),), width=sys.maxsize, indent="  ")
