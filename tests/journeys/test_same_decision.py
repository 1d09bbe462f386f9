"""One request, three answers that must be one: what explain says, what is done, what a simulation makes of its record.

Every example goes through a whole gateway to the scripted upstream. Its explanation is made from configuration and
request, its simulation from configuration and usage record; neither knows of the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from fake_upstream import App, json_reply
from random_requests import ENVIRON, make_request, make_world
from responses import answer
from sending import fake_upstream, up
from whole import configuration, whole_gateway

from policies.decision import Decision
from policies.errors import Rejection
from policies.requests.asked import Action
from policies.requests.body import decode_body
from policies.requests.dialects import read_request
from policies.simulation import RecordedRequest, simulate
from policies.usage import recorded_adjustments
from proxy.config_file import load
from proxy.errors import status_of
from proxy.exchange import Exchange
from proxy.explanation import Question, explain
from proxy.records import usage_record
from proxy.routes import find_generation
from proxy.simulation import Principals, simulate_all
from proxy.wire.answers import adjusted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from fake_upstream import FakeUpstream, Ops, Req
    from sending import MemoryWriter
    from stores import StoreServer
    from whole import Whole

    from policies.requests.asked import Adjustment, AskedRequest
    from proxy.config import Configuration
    from proxy.explanation import Explained

__all__ = ["fake_upstream", "up"]

CHAT, EMBEDDINGS, RESPONSES = "/v1/chat/completions", "/v1/embeddings", "/v1/responses"
ENGINES, AZURE = "/v1/engines/m/completions", "/openai/deployments/m/completions?api-version=2024-10-21"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there."}]

POLICIES: dict[str, dict[str, Any]] = {
    "everybody": {"parameters": {"temperature": {"max": 1.5, "on_violation": "clamp"}, "logprobs": {"max": 4}}},
    "team": {"parameters": {"n": {"max": 6, "on_violation": "clamp"}, "top_p": {"default": 0.9}}},
    "alice": {"parameters": {"n": {"max": 3, "on_violation": "clamp"}}},
    "plain": {},
    "clamping": {
        "parameters": {
            "n": {"max": 2, "on_violation": "clamp"},
            "best_of": {"max": 3, "on_violation": "clamp"},
            "max_tokens": {"max": 50, "on_violation": "clamp"},
            "presence_penalty": {"min": 0, "on_violation": "clamp"},
        }
    },
    "rejecting": {
        "parameters": {
            "n": {"max": 2},
            "max_tokens": {"max": 50},
            "echo": {"forbid": "reject"},
            "seed": {"allowed": [1, 2]},
            "suffix": {"forbid": "reject"},
        },
        "unknown_parameters": "reject",
    },
    "writing": {
        "parameters": {
            "max_tokens": {"max": 40, "default": 20, "on_violation": "clamp"},
            "seed": {"force": 7},
            "user": {"force": "nobody"},
            "stream": {"force": False},
            "stop": {"add": ["\n\nHuman:"], "on_violation": "clamp"},
        }
    },
    "dropping": {
        "parameters": {
            "suffix": {"forbid": "drop"},
            "tools": {"forbid": "drop"},
            "num_ctx": {"max": 4096, "on_violation": "clamp"},
            "min_p": {"force": 0.1},
        },
        "unknown_parameters": "drop",
    },
    "texts": {
        "parameters": {
            "prompt": {"strip_trailing_space": True},
            "user": {"pseudonymise": True},
            "service_tier": {"allowed": ["auto", "flex"]},
        }
    },
    "computed": {
        "parameters": {
            "prompts": {"max": 3},
            "candidates": {"max": 6},
            "prompt_tokens": {"max": 200},
            "worst_case_tokens": {"max": 300},
        }
    },
    "observing": {
        "parameters": {
            "n": {"max": 2, "on_violation": "clamp", "mode": "observe"},
            "logprobs": {"max": 1, "mode": "observe"},
            "echo": {"forbid": "reject", "mode": "observe"},
        }
    },
    "overriding": {"override": True, "parameters": {"temperature": {"max": 2}, "logprobs": {"max": 5}}},
    "few_models": {"models": ["hidden"]},
    "counting": {
        "limits": [
            {"of": "requests", "limit": 1000, "per": "minute", "by": ["user", "model"]},
            {"of": "tokens", "limit": 100_000, "per": "day", "by": ["project", "end_user"]},
            {"of": "output_tokens", "limit": 90_000, "per": "hour", "by": ["key"]},
            {"of": "completions", "limit": 5000, "per": "hour", "by": ["organization"]},
            {"of": "usd", "limit": 50, "per": "month", "by": ["user"]},
            {"of": "concurrency", "limit": 100, "by": ["key"]},
        ]
    },
    "narrow": {"limits": [{"of": "tokens", "limit": 30, "per": "day", "by": ["key"]}]},
}
FILE = {"type": "file", "file": {"file_id": "file-1"}}
LEVELS = ("everybody", "team", "alice", "overriding")
"""Policies of organization, project, user and key; every other one is that of a key in a project without any."""


@dataclass(frozen=True)
class Example:
    """A request, and the rules of which its record cannot tell what they do to it."""

    key: str
    body: dict[str, Any]
    path: str = "/v1/completions"
    untold: frozenset[tuple[str, str]] = frozenset()


def completion(key: str, path: str = "/v1/completions", **fields: Any) -> Example:  # noqa: ANN401  JSON values
    model = {} if path in (ENGINES, AZURE) else {"model": "m"}
    return Example(key, {**model, "prompt": "Say hello.", **fields}, path)


def chat(key: str, **fields: Any) -> Example:  # noqa: ANN401  JSON values
    return Example(key, {"model": "m", "messages": MESSAGES, **fields}, CHAT)


def embedding(key: str, **fields: Any) -> Example:  # noqa: ANN401  JSON values
    return Example(key, {"model": "m", "input": ["one", "two"], **fields}, EMBEDDINGS)


def response(key: str, **fields: Any) -> Example:  # noqa: ANN401  JSON values
    return Example(key, {"model": "m", "input": "Say hello.", "max_output_tokens": 30, **fields}, RESPONSES)


def untold(example: Example, *rules: tuple[str, str]) -> Example:
    return Example(example.key, example.body, example.path, frozenset(rules))


EXAMPLES = {
    "nothing is said of it": completion("plain"),
    "an alias": completion("plain", model="davinci", max_tokens=5),
    "unknown members pass": completion("plain", num_ctx=5, guided={"a": 1}),
    "token ids": completion("plain", prompt=[1, 2, 3], echo=True, max_tokens=0),
    "several prompts": completion("plain", prompt=["a", "b c"], n=2),
    "a stream": completion("plain", stream=True, stream_options={"include_usage": True}),
    "n is clamped": completion("clamping", n=9),
    "best_of is clamped and n with it": completion("clamping", n=5, best_of=8),
    "best_of alone is clamped": completion("clamping", best_of=8),
    "a stream whose n and best_of agree": completion("clamping", n=4, best_of=4, stream=True),
    "the ceiling is clamped": completion("clamping", max_tokens=500),
    "an open ceiling is written": completion("clamping"),
    "a ceiling of llama.cpp's own": completion("clamping", n_predict=999),
    "a ceiling that is none": completion("clamping", n_predict=-1, max_tokens=10),
    "a penalty is raised": completion("clamping", presence_penalty=-2),
    "a chat's ceilings are clamped": chat("clamping", max_tokens=70, max_completion_tokens=80, n=3),
    "a chat's open ceiling is written": chat("clamping", temperature=0),
    "a response's ceiling is clamped": response("clamping", max_output_tokens=80),
    "n is refused": completion("rejecting", n=3),
    "the ceiling is refused": chat("rejecting", max_tokens=51),
    "a boolean is refused": completion("rejecting", echo=True),
    "a number that is not on the list is refused": completion("rejecting", seed=3),
    "a number that is on the list": completion("rejecting", seed=2, max_tokens=50),
    "a text is refused": completion("rejecting", suffix="end"),
    "an unknown member is refused": embedding("rejecting", truncate=True),
    "an unknown member that is null": completion("rejecting", truncate=None, max_tokens=9),
    "much is written": completion("writing", n=2, stop=["a", "b", "c", "d"], stream=True),
    "much is written where nothing was sent": completion("writing"),
    "much is written into a chat": chat("writing", user="customer", max_tokens=9, stop="x"),
    "much is written into an embedding": embedding("writing", user="customer"),
    "a text and an unknown member are dropped": completion("dropping", suffix="end", guided={"a": 1}),
    "tools are dropped": chat("dropping", tools=[{"type": "function", "function": {"name": "f"}}], min_p=0.5),
    "a bound of an unknown member": untold(completion("dropping", num_ctx=9000), ("num_ctx", "max")),
    "a space at the end": untold(completion("texts", prompt="Hello "), ("prompt", "strip_trailing_space")),
    "a pseudonym": chat("texts", user="customer"),
    "a text on a list": untold(chat("texts", service_tier="flex"), ("service_tier", "allowed")),
    "many prompts": completion("computed", prompt=["a", "b", "c", "d"]),
    "many candidates": completion("computed", prompt=["a", "b", "c"], n=3),
    "a long prompt": completion("computed", prompt="long " * 50),
    "a high worst case": completion("computed", n=5, max_tokens=100),
    "a chat without an end": chat("computed"),
    "a chat with one": chat("computed", max_tokens=20),
    "what would be clamped": completion("observing", n=5),
    "what would be refused": completion("observing", echo=True, logprobs=2, max_tokens=0),
    "four levels": completion("alice", n=5, temperature=1.8, logprobs=5),
    "three levels": completion("bob", n=9, temperature=2, top_p=0.5, path=ENGINES),
    "three levels refuse": completion("bob", logprobs=5),
    "a list of models": completion("few_models"),
    "an unknown model": completion("plain", model="nobody"),
    "a model's own bound": completion("plain", logprobs=6),
    "every limit": completion("counting", n=2, prompt=["a", "b"], user="customer", path=AZURE),
    "every limit and a chat": chat("counting", max_tokens=12, n=3),
    "every limit and candidates by another name": chat("counting", max_tokens=12, best_of=9),
    "and by a server's own": completion("counting", prompt=["a", "b"], n_cmpl=9),
    "every limit and what lives elsewhere": chat("counting", max_tokens=12, messages=[{"content": [FILE]}]),
    "a bound on what lives elsewhere": chat("computed", max_tokens=12, messages=[{"content": [FILE]}]),
    "a bound on candidates by another name": response("computed", n=9),
    "by what is no number": chat("computed", max_tokens=12, n_cmpl="9"),
    "by a number beyond all": chat("computed", max_tokens=12, n_cmpl=10**40),
    "every limit and a number beyond all": chat("counting", max_tokens=12, n_cmpl=10**40),
    "every limit and an embedding": embedding("counting", input=[[1, 2], [3]]),
    "every limit and a response": response("counting", instructions="Be kind."),
    "a limit and what only the upstream knows": response("counting", previous_response_id="resp_1"),
    "a response of which some is only named": response("plain", previous_response_id="resp_1"),
    "spellings of an older client": completion("clamping", echo=[True], best_of=[["1", 2]], logit_bias=[["50256", -5]]),
    "more than a limit ever lets through": completion("narrow", max_tokens=400),
}


def configured(url: str, data_dir: Path) -> Configuration:
    """Give every example's key its policy; alice and bob have those of outer levels too."""
    bare = POLICIES.keys() - set(LEVELS)
    return configuration(
        url,
        data_dir,
        policies=POLICIES,
        organization={"id": "org", "policy": "everybody"},
        projects=[{"id": "bare", "models": ["m"]}, {"id": "levelled", "policy": "team"}],
        users=[{"id": "alice", "policy": "alice"}],
        keys=[
            _key("alice", project="levelled", user="alice", policy="overriding"),
            _key("bob", project="levelled", service_account="bob"),
            *(_key(policy, project="bare", user="tester", policy=policy) for policy in sorted(bare)),
        ],
        models={
            "m": {
                "deployments": [{"upstream": "only"}],
                "aliases": ["davinci"],
                "max_output_tokens": 64,
                "price": {"input": 3, "output": 15},
            },
            "hidden": {"deployments": [{"upstream": "only"}]},
        },
        pseudonym_key="secret-of-the-tests",
    )


