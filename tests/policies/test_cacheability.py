from __future__ import annotations

from typing import Any

import pytest

from policies.cacheability import Bypass, CacheControl, Keyed, plan_cache, read_cache_control
from policies.catalog import Deployment, Model, ModelSettings
from policies.policy import CacheSettings
from policies.principals import Principal
from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.dialects import view_of

ALICE = Principal("org", "proj", "alice", "key_a")
MODEL = Model("m", ModelSettings(deployments=(Deployment(upstream="u"),)))
TEXT, CHAT, VECTOR = Endpoint.COMPLETIONS, Endpoint.CHAT, Endpoint.EMBEDDINGS
RESPONSE = Endpoint.RESPONSES
COLD = {"temperature": 0, "store": False}
BASES: dict[Endpoint, dict[str, Any]] = {
    TEXT: {"prompt": "p"},
    CHAT: {"messages": [{"role": "user", "content": "p"}]},
    VECTOR: {"input": "p"},
    RESPONSE: {"input": "p"},
}


def plan(
    extra: dict[str, Any] | None = None,
    *,
    endpoint: Endpoint = TEXT,
    settings: CacheSettings | None = None,
    cache_control: str | None = None,
    principal: Principal = ALICE,
) -> Keyed | Bypass:
    fields = {**BASES[endpoint], **(extra or {})}
    effective = EffectiveRequest(endpoint, fields, view_of(endpoint, fields))
    settings = settings or CacheSettings()
    return plan_cache(effective, MODEL, principal, settings, cache_control, end_user=effective.view.end_user)


@pytest.mark.parametrize(
    ("endpoint", "extra"),
    [
        pytest.param(TEXT, {"temperature": 0}, id="temperature 0"),
        pytest.param(TEXT, {"temperature": 0.0}, id="temperature 0.0"),
        pytest.param(TEXT, {"temperature": -0.0}, id="temperature -0.0"),
        pytest.param(TEXT, {"temperature": 1, "seed": 0}, id="a seed of 0"),
        pytest.param(TEXT, {"seed": -5}, id="a negative seed"),
        pytest.param(TEXT, {"max_tokens": 0, "echo": True, "logprobs": 1}, id="scoring a prompt generates nothing"),
        pytest.param(TEXT, {"temperature": 0, "stream": True}, id="a stream"),
        pytest.param(TEXT, {"temperature": 0, "cache_level": 2}, id="cache_level 2"),
        pytest.param(TEXT, {"temperature": 0, "cache_level": None}, id="cache_level null"),
        pytest.param(TEXT, {"seed": 1, "n": 3, "best_of": 3}, id="several choices"),
        pytest.param(TEXT, {"max_tokens": 0.0}, id="max_tokens 0.0"),
        pytest.param(TEXT, {"temperature": 0, "store": True}, id="a member that only chat knows"),
        pytest.param(TEXT, {"temperature": 0, "prompt": ["p", "q"]}, id="an array of prompts"),
        pytest.param(CHAT, {"temperature": 0}, id="chat at temperature 0"),
        pytest.param(CHAT, {"temperature": 0, "cache_level": 2}, id="chat with cache_level 2"),
        pytest.param(CHAT, {"max_completion_tokens": 0}, id="chat that generates nothing"),
        pytest.param(CHAT, {"max_tokens": 0}, id="chat that generates nothing, in the older spelling"),
        pytest.param(CHAT, {"seed": 1, "web_search_options": None, "audio": None, "tools": []}, id="nothing hosted"),
        pytest.param(CHAT, {"seed": 1}, id="chat with a seed"),
        pytest.param(CHAT, {"seed": 1, "store": False}, id="chat that is not stored upstream"),
        pytest.param(CHAT, {"seed": 1, "store": None}, id="chat with store null"),
        pytest.param(
            CHAT, {"seed": 1, "tools": [{"type": "function", "function": {"name": "f"}}]}, id="a function of the client"
        ),
        pytest.param(CHAT, {"seed": 1, "modalities": ["text"]}, id="text output"),
        pytest.param(VECTOR, {}, id="an embedding"),
        pytest.param(RESPONSE, COLD, id="a response at temperature 0 that is not stored upstream"),
        pytest.param(RESPONSE, {**COLD, "stream": True}, id="a streamed response"),
        pytest.param(
            RESPONSE, {**COLD, "tools": [{"type": "function", "name": "f"}]}, id="a response with the client's function"
        ),
        pytest.param(RESPONSE, {**COLD, "previous_response_id": None, "prompt": None}, id="null names nothing"),
    ],
)
def test_what_may_be_cached(endpoint: Endpoint, extra: dict[str, Any]) -> None:
    assert isinstance(plan(extra, endpoint=endpoint), Keyed)


