"""What the endpoints' requests have in common: field types with their ranges, and the strict reading of members.

A request is a *view*: it types the members that the gateway decides on and leaves every other one alone. This file
knows types and ranges, and no endpoint; no model, policy or price either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from policies.errors import InvalidRequest
from policies.requests.forms import number
from policies.requests.input_size import InputSize, json_bytes
from policies.requests.meaning import Meaning, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from policies.catalog import ModelSettings

T = TypeVar("T")

MAX_CHOICES = 128
"""Largest `n` and `best_of` (SPEC §3)."""
_TokenIds = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]
MAX_STOPS = 4
"""Most texts that `stop` takes."""
_MAX_BIAS = 100
_TOKEN_ID = re.compile(r"\d+", re.ASCII)
_INPUT = "a string, an array of strings, an array of token ids, or an array of arrays of token ids; no array empty"
_STOPS = f"a string, or an array of at most {MAX_STOPS} strings"
_BIASES = f"an object whose keys are token ids and whose values are numbers from -{_MAX_BIAS} to {_MAX_BIAS}"
_SHOWN_CHARACTERS = 60


def _whole(value: object) -> object:
    """Read `1.0` as 1 (SPEC §3); everything else is left to the strict type."""
    return int(value) if type(value) is float and value.is_integer() else value


def _check_input(value: Any) -> str | list[Any]:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError
    if isinstance(value[0], str):
        return all_of(str, value)
    is_many = isinstance(value[0], list)
    try:
        # Checks at the speed of C what a loop in Python would take longer for than reading the whole body took.
        msgspec.convert(value, list[_TokenIds] if is_many else _TokenIds)
    except msgspec.ValidationError:
        for position, ids in enumerate(all_of(list, value) if is_many else [value]):
            _check_token_ids(ids, f"[{position}]" if is_many else "")
    return value


def _check_token_ids(ids: list[Any], place: str) -> None:
    if not ids:
        raise ValueError(f"{place} is {shown(ids)}")
    for position, each in enumerate(ids):
        if type(each) not in {int, float} or each < 0 or each % 1:
            raise ValueError(f"{place}[{position}] is {shown(each)}")


def _check_stops(value: Any) -> str | list[str]:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) <= MAX_STOPS:
        return all_of(str, value)
    raise ValueError


def _check_biases(value: Any) -> dict[str, float]:  # noqa: ANN401  any JSON value
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004  pydantic's border
    for token, bias in value.items():
        if not _TOKEN_ID.fullmatch(token):
            raise ValueError(f" has the key {shown(token)}")
        if not _is_bias(bias):
            raise ValueError(f"[{shown(token)}] is {shown(bias)}")
    return value


def all_of(kind: type[T], items: list[Any]) -> list[T]:
    """Return the items if each is of this type. Raises ValueError, saying which is not, as `_invalid` reads it."""
    if set(map(type, items)) <= {kind}:
        return items
    position, wrong = next((i, item) for i, item in enumerate(items) if type(item) is not kind)
    raise ValueError(f"[{position}] is {shown(wrong)}")


def _is_bias(value: Any) -> bool:  # noqa: ANN401  any JSON value
    return type(value) in {int, float} and bool(-_MAX_BIAS <= value <= _MAX_BIAS)


Count = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), BeforeValidator(_whole)]
CacheLevel = Annotated[int, Field(ge=0, le=2), BeforeValidator(_whole)]
TopLogprobs = Annotated[int, Field(ge=0, le=20), BeforeValidator(_whole)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Input = Annotated[str | list[Any], PlainValidator(_check_input), Field(json_schema_extra={"expected": _INPUT})]
"""A text, texts, token ids, or several lists of token ids: one prompt or several."""
Stops = Annotated[str | list[str], PlainValidator(_check_stops), Field(json_schema_extra={"expected": _STOPS})]
Biases = Annotated[dict[str, float], PlainValidator(_check_biases), Field(json_schema_extra={"expected": _BIASES})]


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A parameter's value after the parameters that are coupled were made to agree; None takes it out.

    `because` is the parameter whose value asked for it.
    """

    value: Any  # a JSON value
    because: str