def _key(name: str, **more: str) -> dict[str, str]:
    return {"id": name, "sha256": sha256(f"sk-{name}".encode()).hexdigest(), **more}


def reply(request: Req) -> Ops:
    """Answer as an upstream does that obeys a ceiling of nothing."""
    if request.json().get("max_tokens") == 0:
        choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None}
        return json_reply({"model": "m", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 0}})
    return answer(request) if request.path.endswith("/responses") else _APP(request)


_APP = App()


async def sent_live(whole: Whole, example: Example) -> MemoryWriter:
    authorization = f"Bearer sk-{example.key}"
    writer, _ = await whole.ask("POST", example.path, example.body, Authorization=authorization)
    return writer


def explained(configuration: Configuration, example: Example) -> Explained:
    question = Question(json.dumps(example.body).encode(), path=example.path, key=example.key)
    return explain(configuration, question)


def recorded(valkey: StoreServer, request_id: str) -> bytes:
    """Return the usage record of one request, from the outbox."""
    with valkey.client() as client:
        [stream] = client.scan_iter(_type="stream")
        records = [entry[b"record"] for _, entry in client.xrange(stream)]
    [found] = [record for record in records if json.loads(record)["request_id"] == request_id]
    return found


@pytest.fixture
def ask(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> Callable[[Example], Any]:  # a coroutine of what came of it
    """Return what sends an example: the answer, its usage record, the body that the upstream got."""
    up.default = reply
    configured_here = configured(up.url, tmp_path)

    async def asked(example: Example) -> tuple[Configuration, MemoryWriter, bytes, dict[str, Any] | None]:
        async with whole_gateway(configured_here, valkey.url) as whole:
            writer = await sent_live(whole, example)
        received = [request.json() for request in up.served]
        return configured_here, writer, recorded(valkey, writer.header("x-request-id") or ""), (received or [None])[-1]

    return asked


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
async def test_explain_says_what_is_done(example: Example, ask: Callable[[Example], Any]) -> None:
    configuration, writer, record, received = await ask(example)
    outcome = explained(configuration, example).outcome
    if isinstance(outcome, Rejection):
        assert (writer.status, received) == (status_of(outcome), None)
        error = json.loads(writer.body)["error"]
        assert (error["code"], error["param"], error["message"]) == (outcome.code, outcome.param, outcome.message)
        return
    told = json.loads(record)
    assert told["adjustments"] == in_json(recorded_adjustments(outcome.adjustments))
    assert told["observed"] == in_json(recorded_adjustments(outcome.observed))
    assert told["input_bound_tokens"] == outcome.worst_case.input_tokens
    if writer.status == 429:
        assert (received, told["held_tokens"]) == (None, 0)
        return
    assert (writer.status, writer.header("x-tidegate-adjusted")) == (200, adjusted(outcome.adjustments) or None)
    assert received is not None
    asked_for_usage = {"stream_options": {"include_usage": True}} if outcome.effective.view.is_stream else {}
    assert received == {**outcome.effective.fields, **asked_for_usage, "model": "m"}
    assert told["held_tokens"] == outcome.worst_case.tokens
    assert told["held_cost_microdollars"] == outcome.worst_case.cost_microdollars


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
async def test_a_simulation_says_the_same_of_the_record(example: Example, ask: Callable[[Example], Any]) -> None:
    configuration, writer, record, _ = await ask(example)
    live = explained(configuration, example)
    request = msgspec.json.decode(record, type=RecordedRequest)
    principal = Principals(configuration).of(request)
    assert principal == live.principal
    simulated = simulate(request, principal, configuration.rulebook())
    assert {(each.parameter, each.part) for each in simulated.untold} == example.untold
    was, would_be = live.outcome, simulated.outcome
    if isinstance(was, Rejection):
        assert isinstance(would_be, type(was))
        assert (would_be.code, would_be.param, status_of(would_be)) == (was.code, was.param, writer.status)
        return
    assert isinstance(was, Decision)
    assert isinstance(would_be, Decision)
    undecided = {parameter for parameter, _ in example.untold}
    expected = [each for each in was.adjustments if each.parameter not in undecided]
    unseen = undecided | set(request.unknown_fields)
    assert numbers_of(would_be.adjustments, unseen) == numbers_of(expected, unseen)
    assert numbers_of(would_be.observed, unseen) == numbers_of(was.observed, unseen)
    assert would_be.worst_case == was.worst_case
    assert [(each.name, each.policy, each.scope, each.ask) for each in would_be.limits] == [
        (each.name, each.policy, each.scope, each.ask) for each in was.limits
    ]
    total = simulate_all(configuration, [request], [lambda _: ""]).total
    assert total.refused_by_limits == (writer.status == 429)
    assert (total.requests, total.refused_by_rules, total.microdollars_not_spent) == (1, 0, 0)


def in_json(value: object) -> Any:  # noqa: ANN401  whatever JSON can say
    return json.loads(msgspec.json.encode(value))


def numbers_of(adjustments: Iterable[Adjustment], unseen: Collection[str]) -> list[tuple[Any, ...]]:
    """Return what policy did, values only where they are numbers that a record holds.

    An older client's spellings are normalised before a record is made.
    """
    return [
        (
            each.parameter,
            each.action,
            each.policy,
            each.before if isinstance(each.before, int | float) and each.parameter not in unseen else None,
            each.after if isinstance(each.after, int | float) else None,
        )
        for each in adjustments
        if each.action is not Action.NORMALISE
    ]


INPUT_BOUNDS = {"prompt_tokens", "worst_case_tokens"}
"""Computed from an input of which a record knows only how large it was after policy."""


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_are_decided_alike_from_their_records(seed: int, tmp_path: Path) -> None:
    random = Random(seed)  # noqa: S311  a seed is the point
    world = make_world(random, "http://127.0.0.1:9/v1", keys=30)
    (tmp_path / "tidegate.yaml").write_text(json.dumps(world.settings))
    configuration = load(tmp_path / "tidegate.yaml", ENVIRON)
    told = []
    for _ in range(150):
        asked = make_request(random, random.choice(world.members))
        live = explain(configuration, Question(asked.body, path=asked.path, key=asked.key))
        exchange = Exchange("req_1", 1.0, 1.0, principal=live.principal)
        if isinstance(live.outcome, Decision):
            exchange.decision = live.outcome
        elif (known := asked_of(asked.path, asked.body)) is not None:
            exchange.asked, exchange.model = known, configuration.rulebook().find_model(known.model)
        else:
            continue
        record = msgspec.json.decode(usage_record(exchange, None), type=RecordedRequest)
        simulated = simulate(record, Principals(configuration).of(record), configuration.rulebook())
        if not simulated.untold:
            told.append((verdict_of(simulated.outcome, record), verdict_of(live.outcome, record), asked))
    assert len(told) > 75
    assert [each for each in told if each[0] != each[1] and not {each[0][1], each[1][1]} & INPUT_BOUNDS] == []


def asked_of(path: str, body: bytes) -> AskedRequest | None:
    """Read a request as the gateway does; None for one that cannot be read."""
    address, _, query = path.partition("?")
    try:
        generation = find_generation(address, query)
        return read_request(
            endpoint=generation.endpoint,
            dialect=generation.dialect,
            fields=decode_body(body, max_depth=64),
            path_model=generation.path_model,
            api_version=generation.api_version,
        )
    except Rejection:
        return None


def verdict_of(outcome: Decision | Rejection, record: RecordedRequest) -> tuple[Any, ...]:
    """Return what a record can tell: a text that is added may have been sent already."""
    if isinstance(outcome, Rejection):
        return type(outcome), outcome.param, outcome.code
    adjustments = [each for each in outcome.adjustments if each.action is not Action.ADD]
    worst = outcome.worst_case
    largest = min(worst.output_tokens, 2**53)  # a record's integers end there
    return Decision, None, numbers_of(adjustments, record.unknown_fields), worst.candidates, largest
