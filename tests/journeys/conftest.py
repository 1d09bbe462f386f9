from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from fake_upstream import FakeUpstream
from gateway import Gateway, Settings, free_port
from model_server import model  # noqa: F401  a fixture
from stores import StoreServer, server_binaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def _upstream() -> FakeUpstream:
    return FakeUpstream().start()


@pytest.fixture
def upstream(_upstream: FakeUpstream) -> Iterator[FakeUpstream]:
    """Return the scripted upstream, its log and script empty."""
    _upstream.reset()
    yield _upstream
    _upstream.reset()


@pytest.fixture
def start_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Settings], Gateway]]:
    """Return a function that starts a gateway in a folder of its own; all of them end with the test."""
    with ExitStack() as running:

        def start(settings: Settings) -> Gateway:
            return running.enter_context(Gateway(tmp_path_factory.mktemp("gateway"), settings))

        yield start


@pytest.fixture
def redis_server() -> Iterator[StoreServer]:
    """Return a server of the test's own on a loopback port, Redis where the machine has one, else Valkey."""
    binaries = server_binaries()
    with StoreServer(binary=binaries.get("redis"), port=free_port(), keeps_data=True) as server:
        yield server
