"""`tidegate explain`: everything that would happen to a request, laid out for people or as JSON.

Knows the command's arguments and the layout; what there is to tell is made by `explanation`.
"""

from __future__ import annotations

import asyncio
from argparse import RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

import msgspec

from proxy.commands.asking import add_config, add_json, misused
from proxy.commands.questions import CannotRead, add_question, read_question
from proxy.commands.table import INDENT, LABEL_WIDTH, WIDTH, cut, labelled, printable, section, wrapped
from proxy.commands.wording import amount_words, as_json, duration_words, principal_words
from proxy.config_file import DEFAULT_NAME, default_path, load

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from proxy.commands.parsers import Subparsers

_PROGRAM = "tidegate explain"
_REFUSED = 1
_EXAMPLES = """\
examples:
  tidegate explain request.json --as key_alice
  echo '{"model": "m", "prompt": "Hi", "n": 9}' | tidegate explain - --project proj_research --live

exit status: 0 served, 1 refused, 2 misused
"""

_NONE = "–"
_FIRST = {
    "weighted": "The first is drawn by its share for each request; the others are tried when it fails.",
    "least_outstanding": "The first has the fewest requests under way for its weight; the others are tried when it "
    "fails.",
    "latency": "The first is the faster of two that are drawn by weight; the others are tried when it fails.",
}
_FITS = {True: "yes", False: "perhaps not", None: _NONE}
_SMALL_LAST = "Those that the request may not fit come after those that it fits, the largest window first."


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "explain",
        help="print what would happen to a request",
        description="Print what would happen to a request, and why: adjustments, worst case, limits, cache and route. "
        "Nothing is sent and nothing counted.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_config(parser)
    add_question(parser)
    parser.add_argument(
        "--live", action="store_true", help="look how the running gateway's limits stand; takes nothing"
    )
    add_json(parser)
    parser.set_defaults(run=run, config=None, json=False)


def run(arguments: Namespace) -> int:
    """Print the decision on a request; 1 where it is refused."""
    from proxy.commands.live import look_live  # noqa: PLC0415  other commands need no decision
    from proxy.errors import StoreUnavailable  # noqa: PLC0415
    from proxy.explanation import describe, explain  # noqa: PLC0415
    from proxy.named_principal import CannotAnswer  # noqa: PLC0415

    path = arguments.config or default_path()
    if path is None:
        return misused(_PROGRAM, f"there is no ./{DEFAULT_NAME}; name the configuration with --config FILE")
    configuration = load(path)
    try:
        explained = explain(configuration, read_question(arguments, configuration.bounds.body_bytes))
        rooms = asyncio.run(look_live(configuration, explained.limits)) if arguments.live else None
    except CannotAnswer as error:
        return misused(_PROGRAM, f"--{error.member}: {error.reason}")
    except StoreUnavailable as error:
        return misused(_PROGRAM, f"--live: {error.message}")
    except CannotRead as error:
        return misused(_PROGRAM, str(error))
    told = describe(explained, rooms)
    print(as_json(told) if arguments.json else "\n".join(as_lines(told)))
    return _REFUSED if told["verdict"] == "refused" else 0


def as_lines(told: dict[str, Any]) -> Iterator[str]:
    """Write for people what `describe` returns."""
    yield from _head(told)
    if "model" not in told:  # refused before anything came of it
        return
    yield from section("effective request", ((name, _json(value)) for name, value in told["effective_request"].items()))
    yield from section("adjustments", _adjustments(told["adjustments"]))
    if told["observed"]:
        yield from section("observed: what rules in mode observe would have done", _adjustments(told["observed"]))
    if told["advisories"]:
        yield from ("", "advice")
        for each in told["advisories"]:
            yield from wrapped(f"{each['advisory']}: {each['advice']}", INDENT)
    yield from section("worst case", _worst_case(told["worst_case"]), right=range(7))
    yield from section("limits", _limits(told["limits"]), right=(3,))
    if any("now" in limit for limit in told["limits"]):
        yield from section("limits now", _limits_now(told["limits"]), right=(1, 2, 3, 4))
    yield ""
    yield from labelled("cache", _cache(told["cache"]))
    yield from section("route", _route(told["deployments"]), right=(0, 4, 5))
    for sentence in (*_order(told["deployments"], told["route"]), *_route_settings(told["route"], told["model"])):
        yield from wrapped(sentence, INDENT)
    for words, named in (("Added, and kept from the client", "adds"), ("Left out", "leaves_out")):
        yield from _sent_otherwise(words, {each["upstream"]: each[named] for each in told["deployments"]})


def _head(told: dict[str, Any]) -> Iterator[str]:
    who = told["principal"]
    levels = (f"{applied['policy']} ({applied['level']})" for applied in who["policies"])
    yield from labelled("request", [cut(f"POST {printable(told['path'])}", WIDTH - LABEL_WIDTH)])
    yield from labelled("sender", [principal_words(who)])
    yield from labelled("policies", [", ".join(levels) or "none"])
    yield from labelled("verdict", _verdict(told))
    if "model" in told:
        model = told["model"]
        asked = "" if model["asked"] == model["name"] else f" (asked for as {model['asked']})"
        yield from labelled("model", [model["name"] + asked])


def _verdict(told: dict[str, Any]) -> Iterator[str]:
    if told["verdict"] == "served":
        yield "served if the cache holds an answer, and else refused" if told["only_from_cache"] else "served"
        return
    error = told["error"]
    yield f"refused: {told['status']} {error['code'] or error['type']}"
    yield error["message"]
    by = told.get("refused_by")
    if by is not None:
        yield f"by {_cause(by)} of {', '.join(map(_policy, by['policies']))}"


