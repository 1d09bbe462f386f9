"""SPEC §4 restated for whole requests: the parameters that are more than one number, unknown members, and models.

Gives the verdict of all levels on a valid request. Shares no code with the gateway.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from oracle_limits import holds_output
from oracle_quantities import COMPUTED
from oracle_rules import (
    Bounds,
    Rule,
    Spoken,
    Verdict,
    exact,
    is_one_of,
    rule_bounds,
    rule_meant,
    rule_one,
    rules_on,
)
from oracle_validity import ABSENT, CEILINGS, DEFAULTS, MANY, MOST_STOPS, NAMED, OWN_CEILINGS
from second_reading import Number, as_python, differences, number, same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oracle_rules import Level

PSEUDONYM = "a pseudonym"
NEEDS = {
    "top_logprobs": "logprobs",
    "tool_choice": "tools",
    "parallel_tool_calls": "tools",
    "max_tool_calls": "tools",
    "function_call": "functions",
}
"""What says nothing without another parameter; streams are in the verdict itself."""


@dataclass(frozen=True)
class Served:
    """A model as the configuration writes it."""

    deployment: str
    token_ceiling: str = "max_completion_tokens"  # noqa: S105  a parameter's name
    max_output_tokens: int | None = None


def rule_pair(verdict: Verdict, fields: Mapping[str, Any], levels: Sequence[Level]) -> None:
    """`n` and `best_of` of completions: each within its bounds, and together valid (SPEC §4)."""
    spoken = {name: Spoken(tuple(rules_on(levels, name))) for name in ("n", "best_of")}
    n, best_of = fields.get("n"), fields.get("best_of")
    alone = Verdict()
    rule_one(alone, "n", n, spoken["n"], 1)
    rule_one(alone, "best_of", best_of, spoken["best_of"], None)
    meant = n if n is not ABSENT else number(1)
    if best_of is ABSENT and "best_of" not in alone.wanted:  # it counts as n, so its cap binds n too
        most = spoken["best_of"].bounds.most
        # it may count as what `n` is forced to, or becomes when it is dropped
        is_other = bool(spoken["n"].saying("force") or spoken["n"].saying("forbid"))
        is_capped = n is not ABSENT and not is_other and most is not None and n.value > exact(most)
        (rule_bounds if is_capped else rule_meant)(alone, "best_of", meant, spoken["best_of"].bounds)
        alone.wanted.pop("best_of", None)
        if {"best_of"} & {*alone.must, *alone.may}:
            alone.perhaps("n", spoken["best_of"].rules)
    own = _written_for(spoken["n"].bounds, 1)
    if spoken["n"].saying("forbid") and as_python(n) in own:  # what policy itself writes is nothing to object to
        alone.may |= {each: alone.must.pop(each) for each in {"n"} & set(alone.must)}
    verdict.must.update(alone.must)
    verdict.may.update(alone.may)
    verdict.kinds |= alone.kinds
    both = Bounds(spoken["n"].bounds.rules + spoken["best_of"].bounds.rules)
    touches = bool(alone.wanted) or (best_of is ABSENT and not spoken["best_of"].bounds.hold(meant))
    if not touches:
        return
    for name in ("n", "best_of"):
        verdict.want(name, "bounded together with the other", lambda _: True)
        if both.least is not None or both.listed is not None or spoken[name].saying("force"):
            verdict.perhaps(name, [*spoken["n"].rules, *spoken["best_of"].rules])  # no valid pair may be left


def complain_of_pair(asked: Mapping[str, Any], sent: Mapping[str, Any], levels: Sequence[Level]) -> list[str]:
    """Say what is wrong with the pair that was forwarded."""
    n, best_of = (as_python(sent.get(name)) for name in ("n", "best_of"))
    if sent.get("stream") is True and best_of is not None and best_of != (n or 1):
        return [f"best_of {best_of} and n {n} cannot be streamed"]
    if best_of is not None and best_of < (n or 1):
        return [f"best_of {best_of} is below n {n}"]
    spoken = {name: Spoken(tuple(rules_on(levels, name))) for name in ("n", "best_of")}
    meant = {"n": n or 1, "best_of": best_of or n or 1}
    found = [
        f"{name} is {meant[name]}, outside its bounds"
        for name, each in spoken.items()
        if not each.saying("forbid") and not each.saying("force") and not each.bounds.hold(number(meant[name]))
    ]
    if any(each.saying(word) for each in spoken.values() for word in ("force", "forbid", "default", "allowed", "min")):
        return found
    caps = {name: each.bounds.most for name, each in spoken.items()}
    wanted_best_of = as_python(asked.get("best_of"))
    wanted_n = as_python(asked.get("n"))
    if wanted_best_of is not None:
        wanted_best_of = min(wanted_best_of, caps["best_of"] or wanted_best_of)
    cap = min([each for each in (caps["n"], caps["best_of"], wanted_best_of) if each is not None], default=None)
    if wanted_n is not None or (cap is not None and cap < 1):
        wanted_n = min(wanted_n or 1, cap or wanted_n)
    if n != wanted_n:
        found.append(f"n is {n} instead of {wanted_n}")
    if best_of != wanted_best_of and not (sent.get("stream") is True and best_of == n):
        found.append(f"best_of is {best_of} instead of {wanted_best_of}")
    return found


def rule_ceilings(
    verdict: Verdict, fields: Mapping[str, Any], levels: Sequence[Level], endpoint: str, served: Served
) -> None:
    """Bind the token ceiling under every name by rules, and write an open one that a limit counts on (SPEC §4, §5)."""
    written = {
        "completions": "max_tokens",
        "chat/completions": served.token_ceiling,
        "responses": "max_output_tokens",
    }[endpoint]
    _rule_ceilings(verdict, fields, levels, endpoint, written)
    own = {name for name in OWN_CEILINGS[endpoint] if fields.get(name) is not ABSENT}
    if not holds_output(levels, endpoint) or own - verdict.wanted.keys():
        return
    verdict.kinds.add("limits")
    words, is_right = verdict.wanted.get(written, ("open", lambda sent: sent is ABSENT))
    is_assumed = _assumed(endpoint)
    verdict.want(
        written, f"{words}, or written since a limit counts on it", lambda sent: is_right(sent) or is_assumed(sent)
    )


def _assumed(endpoint: str) -> Callable[[Any], bool]:
    """Return a test of what is written for a ceiling that nobody speaks of: the API's default, or the model's."""
    default = DEFAULTS[endpoint].get("max_tokens")
    return lambda sent: (
        isinstance(sent, Number)
        and sent.is_integer
        and (sent.value == default if default is not None else sent.value > 0)
    )


def _rule_ceilings(
    verdict: Verdict, fields: Mapping[str, Any], levels: Sequence[Level], endpoint: str, written: str
) -> None:
    """Bind the token ceiling under every name by the rules on `max_tokens`, and an open one (SPEC §4)."""
    spoken = Spoken(tuple(rules_on(levels, "max_tokens")))
    if not spoken.rules:
        _rule_open_worst_case(verdict, fields, levels, endpoint, written)
        return
    bounds, given = spoken.bounds, [name for name in CEILINGS if fields.get(name) is not ABSENT]
    for name in given:
        if name not in NAMED[endpoint] and not MANY.takes(fields[name]):  # −1 may mean no end
            verdict.perhaps(name, spoken.rules)
            verdict.want(
                name,
                "a ceiling within bounds",
                lambda sent: (sent is ABSENT and bool(spoken.saying("forbid"))) or bounds.hold(sent),
            )
        else:
            rule_one(verdict, name, fields[name], spoken, None)
    verdict.kinds.add("ceiling")
    if spoken.saying("forbid"):
        for name in {*CEILINGS} - verdict.wanted.keys():
            rule_one(verdict, name, fields.get(name), spoken, None)
        is_bounded = Bounds(tuple(rules_on(levels, "worst_case_tokens"))).most is not None
        if bounds.is_empty:
            verdict.perhaps(written, bounds.rules)
        elif bounds.rules or is_bounded:  # of another level; what it writes may stand there, even if it was sent
            own = _written_for(bounds, DEFAULTS[endpoint].get("max_tokens"))
            given = fields.get(written)
            if as_python(given) in own:
                verdict.may |= {each: verdict.must.pop(each) for each in {written} & set(verdict.must)}
            verdict.want(
                written,
                "forbidden, or written",
                lambda sent: (
                    sent is ABSENT or (bounds.hold(sent) and (not same(sent, given) or as_python(sent) in own))
                ),
            )
    elif not OWN_CEILINGS[endpoint] & set(given):
        _rule_open(verdict, written, spoken, endpoint, is_elsewhere=bool(given))


def _written_for(bounds: Bounds, default: int | None) -> list[float]:
    """Return the values that may be written for a ceiling that nobody sent."""
    ends = [bounds.least, bounds.most, default, *(bounds.listed or ())]
    return [each for each in ends if each is not None]


def _rule_open_worst_case(
    verdict: Verdict, fields: Mapping[str, Any], levels: Sequence[Level], endpoint: str, written: str
) -> None:
    """Have the ceiling written that a bounded worst case counts on (SPEC §4, §5): the API's, or the model's."""
    is_given = any(fields.get(name) is not ABSENT for name in OWN_CEILINGS[endpoint])
    if is_given or Bounds(tuple(rules_on(levels, "worst_case_tokens"))).most is None:
        return
    verdict.want(written, "open, so written", _assumed(endpoint))


def _rule_open(verdict: Verdict, written: str, spoken: Spoken, endpoint: str, *, is_elsewhere: bool) -> None:
    """Have an open ceiling written; one that is given under a name the API does not know may be enough."""
    bounds = spoken.bounds
    forced, defaulted = spoken.values("force"), spoken.values("default")
    if forced or defaulted:
        values, outside = forced or defaulted, [each for each in forced or defaulted if not bounds.hold(each)]
        if outside:
            verdict.perhaps(written, spoken.rules)
        verdict.want(
            written,
            f"one of {values}, written",
            lambda sent: (
                (is_elsewhere and sent is ABSENT)
                or (is_one_of(values)(sent) and not outside)
                or bool(outside and (bounds.hold(sent) or is_one_of(forced)(sent)))
            ),
        )
    elif bounds.rules:
        if bounds.is_empty:
            verdict.refuse(written, bounds.rules)
        default = DEFAULTS[endpoint].get("max_tokens")
        if default is not None and any(rule.rejects for rule in bounds.broken_by(number(default))):
            verdict.perhaps(written, bounds.rules)
        has_most = bounds.most is not None
        verdict.want(
            written,
            "open, so written",
            lambda sent: (
                (sent is ABSENT and (is_elsewhere or not has_most))
                or (isinstance(sent, Number) and sent.is_integer and bounds.hold(sent))
            ),
        )


def rule_stop(verdict: Verdict, value: Any, spoken: Spoken) -> None:  # noqa: ANN401
    """Inject stops; past four in all the request is refused, or the client's last ones go."""
    added = [each for rule in spoken.saying("add") for each in rule.says["add"]]
    if not added or spoken.saying("forbid") or spoken.saying("force"):
        rule_one(verdict, "stop", value, spoken, None)
        if added:
            verdict.perhaps("stop", spoken.rules)
            verdict.want("stop", "anything", lambda _: True)
        return
    verdict.kinds.add("add")
    if value is ABSENT:
        value = next(iter(spoken.values("default")), ABSENT)
    own = [value] if isinstance(value, str) else list(value or [])
    missing = list(dict.fromkeys(each for each in added if each not in own))
    if not missing and not spoken.saying("default"):
        return
    room = MOST_STOPS - len(dict.fromkeys(added))
    if len(own) + len(missing) > MOST_STOPS:
        if all(rule.rejects for rule in spoken.saying("add")) or room < 0:
            verdict.refuse("stop", spoken.saying("add"))
        elif any(rule.rejects for rule in spoken.saying("add")):
            verdict.perhaps("stop", spoken.saying("add"))

    def is_right(sent: Any) -> bool:  # noqa: ANN401
        stops = [sent] if isinstance(sent, str) else sent
        if not isinstance(stops, list) or len(stops) > MOST_STOPS or not set(added) <= set(stops):
            return False
        theirs = [each for each in stops if each not in added]
        first = [each for each in own if each not in added]
        return theirs == first[: len(theirs)] and (len(theirs) == len(first) or len(stops) == MOST_STOPS)

    verdict.want("stop", f"{own} and {missing}", is_right)


