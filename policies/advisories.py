"""What a client had better know of a request that is valid as it is (SPEC §3).

An advisory changes nothing: it is counted and shown by `tidegate explain`. All there are stand here, since their names
are a metric's label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policies.requests.completions import CompletionRequest
from policies.requests.fields import texts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.requests.asked import EffectiveRequest

PROMPT_ENDS_IN_SPACE: Final = "prompt-ends-in-space"

ADVICE: Final[Mapping[str, str]] = {
    PROMPT_ENDS_IN_SPACE: "leave out the space at the end: models know most words with their space in front of them",
}
"""What to do about each advisory."""


def advise(effective: EffectiveRequest) -> tuple[str, ...]:
    """Return the advisories that the request draws, each once; a policy that strips the cause strips them."""
    view = effective.view
    if not isinstance(view, CompletionRequest) or view.prompt is None:
        return ()
    return (PROMPT_ENDS_IN_SPACE,) if any(text.endswith(" ") for text in texts_of(view.prompt)) else ()
