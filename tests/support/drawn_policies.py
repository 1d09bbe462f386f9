"""Hypothesis strategies for policies of one to four levels, and for requests that they have something to say of.

Rules are of every kind, as far as `check_rule` has nothing against them. They are chosen from tables that are made
once, since to draw each from its parts costs ten times as much. Knows the configuration and the APIs; what becomes of
a request is asked in the tests.
"""

from __future__ import annotations

from itertools import chain, combinations, product
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from policies.policy import Policy, Rule
from policies.requests.asked import Endpoint
from policies.requests.ceilings import CEILING_NAMES
from policies.requests.dialects import REQUEST_TYPES
from policies.rule_checks import check_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Values = st.SearchStrategy[Any]
Said = dict[str, Any]

NAMES = ("outer", "second", "third", "inner")
"""What the levels' policies are called, outermost first."""

_MANNERS = ("clamp", "reject")
_COUNTS = (1, 2, 3, 4, 6)
_TEXTS = ("\n", "H:", "END", "own")
_STOPS = ("H:", "own", ["H:"], ["own", "\n"], ["a", "b", "c", "d"], ["H:", "a", "\n", "b"], [])

_NUMBERS: dict[str, Sequence[Any]] = {
    "n": _COUNTS,
    "best_of": _COUNTS,
    "max_tokens": (0, 1, 8, 16, 17, 40),
    "temperature": (0, 0.5, 1, 1.0, 1.5, 2),
    "top_p": (0, 0.5, 1.0),
    "logprobs": (0, 2, 5),
    "top_logprobs": (0, 2, 20),
    "presence_penalty": (-2, 0, 0.5, 2.0),
    "seed": (-1, 0, 7),
    "dimensions": (1, 8),
    "top_k": (-1, 0.5, 1, 40),
}
_OTHERS: dict[str, Sequence[Any]] = {
    "stream": (True, False),
    "echo": (False, True),
    "store": (False, True),
    "logprobs": (True, False),
    "user": ("alice", "bob", ""),
    "safety_identifier": ("alice", "bob"),
    "suffix": ("", "x"),
    "stop": _STOPS,
    "prompt": ("a ", "b", ["a ", " "], [1, 2], [[1], [2, 3]]),
    "stream_options": ({}, {"include_usage": True}),
    "logit_bias": ({"50256": -100}, {"50256": 1.0}),
    "x_vendor": ({"a": [1, None]}, [], 1, True, "x"),
}
_COMPUTED: dict[str, Sequence[int]] = {
    "prompts": (1, 2, 4),
    "candidates": (1, 2, 6, 20),
    "prompt_tokens": (3, 30, 100),
    "worst_case_tokens": (30, 100, 400),
}


# ---------------------------------------------------------------- policies
def _bounding(values: Sequence[Any]) -> Iterator[Said]:
    """Rules with bounds, in either manner, with and without a default."""
    ends = [
        *({"max": value} for value in values),
        *({"min": value} for value in values),
        *({"min": low, "max": high} for low, high in combinations(sorted(values), 2)),
        *({"allowed": list(few)} for count in (1, 2, 3) for few in combinations(values, count)),
    ]
    for said, manner in product(ends, _MANNERS):
        yield {**said, "on_violation": manner}
        yield from ({**said, "on_violation": manner, "default": value} for value in values[::2])
    yield from ({"default": value} for value in values)


def _choosing(values: Sequence[Any]) -> Iterator[Said]:
    for few in chain(combinations(values, 1), combinations(values, 2)):
        yield {"allowed": list(few)}
        yield {"allowed": list(few), "default": few[-1]}
    yield from ({"default": value} for value in values)


def _adding() -> Iterator[Said]:
    for count, manner in product((1, 2), _MANNERS):
        for texts in combinations(_TEXTS[:3], count):
            yield {"add": list(texts), "on_violation": manner}
            yield {"add": list(texts), "on_violation": manner, "default": "own"}
            yield {"add": list(texts), "allowed": ["own", "H:", ["a", "b"]]}


