"""How late a worker's event loop comes to what is due: so long whatever it serves waits, before anything else.

Knows nothing of what holds it up.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TICK_SECONDS = 0.1


async def watch_lag(
    observe: Callable[[float], object],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Tell ten times a second how many seconds late the loop comes, until cancelled.

    What is due while the loop is held up is told of, too: a second's stop counts for ten, as it does for who is served.
    """
    due = now()
    while True:
        due += TICK_SECONDS
        await sleep(max(0.0, due - now()))
        observe(max(0.0, now() - due))
