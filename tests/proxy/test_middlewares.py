from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from sending import MemoryWriter, PlainRequest

from policies.errors import (
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    MethodNotAllowed,
    NotStored,
    PolicyViolation,
    Unauthenticated,
    UnknownModel,
    UnknownRoute,
)
from proxy.errors import DRAINING, BodyTooSlow, NoUpstreamLeft, StoreUnavailable, UpstreamTooSlow, UpstreamUnusable
from proxy.exchange import Exchange, Outcome
from proxy.middlewares import with_errors, with_request_id

if TYPE_CHECKING:
    from proxy.exchange import Request, Writer


def exchange() -> Exchange:
    return Exchange(request_id="req_1", started_at=1.0, started=1.0)


@pytest.mark.parametrize(
    ("error", "status", "fields", "outcome"),
    [
        pytest.param(InvalidRequest("x", param="n"), 400, {"x-should-retry": "false"}, Outcome.REJECTED, id="400"),
        pytest.param(PolicyViolation("x"), 400, {"x-should-retry": "false"}, Outcome.REJECTED, id="policy"),
        pytest.param(
            Unauthenticated("x"), 401, {"www-authenticate": 'Bearer realm="tidegate"'}, Outcome.REJECTED, id="401"
        ),
        pytest.param(Forbidden("x"), 403, {"x-should-retry": "false"}, Outcome.REJECTED, id="403"),
        pytest.param(UnknownRoute("x"), 404, {}, Outcome.REJECTED, id="404, a route"),
        pytest.param(UnknownModel("x"), 404, {}, Outcome.REJECTED, id="404, a model"),
        pytest.param(
            MethodNotAllowed("x", allowed=["GET", "PUT"]), 405, {"allow": "GET, PUT"}, Outcome.REJECTED, id="405"
        ),
        pytest.param(BodyTooSlow("x"), 408, {"x-should-retry": None}, Outcome.FAILED, id="408 is worth a retry"),
        pytest.param(
            LimitExceeded("x", code="rate_limit_exceeded", retry_after_seconds=7, headers=[("A", "b")]),
            429,
            {"retry-after": "7", "a": "b", "x-should-retry": None},
            Outcome.REJECTED,
            id="429",
        ),
        pytest.param(
            LimitExceeded("x", code="insufficient_quota", retry_after_seconds=7),
            429,
            {"retry-after": "7", "x-should-retry": "false"},
            Outcome.REJECTED,
            id="429 of a budget",
        ),
        pytest.param(
            LimitExceeded("x", code="rate_limit_exceeded", retry_after_seconds=None),
            429,
            {"retry-after": None, "x-should-retry": "false"},
            Outcome.REJECTED,
            id="429 that can never fit",
        ),
        pytest.param(UpstreamUnusable("x"), 502, {"x-should-retry": "false"}, Outcome.UPSTREAM_ERROR, id="502"),
        pytest.param(NoUpstreamLeft("x"), 503, {"retry-after": "1"}, Outcome.UPSTREAM_ERROR, id="503, no upstream"),
        pytest.param(StoreUnavailable("x"), 503, {"retry-after": "1"}, Outcome.FAILED, id="503, no store"),
        pytest.param(UpstreamTooSlow("x"), 504, {}, Outcome.UPSTREAM_ERROR, id="504"),
        pytest.param(NotStored("x"), 504, {"x-should-retry": "false"}, Outcome.REJECTED, id="504, only if cached"),
    ],
)
async def test_an_error_before_the_head_is_answered_in_the_apis_shape(
    error: Exception, status: int, fields: dict[str, str | None], outcome: Outcome
) -> None:
    async def fail(_request: Request, _writer: Writer, _exchange: Exchange) -> None:
        raise error

    writer, facts = MemoryWriter(), exchange()
    await with_request_id(with_errors(fail))(PlainRequest(), writer, facts)
    assert writer.status == facts.status == status
    assert set(json.loads(writer.body)["error"]) == {"message", "type", "param", "code"}
    assert {name: writer.header(name) for name in fields} == fields
    assert writer.header("x-request-id") == "req_1"
    assert facts.outcome is outcome


async def test_a_drain_that_is_over_is_told_to_whoever_still_waits() -> None:
    async def wait(_request: Request, _writer: Writer, _exchange: Exchange) -> None:
        raise asyncio.CancelledError(DRAINING)

    writer, facts = MemoryWriter(), exchange()
    await with_errors(wait)(PlainRequest(), writer, facts)
    assert (writer.status, writer.header("retry-after"), facts.error_code) == (503, "1", "draining")


async def test_a_client_that_left_is_not_answered() -> None:
    async def wait(_request: Request, _writer: Writer, _exchange: Exchange) -> None:
        raise asyncio.CancelledError

    writer = MemoryWriter()
    with pytest.raises(asyncio.CancelledError):
        await with_errors(wait)(PlainRequest(), writer, exchange())
    assert not writer.is_started


async def test_an_answer_that_has_begun_is_broken_off() -> None:
    async def fail_late(_request: Request, writer: Writer, _exchange: Exchange) -> None:
        await writer.start(200, [])
        raise UpstreamUnusable("x")

    writer, facts = MemoryWriter(), exchange()
    await with_request_id(with_errors(fail_late))(PlainRequest(), writer, facts)
    assert (writer.status, writer.body, writer.is_aborted, writer.is_finished) == (200, b"", True, False)
    assert (facts.outcome, facts.error_code) == (Outcome.UPSTREAM_ERROR, "upstream_unusable")


async def test_a_clients_own_id_is_noted_and_not_used() -> None:
    async def answer(_request: Request, writer: Writer, _exchange: Exchange) -> None:
        await writer.respond(200, [], b"")

    writer, facts = MemoryWriter(), exchange()
    await with_request_id(answer)(PlainRequest({"X-Client-Request-Id": "mine"}), writer, facts)
    assert facts.client_request_id == "mine"
    assert writer.header("x-request-id") == "req_1"
