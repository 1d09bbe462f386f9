"""Fixtures that several rooms share; they live in tests/support."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import structlog
from stores import any_store, own_valkey, own_valkey_on_tcp, valkey, valkey_server

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["any_store", "own_valkey", "own_valkey_on_tcp", "valkey", "valkey_server"]


@pytest.fixture(scope="session", autouse=True)
def _loggers_that_can_be_captured() -> Iterator[None]:
    """Let no logger keep for ever what it was first used with, so that a test's worker does not decide for others."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(structlog, "configure", partial(_configure_for_now, structlog.configure))
        yield


@pytest.fixture(autouse=True)
def _log_as_by_default() -> Iterator[None]:
    """Undo what a test has configured."""
    yield
    structlog.reset_defaults()


def _configure_for_now(configure: object, **settings: object) -> None:
    assert callable(configure)
    configure(**{**settings, "cache_logger_on_first_use": False})
