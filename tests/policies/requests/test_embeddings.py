"""The embeddings request: its input in every shape, and nothing generated."""

from __future__ import annotations

from typing import Any

import pytest

from policies.errors import InvalidRequest
from policies.requests.embeddings import EmbeddingRequest
from policies.requests.input_size import InputSize


@pytest.mark.parametrize(
    ("given", "inputs", "texts", "token_ids"),
    [
        pytest.param("a", 1, ["a"], 0, id="a text"),
        pytest.param(["a", "b"], 2, ["a", "b"], 0, id="texts"),
        pytest.param([1, 2], 1, [], 2, id="token ids"),
        pytest.param([[1, 2], [3]], 2, [], 3, id="lists of token ids"),
    ],
)
def test_inputs_are_counted(given: object, inputs: int, texts: list[str], token_ids: int) -> None:
    request = EmbeddingRequest.read({"input": given})
    size = request.input_size({"input": given})
    assert (request.prompt_count, request.choices, request.candidates) == (inputs, inputs, 0)
    assert size == InputSize(token_ids, sum(map(len, texts)), len(texts), verbatim=tuple(texts))
    assert request.token_ceiling == 0


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="no input"),
        pytest.param({"input": None}, id="null"),
        pytest.param({"input": []}, id="an empty array"),
        pytest.param({"input": {}}, id="an object"),
        pytest.param({"input": ["a", 1]}, id="a text and a token id"),
    ],
)
def test_no_input_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        EmbeddingRequest.read(fields)
    assert refused.value.param == "input"


def test_embeddings_come_whole_and_without_chance() -> None:
    request = EmbeddingRequest.read({"input": "a", "user": "u", "stream": True, "temperature": 1})
    assert (request.is_stream, request.wants_usage, request.temperature, request.seed) == (False, False, None, None)
    assert request.end_user == "u"
