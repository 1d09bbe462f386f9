"""Which limits bind a request, and what each of them is asked for.

Knows scopes and quantities; the arithmetic of windows is in `windows`, the counting in the store's scripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.policy import Limit


@dataclass(frozen=True, slots=True)
class BoundLimit:
    """One limit that binds one request.

    `name` is unique among the limits of one principal and goes out in headers; `policy` is where it was configured;
    `scope` the values of `by` in their order, such as `("alice",)`; `ask` how much the request needs at worst.
    """

    name: str
    policy: str
    limit: Limit
    scope: tuple[str, ...]
    ask: int
