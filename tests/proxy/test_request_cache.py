from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from admitting import ORGANIZATION, decision, exchange, served, worker
from answering import text_of, usage_of
from msgspec.structs import replace

from policies.cacheability import Keyed
from policies.charges import Charged
from policies.usage import Usage
from proxy.exchange import CacheResult, Observed
from proxy.request_cache import RequestCache
from proxy.store import keys as store_keys
from proxy.store.audit import Actor, Event
from proxy.store.entries import StoredAnswer
from proxy.store.purges import Scope, purge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from admitting import Worker
    from stores import StoreServer

    from policies.decision import Decision

REPORTED = Charged(input_tokens=1, output_tokens=2, known="reported")
EVENT = Event("cache.purged", Actor("session", "root"), "", {})


def body(prompts: Sequence[str], *, choices: int = 1) -> bytes:
    """Return what a server answers to prompts."""
    texts = [text_of(prompt, 1, choice) for prompt in prompts for choice in range(choices)]
    told = [{"text": text, "index": index, "finish_reason": "stop"} for index, text in enumerate(texts)]
    return json.dumps({"object": "text_completion", "choices": told, "usage": usage_of(prompts, texts)}).encode()


def texts_of(whole: bytes | None) -> list[str]:
    assert whole is not None
    return [choice["text"] for choice in json.loads(whole)["choices"]]


class Asked:
    """One request and what the cache does for it."""

    def __init__(self, working: Worker, decided: Decision) -> None:
        self.exchange = exchange(decided)
        self.exchange.upstream, self.exchange.deployment = "u", "m"
        self.cache = RequestCache(working.admissions.cache, working.admissions.flights, decided, self.exchange)
        self._admissions = working.admissions

    async def look_up(self) -> RequestCache:
        self.cache.send()
        await self.cache.read()
        return self.cache

    def to_keep(self, answer: bytes, charged: Charged = REPORTED, **facts: Any) -> dict[str, StoredAnswer]:  # noqa: ANN401
        """Return what is kept of an answer that has come."""
        served(self.exchange, Usage(1, 2))
        entry = StoredAnswer(False, "application/json", answer, self._admissions.now(), usage=Usage(1, 2))  # noqa: FBT003
        return self.cache.to_keep(replace(entry, **facts), charged)

    async def fetch(self, answer: bytes) -> None:
        """Keep an answer as if it had been fetched."""
        await self._admissions.store(self.to_keep(answer), self.exchange)


@asynccontextmanager
async def asking(server: StoreServer, folder: Path) -> AsyncIterator[Worker]:
    async with worker(server.url, folder) as working:
        yield working


def known(prompt: str | Sequence[str], **more: Any) -> Decision:  # noqa: ANN401  members of a request
    return decision(prompt=prompt, temperature=0, **more)


async def keep(working: Worker, prompt: str, **more: Any) -> None:  # noqa: ANN401  members of a request
    """Have one prompt's answer in the cache."""
    asked = Asked(working, known(prompt, **more))
    await asked.look_up()
    await asked.fetch(body([prompt]))


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("decided", "result", "reason", "is_found"),
    [
        pytest.param(known("a"), CacheResult.HIT, None, True, id="known"),
        pytest.param(known("new"), CacheResult.MISS, None, False, id="not known"),
        pytest.param(known("a", cache_control="no-cache"), CacheResult.BYPASS, "no-cache", False, id="not wanted"),
        pytest.param(known("a", cache_control="max-age=0"), CacheResult.MISS, "max-age", False, id="too old"),
        pytest.param(
            decision(prompt="a", temperature=1), CacheResult.BYPASS, "not-deterministic", False, id="drawn by chance"
        ),
        pytest.param(known(["a", "b"]), CacheResult.HIT, None, True, id="an array that is known"),
        pytest.param(known(["a", "new"]), CacheResult.PARTIAL, None, False, id="an array that is partly known"),
        pytest.param(known(["new", "newer"]), CacheResult.MISS, None, False, id="an array that is not known"),
        pytest.param(
            known(["a", "new"], cache_control="only-if-cached"), CacheResult.MISS, None, False, id="a part is nothing"
        ),
        pytest.param(known(["a", "new"], stream=True), CacheResult.PARTIAL, None, False, id="a stream partly known"),
        pytest.param(known(["a", "b"], stream=True), CacheResult.HIT, None, True, id="a stream that is known"),
    ],
)
async def test_the_verdict(
    valkey: StoreServer, tmp_path: Path, decided: Decision, result: CacheResult, reason: str | None, *, is_found: bool
) -> None:
    async with asking(valkey, tmp_path) as working:
        for prompt in "ab":
            await keep(working, prompt)
        asked = Asked(working, decided)
        cache = await asked.look_up()
    assert (asked.exchange.cache, asked.exchange.cache_reason, cache.is_found) == (result, reason, is_found)
    assert bool(asked.exchange.saved) is is_found


