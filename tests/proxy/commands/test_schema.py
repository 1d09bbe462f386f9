"""The schema for editors says all there is to say, and the shipped example shows all there is to set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proxy.commands import main
from proxy.commands.schema import make_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = make_schema()
EXAMPLE = Path(__file__).parents[3] / "deploy" / "tidegate.example.yaml"


def blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "Configuration", SCHEMA
    for name, block in SCHEMA["$defs"].items():
        if "properties" in block:
            yield name, block


SETTINGS = [(block, name, setting) for block, of in blocks() for name, setting in of["properties"].items()]


@pytest.mark.parametrize(("block", "name", "setting"), SETTINGS, ids=[f"{block}.{name}" for block, name, _ in SETTINGS])
def test_every_setting_has_its_sentence_and_its_example(block: str, name: str, setting: dict[str, Any]) -> None:
    assert setting.get("description", "").endswith("."), block
    assert f"{name}:" in EXAMPLE.read_text("utf-8")


@pytest.mark.parametrize(("name", "block"), list(blocks()), ids=[name for name, _ in blocks()])
def test_no_block_takes_unknown_keys(name: str, block: dict[str, Any]) -> None:
    assert block["additionalProperties"] is False, name


def test_durations_may_be_written_as_text() -> None:
    kinds = {kind["type"] for kind in SCHEMA["properties"]["drain_timeout"]["anyOf"]}
    assert kinds >= {"string", "integer"}


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
