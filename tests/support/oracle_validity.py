"""SPEC §3 restated as tables: what each API names, what is valid there, and what an absent member means.

Works on readings of `second_reading`. Knows no policy and shares no code with the gateway.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from second_reading import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ABSENT = None
"""Absent and `null` mean the same for a decision (SPEC §3)."""
MOST_STOPS = 4


@dataclass(frozen=True)
class Whole:
    """An integer, written so or as `1.0`."""

    least: float
    most: float

    def takes(self, value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        if not isinstance(value, Number) or not self.least <= value.value <= self.most:
            return False
        return value.value == value.value.to_integral_value()


@dataclass(frozen=True)
class Real:
    """Any number of a range."""

    least: float
    most: float

    def takes(self, value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        return isinstance(value, Number) and Decimal(self.least) <= value.value <= Decimal(self.most)


@dataclass(frozen=True)
class Of:
    """One of the JSON types."""

    types: tuple[type, ...]

    def takes(self, value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        return isinstance(value, self.types)


class Prompt:
    """A string, strings, token ids, or lists of token ids."""

    @staticmethod
    def takes(value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        if isinstance(value, str):
            return True
        return isinstance(value, list) and bool(value) and (_are(value, str) or are_ids(value) or are_id_lists(value))


class Stop:
    """A string, or up to four."""

    @staticmethod
    def takes(value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        return isinstance(value, str) or (isinstance(value, list) and len(value) <= MOST_STOPS and _are(value, str))


class Biases:
    """A map of token ids to −100…100."""

    @staticmethod
    def takes(value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        return isinstance(value, dict) and all(
            re.fullmatch("[0-9]+", name) and Real(-100, 100).takes(each) for name, each in value.items()
        )


class StreamOptions:
    """An object whose `include_usage` is a bool."""

    @staticmethod
    def takes(value: Any) -> bool:  # noqa: ANN401  whatever JSON can say
        return isinstance(value, dict) and isinstance(value.get("include_usage"), bool | None)


def _are(values: list[Any], kind: type) -> bool:
    return all(isinstance(each, kind) for each in values)


def are_ids(values: list[Any]) -> bool:
    return bool(values) and all(MANY.takes(each) for each in values)


def are_id_lists(values: list[Any]) -> bool:
    return all(isinstance(each, list) and are_ids(each) for each in values)


_BOOL, _TEXT, _PENALTY = Of((bool,)), Of((str,)), Real(-2, 2)
_INT64 = Whole(-(2**63), 2**63 - 1)
MANY = Whole(0, float("inf"))
"""Any count: tokens, ids."""
CEILINGS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
"""The names of the token ceiling, the last one that of servers of their own."""
OWN_CEILINGS = {"completions": {*CEILINGS[:1]}, "chat/completions": {*CEILINGS[:2]}, "responses": {*CEILINGS[2:3]}}
"""Those that an endpoint's API knows."""
_SHARED = {
    "temperature": Real(0, 2),
    "top_p": Real(0, 1),
    "stream": _BOOL,
    "user": _TEXT,
    "stream_options": StreamOptions,
}
VALID: dict[str, dict[str, Any]] = {
    "completions": {
        **_SHARED,
        "model": _TEXT,
        "prompt": Prompt,
        "suffix": _TEXT,
        "max_tokens": MANY,
        "n": Whole(1, 128),
        "best_of": Whole(1, 128),
        "logprobs": Whole(0, 5),
        "echo": _BOOL,
        "stop": Stop,
        "presence_penalty": _PENALTY,
        "frequency_penalty": _PENALTY,
        "logit_bias": Biases,
        "seed": _INT64,
        "completion_config": _TEXT,
        "cache_level": Whole(0, 2),
    },
    "chat/completions": {
        **_SHARED,
        "model": _TEXT,
        "n": Whole(1, 128),
        "max_tokens": MANY,
        "max_completion_tokens": MANY,
        "seed": _INT64,
        "logprobs": _BOOL,
        "top_logprobs": Whole(0, 20),
    },
    "embeddings": {"model": _TEXT, "input": Prompt, "user": _TEXT},
    "responses": {**_SHARED, "model": _TEXT, "max_output_tokens": MANY, "top_logprobs": Whole(0, 20)},
}
"""What is valid where (SPEC §3): the members that the gateway decides on."""

_CHAT = """
messages modalities verbosity reasoning_effort frequency_penalty presence_penalty web_search_options
response_format audio store stop logit_bias prediction tools tool_choice parallel_tool_calls function_call
functions metadata safety_identifier prompt_cache_key prompt_cache_retention service_tier
""".split()  # noqa: SIM905  words read best as words
_RESPONSES = """
input instructions tools tool_choice store metadata previous_response_id conversation include text truncation
parallel_tool_calls reasoning safety_identifier prompt_cache_key prompt_cache_retention service_tier
background max_tool_calls prompt
""".split()  # noqa: SIM905  words read best as words
NAMED: dict[str, frozenset[str]] = {
    "completions": frozenset(VALID["completions"]),
    "chat/completions": frozenset([*VALID["chat/completions"], *_CHAT]),
    "embeddings": frozenset([*VALID["embeddings"], "dimensions", "encoding_format"]),
    "responses": frozenset([*VALID["responses"], *_RESPONSES]),
}
"""The members that each API names (OpenAI's document)."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "completions": {
        "max_tokens": 16,
        "temperature": 1,
        "top_p": 1,
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    },
    "chat/completions": {
        "temperature": 1,
        "top_p": 1,
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "service_tier": "auto",
    },
    "embeddings": {},
    "responses": {"temperature": 1, "top_p": 1, "store": True, "service_tier": "auto"},
}
"""What an absent one means, and so what a bound is held against (SPEC §3)."""


# ---------------------------------------------------------------- validity
def _only(value: Any) -> Any:  # noqa: ANN401
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _count(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict) and len(value) == 1:
        return next(iter(value.values()))
    only = _only(value)
    return only[1] if only is not value and isinstance(only, list) and len(only) == 2 else only


def _map(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        return value[0]
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        found = {name.text if isinstance(name, Number) else name: bias for name, bias in value}
        return found if len(found) == len(value) and _are(list(found), str) else value
    return value


_LIST_SHAPES: dict[str, Callable[[Any], Any]] = {"echo": _only, "best_of": _count, "logit_bias": _map}


def normalised(endpoint: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with S3's shapes made plain, where they are."""
    if endpoint != "completions":
        return dict(fields)
    return {name: _LIST_SHAPES.get(name, lambda value: value)(value) for name, value in fields.items()}


def invalid(endpoint: str, fields: Mapping[str, Any]) -> set[str]:
    """Return the members that make a request invalid (SPEC §3)."""
    found = {
        name
        for name, kind in VALID[endpoint].items()
        if fields.get(name) is not ABSENT and not kind.takes(fields[name])
    }
    if found:
        return found
    stream = fields.get("stream") is True
    if "stream" in VALID[endpoint] and fields.get("stream_options") is not ABSENT and not stream:
        found.add("stream_options")
    if endpoint == "completions" and fields.get("best_of") is not ABSENT:
        n, best_of = int(fields["n"].value) if fields.get("n") else 1, int(fields["best_of"].value)
        if best_of < n or (stream and best_of > n):
            found |= {"best_of", "n"}
    if endpoint == "responses" and fields.get("background") is True:
        found.add("background")
    needed = {"chat/completions": "messages", "embeddings": "input"}.get(endpoint)
    if needed is not None and fields.get(needed) is ABSENT:
        found.add(needed)
    return found
