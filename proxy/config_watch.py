"""Notices when files may have changed: written in place, replaced by rename, or behind a link that is turned.

Container platforms mount a configuration as a link to a link, and turn one in the middle; so every folder is watched in
which something on the way to a file may be replaced. Where the system tells nothing of a folder, as over a network,
time does. This file knows no configuration, and reads no file.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watchfiles import awatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

LOOK_SECONDS: Final = 2.0
"""How often it is worth a look though nothing was noticed."""
_QUIET_MILLISECONDS: Final = 100
"""So long nothing may happen before what happened is told: whoever writes a file writes it in pieces."""
_MOST_LINKS: Final = 40


async def touches(paths: Callable[[], Iterable[Path]]) -> AsyncGenerator[None, None]:
    """Yield each time that one of the files may have changed, or it is time to look; for ever.

    What `paths` returns is asked anew each time.
    """
    while True:
        watched = _places(paths())
        try:
            async with aclosing(_happenings(watched)) as happenings:
                async for _ in happenings:
                    yield
                    if _places(paths()) != watched:
                        break
        except (OSError, RuntimeError):  # folders that are gone, or that the system watches no more of
            await asyncio.sleep(LOOK_SECONDS)
            yield


async def _happenings(places: frozenset[Path]) -> AsyncGenerator[None, None]:
    """Yield when something happens at one of the places, and when it is time to look."""
    names = frozenset(map(str, places))
    happened = awatch(
        *{place.parent for place in places},
        watch_filter=lambda _, path: path in names,
        step=_QUIET_MILLISECONDS,
        rust_timeout=round(LOOK_SECONDS * 1000),
        yield_on_timeout=True,
        recursive=False,
    )
    async with aclosing(happened):
        async for _ in happened:
            yield


def _places(paths: Iterable[Path]) -> frozenset[Path]:
    return frozenset(place for path in paths for place in _on_the_way(path.absolute()))


def _on_the_way(path: Path) -> Iterator[Path]:
    """Yield what can be replaced on the way to a file, links and itself, in the folders that they really are in."""
    at, ahead, links = Path(path.anchor), list(path.parts[:0:-1]), 0
    while ahead:
        part = ahead.pop()
        here = at.parent if part == ".." else at / part
        target = _target_of(here) if links < _MOST_LINKS else None
        if target is None:
            at = here
        else:
            yield here
            links += 1
            at = Path(target.anchor) if target.is_absolute() else at
            ahead.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    yield at


def _target_of(path: Path) -> Path | None:
    """Return what a link points to, None for what is none."""
    try:
        return path.readlink()
    except OSError:
        return None
