"""What a request that came to nothing costs: one request where it was admitted, nothing where it was not (SPEC §5).

Whole gateways with a limit of every quantity, and after each way to fail a look at what they say is used and held.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import App, head, json_reply, sse_head
from gateway import free_port
from whole import configuration, whole_gateway

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fake_upstream import FakeUpstream
    from sending import MemoryWriter
    from stores import StoreServer
    from whole import Whole

    from proxy.config import Configuration

QUANTITIES = ("requests", "tokens", "input_tokens", "output_tokens", "completions", "usd", "concurrency")
LIMITS = [
    {"of": of, "limit": 1 if of == "usd" else 1_000, "by": ["user"], "per": None if of == "concurrency" else "365d"}
    for of in QUANTITIES
]
"""Nothing refills while a test runs: of a million micro-dollars a year one comes back in half a minute."""
ASKED = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 50, "n": 2, "temperature": 1}
"""The scripted upstream reports 7 + 13 tokens; each costs 1,000 micro-dollars."""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
"""17 bytes with the names and the role, 16 more for the message and 8 for the request: 41 tokens of input."""
PATH, CHAT_PATH = "/v1/completions", "/v1/chat/completions"
A_REQUEST = [1, 0, 0, 0, 0, 0, 0]
AN_ANSWER = [1, 20, 7, 13, 2, 0.02, 0]
NOTHING = [0] * 7

REFUSED = json_reply({"error": {"message": "no", "type": "server_error", "param": None, "code": None}}, 500)
BUSY = json_reply({"error": {"message": "busy", "type": "requests", "param": None, "code": "rate_limit"}}, 429)
BUSY_FOR_LONG = json_reply({"error": {"message": "busy"}}, 429, [("Retry-After", "60")])
BAD = json_reply({"error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}}, 400)
RESET = [("rst",)]
HUNG = [("hold", 30)]


def limited(url: str, data_dir: Path, limits: Sequence[dict[str, Any]] = LIMITS, **more: Any) -> Configuration:  # noqa: ANN401  any setting
    model = {"deployments": [{"upstream": "only"}], "price": {"input": 1_000.0, "output": 1_000.0}}
    settings: dict[str, Any] = {
        "models": {"m": model, "free": {"deployments": [{"upstream": "only"}]}, "hidden": model},
        "policies": {"default": {"limits": limits, "parameters": {"n": {"max": 4}}}},
        "projects": [{"id": "proj", "policy": "default", "models": ["m", "free"]}],
        **more,
    }
    return configuration(url, data_dir, **settings)


async def ask(whole: Whole, **fields: Any) -> MemoryWriter:  # noqa: ANN401  members of a request
    return (await whole.ask("POST", PATH, {**ASKED, **fields}))[0]


async def used(whole: Whole) -> list[float]:
    """Return what each limit says is used; nothing may be held when nobody is under way."""
    answer, _ = await whole.ask("GET", "/v1/tidegate/me")
    limits = json.loads(answer.body)["limits"]
    assert [limit["of"] for limit in limits] == list(QUANTITIES)
    assert [limit["held"] for limit in limits] == [0] * len(QUANTITIES)
    return [limit["used"] for limit in limits]


# Admitted, and nothing came of it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("replies", "status", "sent"),
    [
        pytest.param([REFUSED] * 3, 500, 3, id="a 500 at every attempt"),
        pytest.param([BUSY] * 3, 429, 3, id="a 429 at every attempt"),
        pytest.param([BUSY_FOR_LONG], 429, 1, id="a 429 that asks for a long wait"),
        pytest.param([BAD], 400, 1, id="a 400"),
        pytest.param([json_reply({}, 401)], 502, 1, id="a key that the upstream does not take"),
        pytest.param([json_reply({}, 302, [("Location", "/elsewhere")])], 502, 1, id="a redirect"),
        pytest.param([RESET], 502, 1, id="a reset before the first byte"),
        pytest.param([[("send", head(200, [("Content-Length", 9)])[:20]), *RESET]], 502, 1, id="a reset in the head"),
        pytest.param([HUNG], 504, 1, id="no first byte in time"),
        pytest.param([REFUSED, HUNG], 504, 2, id="a 500, then no first byte in time"),
    ],
)
async def test_a_failure_before_the_first_token_costs_one_request(
    upstream: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    replies: list[Any],
    status: int,
    sent: int,
    *,
    stream: bool,
) -> None:
    upstream.script(*replies)
    settings = limited(upstream.url, tmp_path, timeouts={"first_byte": "300ms"})
    async with whole_gateway(settings, valkey.url) as whole:
        answer = await ask(whole, stream=stream)
        assert (answer.status, len(upstream.log)) == (status, sent)
        assert await used(whole) == A_REQUEST


async def test_a_stream_that_is_cut_after_its_head_costs_one_request(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    upstream.script([("send", sse_head()), ("sleep", 0.05), *RESET])
    async with whole_gateway(limited(upstream.url, tmp_path), valkey.url) as whole:
        answer = await ask(whole, stream=True)
        assert b'"error"' in answer.body
        assert await used(whole) == A_REQUEST


async def test_an_upstream_that_is_not_there_costs_one_request(valkey: StoreServer, tmp_path: Path) -> None:
    async with whole_gateway(limited(f"http://127.0.0.1:{free_port()}", tmp_path), valkey.url) as whole:
        assert [(await ask(whole, stream=stream)).status for stream in (False, True)] == [503, 503]
        assert await used(whole) == [2, 0, 0, 0, 0, 0, 0]


async def test_who_wants_what_is_stored_and_finds_nothing_pays_for_one_request(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with whole_gateway(limited(upstream.url, tmp_path), valkey.url) as whole:
        answer, _ = await whole.ask("POST", PATH, {**ASKED, "temperature": 0}, Cache_Control="only-if-cached")
        assert answer.status == 504
        assert await used(whole) == A_REQUEST
    assert upstream.log == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("replies", "sent"),
    [
        pytest.param([REFUSED], ["one", "two"], id="one fails over to the other"),
        pytest.param([REFUSED, BUSY], ["one", "two", "one"], id="both fail and the first answers after all"),
        pytest.param([BUSY_FOR_LONG, REFUSED], ["one", "two", "two"], id="one is not asked again so soon"),
    ],
)
async def test_however_many_attempts_it_took_an_answer_is_charged_once(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, replies: list[Any], sent: list[str], *, stream: bool
) -> None:
    upstream.script(*replies)
    upstreams = {name: {"kind": "openai", "base_url": f"{upstream.url}/{name}"} for name in ("one", "two")}
    deployments = [{"upstream": "one", "weight": 1_000_000}, {"upstream": "two"}]
    model = {"deployments": deployments, "price": {"input": 1_000.0, "output": 1_000.0}}
    projects = [{"id": "proj", "policy": "default", "models": ["m"]}]
    settings = limited(upstream.url, tmp_path, upstreams=upstreams, models={"m": model}, projects=projects)
    async with whole_gateway(settings, valkey.url) as whole:
        answer = await ask(whole, stream=stream)
        assert answer.status == 200
        assert [request.path.split("/")[1] for request in upstream.log] == sent
        assert await used(whole) == AN_ANSWER


# Not admitted -------------------------------------------------------------------------------------------------------

BODY = json.dumps(ASKED).encode()


@pytest.mark.parametrize(
    ("method", "target", "body", "fields", "status", "code"),
    [
        pytest.param("POST", PATH, b"{", {}, 400, None, id="no JSON"),
        pytest.param("POST", PATH, {**ASKED, "n": -1}, {}, 400, None, id="a parameter out of range"),
        pytest.param("POST", PATH, {**ASKED, "n": 5}, {}, 400, "policy_violation", id="a rule of the policy"),
        pytest.param("POST", PATH, {**ASKED, "model": "free"}, {}, 400, "price_missing", id="a model without a price"),
        pytest.param("POST", CHAT_PATH, CHAT, {}, 400, "token_ceiling_missing", id="no ceiling"),
        pytest.param("POST", PATH, ASKED, {"Authorization": "Bearer x"}, 401, "invalid_api_key", id="an unknown key"),
        pytest.param("POST", PATH, ASKED, {"api_key": "x"}, 400, "conflicting_credentials", id="two keys"),
        pytest.param(
            "POST", PATH, {**ASKED, "model": "hidden"}, {}, 403, "model_not_allowed", id="a model not allowed"
        ),
        pytest.param("POST", PATH, {**ASKED, "model": "none"}, {}, 404, "model_not_found", id="a model there is not"),
        pytest.param("POST", "/v1/complete", ASKED, {}, 404, None, id="a route there is not"),
        pytest.param("GET", PATH, b"", {}, 405, "method_not_allowed", id="another method"),
        pytest.param("POST", PATH, BODY, {"Content_Type": "text/csv"}, 415, "unsupported_media_type", id="a table"),
        pytest.param("POST", PATH, {**ASKED, "max_tokens": 449}, {}, 429, "insufficient_quota", id="a token too dear"),
    ],
)
async def test_what_is_refused_takes_nothing(
    upstream: FakeUpstream,
    valkey: StoreServer,
    tmp_path: Path,
    method: str,
    target: str,
    body: dict[str, Any] | bytes,
    fields: dict[str, str],
    status: int,
    code: str | None,
) -> None:
    """Of usd there are 0.9: 900 tokens. Asked for are 3 + 2 x 449 at most."""
    limits = [{**limit, "limit": 0.9} if limit["of"] == "usd" else limit for limit in LIMITS]
    async with whole_gateway(limited(upstream.url, tmp_path, limits), valkey.url) as whole:
        answer, _ = await whole.ask(method, target, body, **fields)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
        assert await used(whole) == NOTHING
        assert upstream.log == []
        assert (await ask(whole, max_tokens=448)).status == 200, "899 tokens fit"


@pytest.mark.parametrize("of", [of for of in QUANTITIES if of != "concurrency"])
async def test_a_limit_that_refuses_takes_from_no_other(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, of: str
) -> None:
    """One limit after the other has room for one answer and no more; the second request takes from none of them."""
    holds = dict(zip(QUANTITIES, (1, 103, 3, 100, 2, 0.103, 1), strict=True))  # 3 + 2 x 50 tokens
    takes = dict(zip(QUANTITIES, AN_ANSWER, strict=True))
    limits = [{**limit, "limit": max(holds[of], takes[of])} if limit["of"] == of else limit for limit in LIMITS]
    async with whole_gateway(limited(upstream.url, tmp_path, limits), valkey.url) as whole:
        assert [(await ask(whole)).status for _ in range(3)] == [200, 429, 429]
        assert await used(whole) == AN_ANSWER
    assert len(upstream.served) == 1


async def test_what_has_no_room_at_once_takes_from_no_other(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    limits = [{**limit, "limit": 1} if limit["of"] == "concurrency" else limit for limit in LIMITS]
    async with whole_gateway(limited(upstream.url, tmp_path, limits), valkey.url) as whole:
        upstream.default = App(latency=0.3)
        answers = await asyncio.gather(ask(whole), ask(whole))
        assert sorted(answer.status for answer in answers) == [200, 429]
        assert await used(whole) == AN_ANSWER


# What is held -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "body", "asks"),
    [
        pytest.param(CHAT_PATH, {**CHAT, "max_tokens": 5, "max_completion_tokens": 900}, 941, id="both"),
        pytest.param(CHAT_PATH, {**CHAT, "max_tokens": 900, "max_completion_tokens": 5}, 941, id="turned"),
        pytest.param(CHAT_PATH, {**CHAT, "max_tokens": None, "max_completion_tokens": 900}, 941, id="null"),
        pytest.param(PATH, {**ASKED, "max_tokens": 5, "n_predict": 450}, 903, id="a server's own name"),
        pytest.param(PATH, {**ASKED, "max_tokens": 225, "best_of": 4}, 903, id="best_of candidates"),
        pytest.param(PATH, {**ASKED, "prompt": [[1], [2], [3]], "max_tokens": 150}, 903, id="prompts times n"),
        pytest.param(PATH, {**ASKED, "max_tokens": 450.0}, 903, id="a float that is whole"),
    ],
)
async def test_the_larger_of_what_is_asked_for_is_held(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, target: str, body: dict[str, Any], asks: int
) -> None:
    async with whole_gateway(_tokens(upstream, tmp_path, asks - 1), valkey.url) as whole:
        refused, _ = await whole.ask("POST", target, body)
        assert refused.status == 429
        assert f"it asks for {asks}, {asks - 1} left; it can never fit" in json.loads(refused.body)["error"]["message"]
    async with whole_gateway(_tokens(upstream, tmp_path / "more", asks), valkey.url) as whole:
        passed, _ = await whole.ask("POST", target, body)
        assert passed.status == 200


@pytest.mark.parametrize("written", [b"45e1", b"4.5e2", b"450.0", b"4500e-1"])
async def test_a_number_is_held_however_it_is_written(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, written: bytes
) -> None:
    body = BODY.replace(b'"max_tokens": 50', b'"max_tokens": ' + written)
    async with whole_gateway(_tokens(upstream, tmp_path, 902), valkey.url) as whole:
        refused, _ = await whole.ask("POST", PATH, body)
    assert "it asks for 903, 902 left" in json.loads(refused.body)["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param(fields, next(iter(fields)), id=json.dumps(fields))
        for fields in (
            *({name: value} for name in ("n", "best_of", "max_tokens") for value in (-1, -(10**18), -1.0, 1.5)),
            *({name: 10**18} for name in ("n", "best_of")),
            *({name: 0} for name in ("n", "best_of")),
            {"n_predict": True},
            {"prompt": [-1]},
            {"prompt": [1, 10**18 * -1]},
        )
    ],
)
async def test_negative_and_endless_numbers_ask_for_nothing_less(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    async with whole_gateway(limited(upstream.url, tmp_path), valkey.url) as whole:
        refused = await ask(whole, **{"n": None, **fields})
        assert (refused.status, json.loads(refused.body)["error"]["param"]) == (400, param)
        assert await used(whole) == NOTHING
    assert upstream.log == []


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"max_tokens": 10**18}, id="a ceiling"),
        pytest.param({"n_predict": 10**18}, id="by a server's own name"),
        pytest.param({"max_tokens": 10**18, "prompt": [[1]] * 100}, id="many times"),
        pytest.param({"max_tokens": 1e30}, id="as a float"),
    ],
)
async def test_ten_to_the_eighteenth_is_more_than_any_limit(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, fields: dict[str, Any]
) -> None:
    limit = {"of": "tokens", "limit": 10**13, "per": "day", "by": ["user"]}
    async with whole_gateway(limited(upstream.url, tmp_path, [limit]), valkey.url) as whole:
        refused = await ask(whole, **fields)
        message = json.loads(refused.body)["error"]["message"]
        assert (refused.status, refused.header("x-should-retry"), refused.header("retry-after")) == (429, "false", None)
        assert "it asks for more than 10000000000000, 10000000000000 left; it can never fit" in message
        assert (await ask(whole)).status == 200
    assert len(upstream.log) == 1


@pytest.mark.parametrize("body", [BODY[:-1] + b', "n": 1}', BODY[:-1] + b', "max_\\u0074okens": 1}'])
async def test_a_key_that_is_there_twice_is_not_held_by_either(
    upstream: FakeUpstream, valkey: StoreServer, tmp_path: Path, body: bytes
) -> None:
    async with whole_gateway(limited(upstream.url, tmp_path), valkey.url) as whole:
        refused, _ = await whole.ask("POST", PATH, body)
        assert refused.status == 400
        assert await used(whole) == NOTHING
    assert upstream.log == []


def _tokens(upstream: FakeUpstream, data_dir: Path, limit: int) -> Configuration:
    return limited(upstream.url, data_dir, [{"of": "tokens", "limit": limit, "per": "365d", "by": ["user"]}])
