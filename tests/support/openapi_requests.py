"""Requests made from the facts of OpenAI's public document (`openapi_facts.json`): valid values, and wrong ones.

Knows the words of JSON Schema that the facts use. Which parameters a gateway reads, and which of them must agree with
each other, is said by the tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import chain
from math import inf, nextafter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A value with one fault: `said` is the fault, `culprit` the part that has it, `path` the members down to it."""

    said: str
    value: Any
    culprit: Any
    path: tuple[str, ...] = ()


_FACTS = json.loads((Path(__file__).parent / "openapi_facts.json").read_text("utf-8"))
ENDPOINTS: Mapping[str, Schema] = _FACTS["endpoints"]
"""The schema of each endpoint's request by the endpoint's path below `/v1/`."""

ANY_OBJECT = {"any": [None, True, 0, -0.0, 1e-7, 2**70, "é\u2028\U0001f600", [], {}, {"n": {"n": 1.0}}]}
"""What stands where the document lets an object hold anything."""
SAMPLES: Mapping[str, Any] = {
    "boolean": True,
    "integer": 1,
    "number": 1.5,
    "string": "1",
    "array": [],
    "object": {},
}
"""A value of each JSON type; null is left out, since it means the same as absent (SPEC §3)."""
_TEXTS = ("text", "", 'é\u2028\U0001f600 "\\u006e" \\ \t\r\n\x7f')
_LONGEST_TEXT = 600
_DEPTH = 5


def resolved(schema: Schema) -> Schema:
    """Return the schema that is meant."""
    return _FACTS["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _options(schema: Schema) -> Iterator[Schema]:
    """Yield the schemas of one type each, of which a value must obey one."""
    schema = resolved(schema)
    if "anyOf" in schema:
        yield from chain.from_iterable(map(_options, schema["anyOf"]))
    elif isinstance(schema.get("type"), list):
        yield from ({**schema, "type": kind} for kind in schema["type"])
    else:
        yield schema


def _kind(schema: Schema) -> str:
    """Return the type of a schema that has one option; `choice` where values are listed, nothing where any will do."""
    return "choice" if "const" in schema or "enum" in schema else schema.get("type", "")


def _choices(schema: Schema) -> list[Any]:
    return list(schema.get("enum") or [schema["const"]])


# ---------------------------------------------------------------- every option at least once
def covering(schema: Schema, above: tuple[Schema, ...] = ()) -> list[Any]:
    """Return values that show every option, member, enumerated value and bound at least once.

    What holds itself is shown within itself once; `above` is what the schema stands in.
    """
    meant = resolved(schema)
    if above.count(meant) > 1:
        return []
    return list(chain.from_iterable(_cover(option, (*above, meant)) for option in _options(schema)))


def _cover(schema: Schema, above: tuple[Schema, ...]) -> list[Any]:
    kind = _kind(schema)
    match kind:
        case "object":
            found = _cover_object(schema, above)
        case "array":
            found = _cover_array(schema, above)
        case "string":
            found = _cover_string(schema)
        case "integer":
            low, high = schema.get("minimum", -1), schema.get("maximum", 2**53 + 1)
            found = [low, max(low, 0), high]
        case "number":
            found = [schema.get("minimum", -1e300), 0.5, 1, schema.get("maximum", 1e-7)]
        case "choice":
            found = _choices(schema)
        case _:
            found = {"boolean": [True, False], "null": [None]}.get(kind, [ANY_OBJECT, "text", 1.0])
    return found


def _cover_object(schema: Schema, above: tuple[Schema, ...]) -> list[Any]:
    """Return objects of which the k-th has the k-th value of every member, as far as the members' values last."""
    members = {name: covering(member, above) for name, member in schema.get("properties", {}).items()}
    required = schema.get("required", ())
    if any(not members[name] for name in required):
        return []
    shortest = {name: min(members[name], key=lambda value: len(json.dumps(value))) for name in required}
    rows = [
        shortest | {name: values[row] for name, values in members.items() if row < len(values)}
        for row in range(max(map(len, members.values()), default=0))
    ]
    if extra := schema.get("additionalProperties"):
        rows.append({f"{row}": value for row, value in enumerate(covering(extra, above))})
    return [*rows, shortest if members or extra else ANY_OBJECT]


def _cover_array(schema: Schema, above: tuple[Schema, ...]) -> list[Any]:
    items, least = covering(schema["items"], above), schema.get("minItems", 0)
    if not items:
        return [] if least else [[]]
    most = schema.get("maxItems", max(len(items), least))
    arrays = [items[start : start + most] for start in range(0, len(items), most)]
    if "maxItems" in schema:
        arrays.append((items * most)[:most])
    return [*(each for each in arrays if len(each) >= least), items[:least]]


def _cover_string(schema: Schema) -> list[Any]:
    if "pattern" in schema:
        return ["tunnel_" + "0" * 32 if "tunnel" in schema["pattern"] else "a-B_9"]
    least, most = schema.get("minLength", 0), schema.get("maxLength", _LONGEST_TEXT)
    bounds = ("x" * min(most, _LONGEST_TEXT),) if "maxLength" in schema else ()
    return [text for text in (*_TEXTS, *bounds) if least <= len(text) <= most]


# ---------------------------------------------------------------- any of them
def values(schema: Schema, depth: int = _DEPTH) -> st.SearchStrategy[Any]:
    """Draw valid values; below `depth` objects and arrays hold no more than they must."""
    return st.one_of([_drawn(option, depth) for option in _options(schema)])


def _drawn(schema: Schema, depth: int) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum"), schema.get("maximum")
    kind = _kind(schema)
    match kind:
        case "object":
            drawn = _objects(schema, depth)
        case "array":
            least = schema.get("minItems", 0)
            most = least if depth <= 0 else min(schema.get("maxItems", least + 3), least + 3)
            drawn = st.lists(st.deferred(lambda: values(schema["items"], depth - 1)), min_size=least, max_size=most)
        case "string" if "pattern" not in schema:
            drawn = st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 20), 20))
        case "integer":
            drawn = st.integers(low, high)
        case "number":
            drawn = st.floats(low, high, allow_nan=False, allow_infinity=False) | st.integers(low, high)
        case "":
            drawn = anything
        case _:
            drawn = st.sampled_from(_cover(schema, ()))
    return drawn


