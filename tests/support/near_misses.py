"""Random requests, and for each another that is nearly the same: one value changed, moved, wrapped or spelled anew.

All of it comes from one `random.Random`, so that a seed is a sequence. It knows the APIs as clients use them and every
mistake in keys that SPEC §6 and others' bug reports tell of; what is the same and what is not is for those who ask.
Many a near miss is no valid request: that is seen when it is read.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from random_requests import write_json
from second_reading import Number

from policies.requests.asked import Dialect, Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

Json = Any
VERSIONS = ("2024-06-01", "2024-10-21")


@dataclass(frozen=True)
class Drawn:
    """A request before it is written: `who` is the number of its principal, `model` a name that clients use."""

    endpoint: Endpoint
    fields: dict[str, Json]
    model: str
    who: int
    dialect: Dialect = Dialect.OPENAI
    api_version: str | None = None

    @property
    def path_model(self) -> str | None:
        """The model that the path names; None where the body does."""
        is_in_body = self.dialect is Dialect.OPENAI or self.endpoint is Endpoint.RESPONSES
        return None if is_in_body else self.model

    def write(self, random: Random) -> bytes:
        """Write the body as some client might: members in any order, with white space and escapes."""
        members = list(self.fields.items())
        if self.path_model is None:
            members.append(("model", self.model))
        random.shuffle(members)
        return write_json(random, dict(members)).encode()


# ---------------------------------------------------------------- requests
def _numbers(*texts: str) -> list[Json]:
    return [Number(text) for text in texts]


_TEXTS = ("p", "p ", "caf\u00e9", "cafe\u0301", "[1, 2]", "a\nb", "ab", "1", "", '{"a":1}', "word " * 1_000)
_TOKENS = _numbers("1", "2", "50256")
_PROMPTS = (*_TEXTS, ["p"], ["a", "b"], ["ab"], _TOKENS[:2], [_TOKENS[:2]], [_TOKENS[:1], _TOKENS[1:2]])
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_SHARED: dict[str, Sequence[Json]] = {
    "temperature": _numbers("0", "0.0", "1", "1.0", "0.5", "1e-7"),
    "top_p": _numbers("1", "1.0", "0.5"),
    "user": ("alice", "bob", None),
    "x_vendor": [*_numbers("0", "1", "1.0", "9007199254740992", "9007199254740993"), True, "1", [], {"a": None}, {}],
    "num_ctx": _numbers("8192", "0"),
}
_CHOICES: dict[str, Sequence[Json]] = {
    "n": _numbers("1", "1.0", "2"),
    "seed": _numbers("0", "7", "9007199254740992", "9007199254740993", "-1"),
    "stop": (".", ["."], [".", "\n"], [], None, ["a", "b"], "ab"),
    "max_tokens": _numbers("0", "8", "8.0", "16"),
    "presence_penalty": _numbers("0", "0.0", "0.5"),
    "frequency_penalty": _numbers("0", "0.5", "-0.5"),
    "logit_bias": ({"5": Number("1")}, {"5": Number("1.0"), "6": Number("-100")}, {}, None),
}
_TODAY: dict[str, Sequence[Json]] = {
    "tools": ([_TOOL], [{**_TOOL, "strict": True}], []),
    "metadata": ({"a": "b"}, {}),
    "safety_identifier": ("alice", "bob"),
    "prompt_cache_key": ("k", "l"),
    "prompt_cache_retention": ("24h",),
    "prompt_cache_options": ({"mode": "explicit"},),
    "service_tier": ("auto", "flex"),
    "store": (False, None),
}
MEMBERS: dict[Endpoint, dict[str, Sequence[Json]]] = {
    Endpoint.COMPLETIONS: {
        "prompt": _PROMPTS,
        **_SHARED,
        **_CHOICES,
        "best_of": [*_numbers("1", "2", "2.0"), [["best_of", Number("2")]]],
        "echo": (True, False, [True], None),
        "suffix": ("", " end", None),
        "logprobs": _numbers("0", "1", "2.0"),
        "completion_config": ("a", "b"),
        "cache_level": _numbers("2", "2.0"),
    },
    Endpoint.CHAT: {
        "messages": (
            [{"role": "user", "content": "p"}],
            [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
            [{"role": "user", "content": [{"type": "text", "text": "p"}]}],
        ),
        **_SHARED,
        **_CHOICES,
        **_TODAY,
        "max_completion_tokens": _numbers("8", "16"),
        "logprobs": (True, False, None),
        "response_format": ({"type": "json_object"}, {"type": "text"}),
        "tool_choice": ("none", "auto"),
        "reasoning_effort": ("low", "high"),
    },
    Endpoint.EMBEDDINGS: {
        "input": _PROMPTS,
        "user": ("alice", "bob"),
        "dimensions": _numbers("256", "256.0"),
        "encoding_format": ("float", "base64"),
        "x_vendor": _SHARED["x_vendor"],
    },
    Endpoint.RESPONSES: {
        "input": ("p", [{"role": "user", "content": "p"}]),
        **_SHARED,
        **_TODAY,
        "store": (False,),
        "instructions": ("be brief", "", None),
        "max_output_tokens": _numbers("16", "16.0"),
        "text": ({"format": {"type": "text"}}, {}),
        "include": ([], ["reasoning.encrypted_content"]),
    },
}
"""What the endpoints' requests are drawn from, by member; a member that must be there stands first."""
_STREAMS = (
    {},
    {},
    {},
    {"stream": True},
    {"stream": False},
    {"stream": True, "stream_options": {"include_usage": True}},
)
_EVERY_NAME = sorted({name for members in MEMBERS.values() for name in members} - {"cache_level"})
_UNUSUAL: tuple[Json, ...] = (None, False, True, "", [], {}, *_numbers("0", "1", "0.0", "-0.0", "1.0", "2"), "1", "0")