def rule_prompt(verdict: Verdict, value: Any, spoken: Spoken) -> None:  # noqa: ANN401
    """Spaces at the end of prompts go where a rule says so."""
    if not any(rule.says.get("strip_trailing_space") for rule in spoken.rules):
        return
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and any(isinstance(each, str) and each.endswith(" ") for each in texts):
        verdict.kinds.add("strip")
        verdict.want("prompt", "stripped", lambda sent: _is_stripped(value, sent))


def _is_stripped(asked: Any, sent: Any) -> bool:  # noqa: ANN401
    if isinstance(asked, list):
        return isinstance(sent, list) and len(asked) == len(sent) and all(map(_is_stripped, asked, sent))
    return (
        isinstance(sent, str) and not sent.endswith(" ") and sent.rstrip() == asked.rstrip() and asked.startswith(sent)
    )


def rule_pseudonym(verdict: Verdict, name: str, value: Any, spoken: Spoken) -> bool:  # noqa: ANN401
    """Names of people become keyed hashes; tell whether they do here."""
    if not spoken.saying("pseudonymise"):
        return False
    verdict.kinds.add("pseudonymise")
    if {word for rule in spoken.rules for word in rule.says} & {"force", "forbid", "allowed"}:
        verdict.perhaps(name, spoken.rules)
        verdict.want(name, "anything but itself", lambda _: True)
    else:
        verdict.want(
            name,
            PSEUDONYM,
            lambda sent: (
                (value is ABSENT and sent is ABSENT)
                or (isinstance(sent, str) and bool(re.fullmatch(r"[\x21-\x7e]{16,64}", sent)) and sent != value)
            ),
        )
    return True


