"""Who gets in to the control plane, over a real socket."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from quiet_gateway import ADMIN_KEY, METRICS_PAGE, QuietGateway, plane

from proxy.metrics import CONTENT_TYPE

METRICS_KEY = "metrics-key"


@dataclass
class StandIn(QuietGateway):
    """A gateway that says what the test wants it to."""

    reasons: list[str] = field(default_factory=list)

    async def metrics_page(self) -> bytes:
        """Return a page, or fail."""
        if "broken" in self.reasons:
            raise RuntimeError("a fault of ours")
        return METRICS_PAGE

    def reasons_not_ready(self) -> list[str]:
        """Return the test's reasons."""
        return self.reasons


@pytest.fixture
def gateway() -> StandIn:
    return StandIn()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


Row = tuple[str, str, dict[str, str], str | None, int]
"""Method, path, headers, the configured metrics key, and the expected status."""

ADMISSIONS: dict[str, Row] = {
    "health is open": ("GET", "/healthz", {}, None, 200),
    "readiness is open": ("GET", "/readyz", {}, None, 200),
    "metrics are open without a metrics key": ("GET", "/metrics", {}, None, 200),
    "metrics need their key once there is one": ("GET", "/metrics", {}, METRICS_KEY, 401),
    "a wrong metrics key is refused": ("GET", "/metrics", bearer("other"), METRICS_KEY, 401),
    "an empty metrics key is refused": ("GET", "/metrics", bearer(""), METRICS_KEY, 401),
    "the metrics key opens the metrics": ("GET", "/metrics", bearer(METRICS_KEY), METRICS_KEY, 200),
    "an admin key opens the metrics too": ("GET", "/metrics", bearer(ADMIN_KEY), METRICS_KEY, 200),
    "the metrics key opens nothing else": ("GET", "/v1/x", bearer(METRICS_KEY), METRICS_KEY, 401),
    "without a key nothing is said of what exists": ("GET", "/v1/organization/projects", {}, None, 401),
    "a wrong admin key is refused": ("GET", "/v1/x", bearer("other"), None, 401),
    "another scheme is refused": ("GET", "/v1/x", {"Authorization": f"Basic {ADMIN_KEY}"}, None, 401),
    "a key of odd bytes is refused": ("GET", "/v1/x", bearer("caf\u00e9"), None, 401),
    "explain needs an admin key": ("POST", "/v1/tidegate/explain", {}, None, 401),
    "explain is not opened by the metrics key": (
        "POST",
        "/v1/tidegate/explain",
        bearer(METRICS_KEY),
        METRICS_KEY,
        401,
    ),
    "a reset needs an admin key": ("POST", "/v1/tidegate/limits/reset", {}, None, 401),
    "the audit log needs an admin key": ("GET", "/v1/organization/audit_logs", {}, None, 401),
    "explain takes another method": ("GET", "/v1/tidegate/explain", bearer(ADMIN_KEY), None, 405),
    "with an admin key what is not there is not found": ("GET", "/v1/x", bearer(ADMIN_KEY), None, 404),
    "the data plane is not here": ("POST", "/v1/completions", bearer(ADMIN_KEY), None, 404),
    "a path with a slash too many is not found": ("GET", "/healthz/", bearer(ADMIN_KEY), None, 404),
    "another method is refused": ("POST", "/healthz", {}, None, 405),
    "HEAD is answered": ("HEAD", "/healthz", {}, None, 200),
}


@pytest.mark.parametrize("row", ADMISSIONS.values(), ids=ADMISSIONS.keys())
async def test_admission(gateway: StandIn, row: Row) -> None:
    method, path, headers, metrics_key, status = row
    async with (
        plane(gateway, key=None, metrics_key=metrics_key) as session,
        session.request(method, path, headers=headers) as answer,
    ):
        assert answer.status == status
        assert answer.headers["x-request-id"].startswith("req_")
        if status >= 400:
            error = (await answer.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}


HOSTS = {
    "an address": ("127.0.0.1", 200),
    "an address with a port": ("10.1.2.3:8081", 200),
    "an address of version six": ("[::1]:8081", 200),
    "localhost": ("localhost:8081", 200),
    "localhost in capitals": ("LOCALHOST", 200),
    "a configured name": ("gateway.example:8081", 200),
    "a name of somebody else's": ("evil.example", 421),
    "a name that ends like ours": ("evil-localhost", 421),
    "a name that begins like an address": ("127.0.0.1.evil.example", 421),
    "an address with a port that is none": ("127.0.0.1:http", 421),
    "an address that only introduces a name": ("127.0.0.1:1@evil", 421),
    "an address of version six with a name behind it": ("[::1]evil", 421),
    "an address of version four in brackets": ("[127.0.0.1]", 421),
    "an address of version six without brackets": ("::1", 421),
    "two hosts in one": ("localhost, evil.example", 421),
    "nothing": ("", 421),
}


@pytest.mark.parametrize(("host", "status"), HOSTS.values(), ids=HOSTS.keys())
async def test_the_host_header_must_be_ours(gateway: StandIn, host: str, status: int) -> None:
    async with plane(gateway, key=None) as session, session.get("/metrics", headers={"Host": host}) as answer:
        assert answer.status == status


async def test_a_refusal_tells_clients_not_to_try_again(gateway: StandIn) -> None:
    async with plane(gateway, key=None) as session, session.get("/v1/x") as answer:
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_another_method_names_those_that_are_taken(gateway: StandIn) -> None:
    async with plane(gateway, key=None) as session, session.delete("/metrics") as answer:
        assert answer.headers["Allow"] == "GET, HEAD"
        error = (await answer.json())["error"]
        assert error["message"] == "DELETE is not answered here; this path takes GET, HEAD."


async def test_metrics_come_in_prometheus_text_format(gateway: StandIn) -> None:
    async with plane(gateway, key=None) as session, session.get("/metrics") as answer:
        assert (answer.headers["Content-Type"], await answer.read()) == (CONTENT_TYPE, METRICS_PAGE)


async def test_a_gateway_that_is_not_ready_says_why(gateway: StandIn) -> None:
    gateway.reasons = ["the state store is not reachable"]
    async with plane(gateway, key=None) as session, session.get("/readyz") as answer:
        assert answer.status == 503
        assert await answer.json() == {"status": "not ready", "reasons": gateway.reasons}


async def test_a_fault_of_ours_is_an_error_without_its_traceback(gateway: StandIn) -> None:
    gateway.reasons = ["broken"]
    async with plane(gateway, key=None) as session, session.get("/metrics") as answer:
        assert answer.status == 500
        assert "fault of ours" not in await answer.text()
