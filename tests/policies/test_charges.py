from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from policies.catalog import Model, ModelSettings, TextCount
from policies.charges import (
    NOTHING,
    Charged,
    Seen,
    charge,
    charge_of_hit,
    check_input,
    close_ceiling,
    worst_case,
    worst_case_if_held,
)
from policies.errors import InvalidRequest
from policies.requests.asked import EffectiveRequest, Endpoint
from policies.requests.dialects import view_of
from policies.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence


def model(**settings: Any) -> Model:  # noqa: ANN401  settings of a model
    return Model("m", ModelSettings(deployments=[{"upstream": "u"}], **settings))


def effective(endpoint: Endpoint = Endpoint.COMPLETIONS, **fields: Any) -> EffectiveRequest:  # noqa: ANN401
    if endpoint is Endpoint.CHAT:
        fields = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return EffectiveRequest(endpoint, fields, view_of(endpoint, fields))


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        pytest.param(effective(prompt=[1, 2], max_tokens=10), (2, 10), id="one prompt, one candidate"),
        pytest.param(effective(prompt=[1, 2], max_tokens=10, n=3), (2, 30), id="n candidates"),
        pytest.param(
            effective(prompt=[1, 2], max_tokens=10, n=2, best_of=5), (2, 50), id="best_of of them are generated"
        ),
        pytest.param(effective(prompt=[[1], [2, 3]], max_tokens=10, n=3), (3, 60), id="for every prompt"),
        pytest.param(effective(prompt=[1, 2]), (2, 16), id="the API's default ceiling"),
        pytest.param(effective(prompt=[1, 2], max_tokens=0), (2, 0), id="nothing is generated"),
        pytest.param(effective(Endpoint.EMBEDDINGS, input=[1, 2, 3]), (3, 0), id="embeddings have no output"),
        pytest.param(effective(prompt=[1], max_tokens=10**18, n=128), (1, 10**15), id="an absurd ceiling"),
    ],
)
def test_worst_cases(request_: EffectiveRequest, tokens: tuple[int, int]) -> None:
    worst = worst_case(request_, model())
    assert (worst.input_tokens, worst.output_tokens, worst.is_bounded) == (*tokens, True)
    assert worst.tokens == sum(tokens)
    assert worst.candidates == request_.view.candidates


@pytest.mark.parametrize(
    ("request_", "candidates"),
    [
        pytest.param(effective(Endpoint.CHAT, n=2, best_of=9, max_tokens=10), 9, id="chat: best_of"),
        pytest.param(effective(Endpoint.CHAT, n_cmpl=9, max_tokens=10), 9, id="chat: a server's own name"),
        pytest.param(effective(prompt=[[1], [2]], n=2, n_cmpl=9, max_tokens=10), 18, id="completions, for each prompt"),
        pytest.param(effective(Endpoint.RESPONSES, input="x", n=3, max_output_tokens=10), 3, id="responses: n"),
        pytest.param(effective(Endpoint.RESPONSES, input="x", best_of=4, max_output_tokens=10), 4, id="and best_of"),
        pytest.param(effective(Endpoint.CHAT, n=2, best_of="9", n_cmpl=-1, max_tokens=10), 2, id="none of them"),
        pytest.param(effective(Endpoint.EMBEDDINGS, input=[1], n=9, n_cmpl=9), 0, id="embeddings generate nothing"),
    ],
)
def test_candidates_under_any_name_are_held(request_: EffectiveRequest, candidates: int) -> None:
    worst = worst_case(request_, model())
    assert (worst.candidates, worst.output_tokens) == (candidates, candidates * 10)


def test_absurd_candidates_are_taken_as_more_than_any_limit() -> None:
    worst = worst_case(effective(prompt=[1], n_cmpl=10**4000, max_tokens=10**4000), model())
    assert (worst.candidates, worst.output_tokens) == (10**15, 10**15)


def test_the_worst_case_is_priced() -> None:
    priced = model(price={"input": 1.0, "output": 10.0})
    assert worst_case(effective(prompt=[1, 2], max_tokens=10), priced).cost_microdollars == 102


