"""The real small model for tests: one server process a test session.

Knows only how to start it; `proxy.demo` knows the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.demo.model_process import ModelProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelProcess]:
    """Return a running server of the real model."""
    with ModelProcess(tmp_path_factory.mktemp("model") / "model-server.log") as process:
        yield process
