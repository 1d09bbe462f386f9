"""`tidegate keys`: what it prints can be put into the configuration as it is."""

from __future__ import annotations

import io
import re
from hashlib import sha256

import pytest
from ruamel.yaml import YAML

from proxy.commands import main
from proxy.config import AdminKey, Key


def created(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, list[dict[str, str]]]]:
    """Return the key that was made, and what the printed lines mean in YAML."""
    assert main(["keys", "create", *arguments]) == 0
    told = capsys.readouterr().out
    found = re.search(r"key, shown this once: (\S+)", told)
    assert found is not None
    place, line = re.search(r"under (\w+):.*\n(.*)\n", told).groups()  # type: ignore[union-attr]
    return found[1], YAML(typ="safe", pure=True).load(f"{place}:\n{line}\n")


def test_a_key_for_a_user(capsys: pytest.CaptureFixture[str]) -> None:
    key, lines = created(capsys, "--id", "key_alice", "--project", "proj", "--user", "alice")
    made = Key.model_validate(lines["keys"][0])
    assert (made.id, made.project, made.owner) == ("key_alice", "proj", "alice")
    assert made.sha256 == sha256(key.encode()).hexdigest()


def test_a_key_for_a_service_account(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = created(capsys, "--service-account", "batch")
    assert Key.model_validate(lines["keys"][0]).service_account == "batch"


def test_a_key_for_the_control_plane(capsys: pytest.CaptureFixture[str]) -> None:
    key, lines = created(capsys, "--admin", "--id", "ops")
    made = AdminKey.model_validate(lines["admin_keys"][0])
    assert (made.name, made.sha256) == ("ops", sha256(key.encode()).hexdigest())


def test_no_two_keys_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert created(capsys)[0] != created(capsys)[0]


@pytest.mark.parametrize("option", ["--id", "--project", "--user", "--service-account"])
def test_an_id_that_the_configuration_would_not_take_is_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["keys", "create", option, "a b"])
    assert ended.value.code == 2
    assert option in capsys.readouterr().err


def test_a_key_is_hashed_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("my-key\n"))
    assert main(["keys", "hash"]) == 0
    assert capsys.readouterr().out == f"sha256: {sha256(b'my-key').hexdigest()}\n"


def test_nothing_is_not_hashed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["keys", "hash"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