@pytest.mark.parametrize(
    ("endpoint", "extra", "reason"),
    [
        pytest.param(TEXT, {}, "not-deterministic", id="nothing given"),
        pytest.param(TEXT, {"temperature": None}, "not-deterministic", id="temperature null"),
        pytest.param(TEXT, {"temperature": 1}, "not-deterministic", id="temperature 1"),
        pytest.param(TEXT, {"temperature": 1e-7}, "not-deterministic", id="a temperature close to 0"),
        pytest.param(TEXT, {"seed": None}, "not-deterministic", id="seed null"),
        pytest.param(TEXT, {"top_p": 0}, "not-deterministic", id="top_p 0 says nothing of temperature"),
        pytest.param(TEXT, {"max_tokens": 1}, "not-deterministic", id="one token"),
        pytest.param(TEXT, {"temperature": 0, "cache_level": 0}, "cache-level", id="cache_level 0"),
        pytest.param(
            TEXT, {"max_tokens": 0, "n_predict": 9}, "not-deterministic", id="a ceiling that some server does not obey"
        ),
        pytest.param(TEXT, {"temperature": 0, "cache_level": 1}, "cache-level", id="cache_level 1"),
        pytest.param(CHAT, {}, "not-deterministic", id="chat with nothing given"),
        pytest.param(CHAT, {"seed": 1, "store": True}, "stored-upstream", id="chat that is stored upstream"),
        pytest.param(CHAT, {"seed": 1, "web_search_options": {}}, "web-search", id="web search"),
        pytest.param(CHAT, {"seed": 1, "data_sources": []}, "data-sources", id="data that is looked up"),
        pytest.param(
            CHAT, {"seed": 1, "tools": [{"type": "web_search"}]}, "hosted-tools", id="a tool that runs upstream"
        ),
        pytest.param(CHAT, {"seed": 1, "modalities": ["text", "audio"]}, "audio", id="audio output"),
        pytest.param(CHAT, {"seed": 1, "modalities": "audio"}, "audio", id="audio output without an array"),
        pytest.param(CHAT, {"seed": 1, "audio": {"voice": "alloy"}}, "audio", id="a voice"),
        pytest.param(CHAT, {"temperature": 0, "cache_level": 1}, "cache-level", id="chat with cache_level 1"),
        pytest.param(CHAT, {"temperature": 0, "cache_level": 0.0}, "cache-level", id="chat with cache_level 0.0"),
        pytest.param(VECTOR, {"cache_level": 0}, "cache-level", id="embeddings with cache_level 0"),
        pytest.param(CHAT, {"temperature": 1e-9}, "not-deterministic", id="a temperature that is nearly 0"),
        pytest.param(CHAT, {"temperature": None}, "not-deterministic", id="temperature null"),
        pytest.param(CHAT, {"seed": None}, "not-deterministic", id="seed null"),
        pytest.param(CHAT, {"top_p": 0}, "not-deterministic", id="top_p 0"),
        pytest.param(
            CHAT,
            {"max_completion_tokens": 0, "max_tokens": 5},
            "not-deterministic",
            id="two ceilings of which one generates something",
        ),
        pytest.param(RESPONSE, {"store": False}, "not-deterministic", id="a response with nothing given"),
        pytest.param(RESPONSE, {"store": False, "seed": 1}, "not-deterministic", id="responses have no seed"),
        pytest.param(RESPONSE, {"temperature": 0}, "stored-upstream", id="a response is stored unless it says not"),
        pytest.param(RESPONSE, {"temperature": 0, "store": None}, "stored-upstream", id="store null says nothing"),
        pytest.param(RESPONSE, {"temperature": 0, "store": True}, "stored-upstream", id="a response that is stored"),
        pytest.param(RESPONSE, {**COLD, "previous_response_id": "r"}, "previous-response", id="a continued response"),
        pytest.param(RESPONSE, {**COLD, "conversation": "c"}, "conversation", id="a conversation"),
        pytest.param(RESPONSE, {**COLD, "conversation": {"id": "c"}}, "conversation", id="a conversation by object"),
        pytest.param(RESPONSE, {**COLD, "prompt": {"id": "p"}}, "prompt-template", id="a prompt template"),
        pytest.param(RESPONSE, {**COLD, "tools": [{"type": "web_search"}]}, "hosted-tools", id="search for a response"),
        pytest.param(
            RESPONSE,
            {**COLD, "input": [{"type": "item_reference", "id": "i"}]},
            "named-input",
            id="input that is only named",
        ),
    ],
)
def test_what_may_not_be_cached_and_why(endpoint: Endpoint, extra: dict[str, Any], reason: str) -> None:
    assert plan(extra, endpoint=endpoint) == Bypass(reason)