def test_the_worst_case_is_never_below_a_charge_whose_input_the_upstream_had_cached() -> None:
    priced = model(price={"input": 1.0, "output": 10.0, "cached_input": 2.0})
    request = effective(prompt=[1, 2], max_tokens=10)
    worst = worst_case(request, priced)
    charged = charge(request, priced, worst, Seen(Usage(2, 10, cached_input_tokens=2), **SERVED))
    assert (worst.cost_microdollars, charged.cost_microdollars) == (104, 104)


def test_an_open_ceiling_without_any_setting_is_not_bounded() -> None:
    assert not worst_case(effective(Endpoint.CHAT), model()).is_bounded


@pytest.mark.parametrize(
    ("request_", "settings", "written"),
    [
        pytest.param(effective(prompt="x"), {}, {"max_tokens": 16}, id="completions: the API's default"),
        pytest.param(effective(prompt="x", max_tokens=None), {}, {"max_tokens": 16}, id="null is as absent"),
        pytest.param(effective(prompt="x", max_tokens=3), {}, {}, id="a ceiling that was given stays"),
        pytest.param(effective(prompt="x", max_tokens=0), {}, {}, id="so does one of nothing"),
        pytest.param(
            effective(Endpoint.CHAT),
            {"max_output_tokens": 99},
            {"max_completion_tokens": 99},
            id="chat: the model's own",
        ),
        pytest.param(
            effective(Endpoint.CHAT),
            {"max_output_tokens": 99, "token_ceiling": "max_tokens"},
            {"max_tokens": 99},
            id="under the name that the model takes",
        ),
        pytest.param(
            effective(Endpoint.CHAT, max_tokens=5), {"max_output_tokens": 99}, {}, id="given under its old name"
        ),
        pytest.param(effective(Endpoint.EMBEDDINGS, input="x"), {}, {}, id="embeddings have none"),
        pytest.param(
            effective(Endpoint.RESPONSES, input="x"),
            {"max_output_tokens": 99, "token_ceiling": "max_tokens"},
            {"max_output_tokens": 99},
            id="responses: under their only name",
        ),
        pytest.param(effective(Endpoint.RESPONSES, input="x", max_output_tokens=5), {}, {}, id="responses: given"),
    ],
)
def test_open_ceilings_are_written(request_: EffectiveRequest, settings: Any, written: dict[str, int]) -> None:  # noqa: ANN401
    closed, adjustments = close_ceiling(request_, model(**settings))
    assert {each.parameter: each.after for each in adjustments} == written
    assert closed.fields == {**request_.fields, **written}
    assert closed.view.candidates == 0 or closed.view.token_ceiling is not None


def test_the_context_window_leaves_a_ceiling() -> None:
    closed, _ = close_ceiling(effective(Endpoint.CHAT), model(context_window=1_000))
    worst = worst_case(closed, model(context_window=1_000))
    assert worst.tokens == 1_000


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="nothing is configured"),
        pytest.param({"context_window": 5}, id="the input may fill the context window"),
    ],
)
def test_a_ceiling_that_nothing_says_is_asked_for_by_naming_the_setting(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match=r"models\.m\.max_output_tokens") as caught:
        close_ceiling(effective(Endpoint.CHAT), model(**settings))
    assert caught.value.param == "max_completion_tokens"


@pytest.mark.parametrize(
    ("request_", "settings", "output_tokens"),
    [
        pytest.param(effective(prompt=[1], n=2), {}, 32, id="the API's default for each candidate"),
        pytest.param(effective(Endpoint.CHAT, n=2), {"max_output_tokens": 9}, 18, id="the model's for each"),
        pytest.param(effective(Endpoint.CHAT), {}, 0, id="none where nothing says one"),
        pytest.param(effective(prompt=[1], max_tokens=7), {}, 7, id="what the request says"),
    ],
)
def test_what_a_limit_would_hold_of_a_request_that_none_holds(
    request_: EffectiveRequest, settings: dict[str, int], output_tokens: int
) -> None:
    asked = model(**settings)
    worst = worst_case(request_, asked)
    held = worst_case_if_held(request_, asked, worst)
    assert (held.input_tokens, held.output_tokens) == (worst.input_tokens, output_tokens)


