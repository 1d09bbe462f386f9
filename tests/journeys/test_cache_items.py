"""Arrays are answered item by item: what is known is not asked again, who asks pays what was fetched (SPEC §6)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from answering import Answering, packed, text_of, texts_in, usage_of
from fake_upstream import json_reply, vec
from gateway import sha256
from harness import sse, sse_json
from sending import fake_upstream, up
from whole import Whole, configuration, whole_gateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from fake_upstream import FakeUpstream, Ops, Req
    from sending import MemoryWriter
    from stores import StoreServer

__all__ = ["fake_upstream", "up"]

PRICE = {"input": 1.0, "output": 2.0}
LIMIT = 1_000_000
POLICIES = {"default": {"limits": [{"of": "tokens", "limit": LIMIT, "per": "day", "by": ["key"]}]}}
MODELS = {"m": {"deployments": [{"upstream": "only"}], "price": PRICE, "max_output_tokens": 64}}
ERROR = {"error": {"message": "no", "type": "server_error", "param": None, "code": "x"}}


@pytest.fixture(autouse=True)
def _is_well(up: FakeUpstream) -> None:
    up.default = Answering()


@asynccontextmanager
async def gateway(up: FakeUpstream, valkey: StoreServer, folder: Path, **more: Any) -> AsyncIterator[Whole]:  # noqa: ANN401
    made = configuration(up.url, folder, **{"models": MODELS, "policies": POLICIES, **more})
    async with whole_gateway(made, valkey.url) as whole:
        yield whole


async def ask(whole: Whole, prompt: Sequence[str] | str, *, control: str | None = None, **more: object) -> MemoryWriter:
    """Ask for completions at temperature 0."""
    fields = {} if control is None else {"Cache_Control": control}
    asked = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}
    answer, _ = await whole.ask("POST", "/v1/completions", asked, **fields)
    return answer


async def embed(whole: Whole, texts: Sequence[str] | str, **more: object) -> MemoryWriter:
    answer, _ = await whole.ask("POST", "/v1/embeddings", {"model": "m", "input": texts, **more})
    return answer


def asked_for(up: FakeUpstream) -> list[Any]:
    """Return the prompts or inputs of each call to the upstream."""
    return [call.json().get("prompt") or call.json()["input"] for call in up.log]


def record_of(valkey: StoreServer, answer: MemoryWriter) -> dict[str, Any]:
    """Return the usage record of a request; the gateway has to be closed."""
    with valkey.client() as client:
        found = [
            json.loads(value)
            for key in client.scan_iter(match="*:outbox")
            for _, fields in client.xrange(key)
            for value in fields.values()
        ]
    [record] = [each for each in found if each["request_id"] == answer.header("x-request-id")]
    return record


def is_hit(answer: MemoryWriter) -> bool:
    return (answer.header("cache-status") or "").startswith("tidegate;hit")


def check_texts(answer: MemoryWriter, expected: Sequence[str]) -> None:
    """Check the texts of a whole answer, and that its choices are numbered in their order."""
    assert answer.status == 200
    assert texts_in(answer.body) == list(expected)
    assert [choice["index"] for choice in json.loads(answer.body)["choices"]] == list(range(len(expected)))


async def test_of_fifty_prompts_with_forty_nine_known_one_is_fetched(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    prompts = [f"prompt {'x' * number}" for number in range(50)]
    new, known = prompts[20], prompts[:20] + prompts[21:]
    async with gateway(up, valkey, tmp_path) as whole:
        first = await ask(whole, known[::-1])
        answer = await ask(whole, prompts)
        again = await ask(whole, prompts)
    assert asked_for(up) == [known[::-1], [new]]
    texts = {prompt: text_of(prompt, 2 if prompt == new else 1) for prompt in prompts}
    check_texts(answer, [*texts.values()])
    assert json.loads(answer.body)["usage"] == usage_of(prompts, [*texts.values()])
    assert answer.header("cache-status") == 'tidegate;fwd=partial;stored;detail="49 of 50 items hit"'
    assert answer.header("age") is None
    assert is_hit(again)
    assert again.body == answer.body

    of_known, of_new = usage_of(known, [texts[prompt] for prompt in known]), usage_of([new], [texts[new]])
    paid = record_of(valkey, first)
    assert (paid["input_tokens"], paid["output_tokens"]) == (of_known["prompt_tokens"], of_known["completion_tokens"])
    record = record_of(valkey, answer)
    assert (record["cache"], record["completions"]) == ("partial", 1)
    assert (record["input_tokens"], record["output_tokens"]) == (len(new), len(texts[new]))
    assert record["cost_microdollars"] == len(new) + 2 * len(texts[new])
    assert record["saved_input_tokens"] == of_known["prompt_tokens"]
    assert record["saved_output_tokens"] == of_known["completion_tokens"]
    assert record["saved_microdollars"] == of_known["prompt_tokens"] + 2 * of_known["completion_tokens"]
    [provided] = record["provided"]
    assert (provided["project"], provided["owner"]) == ("proj", "alice")
    left = int(first.header("x-ratelimit-remaining-tokens")) - int(answer.header("x-ratelimit-remaining-tokens"))
    assert left == of_new["total_tokens"]
    assert again.header("x-ratelimit-remaining-tokens") == answer.header("x-ratelimit-remaining-tokens")


async def test_a_prompt_of_an_array_and_the_same_alone_share_an_answer(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, ["one", "two", "three"])
        alone = await ask(whole, "two")
        in_one = await ask(whole, ["two"])
        await ask(whole, "four")
        array = await ask(whole, ["four", "two"])
    assert asked_for(up) == [["one", "two", "three"], "four"]
    for answer in (alone, in_one):
        check_texts(answer, [text_of("two", 1)])
        assert is_hit(answer)
    assert json.loads(alone.body)["usage"]["completion_tokens"] == len(text_of("two", 1))
    check_texts(array, [text_of("four", 2), text_of("two", 1)])
    assert is_hit(array)
    assert record_of(valkey, array)["saved_output_tokens"] == len(text_of("four", 2) + text_of("two", 1))


async def test_several_choices_of_a_prompt_stay_together(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, ["b", "a"], n=2)
        answer = await ask(whole, ["a", "new", "b"], n=2)
        other = await ask(whole, ["a", "b"], n=1)
    assert asked_for(up) == [["b", "a"], ["new"], ["a", "b"]]
    texts = [text_of(each, 2 if each == "new" else 1, choice) for each in ("a", "new", "b") for choice in (0, 1)]
    check_texts(answer, texts)
    assert json.loads(answer.body)["usage"] == usage_of(["a", "new", "b"], texts)
    assert record_of(valkey, answer)["completions"] == 2
    check_texts(other, [text_of("a", 3), text_of("b", 3)])


async def test_the_same_prompt_twice_is_fetched_once(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        answer = await ask(whole, ["a", "b", "a", "a"])
    assert asked_for(up) == [["a", "b"]]
    texts = [text_of(each, 1) for each in "abaa"]
    check_texts(answer, texts)
    assert json.loads(answer.body)["usage"] == usage_of("abaa", texts)
    assert answer.header("cache-status") == "tidegate;fwd=miss;stored"
    record = record_of(valkey, answer)
    assert (record["input_tokens"], record["completions"]) == (2, 2)


@pytest.mark.parametrize("more", [{"temperature": 1}, {"temperature": 1, "seed": 3}], ids=["drawn", "seeded"])
async def test_an_array_whose_items_are_drawn_goes_whole(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path, more: dict[str, Any]
) -> None:
    prompts = ["a", "b", "a"]
    async with gateway(up, valkey, tmp_path) as whole:
        for each in "ab":
            await ask(whole, each, **more)
        answers = [await ask(whole, prompts, **more) for _ in range(2)]
        alone = await ask(whole, "a", **more)
    has_seed = "seed" in more
    assert asked_for(up) == ["a", "b", prompts] + ([] if has_seed else [prompts, "a"])
    assert is_hit(answers[1]) is is_hit(alone) is has_seed
    for answer, serial in zip(answers, (3, 3 if has_seed else 4), strict=True):
        check_texts(answer, [text_of(each, serial) for each in prompts])


async def test_embeddings_with_repeats(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await embed(whole, "aa")
        answer = await embed(whole, ["aa", "bb", "aa", "cc", "bb"])
        again = await embed(whole, ["cc", "aa"])
        alone = await embed(whole, "bb")
    assert asked_for(up) == ["aa", ["bb", "cc"]]
    told = json.loads(answer.body)
    assert [each["embedding"] for each in told["data"]] == [vec(each) for each in ("aa", "bb", "aa", "cc", "bb")]
    assert [each["index"] for each in told["data"]] == [0, 1, 2, 3, 4]
    assert told["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    assert answer.header("cache-status") == 'tidegate;fwd=partial;stored;detail="2 of 5 items hit"'
    assert (record_of(valkey, answer)["input_tokens"], record_of(valkey, answer)["saved_input_tokens"]) == (4, 2)
    assert [each["embedding"] for each in json.loads(again.body)["data"]] == [vec("cc"), vec("aa")]
    assert [each["embedding"] for each in json.loads(alone.body)["data"]] == [vec("bb")]
    assert is_hit(again)
    assert is_hit(alone)


async def test_embeddings_in_base64_are_kept_apart(up: FakeUpstream, valkey: StoreServer, tmp_path: Path) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await embed(whole, ["a", "b"])
        answer = await embed(whole, ["a", "b", "a"], encoding_format="base64")
        again = await embed(whole, "b", encoding_format="base64")
    assert asked_for(up) == [["a", "b"], ["a", "b"]]
    assert [each["embedding"] for each in json.loads(answer.body)["data"]] == [packed(vec(each)) for each in "aba"]
    assert [each["embedding"] for each in json.loads(again.body)["data"]] == [packed(vec("b"))]


async def test_what_is_longer_than_an_entry_in_all_is_kept_item_by_item(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    texts = [f"text {number:03}" for number in range(100)]
    async with gateway(up, valkey, tmp_path, max_entry_bytes=1024) as whole:
        answer = await embed(whole, texts)
        again = await embed(whole, texts[::-1])
        alone = await embed(whole, texts[7])
    assert len(answer.body) > 4 * 1024
    assert asked_for(up) == [texts]
    assert [each["embedding"] for each in json.loads(again.body)["data"]] == [vec(text) for text in texts[::-1]]
    assert is_hit(alone)


async def test_an_item_that_is_longer_than_an_entry_is_not_kept(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    long, short = "long " * 300, "short"
    async with gateway(up, valkey, tmp_path, max_entry_bytes=1024) as whole:
        first = await ask(whole, [long, short])
        answer = await ask(whole, [long, short])
    assert asked_for(up) == [[long, short], [long]]
    check_texts(first, [text_of(long, 1), text_of(short, 1)])
    check_texts(answer, [text_of(long, 2), text_of(short, 1)])
    assert answer.header("cache-status") == 'tidegate;fwd=partial;detail="1 of 2 items hit"'


WRONG: dict[str, tuple[Ops, int]] = {
    "fewer choices": (json_reply({"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}), 502),
    "more choices": (
        json_reply({"choices": [{"index": each, "text": "x", "finish_reason": "stop"} for each in range(3)]}),
        502,
    ),
    "no choices": (json_reply({"choices": []}), 502),
    "the same choice twice": (json_reply({"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}] * 2}), 502),
    "an error object": (json_reply(ERROR), 200),
    "500": (json_reply(ERROR, 500, [("x-should-retry", "false")]), 500),
    "400": (json_reply(ERROR, 400), 400),
    "no JSON": (json_reply([1]), 502),
}


@pytest.mark.parametrize(("wrong", "status"), WRONG.values(), ids=list(WRONG))
async def test_what_is_answered_wrongly_leaves_the_rest_as_it_was(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path, wrong: Ops, status: int
) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, ["a", "b"])
        up.script(wrong)
        failed = await ask(whole, ["a", "new", "b", "newer"])
        answer = await ask(whole, ["a", "new", "b", "newer"])
    assert failed.status == status
    assert "choices" not in json.loads(failed.body)
    assert asked_for(up) == [["a", "b"], ["new", "newer"], ["new", "newer"]]
    check_texts(answer, [text_of("a", 1), text_of("new", 2), text_of("b", 1), text_of("newer", 2)])
    record = record_of(valkey, failed)
    assert (record["saved_input_tokens"], record["saved_microdollars"], record["provided"]) == (0, 0, [])


def _filtered(req: Req) -> Ops:
    choices = [
        {"index": index, "text": prompt, "finish_reason": "content_filter" if index else "stop"}
        for index, prompt in enumerate(req.json()["prompt"])
    ]
    return json_reply({"choices": choices, "usage": usage_of(req.json()["prompt"], req.json()["prompt"])})


async def test_a_prompt_that_was_filtered_is_passed_on_and_asked_again(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, ["a", "b"])
        up.script(_filtered)
        filtered = await ask(whole, ["a", "new", "b", "newer"])
        answer = await ask(whole, ["a", "new", "b", "newer"])
    check_texts(filtered, [text_of("a", 1), "new", text_of("b", 1), "newer"])
    assert json.loads(filtered.body)["choices"][3]["finish_reason"] == "content_filter"
    assert filtered.header("cache-status") == 'tidegate;fwd=partial;detail="2 of 4 items hit"'
    assert asked_for(up)[2] == ["new", "newer"]
    check_texts(answer, [text_of("a", 1), text_of("new", 2), text_of("b", 1), text_of("newer", 2)])


async def test_a_stream_of_an_array_is_made_of_what_is_known(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, ["a", "b", "c"])
        stream = await ask(whole, ["c", "a"], stream=True, stream_options={"include_usage": True})
    assert asked_for(up) == [["a", "b", "c"]]
    assert is_hit(stream)
    assert streamed(stream) == {0: text_of("c", 1), 1: text_of("a", 1)}
    assert sse(stream.body)[0][-1][1] == "[DONE]"
    assert sse_json(stream.body)[-1]["usage"]["completion_tokens"] == len(text_of("c", 1) + text_of("a", 1))


async def test_a_stream_of_an_array_that_is_not_known_passes_live_and_is_kept_by_item(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        stream = await ask(whole, ["a", "b"], stream=True)
        array = await ask(whole, ["b", "a"])
        alone = await ask(whole, "b", stream=True)
    assert [(call.json()["prompt"], call.json()["stream"]) for call in up.log] == [(["a", "b"], True)]
    assert stream.header("cache-status") == "tidegate;fwd=miss"
    assert streamed(stream) == {0: text_of("a", 1), 1: text_of("b", 1)}
    check_texts(array, [text_of("b", 1), text_of("a", 1)])
    assert streamed(alone) == {0: text_of("b", 1)}
    assert is_hit(array)
    assert is_hit(alone)


@pytest.mark.parametrize("wants_usage", [False, True], ids=["without usage", "with usage"])
async def test_of_a_stream_of_an_array_only_what_is_missing_is_fetched(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path, *, wants_usage: bool
) -> None:
    options = {"stream_options": {"include_usage": True}} if wants_usage else {}
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, "a")
        stream = await ask(whole, ["b", "a", "b"], stream=True, **options)
        alone = await ask(whole, "b", stream=True)
    assert asked_for(up) == ["a", ["b"]]
    assert not {"stream", "stream_options"} & up.log[1].json().keys()
    assert stream.header("content-type").startswith("text/event-stream")
    assert stream.header("cache-status") == 'tidegate;fwd=partial;detail="1 of 3 items hit"'
    assert streamed(stream) == {0: text_of("b", 2), 1: text_of("a", 1), 2: text_of("b", 2)}
    assert sse(stream.body)[0][-1][1] == "[DONE]"
    used = [event["usage"]["completion_tokens"] for event in sse_json(stream.body) if event.get("usage")]
    assert used == ([2 * len(text_of("b", 2)) + len(text_of("a", 1))] if wants_usage else [])
    assert streamed(alone) == {0: text_of("b", 2)}
    assert is_hit(alone)
    record = record_of(valkey, stream)
    assert (record["cache"], record["completions"]) == ("partial", 1)
    assert record["saved_output_tokens"] == len(text_of("a", 1))


async def test_repeats_in_a_stream_are_fetched_once_for_those_who_join_too(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    prompts = ["q", "q", "r"]
    async with gateway(up, valkey, tmp_path) as whole:
        answers = await asyncio.gather(
            *(ask(whole, prompts, stream=True, stream_options={"include_usage": number == 1}) for number in range(3)),
            *(ask(whole, prompts) for _ in range(2)),
        )
    assert asked_for(up) == [["q", "r"]]
    texts = [text_of("q", 1), text_of("q", 1), text_of("r", 1)]
    for stream in answers[:3]:
        assert streamed(stream) == dict(enumerate(texts))
    for each in answers[3:]:
        check_texts(each, texts)
    assert [b'"usage":{' in answer.body for answer in answers[:3]] == [False, True, False]


def streamed(answer: MemoryWriter) -> dict[int, str]:
    """Return the text of each choice of a stream."""
    texts: dict[int, str] = {}
    for event in sse_json(answer.body):
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


async def test_prompts_that_are_only_scored_are_known_one_by_one(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    scoring = {"temperature": 1, "max_tokens": 0, "echo": True, "logprobs": 1}
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, "a", **scoring)
        await ask(whole, ["a", "b"], **scoring)
    assert asked_for(up) == ["a", ["b"]]


async def test_who_wants_only_what_is_cached_gets_all_of_it_or_nothing(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, ["a", "b"])
        partly = await ask(whole, ["a", "new"], control="only-if-cached")
        fully = await ask(whole, ["b", "a"], control="only-if-cached")
    assert asked_for(up) == [["a", "b"]]
    assert (partly.status, fully.status) == (504, 200)
    record = record_of(valkey, partly)
    assert (record["saved_input_tokens"], record["saved_microdollars"], record["provided"]) == (0, 0, [])


async def test_what_a_client_says_of_the_cache_is_said_of_each_item(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    async with gateway(up, valkey, tmp_path) as whole:
        await ask(whole, "a")
        unstored = await ask(whole, ["a", "b"], control="no-store")
        renewed = await ask(whole, ["a", "b"], control="no-cache")
        after = await ask(whole, "a")
    assert asked_for(up) == ["a", ["b"], ["a", "b"]]
    assert unstored.header("cache-status") == 'tidegate;fwd=partial;detail="1 of 2 items hit"'
    assert renewed.header("cache-status") == "tidegate;fwd=request;stored;detail=no-cache"
    check_texts(after, [text_of("a", 3)])


async def test_items_of_several_who_paid_are_booked_to_each(
    up: FakeUpstream, valkey: StoreServer, tmp_path: Path
) -> None:
    more = {
        "keys": [
            {"id": f"key_{user}", "project": "proj", "user": user, "sha256": sha256(f"sk-{user}")}
            for user in ("alice", "bob")
        ]
    }
    async with gateway(up, valkey, tmp_path, **more) as whole:
        await ask(whole, "aa")
        body = {"model": "m", "prompt": "bbbb", "temperature": 0, "max_tokens": 8}
        await whole.ask("POST", "/v1/completions", body, Authorization="Bearer sk-bob")
        answer = await ask(whole, ["aa", "bbbb", "aa", "new"])
    record = record_of(valkey, answer)
    provided = {each["owner"]: (each["input_tokens"], each["output_tokens"]) for each in record["provided"]}
    assert provided == {"alice": (2, len(text_of("aa", 1))), "bob": (4, len(text_of("bbbb", 2)))}
