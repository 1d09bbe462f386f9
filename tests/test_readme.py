"""What the README tells people to type and to write is what the product takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.commands import make_parser
from proxy.config_file import load

if TYPE_CHECKING:
    from argparse import Namespace

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


LINES = [line for block in blocks("sh") for line in block.splitlines()]
COMMANDS = [shlex.split(line, comments=True)[1:] or ["run"] for line in LINES if re.match(r"\./run( |$)", line)]


def parsed(arguments: list[str]) -> Namespace:
    """Read arguments as ./run hands them on."""
    if arguments[0] == "--demo":
        arguments = ["demo", *arguments[1:]]
    elif arguments[0].startswith("-"):
        arguments = ["run", *arguments]
    return make_parser().parse_args(arguments)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_in_the_readme_is_taken(arguments: list[str]) -> None:
    assert callable(parsed(arguments).run)


def test_the_readme_shows_the_commands_that_people_come_for() -> None:
    assert {arguments[0] for arguments in COMMANDS} >= {"--demo", "keys", "check", "explain", "usage"}


def test_the_configuration_in_the_readme_is_one(tmp_path: Path) -> None:
    written, *_ = blocks("yaml")
    (tmp_path / "azure.key").write_text("secret")
    (tmp_path / "tidegate.yaml").write_text(written.replace("sha256: …", f"sha256: {'a' * 64}"))
    configuration = load(tmp_path / "tidegate.yaml", {"OPENAI_API_KEY": "secret"})
    assert list(configuration.models) == ["gpt-3.5-turbo-instruct", "smollm2"]
    assert [limit.of for limit in configuration.policies["default"].limits] == ["requests", "tokens", "concurrency"]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_what_the_readme_points_at_exists(target: str) -> None:
    assert (ROOT / target).exists()