async def test_a_purged_answer_is_a_miss_that_says_why_and_the_next_one_is_kept(
    valkey: StoreServer, tmp_path: Path
) -> None:
    async with asking(valkey, tmp_path) as working:
        await keep(working, "a")
        state = working.admissions.cache.state
        purged = await purge(working.state, ORGANIZATION, [Scope("all")], EVENT)
        state.note(purged.generation, time.monotonic())
        asked = Asked(working, known("a"))
        await asked.look_up()
        assert (asked.exchange.cache, asked.exchange.cache_reason) == (CacheResult.MISS, "purged")
        await asked.fetch(body(["a"]))
        assert (await Asked(working, known("a")).look_up()).is_found


async def test_nothing_is_kept_of_what_was_purged_while_it_was_fetched(valkey: StoreServer, tmp_path: Path) -> None:
    async with asking(valkey, tmp_path) as working:
        asked = Asked(working, known("a"))
        await asked.look_up()
        state = working.admissions.cache.state
        state.note(
            (await purge(working.state, ORGANIZATION, [Scope("model", "m")], EVENT)).generation, time.monotonic()
        )
        await state.catch_up()
        assert asked.to_keep(body(["a"])) == {}


async def test_nothing_is_kept_where_nobody_knows_what_was_purged(own_valkey: StoreServer, tmp_path: Path) -> None:
    async with asking(own_valkey, tmp_path) as working:
        own_valkey.kill()
        await working.admissions.cache.state.close()
        asked = Asked(working, known("a"))
        cache = await asked.look_up()
        assert (asked.exchange.cache, asked.exchange.cache_reason) == (CacheResult.MISS, "unavailable")
        assert asked.to_keep(body(["a"])) == {}
        assert cache.begin_flight() is None


async def test_a_refused_request_takes_back_what_it_found(valkey: StoreServer, tmp_path: Path) -> None:
    async with asking(valkey, tmp_path) as working:
        for prompt in "ab":
            await keep(working, prompt)
        for decided in (known("a"), known(["a", "b"]), known(["a", "new"])):
            asked = Asked(working, decided)
            cache = await asked.look_up()
            cache.forget()
            told = asked.exchange
            assert (told.cache, told.saved, told.items_known) == (CacheResult.MISS, (), None)
            assert (cache.answer, cache.missing, told.answer) == (None, (), Observed())


# ---------------------------------------------------------------- what is kept


async def test_an_answer_is_kept_with_what_is_to_be_known_of_it(valkey: StoreServer, tmp_path: Path) -> None:
    decided = known("a", model={"cache_ttl": "5m"})
    async with asking(valkey, tmp_path) as working:
        asked = Asked(working, decided)
        await asked.look_up()
        [(key, kept)] = asked.to_keep(body(["a"])).items()
        epoch = working.admissions.cache.state.epoch
    assert isinstance(decided.cache, Keyed)
    assert (key, kept.ttl_seconds, kept.generation) == (decided.cache.key, 300, epoch)
    assert (kept.deployment, kept.asked_model, kept.request_id) == ("u/m", "m", asked.exchange.request_id)
    assert kept.provider is not None
    assert (kept.provider.project, kept.provider.key) == ("proj", "key_alice")


@pytest.mark.parametrize(
    ("charged", "kept"),
    [
        pytest.param(REPORTED, Usage(1, 2), id="what was reported"),
        pytest.param(Charged(input_tokens=5, output_tokens=9, known="counted"), Usage(5, 9), id="what was charged"),
    ],
)
async def test_an_answer_is_worth_what_was_charged_for_it(
    valkey: StoreServer, tmp_path: Path, charged: Charged, kept: Usage
) -> None:
    async with asking(valkey, tmp_path) as working:
        asked = Asked(working, known("a"))
        await asked.look_up()
        [answer] = asked.to_keep(body(["a"]), charged).values()
    assert answer.usage == kept


@pytest.mark.parametrize(
    "decided",
    [known("a", cache_control="no-store"), known(["a", "b"], cache_control="no-store"), decision(prompt="a")],
    ids=["not to be stored", "an array that is not to be stored", "not cacheable"],
)
async def test_what_must_not_be_kept_is_not(valkey: StoreServer, tmp_path: Path, decided: Decision) -> None:
    async with asking(valkey, tmp_path) as working:
        asked = Asked(working, decided)
        await asked.look_up()
        assert asked.to_keep(body(["a"])) == {}
        assert asked.cache.to_keep(None, REPORTED) == {}


# ---------------------------------------------------------------- arrays


