"""Requests that share a key ask the upstream the same, and requests that ask the same share a key (SPEC §6).

Every request goes the gateway's own way, from its bytes by rules and limits to the bytes that an upstream would be
sent, had the cache nothing to do with it. Whether two of those ask the same is judged by `same_request`, which shares
nothing with the gateway. TIDEGATE_NEAR_MISSES sets how many near misses there are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, cast
from unicodedata import normalize

import pytest
from near_misses import Drawn, draw, near_miss
from same_request import Form, meaning_of
from second_reading import Number, read
from sending import PlainRequest, dispatcher_of, fake_upstream, first_answer, make_exchange, make_upstream, up
from whole import configuration, whole_gateway

from policies import cache_keys
from policies.cacheability import Keyed
from policies.catalog import Deployment, ModelDefaults, ModelSettings
from policies.decision import Decision, decide
from policies.errors import Rejection
from policies.policy import Policy
from policies.principals import AppliedPolicy, Principal
from policies.requests.asked import Endpoint
from policies.requests.body import decode_body
from policies.requests.dialects import read_request
from policies.rulebook import Rulebook
from proxy.config import Configuration
from proxy.errors import UpstreamUnusable
from proxy.metrics import Metrics
from proxy.upstreams.live import Upstreams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from stores import StoreServer

    from proxy.upstreams.client import UpstreamClient

__all__ = ["fake_upstream", "up"]

NEAR_MISSES = int(os.environ.get("TIDEGATE_NEAR_MISSES", "8000"))
NEAR_MISSES_OF_ONE = 25
_ARRAYS = {Endpoint.COMPLETIONS: "prompt", Endpoint.EMBEDDINGS: "input"}

UPSTREAMS = {
    "llama": make_upstream("http://127.0.0.1:1/v1"),
    "azure": make_upstream("http://127.0.0.1:1", kind="azure", api_version="client"),
    "fixed": make_upstream("http://127.0.0.1:1", kind="azure", api_version="2024-02-01"),
}
DECLARED = {"temperature": 1, "top_p": 1.0, "max_tokens": 16}
MODELS = {
    "m": ModelSettings(deployments=(Deployment(upstream="llama"),), aliases=("davinci",), context_window=1_000_000),
    "org/model": ModelSettings(deployments=(Deployment(upstream="llama", name="m"),)),
    "prod": ModelSettings(deployments=(Deployment(upstream="azure"),)),
    "fixed": ModelSettings(deployments=(Deployment(upstream="fixed"),)),
    "declared": ModelSettings(deployments=(Deployment(upstream="llama"),), defaults=ModelDefaults(**DECLARED)),
}
ASKED_AS = {"davinci": "m"} | {name: name for name in MODELS}
NAMES = ("m", "m", "m", "m", "declared", "declared", *ASKED_AS)
FORWARDS_VERSION = frozenset({"prod"})
DEFAULTS = {name: Number(str(value)) for name, value in DECLARED.items()}

RULES: tuple[dict[str, Any], ...] = (
    {},
    {"n": {"max": 1, "on_violation": "clamp"}, "max_tokens": {"max": 8, "on_violation": "clamp"}},
    {"temperature": {"force": 0}, "seed": {"default": 7}, "stop": {"add": ["\n"], "on_violation": "clamp"}},
    {"prompt": {"strip_trailing_space": True}, "user": {"pseudonymise": True}, "logit_bias": {"forbid": "drop"}},
)
SCOPES = ("organization", "project", "user", "key", "end_user")
POLICIES = {
    f"{scope}-{number}": Policy.model_validate(
        {
            "parameters": rules,
            "unknown_parameters": "drop" if number == 1 else None,
            "limits": [{"of": "tokens", "limit": 10**12, "per": "day", "by": ["key"]}] if number == 2 else [],
            "cache": {"mode": "everything", "scope": scope},
        }
    )
    for scope in SCOPES
    for number, rules in enumerate(RULES)
}
PEOPLE = tuple(
    Principal(
        "org",
        f"proj_{number % 2}",
        owner,
        f"key_{number}",
        is_service_account=number % 3 == 2,
        policies=(AppliedPolicy("project", policy),),
    )
    for number, (policy, owner) in enumerate((policy, owner) for policy in POLICIES for owner in ("alice", "bob"))
)
RULEBOOK = Rulebook(MODELS, POLICIES, version_forwarding_upstreams={"azure"}, pseudonym_key=b"a secret of some length")


class _Sent(Exception):  # noqa: N818  what is looked for, and no fault
    """A body on its way to the upstream."""

    def __init__(self, body: bytes) -> None:
        self.body = body


class _Client:
    """In the place of the client that would send: nothing after the body matters."""

    async def post(self, _address: str, _headers: object, body: bytes, **_more: object) -> None:
        raise _Sent(body)


_LIVE = Upstreams(cast("UpstreamClient", _Client()), metrics=Metrics(), worker=0, workers=1)
DISPATCHER = dispatcher_of(_LIVE, Configuration(upstreams=UPSTREAMS))


def forwarded(decision: Decision) -> bytes:
    """Return the body that the upstream would be sent."""
    try:
        first_answer(DISPATCHER, decision, make_exchange(decision), PlainRequest()).send(None)
    except _Sent as sent:
        return sent.body
    raise AssertionError("nothing was sent")


def decided(drawn: Drawn, random: Random) -> Decision:
    """Decide on a request as the gateway does. Raises Rejection."""
    asked = read_request(
        endpoint=drawn.endpoint,
        dialect=drawn.dialect,
        fields=decode_body(drawn.write(random)),
        path_model=drawn.path_model,
        api_version=drawn.api_version,
    )
    return decide(asked, PEOPLE[drawn.who], RULEBOOK, cache_control=None, draw=random.random())


def sharers(drawn: Drawn) -> tuple[object, ...]:
    """Return who shares an answer to a request, by what its policy says."""
    principal = PEOPLE[drawn.who]
    scope = principal.policies[0].name.partition("-")[0]
    named: Mapping[str, tuple[object, ...]] = {
        "organization": (),
        "project": (principal.project,),
        "user": (principal.owner, principal.is_service_account),
        "key": (principal.key,),
        "end_user": (principal.project, drawn.fields.get("user")),
    }
    return (scope, *named[scope])


def question(drawn: Drawn, members: Mapping[str, Any]) -> Form:
    """Return all that an answer depends on: who may see it, where it is asked for, and what."""
    model = ASKED_AS[drawn.model]
    version = drawn.api_version if model in FORWARDS_VERSION else None
    declared = {
        name: value
        for name, value in (DEFAULTS if model == "declared" else {}).items()
        if drawn.endpoint == "completions" or (name != "max_tokens" and drawn.endpoint != "embeddings")
    }
    return (sharers(drawn), drawn.endpoint.value, model, version, meaning_of(drawn.endpoint.value, members, declared))


@dataclass
class Books:
    """Every question that was asked, with its key, both ways, and the body that was first sent with it."""

    keys: dict[Form, str] = field(default_factory=dict)
    questions: dict[str, Form] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    shared: int = 0
    different: int = 0
    bypassed: int = 0
    refused: int = 0

    def enter(self, drawn: Drawn, random: Random) -> str | None:
        """Ask, and compare with all that was asked before; return the key, None where there is none."""
        try:
            decision = decided(drawn, random)
            body = forwarded(decision)
        except (Rejection, UpstreamUnusable):
            self.refused += 1
            return None
        if not isinstance(decision.cache, Keyed):
            self.bypassed += 1
            return None
        plan, members = decision.cache, read(body)
        self._match(plan.key, question(drawn, members), body)
        for key, item in zip(plan.items, members[_ARRAYS[drawn.endpoint]] if plan.items else (), strict=True):
            self._match(key, question(drawn, {**members, _ARRAYS[drawn.endpoint]: item}), body)
        return plan.key

    def _match(self, key: str, asked: Form, body: bytes) -> None:
        known, other = self.questions.setdefault(key, asked), self.keys.setdefault(asked, key)
        assert known == asked, f"one key for {self.bodies[key]!r} and {body!r}"
        assert other == key, f"two keys for {self.bodies[other]!r} and {body!r}"
        self.bodies.setdefault(key, body)

    def compare(self, one: str, other: str | None) -> None:
        """Count a pair."""
        self.shared += one == other
        self.different += other is not None and one != other


def ask_near_misses(seed: int, count: int) -> Books:
    """Return what came of so many near misses whose keys differ."""
    random, books = Random(seed), Books()  # noqa: S311  a seed is a sequence
    while books.different < count:
        drawn = draw(random, NAMES, len(PEOPLE))
        key = books.enter(drawn, random)
        if key is None:
            continue
        for _ in range(NEAR_MISSES_OF_ONE):
            books.compare(key, books.enter(near_miss(random, drawn, NAMES, len(PEOPLE)), random))
    return books


@pytest.mark.parametrize("seed", [5, 20_261_130])
def test_a_key_is_shared_by_those_who_ask_the_same_and_by_nobody_else(seed: int) -> None:
    books = ask_near_misses(seed, NEAR_MISSES // 2)
    assert books.shared > NEAR_MISSES // 20
    assert len(books.keys) == len(books.questions)


Fields = dict[str, Any]
FAULTS: dict[str, Callable[[Fields], Fields]] = {
    **{
        f"{name} is forgotten": lambda fields, name=name: {each: fields[each] for each in fields if each != name}  # type: ignore[misc]
        for name in ("stop", "n", "logit_bias", "tools", "response_format", "x_vendor", "seed", "temperature")
    },
    "what is empty is dropped": lambda fields: {name: value for name, value in fields.items() if value not in ([], {})},
    "what is 0 or false is dropped": lambda fields: {name: value for name, value in fields.items() if value != 0},
    "lists are joined": lambda fields: _written(fields, list, lambda each: "".join(map(str, each))),
    "lists are written as text": lambda fields: _written(fields, list, str),
    "texts are stripped": lambda fields: _written(fields, str, str.strip),
    "texts are composed": lambda fields: _written(fields, str, lambda each: normalize("NFC", each)),
    "line ends are made one": lambda fields: _written(fields, str, lambda each: "\n".join(each.splitlines())),
    "integers are read as doubles": lambda fields: _written(fields, int, float),
    "true is 1": lambda fields: _written(fields, bool, int),
}
"""What is done to the members of a key."""


def _written(fields: Fields, kind: type, write: Callable[[Any], Any]) -> Fields:
    return {name: write(value) if type(value) is kind else value for name, value in fields.items()}


@pytest.mark.parametrize("spoil", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_in_keys_would_be_seen(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Fields], Fields]) -> None:
    kept = cache_keys.canonical_fields
    monkeypatch.setattr(cache_keys, "canonical_fields", lambda *given: spoil(kept(*given)))
    with pytest.raises(AssertionError, match=r"^(one key|two keys) for "):
        ask_near_misses(5, NEAR_MISSES // 2)


# Through a whole gateway ----------------------------------------------------------------------------------------------

TEXT, CHAT, VECTOR = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
ENGINE, AZURE = "/v1/engines/{}/completions", "/openai/deployments/{}/{}?api-version=2024-10-21"
COLD: dict[str, Any] = {"model": "m", "prompt": "p", "temperature": 0}
NAMELESS = {"prompt": "p", "temperature": 0}
ASKS: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "p"}], "seed": 1}
RULED = {
    "n": {"max": 2, "on_violation": "clamp"},
    "logit_bias": {"forbid": "drop"},
    "stop": {"add": ["END"]},
    "top_p": {"default": 0.5},
    "presence_penalty": {"force": 1},
}
Row = tuple[str, dict[str, Any]]
ROWS: dict[str, tuple[Row, Row, bool]] = {
    "the path of an engine": ((TEXT, COLD), (ENGINE.format("m"), NAMELESS), True),
    "the path of a deployment": ((ENGINE.format("m"), NAMELESS), (AZURE.format("m", "completions"), NAMELESS), True),
    "a deployment's path beside another model in the body": (
        (TEXT, COLD),
        (AZURE.format("m", "completions"), {**COLD, "model": "whatever"}),
        True,
    ),
    "a model and its alias": ((TEXT, COLD), (TEXT, {**COLD, "model": "davinci"}), True),
    "an alias in the path": ((TEXT, COLD), (ENGINE.format("davinci"), NAMELESS), True),
    "another engine in the path": ((ENGINE.format("m"), NAMELESS), (ENGINE.format("other"), NAMELESS), False),
    "another deployment in the path": (
        (AZURE.format("m", "completions"), COLD),
        (AZURE.format("other", "completions"), COLD),
        False,
    ),
    "chat in two dialects": ((CHAT, ASKS), (AZURE.format("m", "chat/completions"), ASKS), True),
    "embeddings in two dialects": (
        (VECTOR, {"model": "m", "input": ["p"]}),
        (AZURE.format("m", "embeddings"), {"input": "p"}),
        True,
    ),
    "cache_level 2 and none": ((AZURE.format("m", "completions"), {**COLD, "cache_level": 2}), (TEXT, COLD), True),
    "cache_level 1": ((TEXT, COLD), (AZURE.format("m", "completions"), {**COLD, "cache_level": 1}), False),
    "what policy clamps to the same": ((TEXT, {**COLD, "n": 2}), (TEXT, {**COLD, "n": 4}), True),
    "what policy drops": ((TEXT, COLD), (TEXT, {**COLD, "logit_bias": {"5": 1}}), True),
    "what policy adds": ((TEXT, COLD), (TEXT, {**COLD, "stop": "END"}), True),
    "what policy writes for nothing": ((TEXT, COLD), (TEXT, {**COLD, "top_p": 0.5}), True),
    "what policy forces": ((TEXT, COLD), (TEXT, {**COLD, "presence_penalty": -1}), True),
    "what policy leaves": ((TEXT, COLD), (TEXT, {**COLD, "top_p": 0.25}), False),
    "a member that no API names": ((TEXT, COLD), (TEXT, {**COLD, "num_ctx": 8192}), False),
    "text that looks like tokens": ((TEXT, {**COLD, "prompt": "[1, 2]"}), (TEXT, {**COLD, "prompt": [1, 2]}), False),
}


@pytest.mark.parametrize(("first", "second", "is_hit"), ROWS.values(), ids=ROWS.keys())
async def test_who_is_served_what_another_was_answered(
    first: Row,
    second: Row,
    *,
    is_hit: bool,
    up: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
) -> None:
    models = {
        "m": {"deployments": [{"upstream": "only"}], "aliases": ["davinci"]},
        "other": {"deployments": [{"upstream": "only", "name": "m"}]},
    }
    settings = configuration(
        up.url,
        tmp_path,
        models=models,
        policies={"default": {"parameters": RULED}},
        projects=[{"id": "proj", "policy": "default"}],
    )
    async with whole_gateway(settings, valkey.url) as whole:
        missed, _ = await whole.ask("POST", *first)
        answer, _ = await whole.ask("POST", *second)
    assert (missed.status, answer.status) == (200, 200)
    assert str(missed.header("cache-status")).startswith("tidegate;fwd=miss")
    assert str(answer.header("cache-status")).startswith("tidegate;hit") is is_hit
    assert len(up.served) == 1 + (not is_hit)
    assert (answer.body == missed.body) is is_hit
