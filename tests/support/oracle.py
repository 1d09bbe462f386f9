"""What should become of a request under policies: SPEC §3 and §4 restated as tables, independently of the gateway.

`judge` is given what a client sent, the policies that apply, and what came back, and says what is wrong with it. It
shares no code with the gateway and knows its configuration only as an administrator writes it.

Where SPEC leaves a choice, either is accepted:
- which of several violations a refusal names, and under which of the names that belong together;
- whether a request is refused, or a value within bounds written, where the API's default for an absent one is outside;
- whether a looser bound's `reject` still speaks where a tighter one clamps, and a list's where only all lists together
  forbid a value;
- whose `default` or `force` stands when several levels say one, or one forbids what another forces, defaults or bounds;
- whether a rule binds a member that this endpoint's API does not name and another's does;
- whether an unknown member counts as named that only an observed or replaced rule names;
- whether a ceiling that is open under a rule becomes the API's default or the bound;
- whether one who names no end user gets a pseudonym, and whether a rule on `user` extends to `safety_identifier`;
- how many of a prompt's last spaces go, and where injected stops stand;
- where between the bytes of its texts and the bytes of its whole body the input of a request is bounded, and whether
  unknown members and ceilings of other names count.
Everything else must be exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oracle_limits import complain_of_limits, may_refuse
from oracle_parameters import (
    PSEUDONYM,
    allows_model,
    complain_of_companions,
    complain_of_pair,
    policy_verdict,
)
from oracle_quantities import COMPUTED, ceiling_of, computed_least_and_most
from oracle_rules import Bounds, Rule, rules_on
from oracle_validity import ABSENT, CEILINGS, NAMED, invalid, normalised
from second_reading import Fault, Number, decompressed, differences, is_json_in_utf8, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oracle_parameters import Served
    from oracle_rules import Level, Verdict


@dataclass(frozen=True)
class Asked:
    """A request as its client wrote it, and who that is."""

    key: str
    levels: tuple[Level, ...]
    """Policies of organization, project, user and key, outermost first."""
    owner: str
    """Whom a pseudonym belongs to."""
    endpoint: str
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    path_model: str | None = None
    is_azure: bool = False


@dataclass(frozen=True)
class Received:
    """What came back, and in it what the upstream had been sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    upstream_path: str | None = None
    """None: nothing reached the upstream."""
    upstream_body: bytes = b""


_PAIR = {"n", "best_of"}
_DEPENDS: dict[str, set[str]] = {
    "prompts": set(),
    "candidates": _PAIR,
    "prompt_tokens": {"prompt"},
    "worst_case_tokens": _PAIR | {"prompt", *CEILINGS},
}
"""What each computed parameter is computed from; where policy may change that, the outcome is judged as forwarded."""

_TOGETHER: dict[str, set[str]] = {
    "n": {*_PAIR, "n_cmpl"},
    "best_of": _PAIR,
    "max_tokens": {*CEILINGS},
    "stream": {"stream_options"},
    "worst_case_tokens": {*CEILINGS},
    "logprobs": {"top_logprobs"},
    "tools": {"tool_choice", "parallel_tool_calls", "max_tool_calls"},
    "functions": {"function_call"},
}
"""What a rule on one parameter may change besides it."""


