"""What pydantic found wrong with settings, told in our words: what is wrong, and what would be right.

Knows pydantic's error types and the tree of settings (for the nearest valid name). Repeats a value only where no
secret can stand. Knows no file and no line.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from proxy.config import Configuration
from proxy.config_references import Path, Problem, suggest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_LONGEST_SHOWN = 60

# By pydantic's error type; {ctx} members are filled in.
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "literal_error": "{expected}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "finite_number": "a finite number",
    "path_type": "a path",
}
_PATTERN = "may hold letters, digits and _ . @ + - only, must begin with a letter or digit and have at most 128 of them"
_SAID = {
    "missing": "required, and missing",
    "string_pattern_mismatch": _PATTERN,
    "too_short": "needs at least one entry",
    "string_too_short": "must not be empty",
}
# Only these types' values are shown: numbers and words of which a list of valid ones exists.
_SHOWN = frozenset({"literal_error", "greater_than", "greater_than_equal", "less_than", "less_than_equal"})


def told_problems(error: ValidationError, values: object) -> list[Problem]:
    """Return what is wrong, one problem a place; `values` are what was validated."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for found in error.errors(include_url=False):
        by_path.setdefault(_existing(found, values), []).append(found)
    return [
        problem
        for path, found in by_path.items()
        for problem in _told(path, found)
        if not _follows(found, path, by_path)
    ]


def _follows(found: list[ErrorDetails], path: Path, by_path: Iterable[Path]) -> bool:
    """Tell whether a list is only found too short because its entries are wrong."""
    is_short = all(one["type"] == "too_short" for one in found)
    return is_short and any(len(other) > len(path) and other[: len(path)] == path for other in by_path)


def _existing(found: ErrorDetails, values: object) -> Path:
    """Return the place in the file: pydantic adds the tried members of unions, which are no keys."""
    path: list[str | int] = []
    for step in found["loc"]:
        if isinstance(values, Mapping) and (step in values or found["type"] == "missing"):
            values = values.get(step)
        elif isinstance(values, list) and isinstance(step, int) and step < len(values):
            values = values[step]
        else:
            break
        path.append(step)
    return tuple(path)


def _told(path: Path, found: list[ErrorDetails]) -> Iterator[Problem]:
    expected = list(dict.fromkeys(_expected(one) for one in found if one["type"] in _EXPECTED))
    if "a number" in expected and "a whole number" in expected:
        expected.remove("a whole number")
    if expected:
        yield Problem(path, f"must be {' or '.join(expected)}, not {_shown(found[0])}")
    for one in found:
        if one["type"] == "extra_forbidden":
            yield Problem(path, f"unknown key; {suggest(str(path[-1]), valid_names(path[:-1]))}")
        elif one["type"] not in _EXPECTED:
            yield Problem(path, _SAID.get(one["type"], one["msg"].removeprefix("Value error, ")))


def _expected(found: ErrorDetails) -> str:
    return _EXPECTED[found["type"]].format_map(found.get("ctx", {}))


def _shown(found: ErrorDetails) -> str:
    """Show what was written where that may be shown, as YAML spells it; of all else only the kind."""
    value = found["input"]
    if found["type"] not in _SHOWN or not isinstance(value, (str, int, float)):
        return _kind(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)[:_LONGEST_SHOWN]


def _kind(value: object) -> str:
    """Name the kind of a value as YAML's readers know it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    kinds: dict[type, str] = {str: "text", int: "a number (write it in quotes where text is meant)", float: "a number"}
    kinds |= {dict: "a mapping", list: "a list"}
    return kinds.get(type(value), type(value).__name__)


def valid_names(path: Path) -> list[str]:
    """Return the names of the settings that may stand at a path."""
    annotation: Any = Configuration  # whatever stands behind a field's colon
    for step in path:
        annotation = _below(annotation, step)
    return [name for model in _models(annotation) for name in model.model_fields]


def _below(annotation: Any, step: str | int) -> Any:  # noqa: ANN401  annotations have no common type
    """Return the annotation of a member, whichever model, mapping or list it is in."""
    for model in _models(annotation):
        if step in model.model_fields:
            return model.model_fields[str(step)].annotation
    for part in _parts(annotation):
        arguments = [argument for argument in get_args(part) if argument is not Ellipsis]
        if arguments:
            return arguments[-1]
    return None


def _models(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401
    return [part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]


def _parts(annotation: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the members of a union, without the wrappings that say more about them."""
    if get_origin(annotation) is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif get_origin(annotation) in {Union, types.UnionType}:
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation
