"""Requests made from the facts of OpenAI's document, through a whole gateway (SPEC §3).

Valid ones arrive as they were sent where no rule applies; one with a single fault is answered 400, naming the
parameter, and goes nowhere.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import openapi_requests
import pytest
from gateway import sha256
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_requests import ANY_OBJECT, SAMPLES, Schema, Wrong, covering, values, wrong_values
from whole import KEY, Whole, configuration, whole_gateway

from policies.requests.asked import Endpoint
from policies.requests.dialects import REQUEST_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from fake_upstream import FakeUpstream
    from sending import MemoryWriter
    from stores import StoreServer

SERVED = "what-the-upstream-calls-it"
ON_AZURE = "org/azure"
RULED_KEY, LIMITED_KEY = "sk-ruled", "sk-limited"
PLAIN: Mapping[Endpoint, dict[str, Any]] = {
    Endpoint.COMPLETIONS: {"prompt": "hello"},
    Endpoint.CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    Endpoint.EMBEDDINGS: {"input": "hello"},
    Endpoint.RESPONSES: {"input": "hello"},
}
"""The least that a request to each endpoint needs beside its model."""

OBEYED = {
    "unknown_parameters": "reject",
    "parameters": {
        "n": {"min": 1, "max": 128},
        "best_of": {"max": 128, "on_violation": "clamp"},
        "temperature": {"max": 2, "on_violation": "clamp"},
        "top_p": {"min": 0, "max": 1},
        "seed": {"max": 2**63},
        "candidates": {"max": 10**6},
        "prompts": {"max": 10**6},
    },
}
"""A policy that every valid request obeys."""

LIMITED = {"limits": [{"of": "tokens", "limit": 10**12, "per": "minute", "by": ["key"]}]}
"""A policy under which the input of every request is measured."""

_TOKEN_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_INPUT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
        _TOKEN_IDS,
        {"type": "array", "minItems": 1, "items": _TOKEN_IDS},
    ]
}
_COUNT = {"type": "integer", "minimum": 0}

SPEC_SAYS: Mapping[tuple[Endpoint, str], Schema] = {
    # the document: required; token ids of any sign
    (Endpoint.COMPLETIONS, "prompt"): _INPUT,
    # the document: 0 to 20
    (Endpoint.COMPLETIONS, "best_of"): {"type": "integer", "minimum": 1, "maximum": 128},
    # the document: not an empty array
    (Endpoint.COMPLETIONS, "stop"): {
        "anyOf": [{"type": "string"}, {"type": "array", "maxItems": 4, "items": {"type": "string"}}]
    },
    # the document: whole numbers without bounds, keys of any kind
    (Endpoint.COMPLETIONS, "logit_bias"): {
        "type": "object",
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    # not in the document: Azure's
    (Endpoint.COMPLETIONS, "completion_config"): {"type": "string"},
    (Endpoint.COMPLETIONS, "cache_level"): {"type": "integer", "minimum": 0, "maximum": 2},
    # the document: of any sign
    (Endpoint.CHAT, "max_tokens"): _COUNT,
    (Endpoint.CHAT, "max_completion_tokens"): _COUNT,
    # the document: at most 2,048 items; token ids of any sign
    (Endpoint.EMBEDDINGS, "input"): _INPUT,
    # the document: 16 or more
    (Endpoint.RESPONSES, "max_output_tokens"): _COUNT,
    # the document: true as well
    (Endpoint.RESPONSES, "background"): {"const": False},
}
"""Where the gateway's specification says something else than the document, it wins."""

