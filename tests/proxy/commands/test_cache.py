"""`tidegate cache`: what is ordered and asked, misuse, and the exit status; the layout is `test_cache_layout`'s."""

from __future__ import annotations

import json
import os
import pwd
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from policies.freshness import Fit
from proxy.cache_report import CacheReport
from proxy.cached_entries import CachedEntry
from proxy.commands import main
from proxy.commands.metrics_access import NoMetrics
from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics, render
from proxy.store.audit import Actor
from proxy.store.cache_state import Copy
from proxy.store.entries import StoredAnswer
from proxy.store.purges import Purged, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from policies.cacheability import Keyed
    from proxy.config import Configuration
    from proxy.store.audit import Event

ENTRY = "0123456789abcdef" * 4
BODY = '{"choices":[{"index":0,"text":"\x1b[2Jé","finish_reason":"stop"}]}'
REQUEST = {"model": "m", "prompt": "Hi", "temperature": 0}
SETTINGS: dict[str, Any] = {
    "organization": {"id": "org_acme"},
    "upstreams": {"llama": {"kind": "openai", "base_url": "http://llama.internal/v1"}},
    "models": {"m": {"deployments": [{"upstream": "llama"}], "aliases": ["old"]}},
    "policies": {"default": {}},
    "projects": [{"id": "proj", "policy": "default"}],
    "keys": [
        {"id": "key_a", "project": "proj", "user": "alice", "sha256": "ab" * 32},
        {"id": "key_b", "project": "proj", "user": "bob", "sha256": "cd" * 32},
    ],
}


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    """Return the words that name a configuration."""
    (tmp_path / "t.yaml").write_text(json.dumps({**SETTINGS, "data_dir": str(tmp_path / "data")}))
    return ["--config", str(tmp_path / "t.yaml")]


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    return str(tmp_path / "request.json")


@pytest.fixture
def purges() -> Iterator[list[tuple[Sequence[Scope], Event]]]:
    """Have the store purge, and return what it was told."""
    told: list[tuple[Sequence[Scope], Event]] = []

    async def purge(_: Configuration, scopes: Sequence[Scope], event: Event) -> Purged:
        told.append((scopes, event))
        return Purged(1_700_000_000_123, "audit_log-5-0")

    with patch("proxy.commands.live.purge_live", purge):
        yield told


@pytest.fixture
def fits() -> Iterator[list[Fit]]:
    """Have the store hold an answer for each key, that fits as is said here."""
    found = [Fit.GOOD]
    answer = StoredAnswer(is_stream=False, content_type="application/json", body=BODY.encode(), created_milliseconds=0)

    async def entries(_: Configuration, plan: Keyed) -> tuple[CachedEntry, ...]:
        keys = plan.items or (plan.key,)
        return tuple(CachedEntry(key, 99, answer, fit) for key, fit in zip(keys, found * len(keys), strict=False))

    with patch("proxy.commands.live.entries_live", entries):
        yield found


@pytest.fixture
def report() -> Iterator[None]:
    """Have the stores know nothing."""

    async def quiet(_: Configuration) -> CacheReport:
        return CacheReport(Copy.read(()), (), None, is_shared=False)

    with patch("proxy.commands.live.report_live", quiet):
        yield