def draw(random: Random, models: Sequence[str], people: int) -> Drawn:
    """Return a request on any endpoint, by one of so many people; nearly always a valid one."""
    endpoint = random.choice([*Endpoint, Endpoint.COMPLETIONS, Endpoint.CHAT])
    members = MEMBERS[endpoint]
    required = next(iter(members))
    names = [name for name in members if name in {required, "store"} or random.random() < 0.25]
    fields = {name: random.choice(members[name]) for name in names}
    if endpoint is not Endpoint.EMBEDDINGS:
        fields |= random.choice(_STREAMS)
    drawn = Drawn(endpoint, fields, random.choice(models), random.randrange(people))
    return _in_a_dialect(random, drawn) if random.random() < 0.3 else drawn


def _in_a_dialect(random: Random, drawn: Drawn) -> Drawn:
    of_all = list(Dialect) if drawn.endpoint is Endpoint.COMPLETIONS else [Dialect.OPENAI, Dialect.AZURE]
    dialect = random.choice(of_all)
    return replace(drawn, dialect=dialect, api_version=random.choice(VERSIONS) if dialect is Dialect.AZURE else None)


# ---------------------------------------------------------------- values that are nearly the same
def near_value(random: Random, value: Json) -> Json:
    """Return another value, or the same one spelled otherwise."""
    if isinstance(value, Number):
        return random.choice(_near_numbers(value))
    if isinstance(value, str):
        return random.choice(_near_texts(value))
    if isinstance(value, list):
        return _near_array(random, value)
    if isinstance(value, dict):
        return _near_object(random, value)
    return random.choice(_UNUSUAL)


def _near_numbers(value: Number) -> list[Json]:
    text, other = value.text, [value.text, [value], *_UNUSUAL[:3]]
    if not value.is_integer:
        return [*_numbers("0.25", f"{text}0", f"-{text}".replace("--", "")), *other]
    return [*_numbers(f"{text}.0", f"{text}e0", str(int(text) + 1), str(-int(text))), *other]


def _near_texts(text: str) -> list[Json]:
    changed = [f"{text} ", f" {text}", text[:-1], text.upper(), f"{text}\u200b", f"{text}\x00", json.dumps(text)]
    respelled = [unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text), text.replace("\n", "\r\n")]
    return [*changed, *respelled, [text], [text, text], [[text]], list(text) or text, None]


def _near_array(random: Random, items: list[Json]) -> Json:
    if not items:
        return random.choice([[[]], [None], None, "", {}, "[]"])
    at = random.randrange(len(items))
    plain = write_json(random, items)
    joined = "".join(each for each in items if isinstance(each, str))
    near_item = [*items[:at], near_value(random, items[at]), *items[at + 1 :]]
    shorter, longer = items[:at] + items[at + 1 :], [*items, items[at]]
    return random.choice(
        [near_item, near_item, near_item, shorter, longer, items[::-1], [items], items[0], joined, plain]
    )