def test_an_input_that_is_only_named_needs_a_context_window_where_limits_count_it() -> None:
    named = effective(Endpoint.RESPONSES, input="x", previous_response_id="resp_1")
    with pytest.raises(InvalidRequest, match=r"models\.m\.context_window") as caught:
        check_input(named, model())
    assert caught.value.code == "input_unbounded"
    check_input(named, model(context_window=100))
    check_input(effective(Endpoint.RESPONSES, input="x"), model())


ONE = effective(prompt=[1, 2, 3], max_tokens=20)
STREAM = effective(prompt=[1, 2, 3], max_tokens=20, stream=True)
TWO = effective(prompt=[1, 2, 3], max_tokens=20, n=2)
THREE = effective(prompt=[1, 2, 3], max_tokens=20, n=3)
PROMPTS = effective(prompt=[[1, 2], [3]], max_tokens=20)
TEXTS = effective(prompt=["a" * 40, "b" * 40], max_tokens=20)
BEST = effective(prompt=[1, 2, 3], max_tokens=20, best_of=3)
BEST_TWO = effective(prompt=[1, 2, 3], max_tokens=20, n=2, best_of=3)
CHAT_BEST = effective(Endpoint.CHAT, max_tokens=20, n=2, best_of=9)
CHAT_MORE = effective(Endpoint.CHAT, max_tokens=20, n_cmpl=9)
ECHO = effective(prompt="a" * 40, max_tokens=20, echo=True)
ECHO_STREAM = effective(prompt="a" * 40, max_tokens=20, echo=True, stream=True)
ECHO_WORDS = effective(prompt="a b c", max_tokens=20, echo=True, stream=True)
ECHO_TWO = effective(prompt="a" * 4_000, max_tokens=1_000, echo=True, n=2)
ECHO_PROMPTS = effective(prompt=["a" * 40, "b" * 80], max_tokens=20, echo=True, n=2)
ECHO_IDS = effective(prompt=[1] * 1_000, max_tokens=1_000, echo=True, n=2)
SCORING = effective(prompt=["a" * 40, "b" * 40], max_tokens=0, echo=True, logprobs=1)
OPEN = effective(Endpoint.RESPONSES, input="abc", previous_response_id="r", max_output_tokens=20, stream=True)
EMBEDDINGS = effective(Endpoint.EMBEDDINGS, input=["a" * 40, "b" * 40])
SERVED = {"is_served": True, "is_ended": True}
LEFT = {"is_served": True, "is_abandoned": True}


