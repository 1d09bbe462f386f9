from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from admitting import decision

from policies.cacheability import Bypass
from policies.catalog import Deployment, ModelSettings
from policies.decision import decide
from policies.own_requests import find_shadow, for_organization, hedge_after_seconds, is_checked, is_compared
from policies.policy import Policy
from policies.principals import AppliedPolicy, Principal
from policies.requests.asked import Dialect, Endpoint
from policies.requests.dialects import read_request
from policies.rulebook import Rulebook

if TYPE_CHECKING:
    from policies.decision import Decision

ORGANIZATION = Principal("org_acme", "", "", "", policies=(AppliedPolicy("organization", "all"),))
DECIDED = decision([{"of": "tokens", "limit": 7, "per": "day", "by": ["organization"]}], user="alice", temperature=0)


def own(*limits: dict[str, Any], candidates: list[Deployment] | None = None) -> Decision:
    rulebook = Rulebook({"m": ModelSettings(deployments=[{"upstream": "u"}])}, {"all": Policy(limits=limits)})
    return for_organization(DECIDED, ORGANIZATION, rulebook, reason="drift-check", candidates=candidates)


@pytest.mark.parametrize(
    ("by", "binds"),
    [
        pytest.param(["organization"], True, id="a limit of the organization binds"),
        pytest.param(["organization", "model"], True, id="so does one of each of its models"),
        pytest.param(["user"], False, id="one of users does not: it is nobody's"),
        pytest.param(["organization", "key"], False, id="nor one of keys"),
    ],
)
def test_limits_of_the_whole_organization_bind(by: list[str], *, binds: bool) -> None:
    made = own({"of": "requests", "limit": 5, "per": "day", "by": by})
    assert [bound.named.policy for bound in made.limits] == (["all"] if binds else [])


def test_it_waits_for_no_room() -> None:
    [bound] = own(
        {"of": "requests", "limit": 5, "per": "day", "by": ["organization"], "on_exceed": "wait", "max_wait": "9s"}
    ).limits
    assert not bound.named.waits


def test_what_is_sent_is_the_clients_and_all_else_the_organizations() -> None:
    made = own()
    assert (made.effective, made.worst_case, made.candidates) == (
        DECIDED.effective,
        DECIDED.worst_case,
        DECIDED.candidates,
    )
    assert (made.principal, made.cache, made.limits) == (ORGANIZATION, Bypass("drift-check"), ())


def test_it_goes_once_to_the_candidates_that_are_named() -> None:
    candidates = [Deployment(upstream="one"), Deployment(upstream="two")]
    made = own(candidates=candidates)
    assert made.candidates == tuple(candidates)
    assert made.model.settings == DECIDED.model.settings.model_copy(update={"max_attempts": 1})


@pytest.mark.parametrize(
    ("share", "settings", "draw", "expected"),
    [
        pytest.param(0.25, {}, 0.2499, True, id="the lot falls on it"),
        pytest.param(0.25, {}, 0.25, False, id="the lot falls on another"),
        pytest.param(0.0, {}, 0.0, False, id="nobody wants it"),
        pytest.param(1.0, {"auth": "passthrough"}, 0.0, False, id="it bears the client's own credential"),
    ],
)
def test_the_lot_decides_which_hits_are_checked(
    share: float, settings: dict[str, Any], draw: float, *, expected: bool
) -> None:
    assert is_checked(asked(settings, cache={"drift_check": share}), draw) is expected


SHADOW = {"upstream": "canary", "name": "n", "share": 0.25}
CANARY = Deployment(upstream="canary", name="n")


def asked(
    settings: dict[str, Any],
    path: str = "completions",
    *,
    cache: dict[str, Any] | None = None,
    **fields: Any,  # noqa: ANN401  members of a request
) -> Decision:
    """Decide a request for a model with these settings."""
    model = ModelSettings(**{"deployments": [{"upstream": "a"}, {"upstream": "b"}], **settings})
    request = read_request(
        endpoint=Endpoint(path),
        dialect=Dialect.OPENAI,
        fields={"model": "m", **_INPUT[path], **fields},
        path_model=None,
        api_version=None,
    )
    return decide(
        request, ORGANIZATION, Rulebook({"m": model}, {"all": Policy(cache=cache or {})}), cache_control=None, draw=0.0
    )


_INPUT: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "x"},
    "chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "responses": {"input": "x"},
    "embeddings": {"input": "x"},
}
FUNCTION = [{"type": "function", "function": {"name": "f"}}]
MCP = [{"type": "mcp", "server_label": "s", "server_url": "https://s"}]


