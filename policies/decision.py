"""The core's one public answer: what shall happen to a request, as one value.

`decide` puts the parts of the core in order. It knows none of their rules, and nothing of stores or sockets; whoever
holds a `Decision` can carry it out, print it (`tidegate explain`) or throw it away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.cacheability import CachePlan
    from policies.catalog import Deployment, Model
    from policies.charges import WorstCase
    from policies.limits import BoundLimit
    from policies.principals import Principal
    from policies.requests.asked import Adjustment, AskedRequest, EffectiveRequest


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that is decided before anything is done.

    `adjustments` are in the order they were made, normalisations first; `worst_case` is what is held;
    `limits` those that bind this request, with what each is asked for; `candidates` the deployments in the order
    they are to be tried.
    """

    asked: AskedRequest
    principal: Principal
    model: Model
    effective: EffectiveRequest
    adjustments: tuple[Adjustment, ...]
    worst_case: WorstCase
    limits: tuple[BoundLimit, ...]
    cache: CachePlan
    candidates: tuple[Deployment, ...]
