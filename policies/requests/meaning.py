"""What the gateway knows of a parameter beyond its type, said once, where the parameter is declared.

An endpoint's parameters are the fields of its request type; a field's `Meaning` says what charges, cache keys, usage
records and the reference have to know of it. A parameter without one is what most are: without a default of the API,
part of the cache key. This file knows no parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin

from policies.requests.forms import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

Unread = Any
"""The type of a parameter that the endpoint's API names and the gateway does not read: forwarded as it came."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What there is to know of a parameter.

    `default` is the API's value for an absent one, and a policy's bound holds for it too; `is_shared_default` says
    that every server has that default, so that the cache takes absent and default for the same; `counts_as` names the
    parameter whose value an absent one has, `needs` the one that it says nothing without. `is_input`: the model reads a
    parameter that the gateway does not read, so that its bytes count as input. `is_keyed` is False for what says
    nothing about the answer's content. `form` writes the one value that stands for all its spellings, None for what is
    as good as absent; numbers have theirs without being told. `names_end_user` is for who it is that the upstream is
    told of; `max_items` is how many texts there may be.
    """

    default: Any = None  # a JSON value
    is_shared_default: bool = False
    counts_as: str | None = None
    needs: str | None = None
    is_input: bool = False
    is_keyed: bool = True
    names_end_user: bool = False
    max_items: int | None = None
    form: Callable[[object], object] | None = None


_PLAIN: Final = Meaning()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parameters of one request type in tables, as those who meet every request need them."""

    meanings: Mapping[str, Meaning]
    defaults: Mapping[str, Any]
    shared_defaults: Mapping[str, Any]
    counts_as: Mapping[str, str]
    needs: Mapping[str, str]
    unread_inputs: frozenset[str]
    unkeyed: frozenset[str]
    forms: Mapping[str, Callable[[object], object]]


@lru_cache
def vocabulary(kind: type[BaseModel]) -> Vocabulary:
    """Return the tables of a request type, made of its fields once."""
    meanings = {name: _meaning(field) for name, field in kind.model_fields.items()}
    return Vocabulary(
        meanings=meanings,
        defaults={name: each.default for name, each in meanings.items() if each.default is not None},
        shared_defaults={name: each.default for name, each in meanings.items() if each.is_shared_default},
        counts_as={name: each.counts_as for name, each in meanings.items() if each.counts_as is not None},
        needs={name: each.needs for name, each in meanings.items() if each.needs is not None},
        unread_inputs=frozenset(name for name, each in meanings.items() if each.is_input),
        unkeyed=frozenset(name for name, each in meanings.items() if not each.is_keyed),
        forms={name: form for name, field in kind.model_fields.items() if (form := _form(field, meanings[name]))},
    )


def _meaning(field: FieldInfo) -> Meaning:
    return next((each for each in field.metadata if isinstance(each, Meaning)), _PLAIN)


def _form(field: FieldInfo, meaning: Meaning) -> Callable[[object], object] | None:
    return meaning.form or (number if _is_number(field.annotation) else None)


def _is_number(annotation: Any) -> bool:  # noqa: ANN401  whatever a field is annotated with
    """Tell whether a field's type is a number, optional or with metadata around it."""
    if get_origin(annotation) in {Union, UnionType, Annotated}:
        return any(map(_is_number, get_args(annotation)))
    return annotation in {int, float}