@pytest.mark.parametrize(
    ("request_", "seen", "charged"),
    [
        pytest.param(
            ONE, Seen(Usage(3, 9, 2, 4), **SERVED), Charged(3, 9, 2, 4, known="reported"), id="a report is believed"
        ),
        pytest.param(ONE, Seen(Usage(99, 99), **SERVED), Charged(99, 99, known="reported"), id="also above the hold"),
        pytest.param(
            ONE,
            Seen(Usage(3, 1), 9, 80, **SERVED),
            Charged(3, 1, known="reported"),
            id="for one choice also below our count",
        ),
        pytest.param(
            TWO,
            Seen(Usage(3, 9), 0, 80, **SERVED),
            Charged(3, 20, known="counted"),
            id="of several choices not below it",
        ),
        pytest.param(
            THREE, Seen(None, 0, 3, choices_with_text=3, **SERVED), Charged(3, 3, known="counted"), id="one a choice"
        ),
        pytest.param(
            THREE, Seen(None, 0, 12, choices_with_text=2, **SERVED), Charged(3, 3, known="counted"), id="or by bytes"
        ),
        pytest.param(
            TWO, Seen(Usage(3, 9), 99, 0, **SERVED), Charged(3, 40, known="counted"), id="which is never above the hold"
        ),
        pytest.param(
            PROMPTS,
            Seen(Usage(2, 30), **SERVED),
            Charged(3, 30, known="counted"),
            id="of several prompts all are counted",
        ),
        pytest.param(STREAM, Seen(None, 7, 8, **SERVED), Charged(3, 7, known="counted"), id="no report: events"),
        pytest.param(
            STREAM, Seen(None, 1, 30, **SERVED), Charged(3, 8, known="counted"), id="or a quarter of the bytes"
        ),
        pytest.param(STREAM, Seen(None, 99, 0, **SERVED), Charged(3, 20, known="counted"), id="at most the hold"),
        pytest.param(
            STREAM, Seen(None, 4, 0, is_served=True), Charged(3, 4, known="counted"), id="a cut stream likewise"
        ),
        pytest.param(STREAM, Seen(None, 4, 0, **LEFT), Charged(3, 4, known="counted"), id="a stream that was left"),
        pytest.param(
            STREAM, Seen(None, 0, 0, **LEFT), Charged(3, 0, known="counted"), id="before its first token: the prompt"
        ),
        pytest.param(
            ONE, Seen(None, 0, 0, **LEFT), Charged(3, 20, known="worst_case"), id="what nobody saw of a whole answer"
        ),
        pytest.param(
            ONE,
            Seen(None, 0, 0, is_readable=False, **SERVED),
            Charged(3, 20, known="worst_case"),
            id="an answer that could not be read",
        ),
        pytest.param(
            ONE, Seen(None, 0, 0, **SERVED), Charged(3, 0, known="counted"), id="an empty answer is its prompt"
        ),
        pytest.param(
            TWO,
            Seen(Usage(3, 20), 0, 92, **SERVED),
            Charged(3, 20, known="reported"),
            id="a right report of several choices, though words be long",
        ),
        pytest.param(
            TWO, Seen(Usage(3, 9), 18, 54, **SERVED), Charged(3, 18, known="counted"), id="a stream's report of one"
        ),
        pytest.param(
            TEXTS, Seen(Usage(17, 4), 0, 40, **SERVED), Charged(17, 10, known="counted"), id="a report of one prompt's"
        ),
        pytest.param(
            TEXTS, Seen(Usage(10, 9), 0, 40, **SERVED), Charged(20, 9, known="counted"), id="of one prompt's input"
        ),
        pytest.param(
            TEXTS,
            Seen(Usage(17, 9), 0, 40, **SERVED),
            Charged(17, 9, known="reported"),
            id="a right one of two prompts",
        ),
        pytest.param(
            BEST,
            Seen(Usage(3, 30), 0, 40, **SERVED),
            Charged(3, 30, known="reported"),
            id="a report of candidates that were not returned",
        ),
        pytest.param(
            BEST, Seen(None, 0, 40, **SERVED), Charged(3, 30, known="counted"), id="without one they count as returned"
        ),
        pytest.param(
            BEST_TWO, Seen(None, 0, 36, **SERVED), Charged(3, 14, known="counted"), id="in proportion, rounded up"
        ),
        pytest.param(
            CHAT_BEST, Seen(None, 0, 36, **SERVED), Charged(5, 41, known="counted"), id="of a chat's server likewise"
        ),
        pytest.param(
            BEST, Seen(None, 0, 400, **SERVED), Charged(3, 60, known="counted"), id="the candidates' most is the hold"
        ),
        pytest.param(
            ECHO_TWO,
            Seen(Usage(1_000, 10), 0, 8_040, **SERVED),
            Charged(1_000, 10, known="reported"),
            id="an echo is no output",
        ),
        pytest.param(
            ECHO_TWO,
            Seen(Usage(1_000, 5), 0, 8_040, **SERVED),
            Charged(1_000, 10, known="counted"),
            id="what stands behind it is, for every choice",
        ),
        pytest.param(
            ECHO_PROMPTS,
            Seen(Usage(30, 20), 0, 2 * 120 + 80, **SERVED),
            Charged(30, 20, known="reported"),
            id="of every prompt",
        ),
        pytest.param(
            ECHO_IDS,
            Seen(Usage(1_000, 10), 0, 12_000, **SERVED),
            Charged(1_000, 10, known="reported"),
            id="token ids echo text of a length that nobody knows: the report is believed",
        ),
        pytest.param(
            ECHO_IDS,
            Seen(None, 0, 8_040, **SERVED),
            Charged(1_000, 10, known="counted"),
            id="and without one is estimated",
        ),
        pytest.param(
            ECHO, Seen(None, 0, 80, **SERVED), Charged(10, 10, known="counted"), id="an echo without a report"
        ),
        pytest.param(
            ECHO_STREAM, Seen(None, 9, 60, **LEFT), Charged(10, 5, known="counted"), id="on a stream that was left"
        ),
        pytest.param(
            ECHO_STREAM, Seen(None, 1, 8, **LEFT), Charged(10, 0, known="counted"), id="in the middle of the echo"
        ),
        pytest.param(
            SCORING,
            Seen(Usage(20, 0), 0, 80, **SERVED),
            Charged(20, 0, known="reported"),
            id="scoring generates nothing",
        ),
        pytest.param(
            SCORING, Seen(None, 0, 80, **SERVED), Charged(20, 0, known="counted"), id="scoring without a report"
        ),
        pytest.param(
            SCORING, Seen(None, **LEFT), Charged(20, 0, known="counted"), id="scoring that was left is its prompt"
        ),
        pytest.param(
            EMBEDDINGS, Seen(Usage(18, 0), **SERVED), Charged(18, 0, known="reported"), id="embeddings as reported"
        ),
        pytest.param(
            EMBEDDINGS, Seen(Usage(9, 0), **SERVED), Charged(20, 0, known="counted"), id="not one input for all"
        ),
        pytest.param(EMBEDDINGS, Seen(None, **SERVED), Charged(20, 0, known="counted"), id="embeddings without report"),
        pytest.param(
            EMBEDDINGS,
            Seen(None, is_readable=False, **SERVED),
            Charged(20, 0, known="counted"),
            id="embeddings that could not be read: nothing else was to be seen",
        ),
        pytest.param(EMBEDDINGS, Seen(None, **LEFT), Charged(20, 0, known="counted"), id="embeddings that were left"),
        pytest.param(EMBEDDINGS, Seen(None, is_served=True), NOTHING, id="embeddings that broke off"),
        pytest.param(
            STREAM,
            Seen(Usage(9, 99, 5, 50), 4, 0, **LEFT),
            Charged(3, 20, 3, 20, known="counted"),
            id="a stream that was left is not charged above the hold, whatever was reported",
        ),
        pytest.param(
            STREAM, Seen(Usage(3, 5), 7, 0, **LEFT), Charged(3, 5, known="reported"), id="what was reported so far"
        ),
        pytest.param(
            STREAM, Seen(Usage(3, 0), 7, 0, **LEFT), Charged(3, 7, known="counted"), id="but not before most of it came"
        ),
        pytest.param(
            STREAM, Seen(Usage(3, 0), 7, 0, is_served=True), Charged(3, 7, known="counted"), id="of a cut stream too"
        ),
        pytest.param(
            OPEN, Seen(None, 30, 0, **LEFT), Charged(1, 20, known="counted"), id="at most the hold of the output alone"
        ),
        pytest.param(
            OPEN, Seen(Usage(5_000, 9), 9, 0, **LEFT), Charged(5_000, 9, known="reported"), id="and of no input held"
        ),
        pytest.param(
            STREAM,
            Seen(Usage(9, 99), 4, 0, is_ended=True, **LEFT),
            Charged(9, 99, known="reported"),
            id="a client that closes after the end has left nothing",
        ),
        pytest.param(
            STREAM, Seen(Usage(3, 5), 7, 0, is_served=True), Charged(3, 5, known="reported"), id="a cut stream's report"
        ),
        pytest.param(
            ONE, Seen(Usage(3, 0), is_ended=True), NOTHING, id="an error status costs nothing, whatever it reports"
        ),
        pytest.param(STREAM, Seen(is_ended=True), NOTHING, id="an error in place of a stream"),
        pytest.param(ONE, Seen(is_served=True), NOTHING, id="a failure before the first token"),
        pytest.param(ONE, Seen(None, 0, 50, is_ended=True), NOTHING, id="an error of the upstream"),
        pytest.param(ONE, Seen(is_abandoned=True), NOTHING, id="never sent"),
    ],
)
def test_what_an_answer_is_charged(request_: EffectiveRequest, seen: Seen, charged: Charged) -> None:
    assert replace(charge(request_, model(), worst_case(request_, model()), seen), completions=0) == charged


