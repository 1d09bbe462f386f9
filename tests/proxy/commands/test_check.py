"""`tidegate check`: one line that says yes, or all that is wrong; never a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.commands import main

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "sk-do-not-print-me"  # noqa: S105  of no use anywhere
HASH = "cd" * 32
GOOD = f"""
metrics_key: {SECRET}
state: "redis://:{SECRET}@host"
cache_state: embedded
upstreams: {{u: {{kind: openai, base_url: "http://u", api_key: {SECRET}}}}}
models: {{m: {{deployments: [{{upstream: u}}]}}}}
projects: [{{id: proj}}]
keys: [{{id: key, project: proj, user: alice, sha256: {HASH}}}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.yaml"


def test_a_usable_file_is_told_in_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    assert main(["check", str(file)]) == 0
    told = capsys.readouterr()
    assert told.out.count("\n") == 1
    assert told.out.startswith(f"{file}: usable; version ")
    assert told.out.endswith("upstreams 1, models 1, policies 0, projects 1, keys 1\n")
    assert SECRET not in told.out + told.err


def test_advice_does_not_make_a_file_unusable(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD.replace("cache_state: embedded\n", ""))
    assert main(["check", str(file)]) == 0
    assert "share the state store" in capsys.readouterr().out


def test_all_that_is_wrong_goes_to_standard_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD.replace("kind: openai", "kind: opnai") + "foo: 1\n")
    assert main(["check", str(file)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.split(": ")[1] for line in told.err.splitlines()] == ["upstreams.u.kind", "foo"]
    assert SECRET not in told.err


@pytest.mark.parametrize("scalar", ["9" * 5000, '!!int "abc"', '!!float "x"', '!!bool "zz"'])
def test_a_scalar_that_is_not_what_it_claims_is_told(
    file: Path, capsys: pytest.CaptureFixture[str], scalar: str
) -> None:
    file.write_text(f"workers: {scalar}\n{GOOD}")
    assert main(["check", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"{file}:1: workers: cannot be read as ")


def test_a_name_cannot_steer_the_terminal(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steering = 'policies: {p: {parameters: {"\\e[2J\\n": {%s}}}}\n'
    file.write_text(GOOD + steering % "forbid: drop, on_violation: clamp")
    assert main(["check", str(file)]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "policies.p.parameters.\\x1b[2J\\n: on_violation: clamp changes nothing" in told
    file.write_text(GOOD + steering % "max: x")
    for command in (["check"], ["run", "--config"], ["explain", "-", "--config"]):
        assert main([*command, str(file)]) == 2
        said = capsys.readouterr().err
        assert (said.count("\n"), "\x1b" in said) == (1, False)


def test_a_missing_file_is_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}: cannot be read: no such file or directory\n"