async def test_of_an_array_each_missing_item_is_fetched_once(valkey: StoreServer, tmp_path: Path) -> None:
    prompts = ["b", "new", "a", "newer", "new"]
    async with asking(valkey, tmp_path) as working:
        for prompt in "ab":
            await keep(working, prompt, max_tokens=5)
        decided = known(prompts, max_tokens=5)
        asked = Asked(working, decided)
        cache = await asked.look_up()
        narrowed = cache.narrowed()
        assert cache.missing == (1, 3)
        assert narrowed.effective.fields == {**decided.effective.fields, "prompt": ["new", "newer"]}
        assert (narrowed.worst_case.candidates, narrowed.worst_case.output_tokens) == (2, 10)
        assert asked.exchange.items_known == (2, 5)
        assert asked.exchange.saved == (), "nothing is saved before there is an answer"
        assert not cache.may_lead
        whole = cache.completed(body(["new", "newer"]))
        assert texts_of(whole) == [text_of(prompt, 1) for prompt in prompts]
        assert len(asked.exchange.saved) == 2
        kept = asked.to_keep(body(["new", "newer"]))
    assert isinstance(decided.cache, Keyed)
    assert list(kept) == [decided.cache.items[1], decided.cache.items[3]]
    assert [texts_of(answer.body) for answer in kept.values()] == [[text_of("new", 1)], [text_of("newer", 1)]]


@pytest.mark.parametrize(
    "answer",
    [body(["new"]), body(["new"] * 3), b"{}", b"[]", b"no", body(["new", "newer"], choices=2)],
    ids=["too few", "too many", "none", "no object", "no JSON", "twice as many"],
)
async def test_what_does_not_hold_what_was_asked_for_completes_nothing(
    valkey: StoreServer, tmp_path: Path, answer: bytes
) -> None:
    async with asking(valkey, tmp_path) as working:
        await keep(working, "a")
        asked = Asked(working, known(["a", "new", "newer"]))
        cache = await asked.look_up()
        assert cache.completed(answer) is None
        assert asked.to_keep(answer) == {}
        assert asked.exchange.saved == ()


@pytest.mark.parametrize(
    ("charged", "each"),
    [
        # By our estimate both prompts are one token: of 3 the first gets the odd one. The texts have 30 and 31 bytes.
        pytest.param(REPORTED, [Usage(2, 30), Usage(1, 31)], id="what was reported"),
        pytest.param(
            Charged(input_tokens=6, output_tokens=610, known="counted"), [Usage(4, 300), Usage(2, 310)], id="charged"
        ),
    ],
)
async def test_items_are_worth_together_what_was_charged_for_all(
    valkey: StoreServer, tmp_path: Path, charged: Charged, each: list[Usage]
) -> None:
    prompts = ["a", "bb"]
    async with asking(valkey, tmp_path) as working:
        asked = Asked(working, known(prompts))
        await asked.look_up()
        kept = asked.to_keep(body(prompts), charged, usage=Usage(3, 61))
    assert [answer.usage for answer in kept.values()] == each


async def test_an_array_is_as_old_as_its_oldest_item_and_saves_each_once(valkey: StoreServer, tmp_path: Path) -> None:
    async with asking(valkey, tmp_path) as working:
        for prompt, created in (("a", 5_000), ("b", 9_000)):
            asked = Asked(working, known(prompt))
            await asked.look_up()
            facts = {"created_milliseconds": working.admissions.now() - created}
            await working.admissions.store(asked.to_keep(body([prompt]), **facts), asked.exchange)
        asked = Asked(working, known(["a", "b", "a"]))
        cache = await asked.look_up()
        assert cache.answer is not None
        assert working.admissions.now() - cache.answer.created_milliseconds >= 9_000
        assert texts_of(cache.answer.body) == [text_of(prompt, 1) for prompt in "aba"]
        assert len(asked.exchange.saved) == 2


async def test_an_item_that_is_longer_than_an_entry_is_left_out(valkey: StoreServer, tmp_path: Path) -> None:
    async with asking(valkey, tmp_path) as working:
        longest = working.admissions.flights.max_flight_bytes
        decided = known(["a", "b"])
        asked = Asked(working, decided)
        await asked.look_up()
        kept = asked.to_keep(body(["a" * longest, "b"]))
    assert isinstance(decided.cache, Keyed)
    assert list(kept) == [decided.cache.items[1]]


async def test_what_cannot_be_read_of_an_array_is_fetched(valkey: StoreServer, tmp_path: Path) -> None:
    decided = known(["a", "b"])
    assert isinstance(decided.cache, Keyed)
    async with asking(valkey, tmp_path) as working:
        for prompt in "ab":
            await keep(working, prompt)
        working.admissions.cache.memory.clear()
        with valkey.client() as client:
            client.set(store_keys.stored(decided.cache.items[0]), b"hello")
        cache = await Asked(working, decided).look_up()
    assert cache.missing == (0,)