@dataclass(frozen=True, slots=True)
class NumberType:
    """What kind of number a parameter is, and its range; None where it has no end."""

    is_integer: bool
    minimum: float | None
    maximum: float | None

    def is_below(self, value: float) -> bool:
        """Tell whether a value is below the range."""
        return self.minimum is not None and value < self.minimum

    def is_above(self, value: float) -> bool:
        """Tell whether a value is above the range."""
        return self.maximum is not None and value > self.maximum


class EndpointRequest(BaseModel):
    """The members of one endpoint's request that the gateway decides on, validated; unknown members are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True)

    ceilings: ClassVar[tuple[str, ...]] = ()
    """Names of the token ceiling."""
    coupled: ClassVar[tuple[str, ...]] = ()
    """Parameters whose values must agree with each other."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Validate JSON members. Raises InvalidRequest naming the parameter, its value and what it may be."""
        try:
            request = cls.model_validate(fields)
        except ValidationError as error:
            raise _invalid(cls, error) from None
        request.check_together()
        return request

    def with_fields(self, fields: Mapping[str, Any]) -> Self:
        """Validate changed members as a request of the same kind. Raises InvalidRequest."""
        return self.read(fields)

    @classmethod
    def has_parameter(cls, name: str) -> bool:
        """Tell whether the endpoint has a parameter of this name."""
        return name in vocabulary(cls).meanings

    @classmethod
    def takes(cls, name: str, value: Any) -> bool:  # noqa: ANN401  any JSON value
        """Tell whether the endpoint has this parameter and takes this value; one that is not read takes any."""
        if not cls.has_parameter(name):
            return False
        try:
            cls.model_validate({name: value})
        except ValidationError as error:
            return all(found["loc"][0] != name for found in error.errors(include_url=False))
        return True

    @classmethod
    def reads_boolean(cls, name: str) -> bool:
        """Tell whether the endpoint has this parameter and reads it as true or false."""
        return cls.has_parameter(name) and cls.model_fields[name].annotation is not Any and cls.takes(name, True)  # noqa: FBT003  a JSON value

    @classmethod
    def other_input_bytes(cls, fields: Mapping[str, Any]) -> int:
        """Return the bytes of unread inputs as JSON, and of what no API names: a server may read it, if it is text."""
        tables = vocabulary(cls)
        known, inputs = tables.meanings, tables.unread_inputs
        read = {
            name: value
            for name, value in fields.items()
            if value is not None and (name in inputs or (name not in known and not isinstance(value, int | float)))
        }
        return json_bytes(read) if read else 0

    def echo_size(self) -> InputSize:
        """Nothing of the input is repeated in the answer."""
        return InputSize()

    @classmethod
    def ceiling_to_write(cls, settings: ModelSettings) -> str:
        """Return the name under which a token ceiling that the client left open is written for a model."""
        del settings
        return cls.ceilings[0]

    @classmethod
    def reconcile(
        cls,
        fields: Mapping[str, Any],
        defaulted: Collection[str],
        permits: Callable[[str, int], bool],
    ) -> Mapping[str, Reconciled] | None:
        """Say what must change so that parameters which are coupled agree again after policy changed some.

        `fields` are each by itself within policy, `defaulted` names those that policy wrote because none was sent, and
        `permits` tells whether policy lets a parameter have a value. None when policy permits no valid request.
        """
        del fields, defaulted, permits
        return {}

    def check_together(self) -> None:
        """Raise InvalidRequest when parameters contradict each other."""


class StreamOptions(BaseModel):
    """The `stream_options` of a request; further members are forwarded as they came."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True)

    include_usage: bool | None = None
    """Whether the stream ends with an event that reports its usage."""


class GenerationRequest(EndpointRequest):
    """What the endpoints that generate text have in common."""

    temperature: Annotated[Temperature | None, Meaning(default=1)] = None
    """How much chance there is in the choice of tokens; 0, as given, makes a request deterministic."""
    top_p: Annotated[Share | None, Meaning(default=1)] = None
    """Share of probability from which tokens are chosen."""
    stream: Annotated[bool | None, Meaning(default=False, is_keyed=False)] = None
    """Whether the answer comes as server-sent events."""
    stream_options: Annotated[StreamOptions | None, Meaning(needs="stream", is_keyed=False)] = None
    """What a stream tells besides text; only with `stream`."""
    user: Annotated[str | None, Meaning(is_keyed=False, names_end_user=True)] = None
    """The end user: the customer behind an application's key."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer is asked for as server-sent events."""
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """Whether the client itself asked for the usage event of a stream."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def end_user(self) -> str | None:
        """The free `user` string, as given."""
        return self.user

    def check_together(self) -> None:
        """Refuse `stream_options` without `stream`."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options may only be given with stream: true; leave it out.", param="stream_options"
            )