def test_a_purge_is_ordered_as_named_by_whoever_runs_it(
    config: list[str], purges: list[tuple[Sequence[Scope], Event]], capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--model", "old", "--key", "key_a", "--key", "key_b", "--entry", ENTRY, "--reason", "new weights"]
    assert main(["cache", "purge", *config, *named]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "purged       model m, key key_a, key key_b, entry"
    [(scopes, event)] = purges
    assert list(scopes) == [Scope("model", "m"), Scope("key", "key_a"), Scope("key", "key_b"), Scope("entry", ENTRY)]
    assert (event.type, event.actor) == ("cache.purged", Actor("session", pwd.getpwuid(os.getuid()).pw_name))
    assert event.details["reason"] == "new weights"


def test_everything_is_purged_and_told_as_json(
    config: list[str], purges: list[tuple[Sequence[Scope], Event]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "purge", *config, "--all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["all"], told["generation"], told["audit_log"]) == (True, 1_700_000_000_123, "audit_log-5-0")
    assert [scopes for scopes, _ in purges] == [(Scope("all"),)]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        pytest.param([], "say what: --model NAME, --project ID, --key ID, --entry KEY, or --all", id="nothing"),
        pytest.param(["--model", "n"], "--model: no model has this name; ", id="no model"),
        pytest.param(["--project", "prj"], '--project: no project has this id; did you mean "proj"?', id="no project"),
        pytest.param(["--key", "key_c"], '--key: no API key has this id; did you mean "key_', id="no key"),
        pytest.param(["--key", ENTRY], "--key: no API key has this id; if it is the key of a cached", id="an entry"),
        pytest.param(["--entry", "key_a"], "--entry: must be a cache key; for all that an API key has", id="no entry"),
        pytest.param(["--all", "--reason", "x" * 1_001], "--reason: must be at most 1,000", id="a long reason"),
        pytest.param(["--all"], "no gateway runs on data_dir /", id="no gateway that could be told"),
    ],
)
def test_misuse_of_purge_is_one_line_and_status_2(
    config: list[str], named: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "purge", *config, *named]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"tidegate cache purge: {expected}")
    assert (told.err.count("\n"), told.out) == (1, "")


@pytest.mark.parametrize(
    ("fit", "status", "verdict"),
    [
        pytest.param(Fit.GOOD, 0, "hit", id="one that would be served"),
        pytest.param(Fit.PURGED, 1, "miss", id="one that would not"),
    ],
)
def test_get_ends_by_whether_it_would_be_served(
    config: list[str],
    request_file: str,
    fits: list[Fit],
    capsys: pytest.CaptureFixture[str],
    fit: Fit,
    status: int,
    verdict: str,
) -> None:
    fits[:] = [fit]
    assert main(["cache", "get", *config, request_file, "--as", "key_a", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["principal"]["key"]) == (verdict, "key_a")
    assert "body" not in told["entries"][0]


@pytest.mark.usefixtures("fits")
def test_a_body_is_printed_alone_and_with_the_json(
    config: list[str], request_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cache", "get", *config, request_file, "--as", "key_a", "--body"]
    assert main(words) == 0
    assert capsys.readouterr().out == BODY + "\n"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"][0]["body"] == BODY


@pytest.mark.usefixtures("fits")
def test_a_request_comes_from_standard_input_too(
    config: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = {**REQUEST, "prompt": ["one", "two"]}
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(json.dumps(many).encode())))
    assert main(["cache", "get", *config, "-", "--project", "proj", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["is_array"], len(told["entries"])) == (True, 2)


def test_what_is_not_cacheable_asks_no_store(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "warm.json").write_text(json.dumps({**REQUEST, "temperature": 1}))
    assert main(["cache", "get", *config, str(tmp_path / "warm.json"), "--as", "key_a"]) == 1
    assert "verdict      not cacheable: not-deterministic\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param([], "--as: say which key, or name a project", id="nobody"),
        pytest.param(["--as", "key_c"], "--as: no key has this id, and none is this one; did you mean", id="no key"),
        pytest.param(["--as", "key_a", "--path", "x"], "--path: cannot be read; give a path such as", id="no path"),
        pytest.param(["--as", "key_a"], "no gateway runs on data_dir /", id="no gateway that could be asked"),
    ],
)
def test_misuse_of_get_is_one_line_and_status_2(
    config: list[str], request_file: str, more: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "get", *config, request_file, *more]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"tidegate cache get: {expected}")
    assert (told.err.count("\n"), told.out) == (1, "")


def test_a_request_that_is_not_there_is_one_line_and_status_2(
    config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "get", *config, "/nowhere.json", "--as", "key_a"]) == 2
    assert capsys.readouterr().err == (
        "tidegate cache get: /nowhere.json cannot be read: no such file or directory; "
        "give a file with a JSON body, or - for standard input\n"
    )


@pytest.mark.usefixtures("report")
def test_status_tells_what_the_workers_counted(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    metrics = Metrics()
    metrics.cache_stores_total.inc(5)
    with patch("proxy.commands.metrics_access.fetch_metrics", return_value=render(metrics.snapshot())) as fetch:
        assert main(["cache", "status", *config, "--admin-url", "http://127.0.0.1:1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["workers"]["stored"], told["workers_unknown"]) == (5, None)
    assert fetch.call_args.args[1] == "http://127.0.0.1:1"


@pytest.mark.usefixtures("report")
def test_status_does_without_the_workers(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with patch("proxy.commands.metrics_access.fetch_metrics", side_effect=NoMetrics("start it")):
        assert main(["cache", "status", *config]) == 0
    assert "workers      not told: start it\n" in capsys.readouterr().out


def test_status_of_a_store_that_is_away_is_one_line_and_status_2(
    config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with patch("proxy.commands.live.report_live", side_effect=StoreUnavailable("the store\nis away")):
        assert main(["cache", "status", *config]) == 2
    assert capsys.readouterr().err == "tidegate cache status: the store\\nis away\n"


@pytest.mark.parametrize("words", [["purge", "--all"], ["get", "-"], ["status"]])
def test_without_a_configuration_one_is_asked_for(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["cache", *words]) == 2
    expected = f"tidegate cache {words[0]}: there is no ./tidegate.yaml; name the configuration"
    assert capsys.readouterr().err.startswith(expected)


def test_a_verb_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cache"])
    assert ended.value.code == 2
    assert "the following arguments are required: VERB" in capsys.readouterr().err
