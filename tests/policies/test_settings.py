from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from policies.settings import Milliseconds, Settings

MILLISECONDS = TypeAdapter(Milliseconds)


class Nested(Settings):
    name: str = "x"


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        (" 5s ", 5_000),
        pytest.param(30, 30_000, id="a bare number is seconds"),
        pytest.param(0.25, 250, id="so is a fraction"),
        pytest.param(0, 0, id="nothing"),
    ],
)
def test_a_duration_is_read_with_its_unit(written: object, milliseconds: int) -> None:
    assert MILLISECONDS.validate_python(written, strict=True) == milliseconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        "s",
        "5",
        "5 s",
        "-5s",
        "1.5h",
        "1y",
        "5S",
        "9" * 5000 + "s",
        True,
        -1,
        float("inf"),
        float("nan"),
        None,
        ["5s"],
    ],
    ids=repr,
)
def test_anything_else_is_no_duration(written: object) -> None:
    with pytest.raises(ValidationError):
        MILLISECONDS.validate_python(written, strict=True)


@pytest.mark.parametrize("written", [-1, "3661d", 1e99, 10**400], ids=str)
def test_a_duration_has_bounds(written: object) -> None:
    with pytest.raises(ValidationError, match="is no duration from 0 to ten years"):
        MILLISECONDS.validate_python(written, strict=True)


def test_a_duration_survives_a_round_trip_through_json() -> None:
    assert MILLISECONDS.validate_json(MILLISECONDS.dump_json(90_000)) == 90_000


@pytest.mark.parametrize("given", [{"nam": "x"}, {"name": 1}, {"name": "x", "more": None}], ids=repr)
def test_a_block_takes_its_own_keys_and_types_only(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Nested.model_validate(given)


def test_a_block_does_not_change() -> None:
    with pytest.raises(ValidationError):
        Nested().name = "y"
