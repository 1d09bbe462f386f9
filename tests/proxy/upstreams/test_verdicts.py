"""What an answer's head says of who sent it: fault or not, failure or not, and how long it wants to be left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace
from sending import make_decision

from policies.catalog import Model
from proxy.errors import error_headers
from proxy.upstreams.verdicts import cool_down_seconds, find_fault, is_failure, kind_of, unusable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.decision import Decision
    from proxy.upstreams.client import UpstreamAnswer


class Head:
    """The head of an answer, in the place of a whole one."""

    def __init__(self, status: int, media_type: str = "application/json", **fields: str) -> None:
        self.status = status
        self.media_type = media_type
        self.is_stream = media_type == "text/event-stream"
        self._fields: Mapping[str, str] = {name.replace("_", "-"): value for name, value in fields.items()}

    def header(self, name: str) -> str | None:
        return self._fields.get(name.lower())


def head(status: int, media_type: str = "application/json", **fields: str) -> UpstreamAnswer:
    return cast("UpstreamAnswer", Head(status, media_type, **fields))


def passthrough() -> Decision:
    decision = make_decision()
    settings = decision.model.settings.model_copy(update={"auth": "passthrough"})
    return replace(decision, model=Model("m", settings))


@pytest.mark.parametrize(
    ("answer", "fault", "failure"),
    [
        pytest.param(head(200), None, False, id="an answer"),
        pytest.param(head(400), None, False, id="a client's mistake"),
        pytest.param(head(404), None, False, id="a model that is not there"),
        pytest.param(head(429), None, False, id="busy"),
        pytest.param(head(408), None, True, id="too slow by its own account"),
        pytest.param(head(500), None, True, id="failed"),
        pytest.param(head(503), None, True, id="overloaded"),
        pytest.param(head(401), "credential", True, id="our key is bad"),
        pytest.param(head(403), "credential", True, id="our key may not"),
        pytest.param(head(407), "credential", True, id="a proxy wants something"),
        pytest.param(head(302), "redirects", True, id="elsewhere"),
        pytest.param(head(101), "none that ends a request", True, id="another protocol"),
        pytest.param(head(200, "text/html"), "HTML", True, id="a page"),
        pytest.param(head(200, "text/event-stream"), "event stream", True, id="a stream that nobody asked for"),
    ],
)
def test_a_head_is_judged(answer: UpstreamAnswer, fault: str | None, *, failure: bool) -> None:
    found = find_fault(answer, make_decision())
    assert (found is None) is (fault is None)
    assert fault is None or fault in (found or "")
    assert is_failure(answer, found) is failure


@pytest.mark.parametrize(
    ("status", "is_fault"),
    [
        pytest.param(401, False, id="the client's own key is bad"),
        pytest.param(403, False, id="the client's own key may not"),
        pytest.param(407, True, id="a proxy is nobody's business"),
    ],
)
def test_a_refused_credential_that_is_the_clients_own_is_its_business(status: int, *, is_fault: bool) -> None:
    assert (find_fault(head(status), passthrough()) is not None) is is_fault


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        pytest.param(head(200, retry_after="9"), None, id="an answer asks for nothing"),
        pytest.param(head(500), None, id="a failure that says nothing"),
        pytest.param(head(400, retry_after="200"), None, id="a bad request is one client's business"),
        pytest.param(head(429), 1.0, id="busy, and does not say how long"),
        pytest.param(head(429, retry_after="7"), 7.0, id="busy for 7 s"),
        pytest.param(head(429, retry_after="7", retry_after_ms="6500"), 6.5, id="in milliseconds, which win"),
        pytest.param(head(503, retry_after="20"), 20.0, id="away for 20 s"),
        pytest.param(head(429, retry_after="0"), None, id="again at once"),
        pytest.param(head(429, retry_after="86400"), 300.0, id="no longer than five minutes"),
        pytest.param(
            head(503, retry_after="Mon, 30 Nov 2026 10:00:20 GMT", date="Mon, 30 Nov 2026 10:00:00 GMT"),
            20.0,
            id="until a time, by its own clock",
        ),
    ],
)
def test_who_refuses_says_how_long_to_stay_away(answer: UpstreamAnswer, seconds: float | None) -> None:
    assert cool_down_seconds(answer, make_decision()) == seconds


def test_what_is_said_to_a_clients_own_credential_is_for_nobody_else() -> None:
    assert cool_down_seconds(head(429, retry_after="300"), passthrough()) is None
    assert cool_down_seconds(head(503, retry_after="20"), passthrough()) == 20


@pytest.mark.parametrize(("status", "kind"), [(400, "4xx"), (404, "4xx"), (429, "429"), (500, "5xx"), (503, "5xx")])
def test_errors_are_counted_by_whose_they_are(status: int, kind: str) -> None:
    assert kind_of(status) == kind


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        pytest.param(head(200, "text/html"), {"x-should-retry": "false"}, id="a page in place of an answer"),
        pytest.param(head(401), {"x-should-retry": "false"}, id="our key is bad"),
        pytest.param(head(503, "text/html", retry_after="2"), {"Retry-After": "2"}, id="a balancer's page, for 2 s"),
        pytest.param(head(502, "text/html"), {}, id="a balancer's page"),
    ],
)
def test_clients_are_told_whether_a_retry_can_mend_it(answer: UpstreamAnswer, fields: dict[str, str]) -> None:
    error = unusable(answer, "it is an HTML page")
    told = dict(error_headers(error))
    assert {name: told[name] for name in ("x-should-retry", "Retry-After") if name in told} == fields
    assert (error.status, error.code) == (502, "upstream_unusable")