@pytest.mark.parametrize(
    ("request_", "seen", "completions"),
    [
        pytest.param(TWO, Seen(Usage(3, 9), choices=2, **SERVED), 2, id="the choices of the answer"),
        pytest.param(TWO, Seen(Usage(3, 9), choices=1, **SERVED), 1, id="also where a server gave fewer"),
        pytest.param(TWO, Seen(Usage(3, 9), choices=9, **SERVED), 2, id="never more than were asked for"),
        pytest.param(BEST_TWO, Seen(Usage(3, 9), choices=2, **SERVED), 3, id="with those that it left out"),
        pytest.param(BEST_TWO, Seen(Usage(3, 9), choices=1, **SERVED), 2, id="in proportion, rounded up"),
        pytest.param(ECHO_PROMPTS, Seen(None, 0, 80, choices=4, **SERVED), 4, id="of all prompts"),
        pytest.param(TWO, Seen(None, 3, 9, **SERVED), 2, id="all where nobody counted them"),
        pytest.param(TWO, Seen(None, 3, 9, **LEFT), 2, id="all that had begun when the client left"),
        pytest.param(STREAM, Seen(None, **LEFT), 0, id="none before the first token"),
        pytest.param(TWO, Seen(None, **LEFT), 2, id="what nobody saw of a whole answer"),
        pytest.param(TWO, Seen(is_served=True), 0, id="none of a failure"),
        pytest.param(EMBEDDINGS, Seen(Usage(18, 0), **SERVED), 0, id="embeddings are none"),
        pytest.param(CHAT_BEST, Seen(Usage(3, 9), choices=2, **SERVED), 9, id="what a chat's server may leave out too"),
        pytest.param(CHAT_MORE, Seen(Usage(3, 9), choices=9, **SERVED), 9, id="more than the API's name asks for"),
        pytest.param(CHAT_MORE, Seen(Usage(3, 9), choices=1, **SERVED), 1, id="not where the server does not know it"),
        pytest.param(CHAT_MORE, Seen(None, 3, 9, **SERVED), 9, id="all by any name where nobody counted them"),
    ],
)
def test_how_many_completions_are_charged(request_: EffectiveRequest, seen: Seen, completions: int) -> None:
    assert charge(request_, model(), worst_case(request_, model()), seen).completions == completions