@st.composite
def _objects(draw: st.DrawFn, schema: Schema, depth: int) -> dict[str, Any]:
    members = schema.get("properties", {})
    required = schema.get("required", ())
    optional = [name for name in members if name not in required]
    most = 0 if depth <= 0 else 6 if depth == _DEPTH else 2
    chosen = draw(st.lists(st.sampled_from(optional), unique=True, max_size=most)) if optional else []
    drawn = {name: draw(values(members[name], depth - 1)) for name in (*required, *chosen)}
    extra = schema.get("additionalProperties")
    if extra and depth > 0:
        drawn |= draw(
            st.dictionaries(st.from_regex(r"[0-9]{1,9}", fullmatch=True), values(extra, depth - 1), max_size=3)
        )
    return drawn if members or extra else draw(anything)


def _containers(held: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(held, max_size=3) | st.dictionaries(st.text(max_size=5), held, max_size=3)


_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
anything = st.dictionaries(st.text(max_size=5), st.recursive(_scalars, _containers, max_leaves=8), max_size=3)
"""Objects of any JSON values, integers of any size included."""


# ---------------------------------------------------------------- none of them
def wrong_values(schema: Schema) -> Iterator[Wrong]:
    """Yield values that break one rule of a schema each."""
    options = list(_options(schema))
    takes = {option["type"] for option in options}
    for kind, value in SAMPLES.items():
        if kind not in takes and not (kind == "integer" and "number" in takes):
            yield Wrong(kind, value, value)
    for option in options:
        yield from _out_of_range(option)
        yield from _wrong_size(option)
        yield from _wrong_inside(option)


def _out_of_range(schema: Schema) -> Iterator[Wrong]:
    kind = schema["type"]
    for bound, sign in (("minimum", -1), ("maximum", 1)):
        if kind in {"integer", "number"} and bound in schema:
            past = schema[bound] + sign if kind == "integer" else nextafter(schema[bound], sign * inf)
            yield Wrong(f"just past its {bound}", past, past)
            yield Wrong(f"far past its {bound}", sign * 10**39, sign * 10**39)


def _wrong_size(schema: Schema) -> Iterator[Wrong]:
    if schema["type"] == "array":
        item = covering(schema["items"])[0]
        for size in (schema.get("minItems", 0) - 1, schema.get("maxItems", -2) + 1):
            if size >= 0:
                yield Wrong(f"array of {size}", [item] * size, [item] * size)


def _wrong_inside(schema: Schema) -> Iterator[Wrong]:
    if schema["type"] == "array":
        right = covering(schema["items"])[0]
        for wrong in wrong_values(schema["items"]):
            yield replace(wrong, said=f"array with {wrong.said}", value=[right, wrong.value])
    for name, member in schema.get("properties", {}).items():
        for wrong in wrong_values(member):
            path = (name, *wrong.path)
            yield replace(wrong, said=f"{name}, {wrong.said}", value={name: wrong.value}, path=path)
    if extra := schema.get("additionalProperties"):
        for wrong in wrong_values(extra):
            yield replace(wrong, said=f"object with {wrong.said}", value={"1": wrong.value})
