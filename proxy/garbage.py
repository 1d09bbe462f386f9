"""Full collections of garbage, which hold a worker's event loop: the longer they take, the rarer they are.

CPython begins one whenever a quarter more objects stand than before. With thousands of streams open each holds the loop
for a good part of a second, several while they open, and finds next to nothing: what a stream leaves behind is freed
without it. Knows nothing of what objects there are.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LEAST_SECONDS: Final = 60.0
"""How long garbage that has grown old lies about at least."""
SHARE_OF_TIME: Final = 0.0005
"""At most so much of the time goes into full collections."""
_NEVER: Final = 2**30


async def collect_seldom(
    *, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> None:
    """Have full collections begin from here alone, until cancelled. Collections of what is young stay as they are."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    pause_seconds = LEAST_SECONDS
    try:
        while True:
            await sleep(pause_seconds)
            begun = now()
            gc.collect()
            pause_seconds = max(LEAST_SECONDS, (now() - begun) / SHARE_OF_TIME)
    finally:
        gc.set_threshold(*before)
