"""When two bodies ask a model the same: SPEC §6's sentence on keys, written a second time.

`meaning_of` takes what an upstream receives, as `second_reading` reads it, and returns one value for all bodies that
SPEC §6 takes for the same. It shares nothing with the gateway: numbers keep their type and their digits, and the tables
below are SPEC §3's and §6's. It knows neither policies nor who asks.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from second_reading import Number

if TYPE_CHECKING:
    from collections.abc import Mapping

IGNORED = frozenset(
    {"stream", "stream_options", "user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention"}
)
"""The members that may differ between two requests which share an answer, besides `cache_level: 2`."""
IGNORED_BY = {"responses": frozenset({"stream", "stream_options"})}
"""An answer of the Responses API repeats the others: one end user's must not be shown to the next."""
NUMBERS = {
    "completions": frozenset(
        {
            *("max_tokens", "temperature", "top_p", "n", "best_of", "logprobs"),
            *("presence_penalty", "frequency_penalty", "seed", "cache_level"),
        }
    ),
    "chat/completions": frozenset(
        {
            *("max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "top_logprobs"),
            *("presence_penalty", "frequency_penalty", "seed"),
        }
    ),
    "embeddings": frozenset({"dimensions"}),
    "responses": frozenset({"max_output_tokens", "temperature", "top_p", "top_logprobs", "max_tool_calls"}),
}
"""Number fields, in which `0` and `0.0` are the same."""
_PENALTIES = {"presence_penalty": Number("0"), "frequency_penalty": Number("0")}
DEFAULTS: dict[str, dict[str, Any]] = {
    "completions": {"n": Number("1"), "echo": False, **_PENALTIES},
    "chat/completions": {"n": Number("1"), "logprobs": False, **_PENALTIES},
}
"""The API's defaults that are the same as nothing; those of suffix, stop and logit_bias are null."""
_PROMPTS = {"completions": "prompt", "embeddings": "input"}
_WITH_CHOICES = frozenset({"completions", "chat/completions"})
_FULL_CACHE = 2


Form = tuple[object, ...]
"""Equal to another when the values are the same: the first item tells the JSON type."""


def meaning_of(endpoint: str, members: Mapping[str, Any], declared: Mapping[str, Any]) -> Form:
    """Return what stands for a body to an endpoint; `declared` are the defaults of the model itself."""
    ignored = {*IGNORED_BY.get(endpoint, IGNORED), "model"}  # which stands in some addresses instead
    kept = {
        name: _written(endpoint, name, value)
        for name, value in members.items()
        if value is not None and name not in ignored and not _is_full_cache(name, value)
    }
    said = {**DEFAULTS.get(endpoint, {}), **declared}
    defaults = {name: _written(endpoint, name, value) for name, value in said.items()}
    if endpoint == "completions":
        defaults["best_of"] = kept.get("n", defaults["n"])
    return tuple(sorted((name, form) for name, form in kept.items() if defaults.get(name) != form))


def _is_full_cache(name: str, value: object) -> bool:
    return name == "cache_level" and isinstance(value, Number) and value.value == _FULL_CACHE


def _written(endpoint: str, name: str, value: object) -> Form:
    """Write a member in the one form that stands for its spellings."""
    if name in NUMBERS[endpoint]:
        return _number(value)
    if name == _PROMPTS.get(endpoint):
        return _prompt(value[0] if _is_one(value, str) or _is_one(value, list) else value)  # type: ignore[index]
    if endpoint in _WITH_CHOICES and name == "stop":
        return exact(value[0] if _is_one(value, str) else value)  # type: ignore[index]
    if endpoint in _WITH_CHOICES and name == "logit_bias" and isinstance(value, dict):
        return ("biases", *sorted((token, _number(bias)) for token, bias in value.items()))
    return exact(value)


def _is_one(value: object, kind: type) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], kind)


def _number(value: object) -> Form:
    """Write a number by its value alone; what is no number stays what it is."""
    if not isinstance(value, Number):
        return exact(value)
    return ("number", Decimal(value.text) if value.is_integer else Decimal(float(value.text)))


def _prompt(value: object) -> Form:
    """Write token ids as numbers, texts as they are."""
    return ("array", *map(_prompt, value)) if isinstance(value, list) else _number(value)


def exact(value: object) -> Form:
    """Write a value so that only the same one, with the same JSON types all the way down, is written alike."""
    if isinstance(value, Number):
        return ("integer", int(value.text)) if value.is_integer else ("real", repr(float(value.text)))
    if isinstance(value, list):
        return ("array", *map(exact, value))
    if isinstance(value, dict):
        return ("object", *sorted((name, exact(each)) for name, each in value.items()))
    return (type(value).__name__, value)
