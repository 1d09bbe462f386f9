"""The schema for editors says all there is to say, and the shipped example shows all there is to set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from proxy.commands import main
from proxy.commands.schema import make_schema, schema_text
from proxy.parameter_reference import reference_page

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
SCHEMA = make_schema()
EXAMPLE = ROOT / "deploy" / "tidegate.example.yaml"
VALIDATOR = Draft202012Validator(SCHEMA)


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


def test_the_command_prints_the_page_of_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--parameters"]) == 0
    assert capsys.readouterr().out == reference_page()


def test_the_committed_schema_is_what_the_code_says() -> None:
    committed = (ROOT / "deploy/tidegate.schema.json").read_text("utf-8")
    assert committed == schema_text(), "make it anew: ./run schema > deploy/tidegate.schema.json"


def properties(part: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401  a JSON document
    """Yield every property that the schema describes, at any depth, with its place."""
    for name, each in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        if name == "properties":
            yield from ((f"{place}.{setting}", said) for setting, said in each.items())
        yield from properties(each, f"{place}.{name}")


def test_no_property_is_without_a_description() -> None:
    assert [place for place, said in properties(SCHEMA) if not said.get("description")] == []


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_defaults_are_written_as_a_file_would_say_them() -> None:
    assert SCHEMA["$defs"]["CacheSettings"]["properties"]["ttl"]["default"] == "7d"
    assert SCHEMA["properties"]["state"]["default"] == "embedded"


def written(text: str) -> Any:  # noqa: ANN401  a YAML document
    return json.loads(json.dumps(YAML(typ="safe", pure=True).load(text), default=str))


def test_the_schema_takes_the_example() -> None:
    assert [error.message for error in VALIDATOR.iter_errors(written(EXAMPLE.read_text("utf-8")))] == []


def ruled(text: str) -> str:
    return f"policies: {{p: {{parameters: {{{text}}}}}}}"


@pytest.mark.parametrize(
    "text",
    [
        ruled("n: {max: 1000}"),
        ruled("n: {max: null, default: 1}"),
        ruled("top_k: {max: 5, force: x}"),
        ruled("logprobs: {default: true}"),
        ruled("logprobs: {allowed: [0, 1]}"),
        ruled("stop: {add: [a], on_violation: clamp}"),
        ruled("worst_case_tokens: {max: 5}"),
        "policies: {p: {limits: [{of: usd, limit: 0.5, per: month, by: [user]}], cache: {ttl: 90}}}",
    ],
)
def test_the_schema_takes_what_a_configuration_may_say(text: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(written(text))] == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("polices: {}", "$", id="a slip in a section"),
        pytest.param("policies: {p: {parameter: {}}}", "$.policies.p", id="a slip in a policy"),
        pytest.param(ruled("n: {maximum: 4}"), "$.policies.p.parameters.n", id="a slip in a rule"),
        pytest.param(ruled("n: {max: '4'}"), "$.policies.p.parameters.n.max", id="a number in quotes"),
        pytest.param(ruled("n: {max: 0}"), "$.policies.p.parameters.n.max", id="a cap below the range"),
        pytest.param(ruled("n: {min: 200}"), "$.policies.p.parameters.n.min", id="a least above the range"),
        pytest.param(ruled("n: {default: 129}"), "$.policies.p.parameters.n.default", id="a default out of range"),
        pytest.param(ruled("n: {allowed: [0]}"), "$.policies.p.parameters.n.allowed", id="a list out of range"),
        pytest.param(ruled("suffix: {max: 3}"), "$.policies.p.parameters.suffix.max", id="a cap on text"),
        pytest.param(ruled("model: {forbid: drop}"), "$.policies.p.parameters", id="no parameter"),
        pytest.param(ruled("n: {on_violation: clmp}"), "$.policies.p.parameters.n.on_violation", id="a word"),
        pytest.param(
            "policies: {p: {limits: [{of: usd, limit: -1, per: day, by: [user]}]}}",
            "$.policies.p.limits[0].limit",
            id="less than nothing",
        ),
        pytest.param(
            "policies: {p: {limits: [{of: usd, limit: 1, per: day}]}}", "$.policies.p.limits[0]", id="a limit by nobody"
        ),
    ],
)
def test_the_schema_finds_slips(text: str, place: str) -> None:
    assert place in [error.json_path for error in VALIDATOR.iter_errors(written(text))]
