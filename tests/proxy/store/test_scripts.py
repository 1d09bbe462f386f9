from __future__ import annotations

import hashlib

import pytest

from proxy.store.scripts import Script, script_names


@pytest.mark.parametrize("name", script_names())
def test_every_script_is_loaded_by_name_and_hashed_as_the_server_does(name: str) -> None:
    script = Script(name)
    assert script.sha == hashlib.sha1(script.source, usedforsecurity=False).hexdigest().encode()


def test_a_script_that_is_not_there_is_told_when_it_is_read() -> None:
    script = Script("open_sesame")
    with pytest.raises(FileNotFoundError, match="open_sesame"):
        script.source  # noqa: B018 - reading it is the test


def test_the_scripts_of_the_drainer_are_in_the_package() -> None:
    assert {"hold_lease", "drop_lease"} <= set(script_names())
