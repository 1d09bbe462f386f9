"""What is said of a parameter where it is declared arrives in the tables; one field is all that a new one takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from policies.requests.chat import ChatRequest
from policies.requests.completions import CompletionRequest
from policies.requests.fields import ChoicesRequest
from policies.requests.forms import number
from policies.requests.meaning import Meaning, Unread, vocabulary


class Request(ChoicesRequest):
    sparkle: Annotated[Annotated[int, Field(ge=0)] | None, Meaning(default=3, is_shared_default=True)] = None
    glow: Annotated[float | None, Meaning(default=1)] = None
    label: Annotated[str | None, Meaning(is_keyed=False)] = None
    scene: Annotated[Unread, Meaning(is_input=True)] = None
    twin: Annotated[int | None, Meaning(counts_as="sparkle")] = None
    names: dict[str, int] | None = None


def test_a_meaning_stands_in_every_table_it_is_for() -> None:
    tables = vocabulary(Request)
    assert {name: tables.defaults[name] for name in ("sparkle", "glow")} == {"sparkle": 3, "glow": 1}
    assert tables.shared_defaults == {"n": 1, "sparkle": 3}
    assert tables.unkeyed == {"stream", "stream_options", "user", "label"}
    assert tables.unread_inputs == {"scene"}
    assert tables.counts_as == {"twin": "sparkle"}


def test_numbers_have_their_form_without_being_told() -> None:
    forms = vocabulary(Request).forms
    assert {name for name, form in forms.items() if form is number} >= {"sparkle", "glow", "twin", "n", "seed"}
    assert not forms.keys() & {"label", "scene", "names", "stream"}


def test_the_api_says_what_absent_parameters_are() -> None:
    assert vocabulary(CompletionRequest).defaults["max_tokens"] == 16
    assert "max_tokens" not in vocabulary(ChatRequest).defaults
