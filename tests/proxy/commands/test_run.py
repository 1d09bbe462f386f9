"""How a start is told when it cannot succeed; what a gateway does that runs is told by `test_supervisor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.commands import main, run
from proxy.config_values import Address
from proxy.listening import listening
from proxy.supervisor import Listening

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.capture import CaptureFixture
    from _pytest.monkeypatch import MonkeyPatch

SCREEN_LINES = 40
SCREEN_COLUMNS = 100


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_configuration_one_screen_says_how_to_start(capsys: CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    assert "./run" in said.err
    for way in ("tidegate demo", "tidegate.example.yaml", "tidegate check", "tidegate keys create", "--config FILE"):
        assert way in said.err


REFUSED = {
    "a file that is not there": (None, "tidegate.yaml: cannot be read"),
    "a file with an unknown key": ("listn: 127.0.0.1:0", 'did you mean "listen"'),
    "a file that is no YAML": ("{", "tidegate.yaml:"),
    "a number with too many digits": ("workers: " + "9" * 5000, "tidegate.yaml:1: workers: cannot be read as int"),
}


@pytest.mark.parametrize(("content", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_configuration_that_cannot_be_used_is_told(
    folder: Path, capsys: CaptureFixture[str], content: str | None, said: str
) -> None:
    if content is not None:
        (folder / "tidegate.yaml").write_text(content)
    assert main(["run", "--config", "tidegate.yaml"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["listen", "admin_listen"])
def test_a_taken_port_is_one_line(folder: Path, capsys: CaptureFixture[str], setting: str) -> None:
    with listening(Address("127.0.0.1", 0), setting=setting, count=1) as [taken]:
        port = taken.getsockname()[1]
        free = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
        lines = [f"{name}: {where}" for name, where in {**free, setting: f"127.0.0.1:{port}"}.items()]
        (folder / "tidegate.yaml").write_text("\n".join(lines))
        assert main(["run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tidegate: 127.0.0.1:{port} is in use")
    assert f"`{setting}`" in line


@pytest.mark.parametrize("setting", ["state", "cache_state"])
def test_a_store_with_an_option_that_is_not_known_is_one_line(
    folder: Path, capsys: CaptureFixture[str], setting: str
) -> None:
    lines = ["listen: 127.0.0.1:0", "admin_listen: 127.0.0.1:0", f"{setting}: redis://127.0.0.1:9/0?nonsense=1"]
    (folder / "tidegate.yaml").write_text("\n".join(lines))
    assert main(["run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tidegate: `{setting}`: ")
    assert "nonsense" in line


def test_a_folder_that_cannot_be_used_is_one_line(folder: Path, capsys: CaptureFixture[str]) -> None:
    (folder / "data").write_text("a file where the folder should be")
    (folder / "tidegate.yaml").write_text("listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\n")
    assert main(["run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "data_dir" in line


def test_the_ready_line_names_both_ports_and_a_configured_admin_key_is_not_spoken_of(
    capsys: CaptureFixture[str],
) -> None:
    run.announce(Listening("http://127.0.0.1:8080", "http://127.0.0.1:8081", None))
    assert capsys.readouterr().out == (
        "tidegate: listening on http://127.0.0.1:8080, control plane on http://127.0.0.1:8081\n"
    )


def test_an_admin_key_that_was_made_is_shown_after_the_ready_line(capsys: CaptureFixture[str]) -> None:
    run.announce(Listening("http://127.0.0.1:8080", "http://127.0.0.1:8081", "tg-admin-x"))
    ready, key = capsys.readouterr().out.splitlines()
    assert ready.startswith("tidegate: listening on ")
    assert key.count("tg-admin-x") == 1
    assert "`./run keys create --admin`" in key