@pytest.mark.parametrize(
    ("settings", "extra", "expected"),
    [
        pytest.param(CacheSettings(mode="off"), {"temperature": 0}, Bypass("off"), id="off caches nothing"),
        pytest.param(CacheSettings(ttl="0s"), {"temperature": 0}, Bypass("no-ttl"), id="no time to live"),
        pytest.param(CacheSettings(ttl="999ms"), {"seed": 1}, Bypass("no-ttl"), id="less than a second to live"),
        pytest.param(
            CacheSettings(mode="everything"), {"cache_level": 0}, Bypass("cache-level"), id="the client's no stands"
        ),
        pytest.param(
            CacheSettings(scope="end_user"), {"temperature": 0}, Bypass("no-end-user"), id="no end user to keep it for"
        ),
        pytest.param(
            CacheSettings(scope="end_user"),
            {"temperature": 0, "user": ""},
            Bypass("no-end-user"),
            id="an end user without a name",
        ),
    ],
)
def test_settings_that_keep_the_cache_out(settings: CacheSettings, extra: dict[str, Any], expected: Bypass) -> None:
    assert plan(extra, settings=settings) == expected


def test_everything_caches_what_is_not_deterministic() -> None:
    assert isinstance(plan({"temperature": 1}, settings=CacheSettings(mode="everything")), Keyed)


def test_everything_still_leaves_out_what_is_stored_upstream() -> None:
    settings = CacheSettings(mode="everything")
    assert plan({"store": True}, endpoint=CHAT, settings=settings) == Bypass("stored-upstream")


def test_the_time_to_live_is_the_settings() -> None:
    found = plan({"temperature": 0}, settings=CacheSettings(ttl="7d"))
    assert isinstance(found, Keyed)
    assert found.ttl_seconds == 7 * 86_400


def test_an_api_version_that_changes_the_address_keeps_entries_apart() -> None:
    fields = {"prompt": "p", "temperature": 0}
    effective = EffectiveRequest(TEXT, fields, view_of(TEXT, fields))
    plans = {
        plan_cache(effective, MODEL, ALICE, CacheSettings(), None, api_version=version)
        for version in (None, "2024-06-01", "2024-10-21")
    }
    assert len(plans) == 3


BOB = Principal("org", "proj", "bob", "key_b")
BOT = Principal("org", "proj", "alice", "key_s", is_service_account=True)
SECOND_KEY = Principal("org", "proj", "alice", "key_a2")
ELSEWHERE = Principal("org", "proj2", "alice", "key_a")
STRANGER = Principal("org2", "proj", "alice", "key_a")


@pytest.mark.parametrize(
    ("scope", "other", "shares"),
    [
        pytest.param("organization", BOB, True, id="organization: another user shares"),
        pytest.param("organization", ELSEWHERE, True, id="organization: another project shares"),
        pytest.param("organization", STRANGER, False, id="organization: another organization does not"),
        pytest.param("project", BOB, True, id="project: another user shares"),
        pytest.param("project", ELSEWHERE, False, id="project: another project does not"),
        pytest.param("user", SECOND_KEY, True, id="user: another key of the user shares"),
        pytest.param("user", ELSEWHERE, True, id="user: the user in another project shares"),
        pytest.param("user", BOB, False, id="user: another user does not"),
        pytest.param("user", BOT, False, id="user: a service account of the same id does not"),
        pytest.param("key", SECOND_KEY, False, id="key: another key of the user does not"),
        pytest.param("end_user", BOB, True, id="end_user: another key with the same end user shares"),
        pytest.param("end_user", ELSEWHERE, False, id="end_user: the same name in another project does not"),
    ],
)
def test_who_shares_an_entry(scope: Any, other: Principal, shares: bool) -> None:  # noqa: ANN401, FBT001
    settings = CacheSettings(scope=scope)
    request = {"temperature": 0, "user": "customer"}
    one, two = plan(request, settings=settings), plan(request, settings=settings, principal=other)
    assert isinstance(one, Keyed)
    assert isinstance(two, Keyed)
    assert (one.key == two.key) is shares