# ---------------------------------------------------------------- all of it
def rule_unknown(verdict: Verdict, endpoint: str, fields: Mapping[str, Any], levels: Sequence[Level]) -> None:
    """Members that neither the API nor a rule names are forwarded, dropped, or refuse the request."""
    said: list[Rule] = []
    for name, policy in levels:
        if policy.get("unknown_parameters"):
            said = [] if policy.get("override") else said
            said.append(Rule(name, policy))
    words = {rule.says["unknown_parameters"] for rule in said}
    if not words & {"drop", "reject"}:
        return
    named = {name for _, policy in levels for name in policy.get("parameters", {})}
    for name in fields.keys() - NAMED[endpoint]:
        is_ruled = bool(rules_on(levels, name))
        is_unsure = name in CEILINGS or fields[name] is ABSENT or name in named
        if is_ruled:
            continue
        verdict.kinds.add("unknown_parameters")
        if is_unsure:  # a ceiling of other servers, nothing at all, or named by a rule that does not bind
            _rule_unsure(verdict, name, fields[name], said)
        else:
            if "reject" in words:
                verdict.refuse(name, said)
            verdict.want(name, "dropped", lambda sent: sent is ABSENT)


def _rule_unsure(verdict: Verdict, name: str, value: Any, said: list[Rule]) -> None:  # noqa: ANN401
    _, otherwise = verdict.wanted.get(name, ("", lambda sent: same(sent, value)))
    verdict.may[name] = verdict.must.pop(name, set()) | {rule.policy for rule in said}
    verdict.want(name, "dropped, or as without it", lambda sent: sent is ABSENT or otherwise(sent))


