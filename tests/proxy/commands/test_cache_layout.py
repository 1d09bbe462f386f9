"""What `tidegate cache` prints for people."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.commands.cache_layout import bodies, bytes_words, entry_lines, purge_lines, status_lines, time_words

KEY = "0123456789abcdef" * 4
WHO = {
    "organization": "org",
    "project": "proj",
    "owner": "alice",
    "is_service_account": False,
    "key": "key_a",
    "policies": [],
}
ENTRY: dict[str, Any] = {
    "key": KEY,
    "verdict": "hit",
    "stored_bytes": 700,
    "form": "stream",
    "content_type": "text/event-stream",
    "body_bytes": 2_048,
    "created_milliseconds": 1_700_000_000_123,
    "age_seconds": 90,
    "left_seconds": 3_510,
    "model": "m-2026",
    "asked_model": "m",
    "deployment": "u/m",
    "fingerprint": "fp_1",
    "fingerprint_retired_milliseconds": None,
    "generation": 1_699_999_999_000,
    "is_purged": False,
    "provider": {"project": "proj", "owner": "batch", "is_service_account": True, "key": "key_b"},
    "request_id": "req_1",
    "usage": {"input_tokens": 3, "output_tokens": 5, "cached_input_tokens": 0, "reasoning_tokens": 0},
}
TOLD: dict[str, Any] = {
    "path": "/v1/completions",
    "principal": WHO,
    "model": {"asked": "old", "name": "m"},
    "cache": {},
    "verdict": "hit",
    "reason": None,
    "is_array": False,
    "entries": [ENTRY],
}


def test_an_entry_is_laid_out() -> None:
    assert "\n".join(entry_lines(TOLD)) == (
        """\
request      POST /v1/completions
sender       key key_a of user alice, project proj, organization org
model        m
verdict      hit: it would be served from the cache
key          0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
entry        stream, text/event-stream, 2.0 KiB, 700 bytes in the store
age          1 min 30 s, of 2023-11-14 22:13:20Z; left 58 min 30 s
answered by  u/m, model m-2026
fingerprint  fp_1, live
generation   1699999999000
paid by      key key_b of service account batch, project proj
             request req_1
usage        3 input tokens, 5 output tokens"""
    )


def test_what_is_not_known_of_an_entry_is_told_so() -> None:
    bare = {
        **ENTRY,
        "fingerprint": None,
        "provider": None,
        "usage": None,
        "model": None,
        "deployment": "",
        "request_id": "",
        "left_seconds": 0,
    }
    lines = list(entry_lines({**TOLD, "entries": [bare]}))
    assert lines[6:] == [
        "age          1 min 30 s, of 2023-11-14 22:13:20Z; left none",
        "answered by  –, model –",
        "fingerprint  none",
        "generation   1699999999000",
        "paid by      unknown",
        "             request –",
        "usage        not reported",
    ]


@pytest.mark.parametrize(
    ("verdict", "reason", "said"),
    [
        ("miss", None, "miss: nothing stands there"),
        ("miss", "stale", "miss: older than its time to live: it is fetched anew"),
        ("miss", "max-age", "miss: older than the request's max-age: it is fetched anew"),
        ("miss", "fingerprint", "miss: its deployment shows another fingerprint by now: it is fetched anew"),
        ("miss", "purged", "miss: it was purged: it is fetched anew"),
        ("miss", "unreadable", "miss: what stands there is of another version of Tidegate: it is fetched anew"),
        ("miss", "no-cache", "miss: the request says no-cache"),
        ("bypass", "not-deterministic", "not cacheable: not-deterministic"),
    ],
)
def test_a_verdict_is_told_in_words(verdict: str, reason: str | None, said: str) -> None:
    assert f"verdict      {said}" in list(entry_lines({**TOLD, "verdict": verdict, "reason": reason, "entries": []}))


def test_a_retired_fingerprint_and_a_purge_are_told() -> None:
    old = {**ENTRY, "fingerprint_retired_milliseconds": 1_700_000_060_000, "is_purged": True}
    lines = list(entry_lines({**TOLD, "entries": [old]}))
    assert "fingerprint  fp_1, retired since 2023-11-14 22:14:20Z" in lines
    assert "generation   1699999999000 (purged)" in lines


def test_a_refusal_is_told_with_its_message() -> None:
    told = {"path": "/v1/completions", "principal": WHO, "verdict": "refused", "status": 404, "entries": []}
    error = {"code": "model_not_found", "type": "t", "message": "No such model."}
    assert list(entry_lines({**told, "error": error}))[-2:] == [
        "verdict      refused: 404 model_not_found",
        "             No such model.",
    ]


def test_items_stand_in_a_table_whose_keys_are_whole() -> None:
    missing = {"key": KEY[::-1], "verdict": "miss", "stored_bytes": 0}
    told = {**TOLD, "verdict": "partial", "is_array": True, "entries": [ENTRY, missing]}
    lines = list(entry_lines(told))
    assert lines[3] == "verdict      partial: some items would be served from the cache, the others fetched"
    assert lines[5:] == [
        "items",
        f"  item  key{' ' * 61}  verdict  bytes         age         left",
        f"     0  {KEY}  hit       2048  1 min 30 s  58 min 30 s",
        f"     1  {KEY[::-1]}  miss         –           –            –",
    ]


@pytest.mark.parametrize(
    ("is_for_people", "expected"),
    [
        pytest.param(False, ["a\x1b[2J\nb\n", "c\n"], id="as they are for a program"),
        pytest.param(True, ["a\\x1b[2J\nb\n", "c\n"], id="without what steers a terminal"),
    ],
)
def test_bodies_follow_each_other(expected: list[str], *, is_for_people: bool) -> None:
    told = {"entries": [{"body": "a\x1b[2J\nb\n"}, {"verdict": "miss"}, {"body": "c"}]}
    assert list(bodies(told, is_for_people=is_for_people)) == expected


def test_a_purge_is_told() -> None:
    told = {
        "all": False,
        "models": ["m"],
        "projects": ["proj"],
        "keys": [],
        "entries": [],
        "reason": "new weights",
        "generation": 5,
        "audit_log": "audit_log-5-0",
    }
    assert "\n".join(purge_lines(told)) == (
        """\
