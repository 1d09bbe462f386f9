"""The three dialects: where the model stands, and S3's lists."""

from __future__ import annotations

from typing import Any

import pytest

from policies.errors import InvalidRequest
from policies.requests.asked import Action, AskedRequest, Dialect, Endpoint
from policies.requests.dialects import read_request, view_of


def read(
    fields: dict[str, Any],
    *,
    dialect: Dialect = Dialect.OPENAI,
    endpoint: Endpoint = Endpoint.COMPLETIONS,
    path_model: str | None = None,
    api_version: str | None = None,
) -> AskedRequest:
    return read_request(
        endpoint=endpoint, dialect=dialect, fields=fields, path_model=path_model, api_version=api_version
    )


@pytest.mark.parametrize(
    ("dialect", "body", "path", "model"),
    [
        pytest.param(Dialect.OPENAI, {"model": "m"}, None, "m", id="the body names it"),
        pytest.param(Dialect.ENGINES, {}, "m", "m", id="the path names it"),
        pytest.param(Dialect.ENGINES, {}, "org/model", "org/model", id="a name with a slash"),
        pytest.param(Dialect.ENGINES, {"model": None}, "m", "m", id="null in the body is absent"),
        pytest.param(Dialect.ENGINES, {"model": "m"}, "m", "m", id="path and body agree"),
        pytest.param(Dialect.AZURE, {}, "m", "m", id="the deployment names it"),
        pytest.param(Dialect.AZURE, {"model": "other"}, "m", "m", id="Azure ignores another in the body"),
        pytest.param(Dialect.AZURE, {"model": 7}, "m", "m", id="Azure ignores anything in the body"),
    ],
)
def test_the_model_is_found(dialect: Dialect, body: dict[str, Any], path: str | None, model: str) -> None:
    asked = read({"prompt": "x", **body}, dialect=dialect, path_model=path, api_version="2024-10-21")
    assert (asked.model, dict(asked.fields), asked.api_version) == (model, {"prompt": "x"}, "2024-10-21")


