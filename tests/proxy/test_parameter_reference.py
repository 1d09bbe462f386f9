"""The reference of parameters and policies is made of the code, and what is committed of it is what the code says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from policies.parameters import COMPUTED
from policies.policy import Rule
from policies.requests.asked import Action
from policies.requests.dialects import REQUEST_TYPES
from policies.rule_checks import NOT_RULED, check_rule
from proxy.parameter_reference import ACTIONS, RULE_EXAMPLES, duration_text, parameters_schema, reference_page

ROOT = Path(__file__).parents[2]
PAGE = reference_page()


def test_the_committed_page_is_what_the_code_says() -> None:
    committed = (ROOT / "deploy/PARAMETERS.md").read_text("utf-8")
    assert committed == PAGE, "make it anew: ./run schema --parameters > deploy/PARAMETERS.md"


@pytest.mark.parametrize("endpoint", REQUEST_TYPES)
def test_every_parameter_of_an_endpoint_has_its_row(endpoint: str) -> None:
    section = PAGE.split(f"## `POST /v1/{endpoint}`")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0].strip("|` ") for line in section.splitlines() if line.startswith("| `")]
    assert rows == list(REQUEST_TYPES[endpoint].model_fields)  # type: ignore[index]  it is an Endpoint


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            "| `n` | an integer from 1 to 128 | = `1` | key | Choices to answer with, for each prompt. |",
            id="a number with a default that all servers share",
        ),
        pytest.param(
            "| `user` | a string |  | ignored | The end user: the customer behind an application's key. |",
            id="what is not part of the cache key",
        ),
        pytest.param(
            "| `top_p` | a number from 0 to 1 | `1` | key | Share of probability from which tokens are chosen. |",
            id="a default that some servers take from the model",
        ),
        pytest.param(
            "| `tools` | anything |  | key | Tools that the model may call. |", id="what the gateway does not read"
        ),
        pytest.param(
            "| `messages` | an array of at least one message, each an object | required | key | "
            "The conversation so far. |",
            id="what a request cannot do without",
        ),
        pytest.param("| `candidates` | prompts × max(n, best_of) |", id="a virtual parameter"),
        pytest.param(
            '| `on_violation` | `reject` or `clamp` | `"reject"` | Whether a value outside is refused, or moved to '
            "the nearest one inside. | `max_tokens: {max: 1024, on_violation: clamp}` |",
            id="a setting of rules, with its example",
        ),
        pytest.param(
            "| `ttl` | a number or text | `7d` | How long an entry may be served; a model's `cache_ttl` shortens it. |",
            id="a duration",
        ),
    ],
)
def test_a_row_says_what_there_is_to_know(row: str) -> None:
    assert row in PAGE.splitlines()


def test_every_sentence_of_every_field_stands_on_the_page() -> None:
    fields = [field for kind in REQUEST_TYPES.values() for field in kind.model_fields.values()]
    missing = [said for field in fields if (said := " ".join(str(field.description).split())) not in PAGE]
    assert missing == []


@pytest.mark.parametrize("setting", Rule.model_fields)
def test_every_setting_of_a_rule_has_an_example_that_is_one(setting: str) -> None:
    [(name, said)] = YAML(typ="safe", pure=True).load(RULE_EXAMPLES[setting]).items()
    assert setting in said
    assert check_rule(name, Rule(**said)) == []


def test_every_action_is_explained() -> None:
    assert set(ACTIONS) == set(Action)


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [(604_800_000, "7d"), (90_000, "90s"), (250, "250ms"), (3_600_000, "1h"), (120_000, "2m"), (0, "0d")],
)
def test_durations_are_written_as_people_write_them(milliseconds: int, expected: str) -> None:
    assert duration_text(milliseconds) == expected


def test_every_parameter_that_may_be_ruled_is_a_property() -> None:
    named = {name for kind in REQUEST_TYPES.values() for name in kind.model_fields}
    assert set(parameters_schema("#/x")["properties"]) == (named - NOT_RULED.keys()) | COMPUTED.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("top_k", None, id="of a name that no API has nothing is said"),
        pytest.param("tools", None, id="nor of what is not read"),
        pytest.param("n", {"type": "integer", "minimum": 1, "maximum": 128}, id="a range"),
        pytest.param("user", {"type": "string"}, id="text"),
    ],
)
def test_values_have_the_type_of_the_parameter(name: str, expected: dict[str, Any] | None) -> None:
    settings = parameters_schema("#/x")["properties"].get(name, {}).get("properties")
    assert (settings and settings["default"]["anyOf"][0]) == expected
