from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fingerprints import MOST_KEPT, Sighting, observe, retired

WINDOW = 600


def told(*shown: tuple[int, str], window: int = WINDOW, most: int = MOST_KEPT) -> tuple[Sighting, ...]:
    """Return what is known after a deployment has shown these."""
    known: tuple[Sighting, ...] = ()
    for at, fingerprint in shown:
        known = observe(known, fingerprint, at, window, most=most)
    return known


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param([(1, "F")], "", id="the only one lives"),
        pytest.param([(1, "F"), (100_000, "F")], "", id="silence, however long, retires nothing"),
        pytest.param([(1, "F"), (100_000, "G")], "", id="one answer with another does not either"),
        pytest.param([(1, "F"), (100, "G"), (699, "G")], "", id="a moment before the window is over"),
        pytest.param([(1, "F"), (100, "G"), (700, "G")], "F", id="at the end of the window the former is retired"),
        pytest.param([(1, "F"), (100, "G"), (100_000, "G")], "F", id="or at the first answer after a silence"),
        pytest.param([(1, "F"), (100, "G"), (700, "H")], "F", id="whichever others were shown"),
        pytest.param([(1, "F"), (100, "G"), (700, "H"), (701, "H")], "F", id="of whom each has a window of its own"),
        pytest.param([(1, "F"), (100, "G"), (699, "F"), (700, "G")], "", id="shown in the window, it lives"),
        pytest.param([(1, "F"), (100, "G"), (699, "F"), (700, "G"), (1_299, "G")], "", id="and has a new one"),
        pytest.param([(1, "F"), (100, "G"), (699, "F"), (700, "G"), (1_300, "G")], "F", id="of the same length"),
        pytest.param([(1, "F"), (100, "G"), (700, "G"), (701, "F")], "", id="shown again it lives again"),
        pytest.param(
            [(1, "F"), (100, "G"), (700, "G"), (701, "F"), (1_301, "F")], "G", id="and it is the other that is missing"
        ),
        pytest.param([(1, "F"), (100, "G"), (100, "F"), (700, "G")], "", id="both at once: nothing was shown since"),
        pytest.param([(100, "F"), (100, "G"), (700, "G")], "", id="whichever of them was told first"),
        pytest.param([(at, "FG"[at // 50 % 2]) for at in range(0, 100_000, 50)], "", id="two that alternate both live"),
        pytest.param([(at, "FGG"[at // 590 % 3]) for at in range(0, 99_999, 590)], "", id="so if one is rarer"),
    ],
)
def test_what_is_retired(shown: list[tuple[int, str]], expected: str) -> None:
    assert retired(told(*shown)) == set(expected)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param([(100, "F"), (100, "F")], Sighting("F", 100, 100), id="told twice"),
        pytest.param([(100, "F"), (50, "F")], Sighting("F", 50, 100), id="an earlier showing is told later"),
        pytest.param([(100, "F"), (50, "G")], Sighting("F", 100, 100), id="an earlier one of another"),
        pytest.param(
            [(10, "F"), (100, "G"), (50, "G")], Sighting("F", 10, 10, 50), id="the first other is told second"
        ),
        pytest.param([(10, "F"), (100, "G"), (50, "F")], Sighting("F", 10, 50, 100), id="another was shown since"),
        pytest.param([(100, "G"), (50, "F")], Sighting("F", 50, 50, 100), id="a new one, and another was shown since"),
        pytest.param(
            [(1, "F"), (100, "G"), (700, "G"), (1, "F")],
            Sighting("F", 1, 1, 100, 700),
            id="known long ago: it revives nothing",
        ),
        pytest.param(
            [(1, "F"), (100, "G"), (700, "G"), (650, "F")], Sighting("F", 1, 650, 700), id="it was not missing"
        ),
    ],
)
def test_answers_that_are_told_in_another_order(shown: list[tuple[int, str]], expected: Sighting) -> None:
    assert next(each for each in told(*shown) if each.fingerprint == "F") == expected


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param([(1, "F"), (2, "G"), (3, "H")], "GH", id="of the living the one that was unseen for longest"),
        pytest.param([(1, "F"), (2, "G"), (3, "F"), (4, "H")], "FH", id="whenever it was shown first"),
        pytest.param([(1, "F"), (2, "G"), (700, "F"), (1_400, "F"), (1_401, "H")], "FH", id="a retired one is"),
        pytest.param([(10, "F"), (20, "G"), (1, "H")], "GH", id="not the one that has come"),
    ],
)
def test_what_is_followed_no_longer(shown: list[tuple[int, str]], expected: str) -> None:
    assert {each.fingerprint for each in told(*shown, most=2)} == set(expected)


SHOWN = st.lists(st.tuples(st.integers(0, 300), st.sampled_from("FGH")), max_size=60)


@given(SHOWN)
def test_the_rule_as_the_specification_has_it(steps: list[tuple[int, str]]) -> None:
    """Told in order, with the whole history looked at each time."""
    history: list[tuple[int, str]] = []
    known: tuple[Sighting, ...] = ()
    expected: set[str] = set()
    at = 1
    for passes, fingerprint in steps:
        at += passes + 1
        history.append((at, fingerprint))
        known = observe(known, fingerprint, at, WINDOW)
        expected.discard(fingerprint)
        for other in {name for _, name in history} - {fingerprint}:
            last = max(moment for moment, name in history if name == other)
            first_other = min(moment for moment, name in history if moment > last)
            if at - first_other >= WINDOW:
                expected.add(other)
        assert retired(known) == expected