@pytest.mark.parametrize(
    ("usage", "charged"),
    [
        pytest.param(Usage(3, 9, 1, 2), Charged(3, 9, 1, 2, 93, "reported", completions=3), id="as was reported"),
        pytest.param(None, Charged(3, 60, 0, 0, 603, "worst_case", completions=3), id="at worst where nothing was"),
    ],
)
def test_what_a_hit_would_be_charged_in_full(usage: Usage | None, charged: Charged) -> None:
    priced = model(price={"input": 1.0, "output": 10.0})
    assert charge_of_hit(priced, worst_case(BEST_TWO, priced), usage) == charged


def test_an_estimate_has_no_bound_where_the_hold_had_none() -> None:
    chat = effective(Endpoint.CHAT, stream=True)
    worst = worst_case(chat, model())
    assert charge(chat, model(), worst, Seen(None, 500, 0, **SERVED)).output_tokens == 500


def test_a_charge_is_priced() -> None:
    priced = model(price={"input": 1.0, "output": 10.0, "cached_input": 0.0})
    charged = charge(ONE, priced, worst_case(ONE, priced), Seen(Usage(3, 9, 2), **SERVED))
    assert charged.cost_microdollars == 91


def words(texts: Sequence[str]) -> TextCount:
    """Take a word for a token, and leave out texts with an em dash."""
    left_out = [text for text in texts if "—" in text]
    return TextCount(
        sum(len(text.split()) for text in texts if text not in left_out), sum(len(text.encode()) for text in left_out)
    )


COUNTING = Model("m", ModelSettings(deployments=[{"upstream": "u"}]), count_tokens=words)
SEVEN, FOUR = "a b c d e f g", "a b c d"
MANY = "a " * 99