READ: Mapping[Endpoint, Collection[str]] = {
    Endpoint.COMPLETIONS: {
        *openapi_requests.ENDPOINTS["completions"]["properties"],
        "completion_config",
        "cache_level",
    },
    Endpoint.CHAT: {
        *("model", "messages", "max_completion_tokens", "max_tokens", "temperature", "top_p", "n", "seed", "stream"),
        *("stream_options", "logprobs", "top_logprobs", "user"),
    },
    Endpoint.EMBEDDINGS: {"model", "input", "user"},
    Endpoint.RESPONSES: {
        *("model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "stream", "stream_options"),
        *("top_logprobs", "store", "background", "previous_response_id", "user"),
    },
}
"""The parameters that the gateway decides on (SPEC §3); all others are forwarded whatever they hold."""

_STREAM_OPTIONS = {"type": "object", "properties": {"include_usage": {"type": "boolean"}}}
READS_OF: Mapping[tuple[Endpoint, str], Schema] = {
    (Endpoint.COMPLETIONS, "stream_options"): _STREAM_OPTIONS,
    (Endpoint.COMPLETIONS, "logprobs"): _COUNT,  # how many there may be is the model's configuration
    (Endpoint.CHAT, "stream_options"): _STREAM_OPTIONS,
    (Endpoint.CHAT, "messages"): {"type": "array", "minItems": 1, "items": {"type": "object"}},
    (Endpoint.RESPONSES, "stream_options"): {"type": "object"},
    (Endpoint.RESPONSES, "input"): {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
    (Endpoint.RESPONSES, "background"): {"type": "boolean"},
}
"""How much of a parameter's value the gateway reads, where that is less than the document says of it."""

TAKEN = {(Endpoint.COMPLETIONS, "logit_bias", "array"): "no pairs are an empty map (SPEC §3)"}
"""Faults that are none."""

NEEDED = [
    *((endpoint, "model") for endpoint in PLAIN),
    (Endpoint.CHAT, "messages"),
    (Endpoint.EMBEDDINGS, "input"),
]
"""What a request cannot do without; the document needs a `prompt` too, and no model for responses."""

IN_WORDS = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "array": "an array",
    "object": "an object",
}


def schema_of(endpoint: Endpoint) -> Schema:
    """Return an endpoint's members as the specification has them."""
    said = openapi_requests.ENDPOINTS[endpoint]["properties"]
    ruled = {name: schema for (where, name), schema in SPEC_SAYS.items() if where is endpoint}
    return {name: schema for name, schema in {**said, **ruled}.items() if name != "model"}


def agreeing(endpoint: Endpoint, members: dict[str, Any]) -> dict[str, Any]:
    """Return a request with these members, and with what some of them need beside them (SPEC §3)."""
    request = {**PLAIN[endpoint], **members}
    if request.get("stream_options") is not None:
        request["stream"] = True
    n, best_of = request.get("n") or 1, request.get("best_of")
    if type(best_of) is int and best_of > 0 and (best_of < n or request.get("stream")):
        request["n"] = best_of
    return request


def exactly(body: bytes) -> str:
    """Return JSON so that two are equal when every value and its type is: 1 is not 1.0, and 0.0 is not -0.0."""
    return json.dumps(json.loads(body), sort_keys=True)


def as_forwarded(endpoint: Endpoint, request: Mapping[str, Any], *, model: str = "m") -> str:
    """Return what must arrive of a request that no rule applies to, as `exactly` writes it."""
    arriving = {**request, "model": SERVED}
    if model == ON_AZURE and endpoint is not Endpoint.RESPONSES:
        del arriving["model"]  # the address says it
    elif model != ON_AZURE:
        arriving.pop("cache_level", None)  # which nobody but Azure knows
    if request.get("stream") and endpoint in {Endpoint.COMPLETIONS, Endpoint.CHAT}:
        arriving["stream_options"] = {**(request.get("stream_options") or {}), "include_usage": True}
    return exactly(json.dumps(arriving).encode())


class Caller:
    """Sends requests through one gateway, and tells what the upstream got of each."""

    def __init__(self, whole: Whole, upstream: FakeUpstream, run: Callable[..., Any]) -> None:
        self._whole, self._upstream, self._run = whole, upstream, run

    def send(self, target: str, body: bytes, *, key: str = KEY) -> tuple[MemoryWriter, list[str]]:
        """Send a body as it is; return the answer, and as `exactly` writes it what went upstream."""
        self._upstream.log.clear()
        control = "no-store, no-cache"
        answer, _ = self._run(
            self._whole.ask("POST", target, body, Authorization=f"Bearer {key}", Cache_Control=control)
        )
        return answer, [exactly(request.body) for request in self._upstream.log]

    def arrives(self, endpoint: Endpoint, members: Mapping[str, Any]) -> None:
        """Send a valid request and check that it arrives as it was sent, with and without rules that it obeys."""
        request = agreeing(endpoint, dict(members))
        body = json.dumps({"model": "m", **request}).encode()
        for key in (KEY, RULED_KEY):
            answer, arrived = self.send(f"/v1/{endpoint}", body, key=key)
            assert answer.status == 200, answer.body
            assert arrived == [as_forwarded(endpoint, request)]
            assert answer.header("x-tidegate-adjusted") is None

    def is_refused(self, endpoint: Endpoint, request: Mapping[str, Any], param: str) -> str:
        """Send a request with one fault and check that the answer names the parameter; return its message.

        What no rule could mend is refused before any rule would clamp it (SPEC §3).
        """
        messages = set()
        for key in (KEY, RULED_KEY):
            answer, arrived = self.send(f"/v1/{endpoint}", json.dumps(request).encode(), key=key)
            assert (answer.status, arrived) == (400, []), answer.body
            error = json.loads(answer.body)["error"]
            assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, None)
            assert answer.header("x-should-retry") == "false"
            messages.add(error["message"])
        assert len(messages) == 1
        return str(messages.pop())


