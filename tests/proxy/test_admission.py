from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from admitting import KEYS, decision, exchange, held, records, served, spent, worker
from structlog.testing import capture_logs

from policies.errors import LimitExceeded
from policies.usage import Usage
from policies.windows import MAX_COUNT
from proxy.errors import NoUpstreamLeft, StoreUnavailable
from proxy.exchange import CacheResult, Outcome
from proxy.store.entries import StoredAnswer

if TYPE_CHECKING:
    from pathlib import Path

    from admitting import Worker
    from stores import StoreServer

    from policies.decision import Decision

FIVE = {"of": "requests", "limit": 5, "per": "minute", "by": ["user"]}
HUNDRED = {"of": "tokens", "limit": 100, "per": "minute", "by": ["user"]}
EIGHT = {"of": "concurrency", "limit": 8, "by": ["key"]}
USD = {"of": "usd", "limit": 0.5, "per": "month", "by": ["user"]}
PRICED = {"price": {"input": 1_000.0, "output": 2_000.0}}
"""So that an input token costs 1,000 micro-dollars, and an output token 2,000."""
ALL = (FIVE, HUNDRED, EIGHT)
RATE = "rate_limit_exceeded"


async def go(at: Worker, decided: Decision, usage: Usage | None = None, pause_seconds: float = 0) -> str:
    """Send one request through its admission; the word says what became of it."""
    told = exchange(decided)
    try:
        async with at.admissions.admit(decided, told) as admission:
            if admission.cache.answer is not None:
                told.outcome, told.status = Outcome.COMPLETED, 200
                return "hit"
            await asyncio.sleep(pause_seconds)
            served(told, usage or Usage(2, 3))
            await admission.settle()
            return "passed"
    except LimitExceeded:
        return "refused"


async def refusal(at: Worker, decided: Decision) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        async with at.admissions.admit(decided, exchange(decided)):
            pytest.fail("it was admitted")
    return caught.value


async def store_answer(at: Worker, decided: Decision, usage: Usage) -> None:
    told = exchange(decided)
    async with at.admissions.admit(decided, told) as admission:
        served(told, usage)
        is_stream = decided.effective.view.is_stream
        await admission.settle(StoredAnswer(is_stream, "application/json", b"{}", int(time.time() * 1000), usage))
    assert told.is_stored


async def eventually(true: Any) -> None:  # noqa: ANN401  a function without arguments
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110  what happens in a store sets no event here
            await asyncio.sleep(0.01)


# Counting


async def test_of_twenty_at_once_exactly_five_pass_whatever_worker_they_ask(
    any_store: StoreServer, tmp_path: Path
) -> None:
    async with worker(any_store.url, tmp_path / "a") as one, worker(any_store.url, tmp_path / "b") as other:
        ends = await asyncio.gather(*(go(at, decision([FIVE, EIGHT])) for at in (one, other) for _ in range(10)))
    assert (ends.count("passed"), ends.count("refused")) == (5, 15)
    with any_store.client() as client:
        assert (held(client), spent(client, "requests"), len(records(client))) == (0, 5, 5)


async def test_a_refused_request_takes_from_no_limit(valkey: StoreServer, tmp_path: Path) -> None:
    async with worker(valkey.url, tmp_path) as at:
        for _ in range(5):
            assert await go(at, decision([FIVE, EIGHT])) == "passed"
        assert await go(at, decision(ALL)) == "refused"
    with valkey.client() as client:
        assert (held(client), spent(client, "requests"), spent(client, "tokens")) == (0, 5, 0)