def _kinds_for(name: str) -> Iterator[Iterable[Said]]:
    """Tables of what may be said of a parameter, one a kind."""
    if name in _COMPUTED:
        yield ({"max": value} for value in _COMPUTED[name])
        yield [{"min": _COMPUTED[name][0], "max": _COMPUTED[name][-1]}]
        return
    yield ({"forbid": how} for how in ("drop", "reject"))
    if name in _NUMBERS:
        yield _bounding(_NUMBERS[name])
    if name in _OTHERS:
        yield _choosing(_OTHERS[name])
    yield ({"force": value} for value in (*_NUMBERS.get(name, ()), *_OTHERS.get(name, ())))
    if name == "stop":
        yield _adding()
    if name == "prompt":
        yield [{"strip_trailing_space": True}, {"strip_trailing_space": True, "allowed": ["a", "b", " "]}]
    if name in {"user", "safety_identifier"}:
        yield [{"pseudonymise": True}]


def _rules_on(name: str) -> Iterator[list[Rule]]:
    for kind in _kinds_for(name):
        rules = [Rule(**said) for said in kind]
        yield [rule for rule in rules if not check_rule(name, rule)]


RULED = tuple(dict.fromkeys((*_NUMBERS, *_OTHERS, *_COMPUTED)))
"""Every parameter that rules are drawn for."""
PLAIN_RULES: dict[str, st.SearchStrategy[Rule]] = {
    name: st.one_of([st.sampled_from(rules) for rules in _rules_on(name) if rules]) for name in RULED
}
"""By parameter: rules that are enforced and override nothing."""
_MARKS = st.sampled_from([{}, {}, {}, {}, {"mode": "observe"}, {"override": True}])


def _marked(rule: Rule, mark: Said) -> Rule:
    return rule.model_copy(update=mark) if mark else rule


RULES = {name: st.builds(_marked, rules, _MARKS) for name, rules in PLAIN_RULES.items()}
"""The same, of which some override and some are observed."""
_OFTEN = ("n", "best_of", "max_tokens", "stop", "user", "stream")
_RULED = st.lists(st.sampled_from((*RULED, *_OFTEN)), min_size=1, max_size=5, unique=True)
_UNKNOWN = st.sampled_from([None, None, None, "forward", "drop", "reject"])
_MODELS = st.sampled_from([None, None, None, None, ("*",), ("m",), ("other",)])
_OVERRIDING = st.sampled_from([False, False, False, True])


_COUNT = st.integers(1, len(NAMES))


@st.composite
def _plain_levels(draw: st.DrawFn) -> dict[str, Policy]:
    names = draw(_RULED)  # few for all levels, so that these speak of the same
    return {
        level: Policy(
            parameters={name: draw(PLAIN_RULES[name]) for name in names if draw(st.booleans())},
            unknown_parameters=draw(_UNKNOWN),
        )
        for level in NAMES[: draw(_COUNT)]
    }


@st.composite
def _levels(draw: st.DrawFn) -> dict[str, Policy]:
    names = draw(_RULED)
    return {
        level: Policy(
            parameters={name: draw(RULES[name]) for name in names if draw(st.booleans())},
            unknown_parameters=draw(_UNKNOWN),
            models=draw(_MODELS),
            override=draw(_OVERRIDING),
        )
        for level in NAMES[: draw(_COUNT)]
    }


LEVELS = _levels()
"""One to four policies by name, outermost first; some of their rules override or are observed."""
PLAIN_LEVELS = _plain_levels()
"""The same, of which none overrides, none is observed and none lists models."""


