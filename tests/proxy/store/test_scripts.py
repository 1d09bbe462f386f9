from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.store import scripts
from proxy.store.scripts import Script

if TYPE_CHECKING:
    from stores import StoreServer

NAMES = sorted(path.stem for path in (Path(scripts.__file__).parent / "scripts").glob("[!_]*.lua"))


@pytest.mark.parametrize("name", NAMES)
def test_every_script_compiles_and_is_hashed_as_the_server_does(any_store: StoreServer, name: str) -> None:
    script = Script(name)
    with any_store.client() as client:
        assert client.script_load(script.source) == script.sha.decode()


@pytest.mark.parametrize("name", ["admit", "settle"])
def test_what_scripts_share_is_written_once_and_sent_with_each(name: str) -> None:
    assert Script("_level").source in Script(name).source


def test_a_script_that_is_not_there_is_told_when_it_is_read() -> None:
    script = Script("open_sesame")
    with pytest.raises(FileNotFoundError, match="open_sesame"):
        script.source  # noqa: B018 - reading it is the test