def _cause(by: dict[str, Any]) -> str:
    if "limit" in by:
        return f"the limit {by['limit']}"
    return f"the rule on {by['parameter']}" if by["parameter"] else "the rules"


def _policy(applied: dict[str, Any]) -> str:
    levels = f" ({_level(applied)})" if applied["levels"] else ""
    return f"policy {applied['policy']}{levels}"


def _level(told: dict[str, Any]) -> str:
    return ", ".join(told["levels"]) or _NONE


def _adjustments(adjustments: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    if adjustments:
        yield "parameter", "from", "to", "rule", "policy", "level"
    for each in adjustments:
        before, after = (_NONE if each[side] is None else _json(each[side]) for side in ("from", "to"))
        yield each["parameter"], before, after, each["rule"], each["policy"] or _NONE, _level(each)


def _worst_case(worst: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield "prompts", "candidates", "ceiling", "input tokens", "output tokens", "total tokens", "usd"
    ceiling = "open" if worst["token_ceiling"] is None else str(worst["token_ceiling"])
    bound = (str(worst["output_tokens"]), str(worst["total_tokens"]), f"{worst['usd']:.6f}")
    ends = bound if worst["is_bounded"] else ("unbounded",) * len(bound)
    yield str(worst["prompts"]), str(worst["candidates"]), ceiling, str(worst["input_tokens"]), *ends


def _limits(limits: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    if limits:
        yield "limit", "quota", "for", "asks", "fits", "policy"
    for each in limits:
        fits = _with_mode(each, "yes" if each["can_ever_fit"] else "never")
        yield each["name"], each["quota"], each["whose"], amount_words(each, each["asks"]), fits, each["policy"]


def _limits_now(limits: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    yield "limit", "used", "held", "left", "resets in", "fits"
    for each in limits:
        now = each["now"]
        amounts = (amount_words(each, now[name]) for name in ("used", "held", "left"))
        yield each["name"], *amounts, duration_words(now["reset_seconds"]), _with_mode(each, _fits(now))


def _with_mode(limit: dict[str, Any], fits: str) -> str:
    """Mark a limit that is in nobody's way."""
    return f"{fits}, observed" if limit["mode"] == "observe" else fits


def _fits(now: dict[str, Any]) -> str:
    if now["fits"]:
        return "now"
    return "never" if now["fits_in_seconds"] is None else f"in {duration_words(now['fits_in_seconds'])}"


def _cache(cache: dict[str, Any]) -> Iterator[str]:
    source = f"scope {cache['scope']}, {_policy(cache)}"
    if cache["verdict"] == "bypass":
        yield f"bypass: {cache['reason']}; {source}"
    else:
        yield f"keyed: {cache['reason']}, kept for {duration_words(cache['ttl_seconds'])}; {source}"
        yield f"key {cache['key']}"
        if cache["items"]:
            yield f"its {len(cache['items'])} items each under a key of their own (--json names them)"
        if not cache["look_up"]:
            yield "not looked up: the request says no-cache"
        if not cache["store"]:
            yield "not stored: the request says no-store"
        if cache["max_age_seconds"] is not None:
            yield f"nothing older than {duration_words(cache['max_age_seconds'])}: the request says max-age"
    if cache["only_if_cached"]:
        yield "never upstream: the request says only-if-cached"


def _route(deployments: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    has_windows = any("fits" in each for each in deployments)
    yield "try", "deployment", "upstream", "kind", "weight", "share", *(["fits"] if has_windows else [])
    for position, each in enumerate(deployments, 1):
        share = f"{each['share']:.0%}" if "share" in each else _NONE
        fits = [_FITS[each.get("fits")]] if has_windows else []
        yield str(position), each["name"], each["upstream"], each["kind"], str(each["weight"]), share, *fits


def _order(deployments: Sequence[dict[str, Any]], route: dict[str, Any]) -> Iterator[str]:
    if len(deployments) == 1:
        return
    yield _FIRST[route.get("routing", "weighted")]
    if any(each.get("fits") is False for each in deployments):
        yield _SMALL_LAST


def _route_settings(route: dict[str, Any], model: dict[str, str]) -> Iterator[str]:
    """Tell in a sentence each what else the model's settings mean for the request."""
    if "hedge_after_seconds" in route:
        yield f"A second one is asked too when no answer began within {route['hedge_after_seconds']:g} s."
    if "shadow" in route:
        shadow = route["shadow"]
        compared = ", and what it generates is compared" if shadow["compare"] else ""
        place = f"{shadow['name']} at {shadow['upstream']}"
        yield f"A copy of {100 * shadow['share']:g}% of such requests goes to {place}{compared}."
    if "auth" in route:
        yield "The client's own credential goes upstream."
    if "response_model" in route:
        yield f"Answers name the model as it was asked for: {model['asked']}."


def _sent_otherwise(words: str, by_upstream: dict[str, list[str]]) -> Iterator[str]:
    """Tell in a line what the request to some upstreams has more or less than the effective one."""
    names = dict.fromkeys(name for names in by_upstream.values() for name in names)
    for name in names:
        upstreams = ", ".join(upstream for upstream, names in by_upstream.items() if name in names)
        yield from wrapped(f"{words}: {name}, for {upstreams}.", INDENT)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