@pytest.fixture(scope="module")
def caller(
    _upstream: FakeUpstream, valkey_server: StoreServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Caller]:
    """Return the caller of a gateway with a model at each kind of upstream, a key without rules and one with."""
    made = configuration(
        _upstream.url,
        tmp_path_factory.mktemp("data"),
        upstreams={
            "only": {"kind": "openai", "base_url": f"{_upstream.url}/v1"},
            "cloud": {"kind": "azure", "base_url": _upstream.url, "api_version": "2024-10-21"},
        },
        models={
            "m": {"deployments": [{"upstream": "only", "name": SERVED}], "max_output_tokens": 64},
            ON_AZURE: {"deployments": [{"upstream": "cloud", "name": SERVED}]},
        },
        policies={"free": {}, "ruled": OBEYED, "limited": LIMITED},
        projects=[{"id": name, "policy": name} for name in ("free", "ruled", "limited")],
        keys=[
            {"id": f"key_{project}", "project": project, "user": "alice", "sha256": sha256(key)}
            for key, project in ((KEY, "free"), (RULED_KEY, "ruled"), (LIMITED_KEY, "limited"))
        ],
    )
    valkey_server.flush()
    _upstream.reset()
    with asyncio.Runner() as runner:
        opened = whole_gateway(made, valkey_server.url)
        yield Caller(runner.run(opened.__aenter__()), _upstream, runner.run)
        runner.run(opened.__aexit__(None, None, None))
        _upstream.reset()


# ---------------------------------------------------------------- what is valid
EACH = [pytest.param(endpoint, name, id=f"{endpoint}, {name}") for endpoint in PLAIN for name in schema_of(endpoint)]


@pytest.mark.parametrize(("endpoint", "name"), EACH)
def test_every_value_of_a_parameter_arrives_as_it_was_sent(caller: Caller, endpoint: Endpoint, name: str) -> None:
    nothing = [] if (endpoint, name) in NEEDED else [None]
    for value in [*covering(schema_of(endpoint)[name]), *nothing]:
        caller.arrives(endpoint, {name: value})


@pytest.mark.parametrize("endpoint", PLAIN)
def test_requests_that_hold_every_parameter_at_once_arrive_as_they_were_sent(
    caller: Caller, endpoint: Endpoint
) -> None:
    for members in covering({"type": "object", "properties": schema_of(endpoint)}):
        caller.arrives(endpoint, members)


