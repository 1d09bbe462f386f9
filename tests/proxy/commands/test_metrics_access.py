"""The page of metrics, asked for over a socket: of a real control plane, and of what is none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from gateway import free_port
from quiet_gateway import ADMIN_KEY, METRICS_PAGE, QuietGateway, plane

from proxy.commands.metrics_access import NoMetrics, fetch_metrics
from proxy.config import Configuration

if TYPE_CHECKING:
    from aiohttp import ClientSession


def configured(admin_listen: str, **more: str) -> Configuration:
    return Configuration.model_validate({"admin_listen": admin_listen, **more})


def port_of(session: ClientSession) -> int:
    port = session._base_url.port if session._base_url else None  # noqa: SLF001  it does not tell otherwise
    assert port is not None
    return port


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104  as it stands in configurations
async def test_it_is_asked_for_where_the_configuration_says(host: str) -> None:
    async with plane(QuietGateway()) as session:
        settings = configured(f"{host}:{port_of(session)}")
        assert await asyncio.to_thread(fetch_metrics, settings) == METRICS_PAGE


async def test_the_metrics_key_is_sent() -> None:
    async with plane(QuietGateway(), metrics_key="metrics-key") as session:
        where = f"127.0.0.1:{port_of(session)}"
        assert await asyncio.to_thread(fetch_metrics, configured(where, metrics_key="metrics-key")) == METRICS_PAGE
        for wrong in (configured(where, metrics_key="other"), configured(where)):
            with pytest.raises(NoMetrics, match="answers 401; look at metrics_key"):
                await asyncio.to_thread(fetch_metrics, wrong)


async def test_another_address_may_be_named() -> None:
    async with plane(QuietGateway()) as session:
        settings = configured("127.0.0.1:0", metrics_key=ADMIN_KEY)
        url = f"http://localhost:{port_of(session)}/"
        assert await asyncio.to_thread(fetch_metrics, settings, url) == METRICS_PAGE


@pytest.mark.parametrize(
    ("listen", "url", "said"),
    [
        pytest.param("127.0.0.1:0", None, "admin_listen takes any free port; say which it is", id="any port"),
        pytest.param(f"127.0.0.1:{free_port()}", None, r"no control plane answers at http://127\.0\.0\.1", id="nobody"),
        pytest.param(
            "127.0.0.1:0", "localhost:8081", "localhost:8081 is no address; write --admin-url", id="no scheme"
        ),
        pytest.param("127.0.0.1:0", "http://[", "is no address; write --admin-url", id="no address"),
    ],
)
def test_what_is_in_the_way_is_said(listen: str, url: str | None, said: str) -> None:
    with pytest.raises(NoMetrics, match=said):
        fetch_metrics(configured(listen), url)