@pytest.mark.parametrize(
    ("dialect", "body", "path", "said"),
    [
        pytest.param(Dialect.OPENAI, {}, None, "model is missing", id="no model"),
        pytest.param(Dialect.OPENAI, {"model": None}, None, "model is missing", id="a null model"),
        pytest.param(Dialect.OPENAI, {"model": ""}, None, 'model is ""', id="an empty model"),
        pytest.param(Dialect.OPENAI, {"model": 1}, None, "model is 1", id="a number"),
        pytest.param(Dialect.OPENAI, {"model": ["m"]}, None, "model is an array of 1 items", id="a list"),
        pytest.param(Dialect.ENGINES, {"model": "x"}, "m", 'model is "x", but the path names "m"', id="two models"),
        pytest.param(Dialect.ENGINES, {}, None, "The path names no model", id="no model in the path"),
    ],
)
def test_no_model_or_two_are_refused(dialect: Dialect, body: dict[str, Any], path: str | None, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        read(body, dialect=dialect, path_model=path)
    assert refused.value.param == "model"


@pytest.mark.parametrize("api_version", [None, ""])
def test_azure_needs_an_api_version(api_version: str | None) -> None:
    with pytest.raises(InvalidRequest, match="api-version"):
        read({}, dialect=Dialect.AZURE, path_model="m", api_version=api_version)


@pytest.mark.parametrize(
    ("name", "sent", "meant"),
    [
        pytest.param("echo", [True], True, id="a list of one bool"),
        pytest.param("echo", [False], False, id="a list of one false"),
        pytest.param("best_of", [["x", 3]], 3, id="one pair is its count"),
        pytest.param("best_of", {"x": 3}, 3, id="an object of one pair is its count"),
        pytest.param("best_of", [3], 3, id="a list of one count is its element"),
        pytest.param("best_of", [{"x": 3}], 3, id="a list of one object likewise"),
        pytest.param("logit_bias", [["50256", -100.0], ["7", 1.5]], {"50256": -100.0, "7": 1.5}, id="pairs are a map"),
        pytest.param("logit_bias", [[50256, -100]], {"50256": -100}, id="pairs of numbers are a map"),
        pytest.param("logit_bias", [[1.0, 2]], {"1": 2}, id="a token id written as 1.0"),
        pytest.param("logit_bias", [{"1": 2, "3": 4}], {"1": 2, "3": 4}, id="a list of one map is its element"),
        pytest.param("logit_bias", [], {}, id="no pairs are an empty map"),
    ],
)
def test_lists_with_a_plain_meaning_are_normalised(name: str, sent: object, meant: object) -> None:
    asked = read({"model": "m", name: sent, "temperature": 1})
    assert dict(asked.fields) == {name: meant, "temperature": 1}
    [adjustment] = asked.adjustments
    assert (adjustment.parameter, adjustment.before, adjustment.after) == (name, sent, meant)
    assert adjustment.action is Action.NORMALISE


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        pytest.param("echo", [], id="an empty list of bools"),
        pytest.param("echo", [True, False], id="two bools"),
        pytest.param("echo", [1], id="a list of one number"),
        pytest.param("echo", {"a": True}, id="an object for a bool"),
        pytest.param("best_of", [], id="no count"),
        pytest.param("best_of", {}, id="an empty object"),
        pytest.param("best_of", [["a", 1], ["b", 2]], id="two counts"),
        pytest.param("best_of", {"a": 1, "b": 2}, id="two counts in an object"),
        pytest.param("best_of", [3, 4], id="two counts without names"),
        pytest.param("best_of", [[3]], id="a list in a list"),
        pytest.param("best_of", ["3"], id="a count in quotes"),
        pytest.param("best_of", [None], id="null for a count"),
        pytest.param("best_of", [["a", "3"]], id="a count that is text"),
        pytest.param("best_of", [["a", None]], id="a null count"),
        pytest.param("logit_bias", [["1", 2], ["1", 3]], id="one token twice"),
        pytest.param("logit_bias", [["1", 2], [1, 3]], id="one token twice in two spellings"),
        pytest.param("logit_bias", [["1", 2, 3]], id="a pair of three"),
        pytest.param("logit_bias", [[None, 2]], id="no token"),
        pytest.param("logit_bias", [[1.5, 2]], id="half a token"),
        pytest.param("logit_bias", [[1.0, 2], [1, 3]], id="one token twice as numbers"),
        pytest.param("logit_bias", [{"1": 2}, {"3": 4}], id="two maps"),
        pytest.param("logit_bias", [["x", 2]], id="a token that is no id"),
        pytest.param("n", [2], id="a list where S3 has none"),
        pytest.param("temperature", [1], id="a list for a number"),
    ],
)
def test_lists_without_one_are_refused(name: str, sent: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read({"model": "m", name: sent})
    assert refused.value.param == name


def test_a_whole_s3_request_is_read() -> None:
    sent = {
        "model": "m",
        "prompt": ["a"],
        "stream": None,
        "suffix": None,
        "temperature": None,
        "n": 1,
        "echo": [False],
        "stop": ["x"],
        "best_of": [["count", 2]],
        "logit_bias": [["50256", -100.0]],
        "user": None,
    }
    asked = read(sent)
    assert [a.parameter for a in asked.adjustments] == ["echo", "best_of", "logit_bias"]
    assert list(asked.fields) == [name for name in sent if name != "model"]
    assert asked.fields["prompt"] == ["a"]
    assert asked.fields["stop"] == ["x"]


def test_what_was_handed_in_is_left_alone() -> None:
    sent = {"model": "m", "echo": [True]}
    read(sent)
    assert sent == {"model": "m", "echo": [True]}


def test_other_endpoints_are_not_normalised() -> None:
    fields = {"model": "m", "messages": [{"role": "user"}], "logit_bias": [["1", 2]]}
    asked = read(fields, endpoint=Endpoint.CHAT)
    assert (asked.adjustments, asked.fields["logit_bias"]) == ((), [["1", 2]])


def test_values_keep_their_type_beside_the_view() -> None:
    asked = read({"model": "m", "n": 1.0, "seed": 2**53 + 1, "x": {"a": [1, None]}, "stop": None})
    assert repr(dict(asked.fields)) == repr({"n": 1.0, "seed": 2**53 + 1, "x": {"a": [1, None]}, "stop": None})
    assert repr(view_of(Endpoint.COMPLETIONS, asked.fields).n) == "1"  # type: ignore[union-attr]


def test_azure_names_the_model_of_a_response_in_the_body() -> None:
    fields = {"model": "m", "input": "x"}
    asked = read(fields, dialect=Dialect.AZURE, endpoint=Endpoint.RESPONSES, api_version="2025-04-01-preview")
    assert (asked.model, dict(asked.fields)) == ("m", {"input": "x"})
    with pytest.raises(InvalidRequest, match="model is missing"):
        read({"input": "x"}, dialect=Dialect.AZURE, endpoint=Endpoint.RESPONSES, api_version="1")
    with pytest.raises(InvalidRequest, match="api-version"):
        read(fields, dialect=Dialect.AZURE, endpoint=Endpoint.RESPONSES)