purged       model m, project proj
reason       new weights
audit log    audit_log-5-0

Answers that were fetched before, or are being fetched, are served no more."""
    )
    assert next(purge_lines({**told, "all": True})) == "purged       everything"


STATUS: dict[str, Any] = {
    "fingerprints": [
        {
            "deployment": "llama/smollm2",
            "model": "smollm2",
            "fingerprint": "fp_" + "x" * 70,
            "state": "retired",
            "first_seen_milliseconds": 1_700_000_000_000,
            "last_seen_milliseconds": 1_700_000_060_000,
            "retired_milliseconds": 1_700_000_660_000,
        }
    ],
    "purges": [
        {"kind": "model", "name": "m", "generation": 1_700_000_000_000},
        {"kind": "all", "name": None, "generation": 999_999_999_999_999},
    ],
    "generation": 5,
    "store": {"is_shared": False, "entries": 12, "used_bytes": 3 * 1024 * 1024, "max_bytes": 256 * 1024 * 1024},
    "workers": {
        "lookups": {"bypass": 2, "hit": 6},
        "reasons": [{"result": "bypass", "reason": "off", "requests": 2}],
        "stored": 4,
        "memory": {"entries": 3, "bytes": 5_000},
        "drift": [{"model": "m", "same": 3, "different": 1, "failed": 7, "divergence": 0.25}],
    },
    "workers_unknown": None,
}


def test_status_is_laid_out() -> None:
    fingerprint = "fp_" + "x" * 70
    assert "\n".join(status_lines(STATUS)) == (
        f"""\
store        12 entries, 3.0 MiB of 256.0 MiB
memory       3 entries, 4.9 KiB, of all workers
stored       4 since the start

fingerprints
  deployment     model    fingerprint{" " * 62}  first seen            last seen             state
  llama/smollm2  smollm2  {fingerprint}  2023-11-14 22:13:20Z  2023-11-14 22:14:20Z  retired since 2023-11-14 22:24:20Z

purges
  purged      what was fetched before
  model m     2023-11-14 22:13:20Z
  everything  9999-12-31 23:59:59Z

look-ups
  result  reason  requests
  bypass                 2
          off            2
  hit                    6

drift
  model  same  different  failed  divergence
  m         3          1       7      25.00%"""
    )


@pytest.mark.parametrize(
    ("store", "said"),
    [
        pytest.param(None, "store        a cluster, whose servers are not asked", id="a cluster"),
        pytest.param(
            {"is_shared": True, "entries": None, "used_bytes": 1_023, "max_bytes": None},
            "store        1023 bytes, limits and records included: cache_state is the server of state",
            id="the server of state",
        ),
    ],
)
def test_a_store_that_is_no_cache_of_its_own(store: dict[str, Any] | None, said: str) -> None:
    told = {**STATUS, "store": store, "workers": None, "workers_unknown": "start it", "fingerprints": [], "purges": []}
    assert list(status_lines(told)) == [
        said,
        "workers      not told: start it",
        "",
        "fingerprints none",
        "",
        "purges       none",
    ]


def test_sizes_have_few_digits() -> None:
    assert [bytes_words(size) for size in (0, 1_023, 1_024, 1_048_575, 1_048_576)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "1024.0 KiB",
        "1.0 MiB",
    ]


def test_a_time_that_cannot_be_is_the_last_one() -> None:
    assert time_words(10**15 - 1) == "9999-12-31 23:59:59Z"
