"""What is written about parameters and policies, made from what the code knows of them: a page, and schemas.

Names no parameter but in examples: names, types, ranges, defaults and sentences are those of the request types and of
the settings. Knows no file; `tidegate schema` prints what is made here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from policies.computed import COMPUTED
from policies.policy import CacheSettings, Limit, Policy, Rule
from policies.requests.asked import Action
from policies.requests.dialects import REQUEST_TYPES
from policies.requests.fields import expectation
from policies.requests.meaning import vocabulary
from policies.rule_checks import NOT_RULED, kinds_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from policies.requests.fields import EndpointRequest
    from policies.settings import Settings

RULE_EXAMPLES: Final[Mapping[str, str]] = {
    "max": "n: {max: 4, on_violation: clamp}",
    "min": "temperature: {min: 0.2}",
    "allowed": "logprobs: {allowed: [0, 1]}",
    "on_violation": "max_tokens: {max: 1024, on_violation: clamp}",
    "default": "max_tokens: {default: 256}",
    "force": "echo: {force: false}",
    "forbid": "logit_bias: {forbid: drop}",
    "add": 'stop: {add: ["\\n\\nHuman:"], on_violation: clamp}',
    "strip_trailing_space": "prompt: {strip_trailing_space: true}",
    "pseudonymise": "user: {pseudonymise: true}",
    "mode": "best_of: {max: 2, mode: observe}",
    "override": "n: {max: 16, override: true}",
}
"""An entry of `parameters` for each setting of a rule."""

ACTIONS: Final[Mapping[Action, str]] = {
    Action.CLAMP: "A value outside a bound was moved to the nearest one inside.",
    Action.DEFAULT: "None was sent, and one was written: a rule's `default`, a bound's, or what a limit has to know.",
    Action.FORCE: "A rule's `force` was written in place of what was sent.",
    Action.DROP: "The parameter was taken out: by `forbid: drop`, `unknown_parameters: drop`, or with what it needs.",
    Action.NORMALISE: "An older client's spelling was written as the API's; no policy did that.",
    Action.STRIP: "Spaces were taken off the end of texts.",
    Action.ADD: "A rule's texts were added to what was sent.",
    Action.PSEUDONYMISE: "A keyed hash was written in place of the end user.",
    Action.REJECT: "Only of rules and limits that are observed: the request would have been refused.",
}
"""What each action of an adjustment means."""

_HEAD: Final = """\
# Parameters and policies

Made from the code by `tidegate schema --parameters`; change the sentences there.

Absent and `null` mean the same. *Cache* tells whether a parameter is part of the cache key: `key`, or `ignored`, as it
says nothing of the answer's content; where *absent* is marked with `=`, every server has that default, so that writing
it and leaving it out share an entry. Parameters that no table names are forwarded unless a policy's
`unknown_parameters` says otherwise, are part of the cache key, and can be ruled like all others.
"""
_RULES: Final = """\
Rules stand by parameter name under `parameters` of a policy. A rule on `max_tokens` binds the token ceiling under every
name. Levels add up from organization to project, user and key, and the stricter bound wins, unless one says `override`.
"""
_COMPUTED: Final = "Computed from the effective request; they take `max` and `min`, and what is outside is refused."
_ACTIONS: Final = """\
Told in `x-tidegate-adjusted` (`n;from=8;to=4;rule=clamp`), counted in `tidegate_adjustments_total`, and kept in the
usage record.
"""


def reference_page() -> str:
    """Return the Markdown page of all parameters and of everything a policy may say, ending in a newline."""
    sections = [
        _HEAD,
        *(f"## `POST /v1/{endpoint}`\n\n{_parameter_table(kind)}" for endpoint, kind in REQUEST_TYPES.items()),
        f"## Virtual parameters\n\n{_COMPUTED}\n\n{_table(('parameter', 'is'), _computed_rows())}",
        f"## What a rule may say\n\n{_RULES}\n{_settings_table(Rule, RULE_EXAMPLES)}",
        f"## What a policy may say besides\n\n{_settings_table(Policy)}",
        f"## Limits\n\n{_settings_table(Limit)}",
        f"## Cache\n\n{_settings_table(CacheSettings)}",
        f"## Adjustments\n\n{_ACTIONS}\n{_table(('action', 'means'), _action_rows())}",
    ]
    return "\n".join(sections)


def parameters_schema(rule: str) -> dict[str, Any]:  # a JSON Schema
    """Return the JSON Schema of a policy's `parameters`, of which `rule` is the reference to that of a rule.

    Known names have their own sentence and range; others may be ruled too, but for those that are no parameters.
    """
    named = {name: _rule_schema(name, rule) for name in _ruled_names()}
    named |= {name: {"$ref": rule, "description": _sentence(said)} for name, (said, _) in COMPUTED.items()}
    return {
        "type": "object",
        "properties": named,
        "additionalProperties": {"$ref": rule},
        "propertyNames": {"not": {"enum": sorted(NOT_RULED)}},
        "examples": [{"n": {"max": 4, "on_violation": "clamp"}}],
    }


def _ruled_names() -> list[str]:
    """Return every parameter that a rule may be about, in the order of the endpoints."""
    names = dict.fromkeys(name for kind in REQUEST_TYPES.values() for name in kind.model_fields)
    return [name for name in names if name not in NOT_RULED]


def _rule_schema(name: str, rule: str) -> dict[str, Any]:
    """Return a rule's schema with what its values may be, where every endpoint that has the parameter says so."""
    kinds = kinds_with(name)
    said = {_sentence(kind.model_fields[name].description): 0 for kind in kinds}
    takes = {f"{takes}: {', '.join(on)}" for takes, on in _by_words(name).items()}
    described: dict[str, Any] = {"$ref": rule, "description": " ".join([*said, f"Takes {'; '.join(sorted(takes))}."])}
    types = [_value_schema(kind, name) for kind in kinds]
    if not all(types):
        return described
    value = {"anyOf": [*(each for each in types if each), {"type": "null"}]}
    values: dict[str, Any] = {
        "default": value,
        "force": value,
        "allowed": {"anyOf": [{"items": value}, {"type": "null"}]},
    }
    numbers = [each for each in types if each and each["type"] in {"integer", "number"}]
    most = {"anyOf": [*({k: each[k] for k in each if k != "maximum"} for each in numbers), {"type": "null"}]}
    least = {"anyOf": [*({k: each[k] for k in each if k != "minimum"} for each in numbers), {"type": "null"}]}
    described["properties"] = {
        setting: {"description": f"{Rule.model_fields[setting].description}", **schema}
        for setting, schema in {"max": most, "min": least, **values}.items()
    }
    return described


