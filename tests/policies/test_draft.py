"""A request under work: what is written shows in fields and changes, and what is undone in neither."""

from __future__ import annotations

from typing import Any

import pytest
from ruling import MESSAGES, MODEL, ask

from policies.draft import Draft, joined, may_write
from policies.merging import Forced, Part
from policies.requests.asked import Action, Adjustment, Endpoint
from policies.requests.dialects import REQUEST_TYPES

Written = list[tuple[str, Any]]


def draft_of(fields: dict[str, Any], endpoint: Endpoint = Endpoint.COMPLETIONS) -> Draft:
    return Draft(ask(fields, endpoint), MODEL, {}, lambda end_user: f"pseudonym of {end_user}")


@pytest.mark.parametrize(
    ("sent", "writes", "fields", "changes"),
    [
        pytest.param({"n": 2}, [("n", 1)], {"n": 1}, [("n", 2, 1)], id="a change"),
        pytest.param({}, [("n", 1)], {"n": 1}, [("n", None, 1)], id="an addition"),
        pytest.param({"n": 2}, [("n", None)], {}, [("n", 2, None)], id="a removal"),
        pytest.param({"n": 3}, [("n", 2), ("n", 1)], {"n": 1}, [("n", 3, 1)], id="two changes are one"),
        pytest.param({}, [("n", 2), ("n", None)], {}, [], id="an addition undone is none"),
        pytest.param({"n": None}, [("n", 2), ("n", None)], {"n": None}, [], id="null stays where it was"),
        pytest.param({"n": 2, "seed": 1}, [("n", 1)], {"n": 1, "seed": 1}, [("n", 2, 1)], id="the order stays"),
    ],
)
def test_what_is_written_is_noted(
    sent: dict[str, Any], writes: Written, fields: dict[str, Any], changes: list[tuple[str, Any, Any]]
) -> None:
    draft = draft_of(sent)
    for name, value in writes:
        draft.write(name, value, Action.CLAMP, "p")
    assert list(draft.fields.items()) == list(fields.items())
    assert list(draft.adjustments.values()) == [Adjustment(*change, Action.CLAMP, "p") for change in changes]


def test_what_was_written_for_nothing_sent_is_known() -> None:
    draft = draft_of({"n": 2})
    draft.write("n", 1, Action.CLAMP, "p")
    draft.write("seed", 1, Action.DEFAULT, "p")
    assert draft.defaulted() == {"seed"}


@pytest.mark.parametrize(
    ("endpoint", "name", "value", "expected"),
    [
        pytest.param(Endpoint.COMPLETIONS, "n", 2, True, id="a value that the endpoint takes"),
        pytest.param(Endpoint.COMPLETIONS, "n", 0, False, id="none that it refuses"),
        pytest.param(Endpoint.CHAT, "best_of", 2, False, id="nothing of another endpoint"),
        pytest.param(Endpoint.CHAT, "top_k", 2, True, id="what only servers know, to generate"),
        pytest.param(Endpoint.EMBEDDINGS, "top_k", 2, False, id="and nothing like it for embeddings"),
        pytest.param(Endpoint.CHAT, "max_output_tokens", 2, True, id="a ceiling under any name"),
        pytest.param(Endpoint.EMBEDDINGS, "max_tokens", 2, False, id="where something is generated"),
    ],
)
def test_policy_may_write(endpoint: Endpoint, name: str, value: object, *, expected: bool) -> None:
    assert may_write(REQUEST_TYPES[endpoint], name, value) is expected


@pytest.mark.parametrize(
    ("sent", "name", "expected"),
    [
        pytest.param({"user": "u"}, "user", "pseudonym of u", id="of the end user"),
        pytest.param({"user": "u", "safety_identifier": "s"}, "safety_identifier", "pseudonym of s", id="by that name"),
        pytest.param({"user": "u"}, "safety_identifier", "pseudonym of u", id="or by the other"),
        pytest.param({}, "user", "pseudonym of None", id="or of nobody in particular"),
    ],
)
def test_a_pseudonym_is_forced(sent: dict[str, Any], name: str, expected: str) -> None:
    draft = draft_of({"messages": MESSAGES, **sent}, Endpoint.CHAT)
    assert draft.forced(name, Part(Forced.PSEUDONYM, "p")) == expected


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected"),
    [
        pytest.param(Endpoint.COMPLETIONS, {}, "max_tokens", id="completions"),
        pytest.param(Endpoint.CHAT, {"messages": MESSAGES}, "max_completion_tokens", id="a chat's, by the model"),
        pytest.param(Endpoint.EMBEDDINGS, {"input": "x"}, None, id="none where nothing is generated"),
    ],
)
def test_an_open_ceiling_is_written_as(endpoint: Endpoint, fields: dict[str, Any], expected: str | None) -> None:
    assert draft_of(fields, endpoint).ceiling_to_write == expected


DROPPED, TOLD = Adjustment("max_tokens", 15, None, Action.DROP, "a"), Adjustment("n", 8, 4, Action.CLAMP, "a")


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        pytest.param((), (TOLD, DROPPED), id="nothing more"),
        pytest.param(
            (Adjustment("max_tokens", None, 50, Action.DEFAULT, "b"),),
            (TOLD, Adjustment("max_tokens", 15, 50, Action.DEFAULT, "b")),
            id="what was dropped and written is told of once, from what was sent",
        ),
        pytest.param((Adjustment("max_tokens", None, 15, Action.DEFAULT, "b"),), (TOLD,), id="what was undone is not"),
        pytest.param(
            (Adjustment("top_p", None, 1, Action.DEFAULT, "b"),),
            (TOLD, DROPPED, Adjustment("top_p", None, 1, Action.DEFAULT, "b")),
            id="another parameter",
        ),
    ],
)
def test_changes_are_put_together(later: tuple[Adjustment, ...], expected: tuple[Adjustment, ...]) -> None:
    assert joined((TOLD, DROPPED), later) == expected
