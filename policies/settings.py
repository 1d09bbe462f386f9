"""What every configured model of the core has in common: frozen, strict, unknown keys refused.

Holds the base class and the field types that several settings share; it knows no single setting.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

T = TypeVar("T")

_DURATION = re.compile(r"(\d{1,20})(ms|s|m|h|d|w)", re.ASCII)
MAX_MILLISECONDS = 10 * 366 * 86_400_000
"""Longest duration that can be configured: ten years."""
_SHOWN_CHARACTERS = 40
_UNIT_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class Settings(BaseModel):
    """One block of the configuration file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


def parse_duration_milliseconds(value: object) -> object:
    """Read `90s`, `7d`, `250ms` as milliseconds; a bare number is seconds. Anything else is left to fail."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return _within_bounds(value, round(value * 1000))
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if found is None:
            msg = f"{value!r} is not a duration; write a number and one of ms, s, m, h, d, w, such as 90s"
            raise ValueError(msg)
        return _within_bounds(value, int(found[1]) * _UNIT_MILLISECONDS[found[2]])
    return value


def _within_bounds(written: float | str, milliseconds: int) -> int:
    if 0 <= milliseconds <= MAX_MILLISECONDS:
        return milliseconds
    raise ValueError(f"{str(written)[:_SHOWN_CHARACTERS]} is no duration from 0 to ten years")


def write_duration(milliseconds: int) -> str:
    """Write a duration so that `parse_duration_milliseconds` reads it back as the same number."""
    return f"{milliseconds}ms"


Milliseconds = Annotated[
    int,
    Field(ge=0),
    BeforeValidator(parse_duration_milliseconds, json_schema_input_type=int | float | str),
    PlainSerializer(write_duration, return_type=str, when_used="json"),
]
Items = Annotated[tuple[T, ...], Field(strict=False)]