@dataclass
class Oracle:
    """Judges what a gateway with these models made of requests."""

    models: Mapping[str, Served]
    aliases: Mapping[str, str]
    kinds: dict[str, int] = field(default_factory=dict)
    """How often each kind of rule spoke in what was judged so far."""
    pseudonyms: dict[tuple[str, str, str], str] = field(default_factory=dict)
    people: dict[str, tuple[str, str]] = field(default_factory=dict)

    def judge(self, asked: Asked, received: Received, *, expects_service: bool = True) -> list[str]:
        """Return what is wrong. Without `expects_service` any well-formed refusal is right."""
        found = complain_of_answer(received)
        if received.status == 504 and ("Cache-Control", "only-if-cached") in asked.headers:
            return found[1:]
        try:
            fields = self._read(asked)
        except Fault as fault:
            return found + _expect_refusal(received, f"nobody can read this: {fault}")
        if received.upstream_path is None:
            expects_service = expects_service and not found
            return found + (self._judge_refusal(asked, fields, received) if expects_service else [])
        return found + self._judge_forwarded(asked, fields, received)

    @staticmethod
    def _read(asked: Asked) -> dict[str, Any]:
        names = [(name.lower(), value) for name, value in asked.headers]
        if not is_json_in_utf8([value for name, value in names if name == "content-type"]):
            raise Fault("not JSON in UTF-8")
        return read(decompressed(asked.body, [value for name, value in names if name == "content-encoding"]))

    def _model(self, asked: Asked, fields: Mapping[str, Any]) -> str | None:
        named = asked.path_model if asked.path_model is not None else fields.get("model")
        return self.aliases.get(named, named) if isinstance(named, str) else None

    def _prepare(self, asked: Asked, fields: Mapping[str, Any]) -> tuple[set[str], dict[str, Any], str | None]:
        plain = normalised(asked.endpoint, fields)
        if asked.is_azure:
            plain.pop("model", None)
        wrong, model = invalid(asked.endpoint, plain), self._model(asked, fields)
        said = plain.get("model")
        is_other = asked.path_model is not None and said is not ABSENT and self.aliases.get(str(said), said) != model
        if model is None or is_other:
            wrong.add("model")
        return wrong, plain, model

    def _judge_refusal(self, asked: Asked, fields: Mapping[str, Any], received: Received) -> list[str]:
        wrong, plain, model = self._prepare(asked, fields)
        error, status = read(received.body)["error"], received.status
        code = error["code"]
        if wrong:
            return [] if status == 400 and code != "policy_violation" else [f"{status} {code}; {wrong} are invalid"]
        if model not in self.models:
            return [] if (status, code) == (404, "model_not_found") else [f"{status} {code} for an unknown model"]
        if not allows_model(asked.levels, model):
            self._count({"models"})
            is_right = (status, code) == (403, "model_not_allowed") and _names_one(error, asked.levels)
            return [] if is_right else [f"{status} {error} for a model that is not allowed"]
        verdict = policy_verdict(asked.endpoint, plain, asked.levels, self.models[model])
        self._rule_computed(verdict, asked, plain)
        self._count(verdict.kinds)
        if not verdict.must and may_refuse(asked.endpoint, plain, asked.levels, status, error):
            self._count({"limits"})
            return []
        return _judge_violation(asked, plain, received, verdict)

    def _rule_computed(self, verdict: Verdict, asked: Asked, plain: Mapping[str, Any]) -> None:
        """Hold the computed parameters against their rules, as far as the request that goes out can be foreseen."""
        least = computed_least_and_most(asked.endpoint, plain)
        for name in COMPUTED:
            rules = rules_on(asked.levels, name)
            most = Bounds(tuple(rules)).most
            if most is None:
                continue
            verdict.kinds.add(name)
            low, high = least[name]
            is_settled = not _DEPENDS[name] & verdict.wanted.keys()
            if is_settled and low > most:
                verdict.refuse(name, rules)
            elif high > most or not is_settled:
                verdict.perhaps(name, rules)

    def _judge_forwarded(self, asked: Asked, fields: Mapping[str, Any], received: Received) -> list[str]:
        wrong, plain, model = self._prepare(asked, fields)
        if wrong:
            return [f"forwarded, though {wrong} are invalid"]
        if model not in self.models or not allows_model(asked.levels, model):
            return [f"forwarded to {model}"]
        served, found = self.models[model], []
        try:
            sent = read(received.upstream_body)
        except Fault as fault:
            return [f"the upstream cannot read it: {fault}"]
        if received.upstream_path != f"/v1/{asked.endpoint}":
            found.append(f"sent to {received.upstream_path}")
        if sent.get("model") != served.deployment:
            found.append(f"sent for model {sent.get('model')}")
        verdict = policy_verdict(asked.endpoint, plain, asked.levels, served)
        self._rule_computed(verdict, asked, sent)
        self._count(verdict.kinds)
        found += [f"forwarded, though {name} breaks {sorted(names)}" for name, names in verdict.must.items()]
        found += self._complain_of_members(asked, plain, sent, verdict)
        if asked.endpoint == "completions":
            found += complain_of_pair(plain, sent, asked.levels)
        found += complain_of_companions(asked.endpoint, plain, sent)
        found += self._complain_of_computed(asked, sent, served)
        found += complain_of_limits(asked.endpoint, sent, asked.levels)
        return found + complain_of_header(fields, sent, received)

    def _complain_of_members(
        self, asked: Asked, plain: Mapping[str, Any], sent: Mapping[str, Any], verdict: Verdict
    ) -> list[str]:
        found = []
        is_streamed = sent.get("stream") is True
        ours = {"model", "cache_level"} | ({"stream_options"} if is_streamed else set())
        if plain.get("stream") is True and not is_streamed:
            verdict.want("stream_options", "dropped with the stream", lambda made: made is ABSENT)
        for name in {*plain, *sent, *verdict.wanted} - ours:
            if name in verdict.wanted:
                words, test = verdict.wanted[name]
                if not test(sent.get(name)):
                    found.append(f"{name} was {plain.get(name)!r}, is {sent.get(name)!r}, should be: {words}")
            elif name in differences(plain, sent):
                found.append(
                    f"{name} was {plain.get(name, '-')!r}, is {sent.get(name, '-')!r}, and nobody asked for it"
                )
            if isinstance(sent.get(name), str) and verdict.wanted.get(name, ("",))[0] == PSEUDONYM:
                found += self._complain_of_pseudonym(asked.owner, name, plain, sent[name])
        given, made = plain.get("stream_options") or {}, sent.get("stream_options") or {}
        if is_streamed and differences(given, made) - {"include_usage"}:
            found.append(f"stream_options was {given}, is {made}")
        if sent.get("cache_level") is not ABSENT:
            found.append("cache_level went to an upstream that is not Azure's")
        return found

    def _complain_of_pseudonym(self, owner: str, name: str, plain: Mapping[str, Any], made: str) -> list[str]:
        if not isinstance(plain.get(name), str):  # who that is, is a choice
            return []
        who, found = (owner, plain[name]), []
        if self.pseudonyms.setdefault((*who, name), made) != made:
            found.append(f"two pseudonyms in {name} for {who}")
        if self.people.setdefault(made, who) != who:
            found.append(f"one pseudonym for {who} and {self.people[made]}")
        return found

    @staticmethod
    def _complain_of_computed(asked: Asked, sent: Mapping[str, Any], served: Served) -> list[str]:
        found = []
        for name, (low, _) in computed_least_and_most(asked.endpoint, sent).items():
            most = Bounds(tuple(rules_on(asked.levels, name))).most
            if most is not None and low > most:
                found.append(f"forwarded with {name} at least {low}, above {most}")
            is_open = asked.endpoint != "embeddings" and ceiling_of(asked.endpoint, sent) is None
            if most is not None and name == "worst_case_tokens" and is_open and served.max_output_tokens is None:
                found.append("a worst case is bounded, and the ceiling open")
        return found

    @staticmethod
    def judge_record(asked: Asked, received: Received, record: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the usage record of a request that was forwarded."""
        sent, told = read(received.upstream_body), read_adjusted(received.headers.get("x-tidegate-adjusted", ""))
        found = []
        recorded = {re.sub("[^ -~]", "?", each["parameter"]) for each in record["adjustments"]}
        if recorded != told.keys():
            found.append(f"the record tells of {sorted(recorded)}, the header of {sorted(told)}")
        observed, watching = {each["parameter"] for each in record["observed"]}, _watching(asked.levels)
        expected = set(watching).union(*(_TOGETHER.get(name, ()) for name in watching))
        if not observed <= expected:
            found.append(f"observed {sorted(observed)}, though rules watch {sorted(watching)}")
        for name in watching.keys() & NAMED[asked.endpoint] - _TOGETHER.keys() - observed:
            rule, value = watching[name], sent.get(name)
            _, innermost = [level for level in asked.levels if name in level[1].get("parameters", {})][-1]
            is_spoken_over = innermost["parameters"][name] is not rule.says
            if isinstance(value, Number) and rule.is_broken_by(value) and not is_spoken_over:
                found.append(f"{name} {value} breaks what {rule.policy} observes, unrecorded")
        return found

    def _count(self, kinds: Iterable[str]) -> None:
        for kind in kinds:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1


def _watching(levels: Sequence[Level]) -> dict[str, Rule]:
    """Return the observed rules by parameter; of several, the innermost."""
    said = [(name, Rule(policy, says)) for policy, each in levels for name, says in each.get("parameters", {}).items()]
    return {name: rule for name, rule in said if rule.says.get("mode") == "observe"}


def _judge_violation(asked: Asked, plain: Mapping[str, Any], received: Received, verdict: Verdict) -> list[str]:
    """Say what is wrong with the refusal of a valid request."""
    error, may = read(received.body)["error"], {**verdict.may, **verdict.must}
    if (received.status, error["code"]) != (400, "policy_violation"):
        is_type = received.status == 400 and any(not isinstance(plain.get(name), Number) for name in verdict.must)
        return [] if is_type else [f"{received.status} {error} for a valid request"]
    if not may:
        return [f"refused by policy: {error}"]
    together = [each for each in (set(CEILINGS), _PAIR) if each & set(may)]
    if error["param"] not in may and not any(error["param"] in each for each in together):
        return [f"refused for {error['param']} instead of {sorted(may)}: {error}"]
    if received.headers.get("x-should-retry") != "false":
        return ["a refusal by policy lacks x-should-retry: false"]
    return [] if _names_one(error, asked.levels) else [f"no policy's name in {error}"]


def _names_one(error: Mapping[str, Any], levels: Sequence[Level]) -> bool:
    return any(name in error["message"] for name, _ in levels)


# ---------------------------------------------------------------- answers
def complain_of_answer(received: Received) -> list[str]:
    """Every answer is the upstream's or an error in OpenAI's shape (SPEC §9)."""
    if received.status == 200 and received.upstream_path is not None:
        return []
    found = [] if 400 <= received.status < 500 else [f"status {received.status}: {received.body[:300]!r}"]
    try:
        answer = read(received.body)
    except Fault as fault:
        return [*found, f"an error that nobody can read: {fault}"]
    error = answer.get("error")
    if set(answer) != {"error"} or not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"}:
        return [*found, f"not the shape of an error: {answer}"]
    if not error["message"] or not isinstance(error["type"], str):
        found.append(f"an error without message or type: {error}")
    if not received.headers.get("x-request-id"):
        found.append("an answer without x-request-id")
    return found


def _expect_refusal(received: Received, why: str) -> list[str]:
    if received.upstream_path is not None:
        return [f"forwarded, though {why}"]
    return [] if received.status in {400, 413, 415} else [f"{received.status}, though {why}"]


_ITEM = re.compile(r'(?P<token>[A-Za-z*][\w!#$%&\'*+.^`|~:/-]*)|"(?P<string>(?:[^"\\]|\\.)*)"|%"(?P<display>[^"]*)"')
_PARAMETER = re.compile(r';\s*(?P<name>[a-z*][a-z0-9_.*-]*)(?:=(?P<value>"(?:[^"\\]|\\.)*"|%"[^"]*"|[^;,\s]+))?')
_ACTIONS = {"clamp", "default", "force", "drop", "normalise", "strip", "add", "pseudonymise"}


def read_adjusted(text: str) -> dict[str, dict[str, str | None]]:
    """Read `x-tidegate-adjusted` as a structured field's list (RFC 9651). Raises Fault."""
    found: dict[str, dict[str, str | None]] = {}
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            raise Fault(f"no list item at {text[at:]!r}")
        at, parameters = item.end(), {}
        while parameter := _PARAMETER.match(text, at):
            at, parameters[parameter["name"]] = parameter.end(), parameter["value"]
        name = item["token"] or re.sub(r"\\(.)", r"\1", item["string"] or "") or item["display"] or ""
        found[name] = parameters
        separator = re.compile(r"[ \t]*,[ \t]*|$").match(text, at)
        if separator is None:
            raise Fault(f"something follows an item at {text[at:]!r}")
        at = separator.end()
    return found


def complain_of_header(fields: Mapping[str, Any], sent: Mapping[str, Any], received: Received) -> list[str]:
    """`x-tidegate-adjusted` names exactly what differs between what was sent and what went on."""
    ours = {"model", "cache_level"} | ({"stream_options"} if sent.get("stream") is True else set())
    touched = differences(fields, sent) - ours
    try:
        told = read_adjusted(received.headers.get("x-tidegate-adjusted", ""))
    except Fault as fault:
        return [f"x-tidegate-adjusted: {fault}"]
    found = []
    told.pop("cache_level", None)
    if set(told) != {re.sub("[^ -~]", "?", name) for name in touched} and set(told) != touched:
        found.append(f"x-tidegate-adjusted tells of {sorted(told)}, touched are {sorted(touched)}")
    for name, parameters in told.items():
        if parameters.get("rule") not in _ACTIONS:
            found.append(f"x-tidegate-adjusted: {name} by {parameters.get('rule')}")
        for word, side in (("from", fields), ("to", sent)):
            value, said = side.get(name), (parameters.get(word) or "").strip('"')
            if not isinstance(value, Number) or not value.is_integer or said.endswith("..."):
                continue
            if not re.fullmatch("-?[0-9]+", said) or int(said) != int(value.text):
                found.append(f"x-tidegate-adjusted: {name} {word} {said} instead of {value}")
    return found
