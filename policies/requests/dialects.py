"""The three spellings of the API, read into one `AskedRequest` (SPEC §2, §3).

Knows where each dialect keeps its model, and the shapes that one client library writes where the API has no lists (S3).
Ranges and types of parameters are in the endpoints' modules; which paths exist is the table of routes' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policies.errors import InvalidRequest
from policies.requests.asked import Action, Adjustment, AskedRequest, Dialect, Endpoint
from policies.requests.chat import ChatRequest
from policies.requests.completions import CompletionRequest
from policies.requests.completions import check_model_bounds as check_logprobs
from policies.requests.embeddings import EmbeddingRequest
from policies.requests.fields import shown
from policies.requests.responses import ResponsesRequest, check_model_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from policies.catalog import Model

__all__ = ["REQUEST_TYPES", "check_model_bounds", "read_request", "view_of"]

REQUEST_TYPES: Mapping[Endpoint, type[ChatRequest | CompletionRequest | EmbeddingRequest | ResponsesRequest]] = {
    Endpoint.COMPLETIONS: CompletionRequest,
    Endpoint.CHAT: ChatRequest,
    Endpoint.EMBEDDINGS: EmbeddingRequest,
    Endpoint.RESPONSES: ResponsesRequest,
}

_PAIR = 2
_CONTAINERS = frozenset({list, dict})


def read_request(
    *,
    endpoint: Endpoint,
    dialect: Dialect,
    fields: Mapping[str, Any],
    path_model: str | None,
    api_version: str | None,
) -> AskedRequest:
    """Read a body's members as a valid request.

    `path_model` is the model that the path names, percent-decoded, in the dialects that have one there. Raises
    InvalidRequest, naming the parameter, its value and its range.
    """
    model = _model(dialect, fields.get("model"), path_model)
    if dialect is Dialect.AZURE and not api_version:
        raise InvalidRequest(
            "The query must carry an api-version, such as ?api-version=2024-10-21.", param="api-version"
        )
    members = dict(fields)
    members.pop("model", None)
    adjustments = _normalise(members) if endpoint is Endpoint.COMPLETIONS else ()
    return AskedRequest(
        endpoint=endpoint,
        dialect=dialect,
        model=model,
        fields=members,
        view=view_of(endpoint, members),
        adjustments=adjustments,
        api_version=api_version,
    )


def view_of(
    endpoint: Endpoint, fields: Mapping[str, Any]
) -> ChatRequest | CompletionRequest | EmbeddingRequest | ResponsesRequest:
    """Validate members (without `model`) as a request to an endpoint. Raises InvalidRequest."""
    return REQUEST_TYPES[endpoint].read(fields)


def check_model_bounds(asked: AskedRequest, model: Model) -> None:
    """Refuse what this model does not take, though the API does. Raises InvalidRequest."""
    check_logprobs(asked, model)
    check_model_state(asked, model)


def _model(dialect: Dialect, given: Any, path_model: str | None) -> str:  # noqa: ANN401  any JSON value
    # Azure has no path with a model for responses; its routes for everything else have one.
    if dialect is Dialect.OPENAI or (dialect is Dialect.AZURE and path_model is None):
        return _model_of_body(given)
    if not path_model:
        raise InvalidRequest("The path names no model.", param="model")
    # Azure's official client leaves a model in the body, which that API ignores.
    if dialect is Dialect.ENGINES and given is not None and given != path_model:
        raise InvalidRequest(
            f"model is {shown(given)}, but the path names {shown(path_model)}; leave it out of the body.", param="model"
        )
    return path_model


def _model_of_body(given: Any) -> str:  # noqa: ANN401  any JSON value
    if given is None:
        raise InvalidRequest("model is missing; it must be the name of a model, a string.", param="model")
    if not isinstance(given, str) or not given:
        raise InvalidRequest(f"model is {shown(given)}; it must be the name of a model, a string.", param="model")
    return given


def _normalise(members: dict[str, Any]) -> tuple[Adjustment, ...]:
    """Write S3's lists as what the API takes, in place; a shape without a plain meaning is left to be refused."""
    adjustments: list[Adjustment] = []
    for name, read in _LIST_SHAPES.items():
        before = members.get(name)
        if type(before) in _CONTAINERS:
            after = read(before)
            if after is not None and after is not before:
                members[name] = after
                adjustments.append(Adjustment(name, before, after, Action.NORMALISE))
    return tuple(adjustments)


def _only_element(value: Any) -> Any:  # noqa: ANN401  any JSON value
    """Return a one-element list's element, unless that is a list too, such as a pair; else the value itself."""
    is_one = isinstance(value, list) and len(value) == 1 and not isinstance(value[0], list)
    return value[0] if is_one else value


def _only_count(value: Any) -> Any:  # noqa: ANN401  any JSON value
    element = _only_element(value)
    pairs = _pairs(element)
    return pairs[0][1] if pairs is not None and len(pairs) == 1 else element


def _as_map(value: Any) -> Any:  # noqa: ANN401  any JSON value
    element = _only_element(value)
    pairs = None if isinstance(element, dict) else _pairs(element)
    if pairs is None:
        return element
    mapped = dict(pairs)
    return mapped if len(mapped) == len(pairs) else None


def _pairs(value: Any) -> list[tuple[str, Any]] | None:  # noqa: ANN401  any JSON value
    """Read `[[name, value], …]` or an object as pairs; None when it is neither."""
    if isinstance(value, dict):
        return list(value.items())
    if not isinstance(value, list) or not all(isinstance(item, list) and len(item) == _PAIR for item in value):
        return None
    names = [_name(item[0]) for item in value]
    return None if None in names else [(str(name), item[1]) for name, item in zip(names, value, strict=True)]


def _name(value: Any) -> str | None:  # noqa: ANN401  any JSON value
    """Return the text of a pair's name, which may be a token id as well: `1` and `1.0` are "1"."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return str(value) if type(value) in {str, int} else None


_LIST_SHAPES: Mapping[str, Callable[[Any], Any]] = {
    "echo": _only_element,
    "best_of": _only_count,
    "logit_bias": _as_map,
}