@pytest.mark.parametrize(
    ("request_", "seen", "output"),
    [
        pytest.param(STREAM, Seen(None, 9, 80, texts=(SEVEN,), **SERVED), (7, "counted"), id="whatever the events"),
        pytest.param(STREAM, Seen(None, 9, 80, texts=(SEVEN,), **LEFT), (7, "counted"), id="of a stream that was left"),
        pytest.param(ONE, Seen(None, 0, 80, texts=(SEVEN,), **SERVED), (7, "counted"), id="of a whole answer"),
        pytest.param(TWO, Seen(None, 0, 80, texts=(SEVEN, FOUR), **SERVED), (11, "counted"), id="of each choice"),
        pytest.param(STREAM, Seen(None, 9, 80, texts=(MANY,), **LEFT), (20, "counted"), id="never above the hold"),
        pytest.param(
            STREAM, Seen(None, 9, 80, texts=(SEVEN,), other_bytes=9, **LEFT), (7 + 3, "counted"), id="the rest by bytes"
        ),
        pytest.param(
            TWO,
            Seen(None, 9, 80, texts=(SEVEN, "e—e"), **LEFT),
            (7 + 2, "counted"),
            id="also what the tokenizer leaves out",
        ),
        pytest.param(ONE, Seen(None, 0, 40, **SERVED), (10, "counted"), id="all of it where no text was kept"),
        pytest.param(
            BEST, Seen(None, 0, 80, texts=(FOUR,), **SERVED), (12, "counted"), id="candidates that were left out too"
        ),
        pytest.param(ONE, Seen(Usage(3, 2), 0, 80, texts=(SEVEN,), **SERVED), (2, "reported"), id="a report of one"),
        pytest.param(
            TWO,
            Seen(Usage(3, 9), 0, 80, texts=(SEVEN, FOUR), **SERVED),
            (11, "counted"),
            id="a report of two that leaves out some",
        ),
        pytest.param(
            TWO,
            Seen(Usage(3, 10), 0, 80, texts=(SEVEN, FOUR), **SERVED),
            (10, "reported"),
            id="a report that is a little smaller",
        ),
        pytest.param(
            TWO,
            Seen(Usage(3, 9), 0, 80, texts=(SEVEN,), other_bytes=16, **SERVED),
            (9, "reported"),
            id="or smaller than what is no count",
        ),
        pytest.param(
            TEXTS, Seen(Usage(17, 7), 0, 80, texts=(SEVEN, FOUR), **SERVED), (11, "counted"), id="of one of two prompts"
        ),
        pytest.param(
            ECHO, Seen(None, 0, 80, texts=("a" * 40 + " b c",), **SERVED), (2, "counted"), id="less what is repeated"
        ),
        pytest.param(
            ECHO_PROMPTS,
            Seen(None, 0, 80, texts=("a b", "a b", "a b c", "a"), **SERVED),
            (8 - 4, "counted"),
            id="by each choice",
        ),
        pytest.param(ECHO_WORDS, Seen(None, 1, 3, texts=("a b",), **LEFT), (0, "counted"), id="while it is repeated"),
        pytest.param(
            ECHO_IDS,
            Seen(None, 0, 8_040, texts=(SEVEN, FOUR), **SERVED),
            (10, "counted"),
            id="whose text nobody knows: by bytes",
        ),
    ],
)
def test_what_was_generated_is_charged_by_the_tokenizer(
    request_: EffectiveRequest, seen: Seen, output: tuple[int, str]
) -> None:
    charged = charge(request_, COUNTING, worst_case(request_, COUNTING), seen)
    assert (charged.output_tokens, charged.known) == output


def test_the_prompt_of_a_stream_that_was_left_is_charged_by_the_tokenizer() -> None:
    request = effective(prompt="a b c", max_tokens=10, stream=True)
    charged = charge(request, COUNTING, worst_case(request, COUNTING), Seen(None, 2, 4, texts=("d e",), **LEFT))
    assert (charged.input_tokens, charged.output_tokens, charged.known) == (3, 2, "counted")
