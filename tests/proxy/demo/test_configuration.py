"""The demo's configuration decides as it tells a newcomer that it does."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from pydantic import ValidationError

from proxy.config import Configuration
from proxy.demo.configuration import demo_configuration


def _made(**changes: str) -> Configuration:
    settings = {"base_url": "http://127.0.0.1:9000/v1", "key": "a-key", "listen": "127.0.0.1:0", **changes}
    return demo_configuration(**settings, admin_listen="127.0.0.1:0", data_dir=Path("data"))


def test_it_holds_the_key_as_a_hash_only() -> None:
    made = _made()
    assert [key.sha256 for key in made.keys] == [sha256(b"a-key").hexdigest()]
    assert "a-key" not in made.resolved_json()


def test_names_that_existing_clients_ask_for_are_answered() -> None:
    (model,) = _made().models.values()
    assert "davinci" in model.aliases


def test_it_survives_the_way_to_a_worker() -> None:
    made = _made()
    assert Configuration.from_resolved_json(made.resolved_json()) == made


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError):
        _made(listen="nowhere")