class ChoicesRequest(GenerationRequest):
    """What the endpoints that answer with choices have in common."""

    n: Annotated[Choices | None, Meaning(default=1, is_shared_default=True)] = None
    """Choices to answer with, for each prompt."""
    max_tokens: Count | None = None
    """Most tokens a candidate may have."""
    seed: Seed | None = None
    """Makes a request deterministic."""


def count_inputs(given: str | list[Any]) -> int:
    """How many prompts or inputs a valid `Input` holds."""
    return len(given) if isinstance(given, list) and isinstance(given[0], str | list) else 1


def texts_of(given: str | list[Any]) -> Sequence[str]:
    """Every text of a valid `Input`; none when it holds token ids."""
    if isinstance(given, str):
        return (given,)
    return given if isinstance(given[0], str) else ()


def count_token_ids(given: str | list[Any]) -> int:
    """How many token ids a valid `Input` holds; 0 when it holds text."""
    if isinstance(given, str) or isinstance(given[0], str):
        return 0
    return sum(map(len, given)) if isinstance(given[0], list) else len(given)


def shown(value: Any) -> str:  # noqa: ANN401  any JSON value
    """Name a client's value in a message: numbers as they are, strings shortened, arrays and objects by their size."""
    if isinstance(value, dict):
        return f"an object of {len(value)} members"
    if isinstance(value, list):
        return f"an array of {len(value)} items"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f'"{_shortened(value)}"'
    return _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _invalid(cls: type[EndpointRequest], error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False)[0]
    param = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return InvalidRequest(f"{param} is missing; it must be {expectation(cls, param)}.", param=param)
    # Our own checks say which part is wrong, in words that follow the parameter's name; nothing when all of it is.
    part = str(first.get("ctx", {}).get("error", ""))
    wrong, it = (part, param) if part else (f" is {shown(first['input'])}", "it")
    return InvalidRequest(f"{param}{wrong}; {it} must be {expectation(cls, param)}.", param=param)


@lru_cache
def expectation(cls: type[EndpointRequest], param: str) -> str:
    """Say in words what a parameter may be, such as `an integer from 1 to 128`; read from its declared type."""
    schema: dict[str, Any] = cls.model_json_schema()
    definitions = schema.get("$defs", {})
    for name in param.split("."):
        schema = _described(schema.get("properties", {}).get(name, {}), definitions)
    return _in_words(schema)


def _described(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    for option in schema.get("anyOf", ()):
        if option.get("type") != "null":
            schema = option
            break
    reference = schema.get("$ref")
    return definitions[reference.rpartition("/")[2]] if reference else schema


_NOUNS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "object": "an object",
    "array": "an array",
}


def _in_words(schema: dict[str, Any]) -> str:
    said = schema.get("expected") or _NOUNS.get(schema.get("type", ""), "a valid value")
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{said} from {low} to {high}"
    return said if low is None else f"{said}, {low} or more"


@lru_cache
def number_type(cls: type[EndpointRequest], name: str) -> NumberType | None:
    """Return what kind of number a parameter is and its range; None when it is no number. One not read has no range."""
    if not cls.has_parameter(name):
        return None
    if cls.model_fields[name].annotation is Any:
        return (
            NumberType(is_integer=False, minimum=None, maximum=None)
            if vocabulary(cls).forms.get(name) is number
            else None
        )
    schema = cls.model_json_schema()
    schema = _described(schema["properties"][name], schema.get("$defs", {}))
    kind = schema.get("type", "")
    if kind not in {"integer", "number"}:
        return None
    return NumberType(kind == "integer", schema.get("minimum"), schema.get("maximum"))
