"""What rules rewrite instead of bounding: spaces that go, and texts of policy's own beside the client's (SPEC §4).

Knows how texts are rewritten and how many fit; which parameters have such texts is said in their `Meaning`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from policies.errors import PolicyViolation
from policies.requests.asked import Action
from policies.requests.fields import shown
from policies.requests.forms import input_form
from policies.requests.meaning import vocabulary

if TYPE_CHECKING:
    from policies.draft import Draft
    from policies.merging import MergedRule, Part


def strip(draft: Draft, name: str, part: Part) -> None:
    """Take the spaces off the end of every text of an input; other parameters stay as they are."""
    if vocabulary(draft.request_type).forms.get(name) is not input_form:
        return
    stripped = _without_trailing_space(draft.fields[name])
    if stripped != draft.fields[name]:
        draft.write(name, stripped, Action.STRIP, part.policy)


def _without_trailing_space(value: Any) -> Any:  # noqa: ANN401  an input: one text or several, or token ids
    if isinstance(value, str):
        return value.rstrip(" ")
    return [each.rstrip(" ") if isinstance(each, str) else each for each in value]


def add(draft: Draft, name: str, rule: MergedRule) -> None:
    """Add policy's texts to the client's, of which the last ones go where there is no room for both.

    Raises PolicyViolation where that is not asked for, and where it would take away what another policy forces.
    """
    added, meaning = rule.add, vocabulary(draft.request_type).meanings.get(name)
    if meaning is None or meaning.max_items is None:
        return
    given = draft.fields.get(name)
    texts = _texts(name, given, added[0])
    missing = [part.value for part in added if part.value not in texts]
    if not missing:
        return
    room = meaning.max_items - len(added)
    own = [text for text in texts if text not in {part.value for part in added}]
    may_cut = room >= 0 and not rule.force and all(part.on_violation == "clamp" for part in added)
    if len(own) > room and not may_cut:
        raise PolicyViolation(
            f"{name} is {shown(given)}; policy {added[0].policy!r} adds {len(added)}, "
            f"which leaves room for {max(room, 0)} of at most {meaning.max_items}.",
            param=name,
            policies=[part.policy for part in added],
            value=given,
        )
    kept = own[:room] if len(own) > room else [text for text in texts if text not in missing]
    written = [*kept, *(part.value for part in added if part.value not in kept)]
    draft.write(name, written, Action.ADD, added[0].policy)


def _texts(name: str, given: Any, part: Part) -> list[str]:  # noqa: ANN401  a JSON value
    texts = [] if given is None else given if isinstance(given, list) else [given]
    if all(isinstance(text, str) for text in texts):
        return texts
    raise PolicyViolation(
        f"{name} is {shown(given)}; policy {part.policy!r} adds a text, so it must be a text or an array of texts.",
        param=name,
        policies=(part.policy,),
        value=given,
    )