@pytest.mark.parametrize(
    ("path", "fields", "is_sent"),
    [
        pytest.param("completions", {}, True, id="a completion"),
        pytest.param("completions", {"temperature": 1, "stream": True}, True, id="one that is drawn, as a stream"),
        pytest.param("chat/completions", {"store": True}, True, id="a chat that is stored, as it is there then too"),
        pytest.param(
            "chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}, True, id="tools"
        ),
        pytest.param("embeddings", {}, True, id="an embedding"),
        pytest.param("responses", {}, True, id="a response"),
        pytest.param("responses", {"previous_response_id": "r"}, False, id="not what goes on with a stored response"),
        pytest.param("responses", {"conversation": "c"}, False, id="nor with a conversation"),
        pytest.param("responses", {"prompt": {"id": "p"}}, False, id="nor what names a stored prompt"),
        pytest.param("responses", {"tools": MCP}, False, id="nor what has the upstream run tools"),
    ],
)
def test_a_share_of_what_any_deployment_can_answer_has_a_shadow(
    path: str, fields: dict[str, Any], *, is_sent: bool
) -> None:
    settings = {"shadow": SHADOW, "deployments": [{"upstream": "a"}]}
    assert find_shadow(asked(settings, path, **fields), 0.0) == (CANARY if is_sent else None)


@pytest.mark.parametrize(
    ("settings", "draw", "is_sent"),
    [
        pytest.param({"shadow": SHADOW}, 0.2499, True, id="the lot falls on it"),
        pytest.param({"shadow": SHADOW}, 0.25, False, id="the lot falls on another"),
        pytest.param({}, 0.0, False, id="there is no shadow"),
        pytest.param({"shadow": SHADOW, "auth": "passthrough"}, 0.0, False, id="it bears the client's own credential"),
    ],
)
def test_the_lot_decides_who_has_a_shadow(settings: dict[str, Any], draw: float, *, is_sent: bool) -> None:
    assert find_shadow(asked(settings), draw) == (CANARY if is_sent else None)


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        pytest.param({}, {"temperature": 0}, True, id="temperature 0"),
        pytest.param({}, {"seed": 1}, True, id="a seed"),
        pytest.param({}, {}, False, id="what is drawn anew each time says nothing"),
        pytest.param({"compare": False}, {"temperature": 0}, False, id="answers are thrown away"),
    ],
)
def test_deterministic_answers_are_compared(
    settings: dict[str, Any], fields: dict[str, Any], *, expected: bool
) -> None:
    assert is_compared(asked({"shadow": {**SHADOW, **settings}}, **fields)) is expected


HEDGED = {"hedge_after": "2s"}


@pytest.mark.parametrize(
    ("settings", "path", "fields", "expected"),
    [
        pytest.param(HEDGED, "completions", {"temperature": 0}, 2.0, id="temperature 0"),
        pytest.param(HEDGED, "completions", {"seed": 1, "stream": True}, 2.0, id="a seed, as a stream"),
        pytest.param(HEDGED, "chat/completions", {"temperature": 0}, 2.0, id="a chat"),
        pytest.param(HEDGED, "embeddings", {}, 2.0, id="an embedding"),
        pytest.param(HEDGED, "responses", {"temperature": 0, "store": False}, 2.0, id="a response that is not stored"),
        pytest.param({}, "completions", {"temperature": 0}, None, id="nobody wants it"),
        pytest.param(HEDGED, "completions", {}, None, id="not what is drawn anew each time"),
        pytest.param(
            HEDGED, "chat/completions", {"temperature": 0, "store": True}, None, id="nor what would be stored twice"
        ),
        pytest.param(HEDGED, "responses", {"temperature": 0}, None, id="as responses are where nothing is said"),
        pytest.param(HEDGED, "responses", {"temperature": 0, "store": False, "tools": MCP}, None, id="nor run twice"),
        pytest.param({**HEDGED, "auth": "passthrough"}, "embeddings", {}, None, id="nor with a client's credential"),
        pytest.param({**HEDGED, "max_attempts": 1}, "embeddings", {}, None, id="a second attempt is not allowed"),
        pytest.param({**HEDGED, "deployments": [{"upstream": "a"}]}, "embeddings", {}, None, id="one deployment only"),
    ],
)
def test_what_may_be_done_twice_is_hedged(
    settings: dict[str, Any], path: str, fields: dict[str, Any], expected: float | None
) -> None:
    assert hedge_after_seconds(asked(settings, path, **fields)) == expected