def test_whatever_policy_writes_for_the_end_user_the_scope_is_the_clients() -> None:
    fields = {"prompt": "p", "temperature": 0, "user": "forced"}
    effective, settings = EffectiveRequest(TEXT, fields, view_of(TEXT, fields)), CacheSettings(scope="end_user")

    def key_for(end_user: str | None) -> str | None:
        made = plan_cache(effective, MODEL, ALICE, settings, None, end_user=end_user)
        return made.key if isinstance(made, Keyed) else None

    assert key_for(None) is None
    assert key_for("a") != key_for("b")


def test_end_users_do_not_share() -> None:
    settings = CacheSettings(scope="end_user")
    one, two = (plan({"temperature": 0, "user": name}, settings=settings) for name in ("a", "b"))
    assert one != two


def test_the_same_names_on_two_levels_do_not_share() -> None:
    same = Principal("org", "x", "x", "x")
    keys = {
        plan({"temperature": 0, "user": "x"}, settings=CacheSettings(scope=scope), principal=same)
        for scope in ("organization", "project", "user", "key", "end_user")
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(None, CacheControl(), id="absent"),
        pytest.param("", CacheControl(), id="empty"),
        pytest.param("no-cache", CacheControl(no_cache=True), id="no-cache"),
        pytest.param("No-Store", CacheControl(no_store=True), id="no-store in another case"),
        pytest.param("only-if-cached", CacheControl(only_if_cached=True), id="only-if-cached"),
        pytest.param("max-age=60", CacheControl(max_age_seconds=60), id="max-age"),
        pytest.param('max-age="60"', CacheControl(max_age_seconds=60), id="max-age in quotes"),
        pytest.param("max-age = 60", CacheControl(max_age_seconds=60), id="max-age with spaces"),
        pytest.param("max-age=0", CacheControl(max_age_seconds=0), id="max-age 0"),
        pytest.param("max-age=60, max-age=5", CacheControl(max_age_seconds=5), id="max-age twice"),
        pytest.param("max-age=soon", CacheControl(max_age_seconds=0), id="max-age that is no number"),
        pytest.param("max-age", CacheControl(max_age_seconds=0), id="max-age without a number"),
        pytest.param("max-age=-1", CacheControl(max_age_seconds=0), id="a negative max-age"),
        pytest.param("max-age=" + "9" * 40, CacheControl(max_age_seconds=2**31), id="a max-age beyond all measure"),
        pytest.param("max-age=\u0661", CacheControl(max_age_seconds=0), id="a max-age in other digits"),
        pytest.param(
            "no-cache,no-store , max-age=1",
            CacheControl(no_cache=True, no_store=True, max_age_seconds=1),
            id="several",
        ),
        pytest.param('x="no-cache, no-store"', CacheControl(), id="directives inside quotes are none"),
        pytest.param("no-transform, min-fresh=5, stale-if-error", CacheControl(), id="others are ignored"),
        pytest.param(",,;= ,", CacheControl(), id="punctuation"),
    ],
)
def test_cache_control_is_read(header: str | None, expected: CacheControl) -> None:
    assert read_cache_control(header) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param("no-cache", {"look_up": False, "store": True}, id="no-cache refreshes the entry"),
        pytest.param("no-store", {"look_up": True, "store": False}, id="no-store leaves nothing behind"),
        pytest.param("max-age=5", {"max_age_seconds": 5}, id="max-age bounds the age"),
        pytest.param("only-if-cached", {"only_if_cached": True}, id="only-if-cached"),
    ],
)
def test_the_client_steers_a_keyed_plan(header: str, expected: dict[str, Any]) -> None:
    found = plan({"temperature": 0}, cache_control=header)
    assert {name: getattr(found, name) for name in expected} == expected


def test_only_if_cached_stands_beside_a_bypass() -> None:
    assert plan({}, cache_control="only-if-cached") == Bypass("not-deterministic", only_if_cached=True)


@pytest.mark.parametrize("name", ["user", "safety_identifier", "metadata", "prompt_cache_key"])
def test_what_a_response_repeats_of_its_request_keeps_entries_apart(name: str) -> None:
    one, two = (plan({**COLD, name: value}, endpoint=RESPONSE) for value in ("a", "b"))
    assert one != two
    same, other = (plan({"seed": 1, name: value}, endpoint=CHAT) for value in ("a", "b"))
    assert same == other


def test_what_an_upstream_answers_to_a_clients_own_key_is_nobody_elses() -> None:
    fields = {"prompt": "p", "temperature": 0}
    effective = EffectiveRequest(TEXT, fields, view_of(TEXT, fields))
    passing = Model("m", MODEL.settings.model_copy(update={"auth": "passthrough"}))
    assert plan_cache(effective, passing, ALICE, CacheSettings(), None) == Bypass("passthrough")