def policy_verdict(endpoint: str, fields: Mapping[str, Any], levels: Sequence[Level], served: Served) -> Verdict:
    """Say what the policies of all levels make of a valid, normalised request."""
    verdict = Verdict()
    handled = {"prompt", *COMPUTED}
    if endpoint != "embeddings":
        handled |= set(CEILINGS)
        rule_ceilings(verdict, fields, levels, endpoint, served)
    if endpoint == "completions":
        handled |= {"n", "best_of"}
        rule_pair(verdict, fields, levels)
        rule_prompt(verdict, fields.get("prompt"), Spoken(tuple(rules_on(levels, "prompt"))))
    _rule_server_name_of_n(verdict, fields, levels)
    if "stop" in NAMED[endpoint]:
        handled.add("stop")
        rule_stop(verdict, fields.get("stop"), Spoken(tuple(rules_on(levels, "stop"))))
    for name in {name for _, policy in levels for name in policy.get("parameters", {})} - handled:
        spoken = Spoken(tuple(rules_on(levels, name)))
        if rule_pseudonym(verdict, name, fields.get(name), spoken):
            continue
        if name == "logprobs" and endpoint == "chat/completions":  # a bool there, and a number in the rules
            verdict.want(name, "anything", lambda _: True)
            verdict.perhaps(name, spoken.rules)
            continue
        rule_one(verdict, name, fields.get(name), spoken, DEFAULTS[endpoint].get(name))
        if name not in NAMED[endpoint] and (endpoint == "embeddings" or is_named_elsewhere(name)):  # left, or ruled
            verdict.may |= {each: verdict.must.pop(each) for each in {name} & set(verdict.must)}
            _, test = verdict.wanted.get(name, ("", lambda _: False))
            value = fields.get(name)
            verdict.want(name, "ruled or left", lambda sent, t=test, v=value: t(sent) or same(sent, v))
    _rule_companions(verdict, endpoint, fields, levels)
    value = fields.get("safety_identifier")
    if isinstance(value, str) and "safety_identifier" not in verdict.wanted:
        spoken = Spoken(tuple(rules_on(levels, "user")))
        if spoken.saying("pseudonymise"):
            verdict.want("safety_identifier", "itself or a pseudonym", lambda sent: isinstance(sent, str))
    rule_unknown(verdict, endpoint, fields, levels)
    return verdict