# ---------------------------------------------------------------- requests
_PROMPTS = ("x", "two  ", " ", ["a ", "b"], ["a", "b", "c "], [1, 2, 3], [[1], [2, 3]], ["one"])
_ITEMS = ("x ", [{"role": "user", "content": "x"}], [{"role": "user", "content": "x "}] * 2)
_INPUTS: dict[Endpoint, tuple[str, Sequence[Any]]] = {
    Endpoint.COMPLETIONS: ("prompt", (*_PROMPTS, None)),
    Endpoint.CHAT: ("messages", _ITEMS[1:]),
    Endpoint.EMBEDDINGS: ("input", _PROMPTS),
    Endpoint.RESPONSES: ("input", _ITEMS),
}
_CEILINGS = (0, 1, 7, 8, 16, 16.0, 17, 60, 60.0, 500)
_ELSEWHERE = (*_CEILINGS, -1, "9", True)
"""What is sent under the ceiling's names where the API has none of that name."""
_UNNAMED: dict[str, Sequence[Any]] = {"top_k": (0, 1, 1.0, 9, 99, "9", True), "n ": (1, 2), "n_cmpl": (1, 4.0, 9, "9")}


def _near(values: Sequence[Any]) -> Iterator[Any]:
    """Values, those beside them, and other spellings."""
    for value in values:
        yield value
        if type(value) is int:
            yield from (value + 1, float(value))


def _sent(endpoint: Endpoint, name: str) -> list[Any]:
    """Values that the endpoint takes, null among them."""
    kind = REQUEST_TYPES[endpoint]
    if name in CEILING_NAMES:
        return [*(_CEILINGS if name in kind.model_fields else _ELSEWHERE), None]
    near = [*_near(_NUMBERS.get(name, ())), *_OTHERS.get(name, ()), *_UNNAMED.get(name, ()), None]
    return [value for value in near if name not in kind.model_fields or kind.takes(name, value)]


_SENT = {
    endpoint: {name: st.sampled_from(_sent(endpoint, name)) for name in sorted({*names, *CEILING_NAMES, *_UNNAMED})}
    for endpoint, kind in REQUEST_TYPES.items()
    for names in [{"x_vendor"} | {name for name in kind.model_fields if name in RULED} - {_INPUTS[endpoint][0]}]
}
_CHOSEN = {each: st.lists(st.sampled_from(list(table)), max_size=7, unique=True) for each, table in _SENT.items()}
_GIVEN = {endpoint: st.sampled_from(values) for endpoint, (_, values) in _INPUTS.items()}
_ENDPOINTS = st.sampled_from(list(REQUEST_TYPES))


def _agreeing(fields: Said) -> Said:
    """Make parameters agree that must, so that most requests are valid."""
    n, best_of = fields.get("n"), fields.get("best_of")
    if "best_of" in fields and best_of is not None and best_of < (n or 1):
        fields = {**fields, "n": best_of, "best_of": n}
    if fields.get("stream") and fields.get("best_of") is not None:
        fields = {**fields, "best_of": fields.get("n") or 1}
    if not fields.get("stream"):
        fields = {name: value for name, value in fields.items() if name != "stream_options"}
    return fields


@st.composite
def _request(draw: st.DrawFn) -> tuple[Endpoint, Said]:
    endpoint = draw(_ENDPOINTS)
    fields = {name: draw(_SENT[endpoint][name]) for name in draw(_CHOSEN[endpoint])}
    return endpoint, {**_agreeing(fields), _INPUTS[endpoint][0]: draw(_GIVEN[endpoint])}


REQUESTS = _request()
"""Pairs of an endpoint and a request's members without `model`, most of them valid."""

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, 10**400, -(10**400), 2**63, 1e308, 5e-324, -0.0, 1e-7])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_KNOWN = {each: st.sampled_from(sorted({*kind.model_fields, *_SENT[each]})) for each, kind in REQUEST_TYPES.items()}


@st.composite
def _wild_request(draw: st.DrawFn) -> tuple[Endpoint, Said]:
    endpoint, fields = draw(_request())
    odd = draw(st.dictionaries(_KNOWN[endpoint] | st.text(max_size=3), _JSON, max_size=4))
    return endpoint, {**fields, **odd}


WILD_REQUESTS = _wild_request()
"""The same with some members of any JSON value at all."""