def _near_object(random: Random, members: dict[str, Json]) -> Json:
    changed = random.choice(
        [{**members, "a": None}, {**members, "": 0}, [members], [list(each) for each in members.items()]]
    )
    if not members or random.random() < 0.3:
        return changed
    name = random.choice(list(members))
    without = {each: value for each, value in members.items() if each != name}
    return random.choice(
        [
            {**members, name: near_value(random, members[name])},
            {**members, name: near_value(random, members[name])},
            {**without, f"{name}s": members[name]},
            {**without, name: members[name]},
            without,
            members[name],
        ]
    )


# ---------------------------------------------------------------- requests that are nearly the same
def near_miss(random: Random, drawn: Drawn, models: Sequence[str], people: int) -> Drawn:
    """Return a request that differs from another in one thing, or in its spelling only."""
    if random.random() < 0.06:
        return _elsewhere(random, drawn, models, people)
    change = random.choices(list(_CHANGES), list(_CHANGES.values()))[0]
    return replace(drawn, fields=change(random, drawn))


def _elsewhere(random: Random, drawn: Drawn, models: Sequence[str], people: int) -> Drawn:
    changed = random.randrange(3)
    if changed == 0:
        return replace(drawn, model=random.choice(models))
    return replace(drawn, who=random.randrange(people)) if changed == 1 else _in_a_dialect(random, drawn)


def _some_name(random: Random, drawn: Drawn) -> str:
    return random.choice(list(drawn.fields))


def _with_near_value(random: Random, drawn: Drawn) -> dict[str, Json]:
    name = _some_name(random, drawn)
    value = near_value(random, drawn.fields[name]) if name != "cache_level" else Number("2")
    return {**drawn.fields, name: value}


def _with_another_value(random: Random, drawn: Drawn) -> dict[str, Json]:
    name = random.choice(list(MEMBERS[drawn.endpoint]))
    return {**drawn.fields, name: random.choice(MEMBERS[drawn.endpoint][name])}


def _without_one(random: Random, drawn: Drawn) -> dict[str, Json]:
    name = _some_name(random, drawn)
    return {each: value for each, value in drawn.fields.items() if each != name}


def _with_one_more(random: Random, drawn: Drawn) -> dict[str, Json]:
    """Add a member of this API, of another or of none, with a value that may be as good as nothing."""
    name = random.choice([random.choice(_EVERY_NAME), random.choice(list(MEMBERS[drawn.endpoint])), "x_other"])
    return {**drawn.fields, name: random.choice(_UNUSUAL) if name != "cache_level" else Number("2")}


def _with_one_renamed(random: Random, drawn: Drawn) -> dict[str, Json]:
    name, other = _some_name(random, drawn), random.choice(_EVERY_NAME)
    return {other if each == name else each: value for each, value in drawn.fields.items()}


def _with_two_swapped(random: Random, drawn: Drawn) -> dict[str, Json]:
    one, other = _some_name(random, drawn), _some_name(random, drawn)
    return {**drawn.fields, one: drawn.fields[other], other: drawn.fields[one]}


def _with_one_in_another(random: Random, drawn: Drawn) -> dict[str, Json]:
    """Move a member into a vendor's object, or write it there as JSON text."""
    name = _some_name(random, drawn)
    inside = {name: drawn.fields[name]}
    kept = {each: value for each, value in drawn.fields.items() if each != name}
    return {**kept, "x_vendor": random.choice([inside, write_json(random, inside)])}


def _respelled(random: Random, drawn: Drawn) -> dict[str, Json]:
    """Change nothing but what SPEC §6 says is nothing, and the way it is written."""
    changed = dict(drawn.fields)
    if drawn.endpoint is not Endpoint.EMBEDDINGS:
        changed |= random.choice([{"stream": True}, {"stream": False}, {}])
        changed.pop("stream_options", None)
    return changed | random.choice([{}, {"x_nothing": None}, {"n": changed.get("n")}])


_CHANGES: dict[Callable[[Random, Drawn], dict[str, Json]], int] = {
    _with_near_value: 10,
    _with_another_value: 4,
    _without_one: 2,
    _with_one_more: 4,
    _with_one_renamed: 1,
    _with_two_swapped: 1,
    _with_one_in_another: 1,
    _respelled: 2,
}