@pytest.mark.parametrize("endpoint", PLAIN)
@settings(max_examples=60, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_valid_request_arrives_as_it_was_sent(caller: Caller, endpoint: Endpoint, data: st.DataObject) -> None:
    caller.arrives(endpoint, data.draw(values({"type": "object", "properties": schema_of(endpoint)})))


ANYTHING = (*SAMPLES.values(), "no such choice", -(10**39), [[]], [{}], ANY_OBJECT)


@pytest.mark.parametrize("value", ANYTHING, ids=lambda value: json.dumps(value)[:20])
@pytest.mark.parametrize("endpoint", PLAIN)
def test_what_the_gateway_does_not_decide_on_arrives_whatever_it_holds(
    caller: Caller, endpoint: Endpoint, value: object
) -> None:
    caller.arrives(endpoint, dict.fromkeys(schema_of(endpoint).keys() - READ[endpoint], value))


PLACES: Mapping[str, tuple[Endpoint, Callable[[Any], dict[str, Any]]]] = {
    "a message's role": (Endpoint.CHAT, lambda any_: {"messages": [{"role": any_}]}),
    "a message's content": (Endpoint.CHAT, lambda any_: {"messages": [{"role": "user", "content": any_}]}),
    "a part": (Endpoint.CHAT, lambda any_: {"messages": [{"content": [any_]}]}),
    "a part's type": (Endpoint.CHAT, lambda any_: {"messages": [{"content": [{"type": any_, "text": "x"}]}]}),
    "a part's text": (Endpoint.CHAT, lambda any_: {"messages": [{"content": [{"type": "text", "text": any_}]}]}),
    "an image": (Endpoint.CHAT, lambda any_: {"messages": [{"content": [{"type": "image_url", "image_url": any_}]}]}),
    "an image's address": (
        Endpoint.CHAT,
        lambda any_: {"messages": [{"content": [{"type": "image_url", "image_url": {"url": any_}}]}]},
    ),
    "a sound": (
        Endpoint.CHAT,
        lambda any_: {"messages": [{"content": [{"type": "input_audio", "input_audio": any_}]}]},
    ),
    "a message's tool calls": (Endpoint.CHAT, lambda any_: {"messages": [{"tool_calls": any_}]}),
    "a tool of a chat": (Endpoint.CHAT, lambda any_: {"tools": [any_]}),
    "a tool's type in a chat": (Endpoint.CHAT, lambda any_: {"tools": [{"type": any_}]}),
    "a modality": (Endpoint.CHAT, lambda any_: {"modalities": [any_]}),
    "a chat's cache level": (Endpoint.CHAT, lambda any_: {"cache_level": any_}),
    "an embedding's cache level": (Endpoint.EMBEDDINGS, lambda any_: {"cache_level": any_}),
    "an item's type": (Endpoint.RESPONSES, lambda any_: {"input": [{"type": any_, "content": "x"}]}),
    "an item's content": (Endpoint.RESPONSES, lambda any_: {"input": [{"role": "user", "content": any_}]}),
    "an item's output": (
        Endpoint.RESPONSES,
        lambda any_: {"input": [{"type": "computer_call_output", "output": any_}]},
    ),
    "an item's picture": (
        Endpoint.RESPONSES,
        lambda any_: {"input": [{"type": "image_generation_call", "result": any_}]},
    ),
    "a part of an item": (Endpoint.RESPONSES, lambda any_: {"input": [{"role": "user", "content": [any_]}]}),
    "the type of an item's part": (
        Endpoint.RESPONSES,
        lambda any_: {"input": [{"role": "user", "content": [{"type": any_, "text": "x"}]}]},
    ),
    "an item's image": (
        Endpoint.RESPONSES,
        lambda any_: {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": any_}]}]},
    ),
    "an item's file": (
        Endpoint.RESPONSES,
        lambda any_: {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": any_}]}]},
    ),
    "a tool of a response": (Endpoint.RESPONSES, lambda any_: {"tools": [any_]}),
    "a tool's type in a response": (Endpoint.RESPONSES, lambda any_: {"tools": [{"type": any_}]}),
    "a response's cache level": (Endpoint.RESPONSES, lambda any_: {"cache_level": any_}),
}
"""Places that the gateway looks at to measure an input or to know what may be cached, and that may hold anything."""

CACHEABLE = {
    Endpoint.CHAT: {"temperature": 0},
    Endpoint.EMBEDDINGS: {},
    Endpoint.RESPONSES: {"temperature": 0, "store": False},
}


@pytest.mark.parametrize(("endpoint", "made"), PLACES.values(), ids=PLACES)
def test_what_is_looked_at_and_not_decided_on_may_be_anything(
    caller: Caller, endpoint: Endpoint, made: Callable[[Any], dict[str, Any]]
) -> None:
    for value in ANYTHING:
        members = {**PLAIN[endpoint], **CACHEABLE[endpoint], **made(value)}
        body = json.dumps({"model": "m", **members}).encode()
        answer, arrived = caller.send(f"/v1/{endpoint}", body)
        assert (answer.status, arrived) == (200, [as_forwarded(endpoint, members)]), value
        limited, _ = caller.send(f"/v1/{endpoint}", body, key=LIMITED_KEY)
        assert limited.status in {200, 400}, value


@pytest.mark.parametrize("endpoint", PLAIN)
def test_the_request_type_names_every_parameter_of_the_document(endpoint: Endpoint) -> None:
    assert set(schema_of(endpoint)) - set(REQUEST_TYPES[endpoint].model_fields) == set()


# ---------------------------------------------------------------- what is not
def named(value: Any) -> str:  # noqa: ANN401  any JSON value
    """Name a value as a message does."""
    if isinstance(value, list):
        return f"an array of {len(value)} items"
    return f"an object of {len(value)} members" if isinstance(value, dict) else json.dumps(value)


def in_words(schema: Schema) -> list[str]:
    """Return what a message says of the values that a parameter takes."""
    if "anyOf" in schema:
        return [word for option in schema["anyOf"] for word in in_words(option)]
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    return [IN_WORDS[kind], *(str(schema[bound]) for bound in ("minimum", "maximum") if bound in schema)]


def read_of(endpoint: Endpoint, name: str) -> Schema:
    """Return what the gateway wants of a parameter's value."""
    if name == "model":
        return {"type": "string"}
    return READS_OF.get((endpoint, name)) or schema_of(endpoint)[name]


FAULTS = [
    pytest.param(endpoint, name, wrong, id=f"{endpoint}, {name}: {wrong.said}")
    for endpoint, names in READ.items()
    for name in sorted(names)
    for wrong in wrong_values(read_of(endpoint, name))
    if (endpoint, name, wrong.said) not in TAKEN
]


@pytest.mark.parametrize(("endpoint", "name", "wrong"), FAULTS)
def test_a_single_fault_is_named_with_what_would_be_right(
    caller: Caller, endpoint: Endpoint, name: str, wrong: Wrong
) -> None:
    request = agreeing(endpoint, {"model": "m", name: wrong.value})
    message = caller.is_refused(endpoint, request, ".".join((name, *wrong.path)))
    schema = read_of(endpoint, name)
    for member in wrong.path:
        schema = schema["properties"][member]
    assert message.startswith(name)
    assert f"is {named(wrong.culprit)}; " in message
    assert [word for word in in_words(schema) if word not in message.partition(" must be ")[2]] == []


@pytest.mark.parametrize(("endpoint", "name"), NEEDED)
@pytest.mark.parametrize("is_null", [False, True], ids=["absent", "null"])
def test_what_a_request_cannot_do_without_is_named(
    caller: Caller, endpoint: Endpoint, name: str, *, is_null: bool
) -> None:
    request = {"model": "m", **PLAIN[endpoint], name: None}
    if not is_null:
        del request[name]
    assert "must be" in caller.is_refused(endpoint, request, name)


REFUSED = {
    "best_of below n": (Endpoint.COMPLETIONS, {"n": 3, "best_of": 2}, "best_of"),
    "best_of above n on a stream": (Endpoint.COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
    "more logprobs than the model tells": (Endpoint.COMPLETIONS, {"logprobs": 6}, "logprobs"),
    "stream_options on no stream": (Endpoint.COMPLETIONS, {"stream_options": {}}, "stream_options"),
    "stream_options of a chat on no stream": (Endpoint.CHAT, {"stream_options": {}}, "stream_options"),
    "stream_options of a response on no stream": (Endpoint.RESPONSES, {"stream_options": {}}, "stream_options"),
    "a response in the background": (Endpoint.RESPONSES, {"background": True}, "background"),
}


@pytest.mark.parametrize(("endpoint", "members", "param"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_named(
    caller: Caller, endpoint: Endpoint, members: dict[str, Any], param: str
) -> None:
    assert param in caller.is_refused(endpoint, {"model": "m", **PLAIN[endpoint], **members}, param)


# ---------------------------------------------------------------- the three dialects
_DEPLOYMENTS = "/openai/deployments/{model}/{endpoint}?api-version=2024-10-21"
DIALECTS = {
    "today's path": ("/v1/{endpoint}", "{model}", [*PLAIN]),
    "Azure's newer surface": ("/openai/v1/{endpoint}", "{model}", [*PLAIN]),
    "engines": ("/v1/engines/{model}/{endpoint}", None, [Endpoint.COMPLETIONS]),
    "engines, and the model in the body": ("/v1/engines/{model}/{endpoint}", "{model}", [Endpoint.COMPLETIONS]),
    "deployments": (_DEPLOYMENTS, None, [Endpoint.COMPLETIONS, Endpoint.CHAT, Endpoint.EMBEDDINGS]),
    "deployments, and another model in the body": (_DEPLOYMENTS, "other", [Endpoint.COMPLETIONS, Endpoint.CHAT]),
    "responses of Azure's client": ("/openai/{endpoint}?api-version=2024-10-21", "{model}", [Endpoint.RESPONSES]),
}
SPOKEN = [
    pytest.param(target, said, endpoint, id=f"{name}: {endpoint}")
    for name, (target, said, endpoints) in DIALECTS.items()
    for endpoint in endpoints
]


@pytest.mark.parametrize("model", ["m", ON_AZURE])
@pytest.mark.parametrize(("target", "said", "endpoint"), SPOKEN)
def test_requests_arrive_the_same_in_every_dialect(
    caller: Caller, target: str, said: str | None, endpoint: Endpoint, model: str
) -> None:
    for members in covering({"type": "object", "properties": schema_of(endpoint)}):
        request = agreeing(endpoint, members)
        body = request if said is None else {"model": said.format(model=model), **request}
        answer, arrived = caller.send(target.format(model=model, endpoint=endpoint), json.dumps(body).encode())
        assert answer.status == 200, answer.body
        assert arrived == [as_forwarded(endpoint, request, model=model)]


# ---------------------------------------------------------------- how a value is written
NUMBERS = {
    "a point": ("99.0", True),
    "an exponent": ("1e2", True),
    "an exponent and a point": ("1.0E+1", True),
    "zeros behind": ("1.000000000000000000000000000000000000000", True),
    "quotes": ('"99"', False),
    "true": ("true", False),
    "a fraction": ("1.5", False),
    "40 digits": ("1" * 40, False),
    "an array": ("[1]", False),
}


@pytest.mark.parametrize(("written", "is_whole"), NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize(
    ("endpoint", "key"), [(Endpoint.COMPLETIONS, "n"), (Endpoint.CHAT, "n"), (Endpoint.CHAT, r"\u006e")]
)
def test_a_whole_number_is_one_however_it_is_written(
    caller: Caller, endpoint: Endpoint, key: str, written: str, *, is_whole: bool
) -> None:
    request = json.dumps({"model": SERVED, **PLAIN[endpoint]})[:-1] + f', "{key}": {written}}}'
    answer, arrived = caller.send(f"/v1/{endpoint}", request.replace(SERVED, "m").encode())
    assert arrived == [exactly(request.encode())] * is_whole
    assert answer.status == (200 if is_whole else 400)
    assert is_whole or json.loads(answer.body)["error"]["param"] == "n"


TWICE = {
    "the same": '"n": 1, "n": 1',
    "one with an escape": r'"n": 1, "\u006e": 64',
    "null and a number": '"n": null, "n": 64',
    "with others between": '"n": 1, "user": "u", "x": {"n": 1}, "n": 2',
    "far down": '"x": [{"y": {"n": 1, "n": 2}}]',
    "the model": '"model": "other"',
    "the model with an escape": r'"mod\u0065l": "m"',
}


@pytest.mark.parametrize("members", TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("endpoint", PLAIN)
def test_a_key_that_stands_twice_is_refused(caller: Caller, endpoint: Endpoint, members: str) -> None:
    answer, arrived = caller.send(
        f"/v1/{endpoint}", (json.dumps({"model": "m", **PLAIN[endpoint]})[:-1] + f", {members}}}").encode()
    )
    assert (answer.status, arrived) == (400, [])
    assert "stands twice" in json.loads(answer.body)["error"]["message"]


ZEROS = [
    (Endpoint.COMPLETIONS, {"logprobs": 0, "seed": 0, "max_tokens": 0, "stop": [], "temperature": -0.0, "top_p": 0}),
    (Endpoint.COMPLETIONS, {"presence_penalty": -0.0, "logit_bias": {}, "suffix": "", "user": "", "prompt": ""}),
    (Endpoint.COMPLETIONS, {"echo": False, "stream": False, "prompt": [""], "cache_level": 0, "completion_config": ""}),
    (Endpoint.COMPLETIONS, {"stream_options": {}, "seed": -0.0, "max_tokens": 0.0}),
    (Endpoint.CHAT, {"top_logprobs": 0, "seed": 0, "max_tokens": 0, "max_completion_tokens": 0, "temperature": -0.0}),
    (Endpoint.CHAT, {"messages": [{}], "tools": [], "stop": [], "metadata": {}, "logit_bias": {}, "user": ""}),
    (Endpoint.EMBEDDINGS, {"input": "", "user": "", "dimensions": 0}),
    (Endpoint.EMBEDDINGS, {"input": [0]}),
    (Endpoint.RESPONSES, {"input": [], "instructions": "", "max_output_tokens": 0, "temperature": -0.0, "tools": []}),
    (Endpoint.RESPONSES, {"input": "", "top_logprobs": 0, "store": False, "background": False, "metadata": {}}),
]


@pytest.mark.parametrize(("endpoint", "members"), ZEROS)
def test_nothing_and_zero_are_values_like_others(caller: Caller, endpoint: Endpoint, members: dict[str, Any]) -> None:
    caller.arrives(endpoint, members)
