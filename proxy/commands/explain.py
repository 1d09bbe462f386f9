"""`tidegate explain`: everything that would happen to a request, laid out for people or as JSON.

Knows the command's arguments and the layout; what there is to tell is made by `explanation`.
"""

from __future__ import annotations

import json
import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.config_file import load

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from proxy.commands.parsers import Subparsers

_REFUSED = 1
_MISUSED = 2
_DEFAULT_PATH = "/v1/completions"
_STANDARD_INPUT = "-"
_MICRODOLLARS = 1_000_000
_LABEL_WIDTH = 12
_INDENT = "\n" + " " * _LABEL_WIDTH


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "explain",
        help="print what would happen to a request",
        description="Print what would happen to a request: adjustments, worst case, limits, cache and deployments. "
        "Nothing is sent and nothing counted.",
        epilog='example:\n  echo \'{"model": "m", "prompt": "Hi", "n": 9}\' | '
        "tidegate explain tidegate.yaml - --key key_alice\n\nexit status: 0 served, 1 refused, 2 misused",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the configuration")
    parser.add_argument("request", metavar="REQUEST", help="file with the request's JSON body, or - for standard input")
    parser.add_argument("--key", metavar="ID", help="id of the key that sends it (may be left out where there is one)")
    parser.add_argument("--path", default=_DEFAULT_PATH, help="path it is sent to (default: %(default)s)")
    parser.add_argument("--cache-control", metavar="VALUE", help="the request's Cache-Control header")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Print the decision on a request; 1 where it is refused."""
    from proxy.explanation import CannotExplain, describe, explain  # noqa: PLC0415  other commands need no decision

    try:
        explained = explain(
            load(arguments.config),
            _body(arguments.request),
            key=arguments.key,
            path=arguments.path,
            cache_control=arguments.cache_control,
        )
    except (CannotExplain, OSError) as error:
        print(f"tidegate explain: {_reason(error)}", file=sys.stderr)
        return _MISUSED
    told = describe(explained)
    print(json.dumps(told, indent=2, ensure_ascii=False) if arguments.json else "\n".join(_lines(told)))
    return _REFUSED if told["verdict"] == "refused" else 0


def _body(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == _STANDARD_INPUT else Path(name).read_bytes()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        said = (error.strerror or type(error).__name__).lower()
        return f"{error.filename} cannot be read: {said}; give a file with a JSON body, or - for standard input"
    return str(error)


def _lines(told: dict[str, Any]) -> Iterator[str]:
    """Write for people what `describe` returns."""
    who = told["principal"]
    levels = ", ".join(who["policies"]) or "none"
    yield _line("request", f"POST {told['path']}")
    yield _line("principal", f"key {who['key']} of {who['owner']} in {who['project']}; policies: {levels}")
    if told["verdict"] == "refused":
        error = told["error"]
        yield _line("refused", f"{told['status']} {error['code'] or error['type']}: {error['message']}")
        return
    yield _line("model", _model_text(told["model"]))
    yield _line("adjusted", _INDENT.join(map(_adjustment_text, told["adjustments"])) or "nothing")
    yield _line("advised", _INDENT.join(map(_advisory_text, told["advisories"])) or "nothing")
    yield _line("effective", json.dumps(told["effective_request"], ensure_ascii=False))
    yield _line("worst case", _worst_text(told["worst_case"]))
    yield _line("limits", _INDENT.join(map(_limit_text, told["limits"])) or "none binds")
    yield _line("cache", _cache_text(told["cache"]))
    yield _line("deployments", _deployments_text(told["deployments"]))


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{text}"


def _model_text(model: dict[str, Any]) -> str:
    return model["name"] if model["asked"] == model["name"] else f"{model['name']} (asked for as {model['asked']})"


def _adjustment_text(adjustment: dict[str, Any]) -> str:
    before, after = (json.dumps(adjustment[side], ensure_ascii=False) for side in ("from", "to"))
    origin = f", policy {adjustment['policy']}" if adjustment["policy"] else ""
    return f"{adjustment['parameter']}: {before} → {after} ({adjustment['rule']}{origin})"


def _advisory_text(advisory: dict[str, Any]) -> str:
    return f"{advisory['advisory']}: {advisory['advice']}"


def _worst_text(worst: dict[str, Any]) -> str:
    output = f"{worst['output_tokens']} output" if worst["is_bounded"] else "unbounded output"
    return f"{worst['input_tokens']} input + {output} tokens, {worst['cost_microdollars'] / _MICRODOLLARS:.6f} USD"


def _limit_text(limit: dict[str, Any]) -> str:
    window = f" per {limit['per']}" if limit["per"] else ""
    scope = ", ".join(f"{level} {value}" for level, value in limit["scope"].items())
    quota = f"{limit['limit']} {limit['of']}{window} by {scope}"
    fits = "" if limit["asks"] <= limit["limit"] else "; this can never fit"
    return f"{limit['name']}: {quota}; asks {limit['asks']} (policy {limit['policy']}){fits}"


def _cache_text(cache: dict[str, Any]) -> str:
    if cache["verdict"] == "bypass":
        return f"bypass: {cache['reason']}"
    notes = [
        *(() if cache["look_up"] else ("not looked up",)),
        *(() if cache["store"] else ("not stored",)),
        *(("only from the cache",) if cache["only_if_cached"] else ()),
    ]
    return "; ".join((f"keyed: {cache['reason']}, for {cache['ttl_seconds']} s", *notes, f"key {cache['key']}"))


def _deployments_text(deployments: list[dict[str, Any]]) -> str:
    rows = (
        f"{position}. {each['name']} at {each['upstream']} (weight {each['weight']})"
        for position, each in enumerate(deployments, 1)
    )
    drawn = "the first is drawn by weight for each request" if len(deployments) > 1 else ""
    return _INDENT.join((*rows, drawn)).rstrip()
