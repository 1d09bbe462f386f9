"""Random policies on four levels, and random requests that lean towards what those policies speak of.

All of it comes from one `random.Random`, so that a seed is a world. Knows the configuration as an administrator writes
it and the APIs as clients use them; what should become of a request is the oracle's business.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway import ADMIN_KEY, Settings, sha256
from oracle import Asked
from oracle_parameters import Served
from second_reading import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from oracle_rules import Level, Policy

MODELS = {
    "m": Served("m"),
    "org/model": Served("org/model", max_output_tokens=64),
    "chatty": Served("chatty", token_ceiling="max_tokens"),  # noqa: S106  a parameter's name
    "gpt-small": Served("gpt-small-prod", max_output_tokens=50),
}
ALIASES = {"davinci": "m", "gpt-alias": "gpt-small"}
_MODEL_LISTS = (["*"], ["m", "gpt-*"], ["org/*", "m"], ["m", "chatty"], ["gpt-small", "m", "org/model"])
_PSEUDONYM_KEY = "PSEUDONYM_KEY"
ENVIRON = {_PSEUDONYM_KEY: "a-secret-for-pseudonyms-that-is-long-enough"}
"""What a gateway with `World.settings` needs in its environment."""

_BOUNDED: dict[str, Sequence[float]] = {
    "n": (1, 2, 3, 4, 6, 8),
    "best_of": (1, 2, 3, 4, 6, 8),
    "max_tokens": (1, 8, 15, 16, 17, 64, 200, 1000),
    "temperature": (0, 0.25, 0.5, 0.9, 1, 1.5, 2),
    "top_p": (0, 0.1, 0.5, 0.95, 1),
    "logprobs": (0, 1, 2, 3, 5),
    "top_logprobs": (0, 1, 2, 5, 20),
    "presence_penalty": (-2, -0.5, 0, 0.5, 2),
    "frequency_penalty": (-2, -1, 0, 1, 2),
    "seed": (-5, 0, 7, 1000),
    "top_k": (1, 5, 40, 100),
}
_CHOSEN: dict[str, Sequence[Any]] = {
    "user": ("acme", "end-user-7"),
    "service_tier": ("auto", "default", "flex"),
    "reasoning_effort": ("low", "medium", "high"),
    "echo": (False,),
    "stream": (False,),
    "store": (False,),
}
_FORBIDDEN = ("logit_bias", "suffix", "user", "stop", "echo", "n", "seed", "tools", "metadata", "top_k", "logprobs")
_COMPUTED: dict[str, Sequence[int]] = {
    "prompts": (1, 2, 3, 5),
    "candidates": (1, 2, 4, 8, 20),
    "prompt_tokens": (1, 3, 30, 60, 200, 2000),
    "worst_case_tokens": (10, 64, 100, 300, 3000),
}
_STOPS = ("\n", "END", "\n\nHuman:", "é", "###")
_UNKNOWN = (
    "min_p",
    "x_vendor",
    "repetition_penalty",
    "N",
    "top k",
    "ünïcode",
    "n ",
    "__proto__",
    "priority",
    "n_predict",
)


# ---------------------------------------------------------------- policies
@dataclass(frozen=True)
class Member:
    """A key, the levels of policy above it, and who holds it."""

    key: str
    owner: str
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class World:
    """One configuration: an organization, projects, users and keys with policies of their own."""

    settings: Settings
    members: tuple[Member, ...]


def make_world(random: Random, base_url: str, *, keys: int = 60, **more: Any) -> World:  # noqa: ANN401  any setting
    """Return a world with so many keys; `more` are further members of the file."""
    organization = ("everybody", {**make_policy(random, most=2, mildly=True), "cache": {"mode": "off"}})
    projects = [_level(random, f"project-{number}") for number in range(max(2, keys // 8))]
    users = [_level(random, f"user-{number}") for number in range(max(2, keys // 4))]
    members, written = [], []
    for number in range(keys):
        project, user, own = random.choice(projects), random.choice(users), _level(random, f"key-{number}")
        members.append(_member(f"secret-{number}", organization, project, user, own))
        written.append(
            {"id": own[0], "project": project[0], "user": user[0], "sha256": sha256(f"secret-{number}")} | _named(own)
        )
    levels = [*projects, *users, *((key, _policy_of(members, key)) for key in (each["id"] for each in written))]
    settings: Settings = {
        "admin_keys": [{"name": "tests", "sha256": sha256(ADMIN_KEY)}],
        "pseudonym_key": f"env:{_PSEUDONYM_KEY}",
        "organization": {"id": "org_tests", "policy": "everybody"},
        "upstreams": {"only": {"kind": "openai", "base_url": base_url}},
        "models": {name: _model(name, served) for name, served in MODELS.items()},
        "policies": {"everybody": organization[1]} | {f"policy-{name}": policy for name, policy in levels if policy},
        "projects": [{"id": each[0]} | _named(each) for each in projects],
        "users": [{"id": each[0]} | _named(each) for each in users if each[1]],
        "keys": written,
        **more,
    }
    return World(settings, tuple(members))


def _level(random: Random, name: str) -> Level:
    return name, make_policy(random, most=4) if random.random() < 0.6 else {}


def _named(level: Level) -> Settings:
    return {"policy": f"policy-{level[0]}"} if level[1] else {}


def _member(key: str, organization: Level, *inner: Level) -> Member:
    said = tuple((f"policy-{name}", policy) for name, policy in inner if policy)
    project, user, _ = inner
    return Member(key, f"{project[0]}/{user[0]}", (organization, *said))


def _policy_of(members: Sequence[Member], key: str) -> Policy:
    return next((policy for each in members for name, policy in each.levels if name == f"policy-{key}"), {})


def _model(name: str, served: Served) -> Settings:
    more = {"max_output_tokens": served.max_output_tokens} if served.max_output_tokens else {}
    deployment = {"upstream": "only"} | ({"name": served.deployment} if served.deployment != name else {})
    aliases = [alias for alias, meant in ALIASES.items() if meant == name]
    ceiling = {} if served.token_ceiling == Served("").token_ceiling else {"token_ceiling": served.token_ceiling}
    return {"deployments": [deployment], "aliases": aliases, "context_window": 1_000_000, **ceiling, **more}


def make_policy(random: Random, *, most: int, mildly: bool = False) -> Policy:
    """Return a policy with up to so many rules; one that is `mildly` made leaves room for those below it."""
    parameters: dict[str, Any] = {}
    for _ in range(random.randint(0 if mildly else 1, most)):
        name, rule = _pick(random, _RULES)(random)
        if mildly and (rule.get("forbid") or name == "prompt_tokens"):
            continue
        parameters[name] = rule | _marks(random)
    policy: Policy = {"parameters": parameters}
    if random.random() < 0.12:
        policy["models"] = random.choice(_MODEL_LISTS)
    if random.random() < 0.2:
        policy["unknown_parameters"] = random.choice(["forward", "drop", "reject"])
    if random.random() < 0.1:
        policy["override"] = True
    if random.random() < 0.2:
        policy["limits"] = [_limit(random, number) for number in range(random.randint(1, 2))]
    return policy


def _limit(random: Random, number: int) -> Settings:
    """Return a limit that next to nothing is refused by."""
    of = random.choice(["tokens", "output_tokens", "input_tokens", "completions", "requests"])
    settled = [{"hold": "none"}] if of != "requests" else []
    marks = random.choice([{}, {}, {"mode": "observe"}, *settled])
    return {"of": of, "limit": 10**13, "per": "day", "by": ["key"], "name": f"limit-{number}", **marks}


def _marks(random: Random) -> Settings:
    drawn = random.random()
    return {"mode": "observe"} if drawn < 0.12 else {"override": True} if drawn < 0.22 else {}


def _pick(random: Random, weighted: Mapping[Any, int]) -> Any:  # noqa: ANN401  one of the table's keys
    return random.choices(list(weighted), list(weighted.values()))[0]


def _violation(random: Random) -> Settings:
    return {"on_violation": random.choice(["clamp", "clamp", "reject"])} if random.random() < 0.85 else {}


def _bounds(random: Random) -> tuple[str, Settings]:
    name = _pick(random, dict.fromkeys(_BOUNDED, 1) | {"n": 4, "best_of": 3, "max_tokens": 5, "temperature": 2})
    low, high = sorted(random.sample(_BOUNDED[name], 2))
    sides = random.choice([{"max": high}, {"max": high}, {"max": low}, {"min": low}, {"min": low, "max": high}])
    rule = sides | _violation(random)
    if random.random() < 0.15:
        rule["default"] = random.choice([each for each in (low, high) if _is_within(each, sides)])
    return name, rule


def _is_within(value: float, sides: Mapping[str, float]) -> bool:
    return sides.get("min", value) <= value <= sides.get("max", value)


def _allowed(random: Random) -> tuple[str, Settings]:
    if random.random() < 0.5:
        name = random.choice(["n", "temperature", "max_tokens", "top_p", "top_k", "logprobs", "top_logprobs"])
        listed = sorted(random.sample(_BOUNDED[name], 3 if len(_BOUNDED[name]) > 3 else 2))
        return name, {"allowed": listed} | _violation(random)
    name = random.choice(list(_CHOSEN))
    return name, {"allowed": random.sample(_CHOSEN[name], random.randint(1, len(_CHOSEN[name])))}


def _default(random: Random) -> tuple[str, Settings]:
    name = random.choice(["n", "temperature", "max_tokens", "top_p", "seed", "user", "stop"])
    return name, {"default": _value_for(random, name)}


def _force(random: Random) -> tuple[str, Settings]:
    name = random.choice(["n", "best_of", "temperature", "max_tokens", "seed", "user", "service_tier", "stream"])
    return name, {"force": _value_for(random, name)}


def _value_for(random: Random, name: str) -> Any:  # noqa: ANN401  a value of that parameter
    return random.choice(_BOUNDED.get(name) or _CHOSEN.get(name) or _STOPS)


def _forbid(random: Random) -> tuple[str, Settings]:
    return random.choice([*_FORBIDDEN, "max_tokens"]), {"forbid": random.choice(["reject", "drop", "drop"])}


def _computed(random: Random) -> tuple[str, Settings]:
    name = random.choice(list(_COMPUTED))
    return name, {"max": random.choice(_COMPUTED[name])}


def _add(random: Random) -> tuple[str, Settings]:
    return "stop", {"add": random.sample(_STOPS, random.randint(1, 2))} | _violation(random)


_RULES: dict[Callable[[Random], tuple[str, Settings]], int] = {
    _bounds: 10,
    _allowed: 3,
    _default: 2,
    _force: 2,
    _forbid: 2,
    _computed: 3,
    _add: 1,
    lambda _: ("prompt", {"strip_trailing_space": True}): 1,
    lambda random: (random.choice(["user", "safety_identifier"]), {"pseudonymise": True}): 1,
}


# ---------------------------------------------------------------- requests
def write_json(random: Random, value: Any) -> str:  # noqa: ANN401  whatever JSON can say
    """Write a value as some client might: with white space and escapes where they may stand."""
    space = random.choice(["", "", "", " ", "\n\t", "\r\n "])
    if isinstance(value, Number):
        return value.text
    if isinstance(value, str):
        return _write_string(random, value)
    if isinstance(value, list):
        return "[" + f",{space}".join(write_json(random, each) for each in value) + f"{space}]"
    if isinstance(value, dict):
        members = [f"{_write_string(random, name)}{space}:{write_json(random, each)}" for name, each in value.items()]
        return "{" + space + f",{space}".join(members) + "}"
    return json.dumps(value)


def _write_string(random: Random, text: str) -> str:
    plain = json.dumps(text, ensure_ascii=random.random() < 0.5)
    if random.random() < 0.04 and plain.isalnum():
        return plain
    if random.random() < 0.05 and text and ord(text[0]) < 0x10000:
        return f'"\\u{ord(text[0]):04X}{json.dumps(text[1:])[1:]}'
    return plain


_ODD = [
    Number(text)
    for text in """
    1e-7 1.0 -0 -0.0 0.1 123456789012345678901234567890 9007199254740993 2.5e3 -1 1e2 0.30000000000000004
    1.7976931348623157e308 5e-324 18446744073709551616
    """.split()  # noqa: SIM905  words read best as words
]
"""Numbers that a careless reader changes; none that has no double, which may be refused as well."""
_NESTED = (
    {"a": {"b": [None, True, {"c": "ü😀"}]}},
    [],
    {},
    [[[]]],
    ["1", Number("1"), Number("1.0")],
    "\u0000\u2028",
    None,
)
_TEXTS = ("x", "Say hello ", "two  ", "ünï 😀 ", "", " ", "\n", "a" * 40, '"\\/', "tab\t", "<|endoftext|>")


def _text(random: Random) -> str:
    return random.choice(_TEXTS)


def _near(random: Random, name: str, levels: Sequence[Level]) -> Number:
    """Return a number at, just inside or just outside a bound that somebody set, or any other."""
    said = [policy.get("parameters", {}).get(name, {}) for _, policy in levels]
    bounds = [rule[word] for rule in said for word in ("min", "max") if word in rule] or list(_BOUNDED[name])
    bound, step = random.choice(bounds), 1 if name not in {"temperature", "top_p"} else 0.125
    value = random.choice([bound, bound + step, bound - step, random.choice(_BOUNDED[name])])
    least, most = _RANGES.get(name, (1, 10**6))
    value = min(max(value, least), most)
    if value == int(value) and random.random() < 0.9:
        return Number(str(int(value)))
    return Number(repr(float(value)))


_RANGES: dict[str, tuple[float, float]] = {
    "n": (1, 128),
    "best_of": (1, 128),
    "max_tokens": (1, 10**6),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "logprobs": (0, 5),
    "top_logprobs": (0, 20),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-(2**63), 2**63 - 1),
}


def _prompt(random: Random) -> Any:  # noqa: ANN401  all that a prompt may be
    ids = [Number(str(random.randint(0, 50_000))) for _ in range(random.randint(1, 6))]
    return random.choice(
        [
            _text(random),
            _text(random),
            [_text(random)],
            [_text(random) for _ in range(random.randint(2, 6))],
            ids,
            [ids for _ in range(random.randint(1, 5))],
        ]
    )


def _completion(random: Random, levels: Sequence[Level]) -> dict[str, Any]:
    fields: dict[str, Any] = {"prompt": _prompt(random)} if random.random() < 0.95 else {}
    fields |= {name: _near(random, name, levels) for name in _some(random, _SAMPLING | {"max_tokens", "logprobs"})}
    if random.random() < 0.3:
        fields["best_of"] = _near(random, "best_of", levels)
    fields |= {
        name: random.choice(values)
        for name, values in {
            "suffix": ("\n", None, "é"),
            "echo": (True, False, [True], None),
            "logit_bias": ({"50256": Number("-100")}, [[Number("50256"), Number("-1.5")]], {}, None),
            "completion_config": ("v1",),
            "cache_level": (Number("0"), Number("1"), Number("2")),
            **_OPTIONAL,
        }.items()
        if random.random() < 0.15
    }
    if random.random() < 0.03:
        fields["best_of"] = random.choice([[["best_of", Number("3")]], {"best_of": Number("2")}, [Number("4")]])
    return _with_stream(random, _paired(random, fields))


def _paired(random: Random, fields: dict[str, Any]) -> dict[str, Any]:
    n, best_of = fields.get("n"), fields.get("best_of")
    if isinstance(n, Number) and isinstance(best_of, Number) and best_of.value < n.value and random.random() < 0.95:
        fields["n"], fields["best_of"] = best_of, n
    return fields


def _with_stream(random: Random, fields: dict[str, Any]) -> dict[str, Any]:
    if random.random() < 0.15:
        fields["stream"] = True
        if random.random() < 0.5:
            fields["stream_options"] = random.choice(
                [{}, {"include_usage": True}, {"include_usage": False, "x": 1}, None]
            )
            fields["stream_options"] = _numbered(fields["stream_options"])
        if "best_of" in fields and random.random() < 0.9:
            fields["best_of"] = fields.get("n") or Number("1")
    return fields


def _numbered(value: Any) -> Any:  # noqa: ANN401  whatever JSON can say
    if isinstance(value, dict):
        return {name: _numbered(each) for name, each in value.items()}
    return Number(str(value)) if isinstance(value, int) and not isinstance(value, bool) else value


_SAMPLING = {"n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "top_k"}
_OPTIONAL: dict[str, Sequence[Any]] = {
    "user": ("alice@example.org", "acme", "end-user-7", "ü", None, ""),
    "stop": ("\n", ["END"], ["a", "b", "c"], ["a", "b", "c", "d"], ["###", "END"], None, []),
}
_MESSAGES = (
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": "be brief "}, {"role": "user", "content": [{"type": "text", "text": "ü "}]}],
)


def _chat(random: Random, levels: Sequence[Level]) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": random.choice(_MESSAGES)}
    fields |= {name: _near(random, name, levels) for name in _some(random, _SAMPLING)}
    for name in ("max_tokens", "max_completion_tokens"):
        if random.random() < 0.3:
            fields[name] = _near(random, "max_tokens", levels)
    if random.random() < 0.2 and not any("logprobs" in policy.get("parameters", {}) for _, policy in levels):
        fields |= {"logprobs": True, "top_logprobs": _near(random, "top_logprobs", levels)}
    fields |= _extras(random, {**_OPTIONAL, **_TODAY, "response_format": ({"type": "json_object"},)})
    return _with_stream(random, fields)


_TODAY: dict[str, Sequence[Any]] = {
    "service_tier": ("auto", "default", "flex", None),
    "store": (False,),
    "metadata": ({"a": "b"}, {}),
    "safety_identifier": ("alice@example.org", "bob"),
    "tools": ([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],),
    "prompt_cache_key": ("k",),
}


def _extras(random: Random, table: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {name: random.choice(values) for name, values in table.items() if random.random() < 0.15}


def _some(random: Random, names: set[str]) -> list[str]:
    return [name for name in sorted(names) if random.random() < 0.3]


def _embedding(random: Random, _: Sequence[Level]) -> dict[str, Any]:
    fields = {
        "input": _prompt(random),
        **_extras(random, {"user": _OPTIONAL["user"][:-1], "encoding_format": ("float", "base64")}),
    }
    if fields["input"] == "":
        fields["input"] = "x"
    if random.random() < 0.3:
        fields["dimensions"] = Number(random.choice(["1", "256", "1536"]))
    return fields


def _response(random: Random, levels: Sequence[Level]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "input": random.choice(
            [
                "hello ",
                [{"role": "user", "content": "hello"}],
                [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ü"}]}],
            ]
        ),
        **{
            name: _near(random, name, levels)
            for name in _some(random, {"temperature", "top_p", "top_logprobs", "top_k"})
        },
    }
    if random.random() < 0.4:
        fields["max_output_tokens"] = _near(random, "max_tokens", levels)
    today = {name: values for name, values in _TODAY.items() if name != "tools"}
    more = {"instructions": ("be brief", None), "reasoning": ({"effort": "low"},), "truncation": ("auto",)}
    fields |= _extras(random, {**today, **more, "user": _OPTIONAL["user"], "background": (False, None)})
    if random.random() < 0.15:
        fields["stream"] = True
    return fields


_MAKERS: dict[str, Callable[[Random, Sequence[Level]], dict[str, Any]]] = {
    "completions": _completion,
    "chat/completions": _chat,
    "embeddings": _embedding,
    "responses": _response,
}
ENDPOINTS: dict[str, int] = {"completions": 6, "chat/completions": 3, "embeddings": 1, "responses": 2}
"""The endpoints that are asked, and how often each."""
_FOREIGN = {
    "n_cmpl": ("completions", "chat/completions", "responses"),
    "best_of": ("chat/completions", "responses"),
    "n": ("responses",),
}
"""Names of how many candidates there are, and the endpoints whose servers may obey them though the API has none."""
_INVALID: dict[str, Sequence[Any]] = {
    "n": (Number("0"), Number("129"), "1", True, Number("1.5"), []),
    "temperature": (Number("2.1"), Number("-0.1"), "0", True, {}),
    "top_p": (Number("1.01"), "x"),
    "stream": ("true", Number("1")),
    "user": (Number("7"), ["x"], {}),
}


def make_request(random: Random, member: Member) -> Asked:
    """Return a request of this member: nine times in ten a valid one, on any endpoint in any dialect."""
    endpoint = _pick(random, ENDPOINTS)
    fields = _MAKERS[endpoint](random, member.levels)
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict"):
        if random.random() < 0.02 and endpoint != "embeddings":
            fields.setdefault(name, _near(random, "max_tokens", member.levels))
    for name in ("n_cmpl", "best_of", "n"):
        if random.random() < 0.03 and endpoint in _FOREIGN[name]:
            fields.setdefault(name, _near(random, "n", member.levels))
    if random.random() < 0.25:
        fields |= {random.choice(_UNKNOWN): random.choice([*_ODD, *map(_numbered, _NESTED)])}
    if random.random() < 0.04:
        name = random.choice([each for each in _INVALID if endpoint != "embeddings" or each == "user"])
        if name != "n" or endpoint != "responses":
            fields[name] = random.choice(_INVALID[name])
    if random.random() < 0.05:
        fields |= dict.fromkeys(random.sample(sorted(_SAMPLING - {"top_k"}), 2))
    return _addressed(random, member, endpoint, fields)


def _addressed(random: Random, member: Member, endpoint: str, fields: dict[str, Any]) -> Asked:
    model = random.choice([*MODELS, *ALIASES, "m", "m", "m"] + (["missing"] if random.random() < 0.1 else []))
    path, path_model, headers = f"/v1/{endpoint}", None, [("Authorization", f"Bearer {member.key}")]
    drawn = random.random()
    if drawn < 0.12 and endpoint == "completions":
        path, path_model = f"/v1/engines/{model}/completions", model
    elif drawn < 0.24 and endpoint != "responses":
        path, path_model = f"/openai/deployments/{model}/{endpoint}?api-version=2024-10-21", model
        headers = [("api-key", member.key)]
        if random.random() < 0.3:
            fields["model"] = "whatever"
    elif drawn < 0.3:
        path = f"/openai/v1/{endpoint}"
    if path_model is None:
        fields["model"] = model
    members = list(fields.items())
    random.shuffle(members)
    return Asked(
        key=member.key,
        levels=member.levels,
        owner=member.owner,
        endpoint=endpoint,
        path=path,
        body=write_json(random, dict(members)).encode(),
        headers=(*headers, ("Content-Type", random.choice(["application/json", "application/json; charset=UTF-8"]))),
        path_model=path_model,
        is_azure="/deployments/" in path,
    )
