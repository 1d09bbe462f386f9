"""Bytes of text and of JSON."""

from __future__ import annotations

from typing import Any

import pytest

from policies.requests.input_size import json_bytes, utf8_bytes


@pytest.mark.parametrize(
    ("texts", "measured"),
    [([], 0), ([""], 0), (["ab", "c"], 3), (["é", "漢", "😀"], 9), (["a", "é"], 3)],
)
def test_text_is_measured_in_utf8(texts: list[str], measured: int) -> None:
    assert utf8_bytes(texts) == measured


@pytest.mark.parametrize(
    ("value", "written"),
    [
        pytest.param({"a": []}, '{"a": []}', id="a space after a colon"),
        pytest.param([1, 2, 3], "[1, 2, 3]", id="and after a comma"),
        pytest.param({"a": None, "é": True}, '{"a": null, "é": true}', id="names and words"),
        pytest.param(10**30, "1" + 30 * "0", id="a number of any size"),
    ],
)
def test_json_is_measured_as_templates_write_it(value: Any, written: str) -> None:  # noqa: ANN401  any JSON value
    assert json_bytes(value) == len(written.encode())