def _by_words(name: str) -> dict[str, list[str]]:
    """Return which endpoints take what as a parameter, by the words for it."""
    words: dict[str, list[str]] = {}
    for endpoint, kind in REQUEST_TYPES.items():
        if name in kind.model_fields:
            words.setdefault(_takes(kind, name), []).append(endpoint)
    return words


def _value_schema(kind: type[EndpointRequest], name: str) -> dict[str, Any] | None:
    """Return the JSON Schema of a parameter's values; None where its type is not one that JSON Schema has."""
    options = kind.model_json_schema()["properties"][name].get("anyOf", ())
    plain = [option for option in options if option.get("type") in {"integer", "number", "boolean", "string"}]
    return plain[0] if plain else None


def _parameter_table(kind: type[EndpointRequest]) -> str:
    rows = (_parameter_row(kind, name) for name in kind.model_fields)
    return _table(("parameter", "takes", "absent", "cache", "meaning"), rows)


def _parameter_row(kind: type[EndpointRequest], name: str) -> tuple[str, ...]:
    meaning, field = vocabulary(kind).meanings[name], kind.model_fields[name]
    absent = "required" if field.is_required() else ""
    if meaning.counts_as is not None:
        absent = f"= `{meaning.counts_as}`"
    elif meaning.default is not None:
        absent = f"{'= ' if meaning.is_shared_default else ''}`{_json(meaning.default)}`"
    cache = "key" if meaning.is_keyed else "ignored"
    return f"`{name}`", _takes(kind, name), absent, cache, _sentence(field.description)


def _takes(kind: type[EndpointRequest], name: str) -> str:
    """Say what an endpoint takes; of what it does not read, anything."""
    takes = expectation(kind, name)
    return "anything" if takes == "a valid value" else takes


def _computed_rows() -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", said) for name, (said, _) in COMPUTED.items())


def _action_rows() -> Iterator[tuple[str, str]]:
    return ((f"`{action}`", ACTIONS[action]) for action in Action)


def _settings_table(of: type[Settings], examples: Mapping[str, str] | None = None) -> str:
    schema = of.model_json_schema()["properties"]
    rows = [
        (f"`{name}`", _schema_words(schema[name]), _default_words(schema[name]), _sentence(field.description))
        for name, field in of.model_fields.items()
    ]
    heads: tuple[str, ...] = ("setting", "takes", "absent", "meaning")
    if examples is None:
        return _table(heads, rows)
    shown = ((*row, f"`{examples[name]}`") for row, name in zip(rows, of.model_fields, strict=True))
    return _table((*heads, "example"), shown)


_TYPES: Final = {
    "integer": "a number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "object": "a mapping",
}


def _schema_words(schema: Mapping[str, Any]) -> str:
    """Say what a setting takes, read from its JSON Schema."""
    if "anyOf" in schema:
        words = (_schema_words(option) for option in schema["anyOf"] if option.get("type") != "null")
        return " or ".join(dict.fromkeys(words))
    if "$ref" in schema:
        return "a mapping"
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        items = _schema_words(schema.get("items", {}))
        return f"a list of {items}"
    return _TYPES.get(schema.get("type", ""), "any value")


def _default_words(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return "" if "additionalProperties" in schema else "required"
    if {"type": "string"} in schema.get("anyOf", ()) and type(schema["default"]) is int:
        return f"`{duration_text(schema['default'])}`"
    return "" if schema["default"] in (None, []) else f"`{_json(schema['default'])}`"


def duration_text(milliseconds: int) -> str:
    """Write a duration as people would in a file, in its largest whole unit: `7d`, `90s`, `250ms`."""
    unit, size = next(each for each in _UNITS if milliseconds % each[1] == 0)
    return f"{milliseconds // size}{unit}"


_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


def _sentence(text: str | None) -> str:
    """Write a docstring as one line that ends in a full stop."""
    said = " ".join((text or "").split())
    return said if said.endswith(".") else f"{said}."


def _json(value: Any) -> str:  # noqa: ANN401  a JSON value
    return json.dumps(value, ensure_ascii=False)