def _rule_server_name_of_n(verdict: Verdict, fields: Mapping[str, Any], levels: Sequence[Level]) -> None:
    """Rule `n_cmpl`, as one server calls `n`, by the rules on that; where unknown members go, it may go with them."""
    spoken, value = Spoken(tuple(rules_on(levels, "n"))), fields.get("n_cmpl")
    if not spoken.rules or rules_on(levels, "n_cmpl") or value is ABSENT:
        return
    rule_one(verdict, "n_cmpl", value, spoken, None)
    verdict.may |= {each: verdict.must.pop(each) for each in {"n_cmpl"} & set(verdict.must)}
    words, test = verdict.wanted.get("n_cmpl", ("as it was", lambda sent: same(sent, value)))
    verdict.want("n_cmpl", f"{words}, or dropped", lambda sent: sent is ABSENT or test(sent))


def _rule_companions(verdict: Verdict, endpoint: str, fields: Mapping[str, Any], levels: Sequence[Level]) -> None:
    """Let what says nothing without another parameter go with it, where a rule is on either (a request stays valid)."""
    for name, other in NEEDS.items():
        if not {name, other} <= NAMED[endpoint] or not (rules_on(levels, name) or rules_on(levels, other)):
            continue
        value = fields.get(name)
        words, test = verdict.wanted.get(name, ("as it was", lambda sent, v=value: same(sent, v)))
        verdict.want(name, f"{words}, or gone with {other}", lambda sent, t=test: sent is ABSENT or t(sent))


def complain_of_companions(endpoint: str, plain: Mapping[str, Any], sent: Mapping[str, Any]) -> list[str]:
    """Say what policy has left alone without the parameter that it needs."""
    changed = differences(plain, sent)
    return [
        f"{name} was left without {other}"
        for name, other in NEEDS.items()
        if {name, other} <= NAMED[endpoint]
        and sent.get(name) is not ABSENT
        and not as_python(sent.get(other))
        and changed & {name, other}
    ]


def is_named_elsewhere(name: str) -> bool:
    """Tell whether some endpoint's API names a member."""
    return any(name in names for names in NAMED.values())


def allows_model(levels: Sequence[Level], model: str) -> bool:
    """Tell whether every level's list has the model; `override` replaces outer lists."""
    lists: list[list[str]] = []
    for _, policy in levels:
        if "models" in policy:
            lists = [*([] if policy.get("override") else lists), policy["models"]]
    return all(any(fnmatchcase(model, pattern) for pattern in patterns) for patterns in lists)