async def test_tokens_are_never_passed_and_come_back_when_less_was_used(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([HUNDRED], max_tokens=40)  # 2 bytes + 24 overhead + 40
    async with worker(valkey.url, tmp_path) as at:
        ends = await asyncio.gather(*(go(at, decided, Usage(10, 30), 0.05) for _ in range(10)))
        assert ends.count("passed") == 1
        with valkey.client() as client:
            assert (held(client), spent(client, "tokens")) == (0, 40)


async def test_more_than_was_held_is_booked_in_full_and_counted(valkey: StoreServer, tmp_path: Path) -> None:
    async with worker(valkey.url, tmp_path) as at:
        await go(at, decision([HUNDRED], max_tokens=1), Usage(300, 1))
        assert at.metrics.underestimates_total.value == 1
    with valkey.client() as client:
        assert spent(client, "tokens") == 301


QUANTITIES = ("requests", "tokens", "input_tokens", "output_tokens", "completions", "usd")


def of_each_quantity(**settings: Any) -> list[dict[str, Any]]:  # noqa: ANN401  settings of a limit
    return [{"of": of, "limit": 1_000_000, "per": "month", "by": ["user"], **settings} for of in QUANTITIES]


async def test_every_quantity_is_held_at_worst_and_settled_to_the_truth(any_store: StoreServer, tmp_path: Path) -> None:
    limits = of_each_quantity()
    decided = decision(limits, model=PRICED, prompt=[1, 2, 3], max_tokens=10, n=2, best_of=4)
    async with worker(any_store.url, tmp_path) as at, at.admissions.admit(decided, exchange(decided)) as admission:
        with any_store.client() as client:
            holds = [int(client.hget(count.key, "held")) for count in admission.counts]
            told = admission._exchange  # noqa: SLF001  what the handler has at hand
            served(told, Usage(3, 7))
            told.answer.finish_reasons = {0: "stop", 1: "length"}
            await admission.settle()
            takes = [int(client.hget(count.key, "spent")) for count in admission.counts]
            assert held(client) == 0
            record = json.loads(records(client)[0])
    # 4 candidates of 10 tokens each; requests are spent at once
    assert dict(zip(QUANTITIES, holds, strict=True)) == {
        "requests": 0,
        "tokens": 43,
        "input_tokens": 3,
        "output_tokens": 40,
        "completions": 4,
        "usd": 83_000,
    }
    assert dict(zip(QUANTITIES, takes, strict=True)) == {
        "requests": 1,
        "tokens": 10,
        "input_tokens": 3,
        "output_tokens": 7,
        "completions": 4,
        "usd": 17_000,
    }
    assert (record["completions"], record["cost_microdollars"]) == (4, 17_000)


@pytest.mark.parametrize(
    ("choices", "took"),
    [
        pytest.param(2, 2, id="all that were asked for"),
        pytest.param(1, 1, id="those that a server gave that makes one only"),
    ],
)
async def test_completions_are_the_choices_of_the_answer(
    valkey: StoreServer, tmp_path: Path, choices: int, took: int
) -> None:
    decided = decision([{"of": "completions", "limit": 9, "per": "day", "by": ["user"]}], n=2)
    told = exchange(decided)
    async with worker(valkey.url, tmp_path) as at, at.admissions.admit(decided, told):
        served(told, Usage(3, 7))
        told.answer.finish_reasons = dict.fromkeys(range(choices), "stop")
    with valkey.client() as client:
        assert (held(client), spent(client, "completions")) == (0, took)


async def test_streams_without_a_report_count_what_was_seen(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([HUNDRED], prompt="case-0123456789", max_tokens=33, stream=True)
    passed = 0
    async with worker(valkey.url, tmp_path) as at:
        for _ in range(8):
            told = exchange(decided)
            try:
                async with at.admissions.admit(decided, told):
                    served(told, events=33)
                    passed += 1
            except LimitExceeded:
                continue
    assert 1 <= passed <= 4


async def test_concurrency_is_given_back_at_the_end(valkey: StoreServer, tmp_path: Path) -> None:
    two = {"of": "concurrency", "limit": 2, "by": ["key"]}
    async with worker(valkey.url, tmp_path) as at:
        ends = await asyncio.gather(*(go(at, decision([two]), pause_seconds=0.05) for _ in range(6)))
        assert ends.count("passed") == 2
        assert await go(at, decision([two])) == "passed"


async def test_a_failure_before_the_first_token_costs_the_request_alone(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision(of_each_quantity(), model=PRICED)
    async with worker(valkey.url, tmp_path) as at:
        with pytest.raises(NoUpstreamLeft):
            async with at.admissions.admit(decided, exchange(decided)):
                raise NoUpstreamLeft("nobody there")
    with valkey.client() as client:
        assert [spent(client, of) for of in QUANTITIES] == [1, 0, 0, 0, 0, 0]
        assert held(client) == 0
        assert json.loads(records(client)[0])["outcome"] == "upstream_error"


async def test_every_key_but_the_outbox_has_an_end(valkey: StoreServer, tmp_path: Path) -> None:
    limits = [*ALL, {"of": "tokens", "limit": MAX_COUNT, "per": "month", "by": ["organization"]}]
    async with worker(valkey.url, tmp_path) as at:
        decided = decision(limits, temperature=0)
        async with at.admissions.admit(decided, exchange(decided)):
            await at.admissions._upkeep.renew()  # noqa: SLF001  what its loop does
            await store_answer(at, decision(limits, temperature=0), Usage(2, 3))
            with valkey.client() as client:
                lives = {key: client.pttl(key) for key in client.scan_iter()}
    assert lives.pop(KEYS.outbox.encode()) == -1
    assert len(lives) >= 8
    assert min(lives.values()) > 0


# Hits


async def test_hits_take_requests_and_no_tokens_even_when_the_worst_case_would_not_fit(
    valkey: StoreServer, tmp_path: Path
) -> None:
    decided = decision([HUNDRED, FIVE], prompt="case-0123456789", max_tokens=50, temperature=0)
    async with worker(valkey.url, tmp_path) as at:
        await store_answer(at, decided, Usage(20, 40))
        assert [await go(at, decided) for _ in range(5)] == ["hit"] * 4 + ["refused"]
    with valkey.client() as client:
        assert (held(client), spent(client, "requests"), spent(client, "tokens")) == (0, 5, 60)


async def test_who_was_admitted_for_a_hit_only_and_finds_none_is_refused_and_takes_nothing(
    valkey: StoreServer, tmp_path: Path
) -> None:
    async with worker(valkey.url, tmp_path) as at:
        await go(at, decision([HUNDRED, FIVE]), Usage(50, 50))
        refused = await refusal(at, decision([HUNDRED, FIVE, EIGHT], temperature=0, prompt="another"))
        assert "tokens-per-minute-by-user" in refused.message
        assert refused.retry_after_seconds is not None
    with valkey.client() as client:
        assert (held(client), spent(client, "requests"), spent(client, "tokens")) == (0, 1, 100)


async def test_hits_are_charged_where_the_policy_says_so(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([{**HUNDRED, "charge_hits": "full"}], temperature=0)
    async with worker(valkey.url, tmp_path) as at:
        await store_answer(at, decided, Usage(20, 20))
        assert [await go(at, decided) for _ in range(3)] == ["hit", "refused", "refused"]
    with valkey.client() as client:
        assert (held(client), spent(client, "tokens")) == (0, 80)


@pytest.mark.parametrize(
    ("settings", "takes"),
    [
        pytest.param({}, [2, 10, 3, 7, 2, 17_000], id="a hit takes requests only"),
        pytest.param(
            {"charge_hits": "full"}, [2, 20, 6, 14, 4, 34_000], id="or all that its answer took when it was made"
        ),
    ],
)
async def test_what_hits_take_of_every_quantity(
    valkey: StoreServer, tmp_path: Path, settings: dict[str, Any], takes: list[int]
) -> None:
    decided = decision(of_each_quantity(**settings), model=PRICED, prompt=[1, 2, 3], n=2, temperature=0)
    async with worker(valkey.url, tmp_path) as at:
        await store_answer(at, decided, Usage(3, 7))
        assert await go(at, decided) == "hit"
        counts = at.admissions.reservations.counts(decided.limits, at.admissions.now())
    with valkey.client() as client:
        assert [int(client.hget(count.key, "spent")) for count in counts] == takes
        assert held(client) == 0


@pytest.mark.parametrize(
    ("cache_control", "fields", "found"),
    [
        pytest.param(None, {}, (CacheResult.HIT, None), id="a stored answer in the same form is a hit"),
        pytest.param(None, {"stream": True}, (CacheResult.MISS, None), id="one in the other form is a miss"),
        pytest.param("no-cache", {}, (CacheResult.BYPASS, "no-cache"), id="no-cache does not look"),
        pytest.param("max-age=0", {}, (CacheResult.MISS, "max-age"), id="one too old for the client is a miss"),
        pytest.param("only-if-cached", {}, (CacheResult.HIT, None), id="only-if-cached takes it"),
    ],
)
async def test_what_the_look_up_finds(
    valkey: StoreServer, tmp_path: Path, cache_control: str | None, fields: dict[str, Any], found: tuple[Any, ...]
) -> None:
    async with worker(valkey.url, tmp_path) as at:
        await store_answer(at, decision(temperature=0), Usage(2, 3))
        decided = decision(temperature=0, cache_control=cache_control, **fields)
        told = exchange(decided)
        async with at.admissions.admit(decided, told) as admission:
            assert (admission.cache.answer is not None) == (told.cache is CacheResult.HIT)
        assert (told.cache, told.cache_reason) == found


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        pytest.param([{**FIVE, "limit": 0}], CacheResult.BYPASS, id="refused: the cache had no say"),
        pytest.param([{**HUNDRED, "limit": 9}], CacheResult.MISS, id="admitted for a hit only, and there was none"),
    ],
)
async def test_what_a_refused_request_says_of_the_cache(
    valkey: StoreServer, tmp_path: Path, limits: list[dict[str, Any]], found: CacheResult
) -> None:
    decided = decision(limits, temperature=0)
    told = exchange(decided)
    async with worker(valkey.url, tmp_path) as at:
        with pytest.raises(LimitExceeded):
            await at.admissions.admit(decided, told).__aenter__()
    assert told.cache is found


@pytest.mark.parametrize(
    ("policy", "maxmemory", "stores"),
    [
        pytest.param("noeviction", "0", True, id="without a bound of its memory it stores"),
        pytest.param("noeviction", "200mb", True, id="with room it stores"),
        pytest.param("noeviction", "22mb", False, id="above 80 % it stores no more"),
        pytest.param("allkeys-lfu", "22mb", True, id="a server that evicts makes room itself"),
    ],
)
async def test_a_cache_that_shares_its_server_leaves_room(
    own_valkey: StoreServer,
    tmp_path: Path,
    policy: str,
    maxmemory: str,
    stores: bool,  # noqa: FBT001
) -> None:
    decided = decision(temperature=0)
    with own_valkey.client() as client:
        client.set("filler", b"x" * 20_000_000)
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", maxmemory)
    async with worker(own_valkey.url, tmp_path) as at:
        await at.answers.look_at_memory()
        told = exchange(decided)
        async with at.admissions.admit(decided, told) as admission:
            served(told, Usage(2, 3))
            await admission.settle(StoredAnswer(False, "application/json", b"{}", int(time.time() * 1000)))  # noqa: FBT003
        assert told.is_stored is stores
        assert await go(at, decided) == ("hit" if stores else "passed")


async def test_only_if_cached_without_an_entry_holds_no_tokens(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([HUNDRED], temperature=0, cache_control="only-if-cached", max_tokens=10_000)
    async with worker(valkey.url, tmp_path) as at, at.admissions.admit(decided, exchange(decided)) as admission:
        assert admission.cache.answer is None
        with valkey.client() as client:
            assert held(client) == 0


async def test_a_cache_that_is_away_is_a_miss(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([FIVE], temperature=0)
    async with worker(valkey.url, tmp_path, cache_url="unix:///nowhere") as at:
        told = exchange(decided)
        async with at.admissions.admit(decided, told) as admission:
            served(told, Usage(1, 1))
            await admission.settle(StoredAnswer(False, "application/json", b"{}", 0))  # noqa: FBT003
    assert (told.cache, told.cache_reason, told.is_stored) == (CacheResult.MISS, "unavailable", False)


# Refusals


@pytest.mark.parametrize(
    ("limit", "fields", "said"),
    [
        pytest.param({**FIVE, "limit": 1, "per": "50s"}, {}, (RATE, 50), id="a bucket: when it has refilled"),
        pytest.param({**HUNDRED, "limit": 9}, {}, (RATE, None), id="more than the limit: never"),
        pytest.param({**FIVE, "limit": 0}, {}, (RATE, None), id="a limit of nothing: never"),
        pytest.param({**HUNDRED, "limit": 9, "per": "month"}, {}, ("insufficient_quota", None), id="a monthly budget"),
        pytest.param(HUNDRED, {"n": 128, "max_tokens": 10**18}, (RATE, None), id="an absurd ask"),
        pytest.param({**USD, "limit": 0.01}, {}, ("insufficient_quota", None), id="usd"),
    ],
)
async def test_what_a_refusal_says(
    valkey: StoreServer, tmp_path: Path, limit: dict[str, Any], fields: dict[str, Any], said: tuple[str, int | None]
) -> None:
    async with worker(valkey.url, tmp_path) as at:
        await go(at, decision([limit], model=PRICED))
        refused = await refusal(at, decision([limit], model=PRICED, **fields))
        assert (refused.code, refused.retry_after_seconds) == said
        assert {"RateLimit", "RateLimit-Policy"} <= {name for name, _ in refused.headers}
        assert at.metrics.limit_refusals_total.series()[0][0] == ["p", decision([limit], model=PRICED).limits[0].name]


# Leaving


async def test_an_admission_cancelled_at_any_moment_leaves_no_hold(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([HUNDRED, EIGHT], max_tokens=1)

    async def enter() -> None:
        async with at.admissions.admit(decided, exchange(decided)):
            await asyncio.sleep(10)

    async with worker(valkey.url, tmp_path) as at:
        for turns in range(30):
            task = asyncio.create_task(enter())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    with valkey.client() as client:
        assert (held(client), spent(client, "tokens")) == (0, 0)
        assert client.exists(KEYS.leases) == 0


async def break_connection(at: Worker, server: StoreServer) -> None:
    """Return while the store's client makes a new connection: what is sent now waits for it."""
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    while at.state.is_available:  # noqa: ASYNC110  the connection sets no event here
        await asyncio.sleep(0)


async def test_an_admission_cancelled_while_the_store_is_connected_anew_leaves_no_hold(
    valkey: StoreServer, tmp_path: Path
) -> None:
    decided = decision([{**HUNDRED, "limit": 100_000}, EIGHT | {"limit": 100}], max_tokens=1)

    async def enter() -> None:
        async with at.admissions.admit(decided, exchange(decided)):
            await asyncio.sleep(10)

    async with worker(valkey.url, tmp_path) as at:
        await break_connection(at, valkey)
        tasks = [asyncio.create_task(enter()) for _ in range(60)]
        for task in tasks:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    with valkey.client() as client:
        assert (held(client), client.exists(KEYS.leases)) == (0, 0)


async def test_who_is_refused_while_the_store_is_connected_anew_leaves_no_hold(
    valkey: StoreServer, tmp_path: Path
) -> None:
    async with worker(valkey.url, tmp_path) as at:
        await go(at, decision([HUNDRED, EIGHT]), Usage(50, 50))
        await break_connection(at, valkey)
        await refusal(at, decision([HUNDRED, EIGHT], temperature=0))  # admitted for a hit only, and there is none
    with valkey.client() as client:
        assert (held(client), client.exists(KEYS.leases)) == (0, 0)


@pytest.mark.parametrize(
    ("is_sent_upstream", "upstream_status", "charged"),
    [
        pytest.param(False, None, (0, "none"), id="while its upstream was being connected: nothing"),
        pytest.param(True, None, (46, "worst_case"), id="once its request was written: what it held"),
        pytest.param(True, 500, (0, "none"), id="with an error on its way: nothing"),
    ],
)
async def test_what_a_client_pays_that_left_before_its_answer_began(
    valkey: StoreServer,
    tmp_path: Path,
    is_sent_upstream: bool,  # noqa: FBT001
    upstream_status: int | None,
    charged: tuple[int, str],
) -> None:
    decided = decision([HUNDRED], max_tokens=20)
    told = exchange(decided)
    async with worker(valkey.url, tmp_path) as at, at.admissions.admit(decided, told):
        told.attempts, told.outcome = 1, Outcome.CLIENT_LEFT
        told.is_sent_upstream, told.upstream_status = is_sent_upstream, upstream_status
    assert told.charged is not None
    assert (told.charged.tokens, told.charged.known) == charged


async def test_a_settlement_survives_being_cancelled_twice(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([HUNDRED, EIGHT])
    entered = asyncio.Event()

    async def use() -> None:
        told = exchange(decided)
        async with at.admissions.admit(decided, told):
            served(told, Usage(5, 5), outcome=Outcome.CLIENT_LEFT)
            entered.set()
            await asyncio.sleep(10)

    async with worker(valkey.url, tmp_path) as at:
        task = asyncio.create_task(use())
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
    with valkey.client() as client:
        assert (held(client), spent(client, "tokens"), len(records(client))) == (0, 10, 1)


async def test_settling_again_books_nothing_more(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision(ALL)
    async with worker(valkey.url, tmp_path) as at:
        told = exchange(decided)
        async with at.admissions.admit(decided, told) as admission:
            served(told, Usage(5, 5))
            await asyncio.gather(admission.settle(), admission.settle())
            await admission.settle()
        at.admissions.record(told)
    with valkey.client() as client:
        assert (held(client), spent(client, "tokens"), len(records(client))) == (0, 10, 1)


async def test_who_was_not_admitted_leaves_a_record_too(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([{**FIVE, "limit": 0}])
    async with worker(valkey.url, tmp_path) as at:
        told = exchange(decided)
        with pytest.raises(LimitExceeded):
            await at.admissions.admit(decided, told).__aenter__()
        told.outcome, told.status = Outcome.REJECTED, 429
        at.admissions.record(told)
    with valkey.client() as client:
        assert [json.loads(record)["status"] for record in records(client)] == [429]


# Limits that are observed


OBSERVED = {"mode": "observe"}


def observed_refusals(at: Worker) -> dict[str, float]:
    """Return what was counted of them, by limit."""
    cells = at.metrics.observed_refusals_total.series()
    return {limit: value for (_policy, limit), value in cells if isinstance(value, float | int)}


async def test_an_observed_limit_counts_all_refuses_none_and_records_which_it_would_have(
    any_store: StoreServer, tmp_path: Path
) -> None:
    tokens = {**HUNDRED, **OBSERVED, "per": "month"}
    decided = decision([tokens, EIGHT], max_tokens=40)  # 26 + 40 tokens
    async with worker(any_store.url, tmp_path) as at:
        assert [await go(at, decided, Usage(26, 34)) for _ in range(3)] == ["passed"] * 3
        assert observed_refusals(at) == {"tokens-per-month-by-user": 2}
        assert at.metrics.limit_refusals_total.series() == []
    with any_store.client() as client:
        assert (held(client), spent(client, "tokens")) == (0, 180)
        told = [json.loads(record)["observed"] for record in records(client)]
    entry = {"parameter": "tokens-per-month-by-user", "rule": "reject", "policy": "p", "before": 66}
    assert told == [[], [{**entry, "after": 40}], [{**entry, "after": 0}]]  # of 100: 60 spent, then 120


async def test_an_observed_limit_holds_though_it_has_no_room(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([{**HUNDRED, **OBSERVED}], max_tokens=80)  # 106 tokens, which never fit
    async with worker(valkey.url, tmp_path) as at:
        async with at.admissions.admit(decided, exchange(decided)) as admission:
            with valkey.client() as client:
                assert held(client) == 106
            assert admission.limit_headers() == []
        with valkey.client() as client:
            assert held(client) == 0


async def test_who_another_limit_refuses_is_not_observed(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([{**FIVE, **OBSERVED, "limit": 0}, {**HUNDRED, "limit": 1}], max_tokens=1)
    async with worker(valkey.url, tmp_path) as at:
        error = await refusal(at, decided)
        assert "tokens-per-minute-by-user" in error.message
        assert "requests-per-minute-by-user" not in dict(error.headers)["RateLimit"]
        assert observed_refusals(at) == {}
    with valkey.client() as client:
        assert spent(client, "requests") == 0


@pytest.mark.parametrize(
    ("limit", "counted"),
    [
        pytest.param({**HUNDRED, "limit": 20}, {}, id="which needs no room for tokens"),
        pytest.param(
            {**HUNDRED, "limit": 20, "charge_hits": "full"},
            {"tokens-per-minute-by-user": 1},
            id="unless they are charged for hits",
        ),
        pytest.param({**FIVE, "limit": 0}, {"requests-per-minute-by-user": 1}, id="but for requests"),
    ],
)
async def test_what_an_observed_limit_would_do_to_a_hit(
    valkey: StoreServer, tmp_path: Path, limit: dict[str, Any], counted: dict[str, int]
) -> None:
    async with worker(valkey.url, tmp_path) as at:
        await store_answer(at, decision(temperature=0), Usage(2, 3))
        assert await go(at, decision([{**limit, **OBSERVED}], temperature=0)) == "hit"
        assert observed_refusals(at) == counted


async def test_an_observed_limit_does_not_deny_while_the_store_is_away(tmp_path: Path) -> None:
    usd = {**USD, **OBSERVED, "limit": 0.1}
    decided = decision([usd], model=PRICED)  # 0.058 USD each
    async with worker("unix:///nowhere", tmp_path) as at:
        assert [await go(at, decided, Usage(26, 16)) for _ in range(3)] == ["passed"] * 3
        assert observed_refusals(at) == {"usd-per-month-by-user": 2}


# Limits that hold nothing


async def test_what_is_settled_after_passes_while_anything_is_left_and_overshoots_by_what_is_in_flight(
    any_store: StoreServer, tmp_path: Path
) -> None:
    decided = decision([{**HUNDRED, "per": "month", "hold": "none"}], max_tokens=500)  # more than the limit at worst
    async with worker(any_store.url, tmp_path / "a") as one, worker(any_store.url, tmp_path / "b") as other:
        assert await go(one, decided, Usage(40, 59)) == "passed"
        at_once = await asyncio.gather(*(go(at, decided, Usage(4, 6), 0.3) for at in (one, other) for _ in range(2)))
        assert at_once == ["passed"] * 4
        error = await refusal(one, decided)
    assert "has no room for this request: 0 left; it fits in" in error.message
    with any_store.client() as client:
        assert (held(client), spent(client, "tokens")) == (0, 139)


async def test_an_orphan_that_held_nothing_is_booked_at_its_worst_case_until_the_truth_comes(
    valkey: StoreServer, tmp_path: Path
) -> None:
    limits = [{**HUNDRED, "per": "month", "hold": "none"}, {**USD, "hold": "none"}]
    decided = decision(limits, model=PRICED, max_tokens=20)  # 26 + 20 tokens at worst
    async with worker(valkey.url, tmp_path / "a", lease_seconds=0.3) as dying:
        told = exchange(decided)
        admission = dying.admissions.admit(decided, told)
        await admission.__aenter__()
        for task in dying.admissions._upkeep._tasks:  # noqa: SLF001  it renews no more, as if it were dead
            task.cancel()
        async with worker(valkey.url, tmp_path / "b", lease_seconds=0.3) as other:
            await eventually(lambda: other.metrics.reservations_expired_total.value == 1)
        with valkey.client() as client:
            assert (held(client), spent(client, "tokens"), spent(client, "usd")) == (0, 46, 66_000)
            served(told, Usage(5, 5))
            await admission.settle()
            assert (spent(client, "tokens"), spent(client, "usd")) == (10, 15_000)


async def test_who_has_nothing_left_of_what_is_settled_after_is_still_served_from_the_cache(
    valkey: StoreServer, tmp_path: Path
) -> None:
    limit = {**HUNDRED, "per": "month", "hold": "none"}
    async with worker(valkey.url, tmp_path) as at:
        await store_answer(at, decision([limit], temperature=0), Usage(50, 70))
        assert await go(at, decision([limit], temperature=0)) == "hit"
        assert await go(at, decision([limit], temperature=0, prompt="other")) == "refused"
    with valkey.client() as client:
        assert (held(client), spent(client, "tokens")) == (0, 120)


async def test_what_is_settled_after_is_so_while_the_store_is_away_too(tmp_path: Path) -> None:
    decided = decision([{**HUNDRED, "hold": "none", "per": "month"}], max_tokens=500)
    async with worker("unix:///nowhere", tmp_path) as at:
        ends = [await go(at, decided, Usage(30, 30)) for _ in range(3)]
    assert ends == ["passed", "passed", "refused"]


# The store away


@pytest.mark.parametrize(
    ("on_store_failure", "ends"),
    [
        pytest.param("allow", ["passed"] * 4, id="allow lets all through"),
        pytest.param(
            "local", ["passed", "passed", "refused", "refused"], id="local counts half of five for two workers"
        ),
    ],
)
async def test_limits_while_the_store_is_away(tmp_path: Path, on_store_failure: str, ends: list[str]) -> None:
    decided = decision([{**FIVE, "on_store_failure": on_store_failure}])
    async with worker("unix:///nowhere", tmp_path, workers=2) as at:
        assert [await go(at, decided) for _ in range(4)] == ends
        assert len(at.spool) == ends.count("passed")


async def test_a_store_that_comes_and_goes_gives_no_second_share(
    own_valkey: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deliver_nothing() -> None:
        pass

    decided = decision([FIVE])
    async with worker(own_valkey.url, tmp_path) as at:
        assert await go(at, decided) == "passed"
        own_valkey.kill()
        assert [await go(at, decided) for _ in range(5)] == ["passed"] * 4 + ["refused"]
        monkeypatch.setattr(at.admissions._upkeep, "deliver", deliver_nothing)  # noqa: SLF001  it has not come to it
        own_valkey.start()
        await eventually(lambda: at.state.is_available)
        assert await go(at, decided) == "passed"
        own_valkey.kill()
        assert await go(at, decided) == "refused"


async def test_a_limit_that_says_deny_is_a_503_that_says_when_to_retry(tmp_path: Path) -> None:
    decided = decision([FIVE, {**HUNDRED, "on_store_failure": "deny"}])
    async with worker("unix:///nowhere", tmp_path) as at:
        with pytest.raises(StoreUnavailable) as caught:
            async with at.admissions.admit(decided, exchange(decided)):
                pytest.fail("it was admitted")
    assert caught.value.retry_after_seconds == 1
    assert "tokens-per-minute-by-user" in caught.value.message


async def test_a_limit_of_usd_says_deny_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    async with worker("unix:///nowhere", tmp_path) as at:
        with pytest.raises(StoreUnavailable, match="usd-per-month-by-user"):
            await go(at, decision([USD], model=PRICED))
        local = decision([{**USD, "limit": 0.1, "on_store_failure": "local"}], model=PRICED)  # 0.058 USD each
        assert [await go(at, local, Usage(26, 16)) for _ in range(2)] == ["passed", "refused"]


async def test_what_a_store_says_of_itself_reaches_the_log_and_no_client(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision([{**FIVE, "on_store_failure": "deny"}])
    async with worker(valkey.url, tmp_path) as at:
        with valkey.client() as client, capture_logs() as logs:
            client.set(at.admissions.reservations.counts(decided.limits, at.admissions.now())[0].key, "junk")
            with pytest.raises(StoreUnavailable) as caught:
                await at.admissions.admit(decided, exchange(decided)).__aenter__()
    assert caught.value.message == (
        "Limit 'requests-per-minute-by-user' of policy 'p' cannot be counted: the store that counts limits does not "
        "answer, and its on_store_failure says deny."
    )
    assert [line["reason"] for line in logs if "WRONGTYPE" in line.get("reason", "")] != []


async def test_what_was_used_while_the_store_was_away_is_booked_when_it_is_back(
    own_valkey: StoreServer, tmp_path: Path
) -> None:
    decided = decision([HUNDRED, EIGHT])
    async with worker(own_valkey.url, tmp_path) as at:
        own_valkey.kill()
        assert await go(at, decided, Usage(5, 35)) == "passed"
        own_valkey.start()
        await eventually(lambda: at.state.is_available)
        await eventually(lambda: len(at.spool) == 0)
    with own_valkey.client() as client:
        assert (held(client), len(records(client))) == (0, 1)
        assert 20 < spent(client, "tokens") <= 40  # it has been refilling since


async def test_a_settlement_into_a_frozen_store_is_bounded_and_booked_once(
    own_valkey: StoreServer, tmp_path: Path
) -> None:
    decided = decision([HUNDRED, EIGHT])
    async with worker(own_valkey.url, tmp_path) as at:
        told = exchange(decided)
        async with at.admissions.admit(decided, told) as admission:
            own_valkey.freeze()
            served(told, Usage(5, 45))
            async with asyncio.timeout(2):
                await admission.settle()
        assert len(at.spool) == 1
        own_valkey.thaw()
        await eventually(lambda: at.state.is_available)
        await eventually(lambda: len(at.spool) == 0)
    with own_valkey.client() as client:
        assert (held(client), len(records(client))) == (0, 1)
        assert 30 < spent(client, "tokens") <= 50


async def test_an_admission_that_a_frozen_store_executes_later_takes_nothing(
    own_valkey: StoreServer, tmp_path: Path
) -> None:
    deny = {**HUNDRED, "on_store_failure": "deny"}
    async with worker(own_valkey.url, tmp_path) as at:
        assert await go(at, decision([EIGHT])) == "passed"
        own_valkey.freeze()
        with pytest.raises(StoreUnavailable):
            await go(at, decision([deny, EIGHT, FIVE]))
        own_valkey.thaw()
        await eventually(lambda: at.state.is_available)
        await eventually(lambda: len(at.spool) == 0)
    with own_valkey.client() as client:
        assert (held(client), spent(client, "tokens"), spent(client, "requests")) == (0, 0, 0)
        assert client.exists(KEYS.leases) == 0


async def test_a_store_that_lost_everything_is_settled_into_without_harm(valkey: StoreServer, tmp_path: Path) -> None:
    decided = decision(ALL)
    async with worker(valkey.url, tmp_path) as at:
        told = exchange(decided)
        async with at.admissions.admit(decided, told) as admission:
            valkey.flush()
            served(told, Usage(5, 5))
            await admission.settle()
            left = dict(admission.limit_headers())["x-ratelimit-remaining-tokens"]
    assert left == "90"


# Owners that die


async def test_a_hold_whose_owner_died_is_booked_at_its_worst_case_and_the_truth_replaces_it(
    valkey: StoreServer, tmp_path: Path
) -> None:
    completions = {"of": "completions", "limit": 9, "per": "day", "by": ["user"]}
    limits = [HUNDRED, EIGHT, USD, completions]
    decided = decision(limits, model=PRICED, max_tokens=20)  # 26 + 20 tokens at worst
    async with worker(valkey.url, tmp_path / "a", lease_seconds=0.3) as dying:
        told = exchange(decided)
        admission = dying.admissions.admit(decided, told)
        await admission.__aenter__()
        for task in dying.admissions._upkeep._tasks:  # noqa: SLF001  it renews no more, as if it were dead
            task.cancel()
        async with worker(valkey.url, tmp_path / "b", lease_seconds=0.3) as other:
            await eventually(lambda: other.metrics.reservations_expired_total.value == 1)
        with valkey.client() as client:
            assert (held(client), spent(client, "tokens")) == (0, 46)
            assert (spent(client, "usd"), spent(client, "completions")) == (66_000, 1)
            assert json.loads(records(client)[0])["outcome"] == "orphaned"
            served(told, Usage(5, 5))
            await admission.settle()
            assert 10 <= spent(client, "tokens") <= 12
            assert (spent(client, "usd"), spent(client, "completions")) == (15_000, 1)
            assert [json.loads(record)["known"] for record in records(client)] == ["worst_case", "reported"]


async def test_a_living_request_outlives_its_first_lease(valkey: StoreServer, tmp_path: Path) -> None:
    async with (
        worker(valkey.url, tmp_path / "a", lease_seconds=0.3) as one,
        worker(valkey.url, tmp_path / "b", lease_seconds=0.3) as other,
    ):
        assert await go(one, decision([HUNDRED, EIGHT]), pause_seconds=1.0) == "passed"
        assert other.metrics.reservations_expired_total.value == 0
        assert one.metrics.reservations_outstanding.value == 0
