"""Which requests draw which advice."""

from __future__ import annotations

from typing import Any

import pytest

from policies.advisories import ADVICE, PROMPT_ENDS_IN_SPACE, advise
from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.dialects import view_of


def advised(endpoint: Endpoint, **fields: Any) -> tuple[str, ...]:  # noqa: ANN401  members of a request
    return advise(EffectiveRequest(endpoint, fields, view_of(endpoint, fields)))


@pytest.mark.parametrize(
    ("fields", "advisories"),
    [
        pytest.param({"prompt": "Once upon a "}, (PROMPT_ENDS_IN_SPACE,), id="a space at the end"),
        pytest.param({"prompt": " "}, (PROMPT_ENDS_IN_SPACE,), id="nothing but a space"),
        pytest.param({"prompt": ["a", "b "]}, (PROMPT_ENDS_IN_SPACE,), id="at the end of one of several"),
        pytest.param({"prompt": ["a ", "b "]}, (PROMPT_ENDS_IN_SPACE,), id="of two of them: one advisory"),
        pytest.param({"prompt": "Once upon a"}, (), id="no space"),
        pytest.param({"prompt": " a b\n"}, (), id="spaces elsewhere, and a line's end"),
        pytest.param({"prompt": ""}, (), id="an empty prompt"),
        pytest.param({"prompt": [220]}, (), id="token ids"),
        pytest.param({}, (), id="no prompt"),
        pytest.param({"prompt": "a", "suffix": "b "}, (), id="a suffix"),
    ],
)
def test_prompts_that_end_in_a_space_draw_advice(fields: dict[str, Any], advisories: tuple[str, ...]) -> None:
    assert advised(Endpoint.COMPLETIONS, **fields) == advisories


def test_only_completions_draw_it() -> None:
    assert advised(Endpoint.EMBEDDINGS, input="a ") == ()
    assert advised(Endpoint.CHAT, messages=[{"role": "user", "content": "a "}]) == ()


def test_each_advisory_says_what_to_do() -> None:
    assert set(ADVICE) == {PROMPT_ENDS_IN_SPACE}
    assert all(ADVICE.values())
