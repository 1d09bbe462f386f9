"""What happens to files, and to what leads to them, is noticed: each story told of real files."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from proxy import config_watch
from proxy.config_watch import touches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    Happening = Callable[[Path, int], None]

PATIENCE_SECONDS = 20
AGAIN_SECONDS = 0.3
NEVER = 3600.0


@pytest.fixture
def _not_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_watch, "LOOK_SECONDS", NEVER)


async def noticed(notices: AsyncGenerator[None, None], happen: Callable[[int], None]) -> None:
    """Have something happen, again and again until it is noticed: the first time may be before anybody looks."""
    noticing = asyncio.ensure_future(anext(notices))
    async with asyncio.timeout(PATIENCE_SECONDS):
        turn = 0
        while not noticing.done():
            happen(turn)
            turn += 1
            await asyncio.wait({noticing}, timeout=AGAIN_SECONDS)


def written(folder: Path, turn: int) -> None:
    (folder / "file").write_text(str(turn))


def replaced(folder: Path, turn: int) -> None:
    (folder / "new").write_text(str(turn))
    (folder / "new").replace(folder / "file")


def removed_and_made(folder: Path, turn: int) -> None:
    (folder / "file").unlink(missing_ok=True)
    (folder / "file").write_text(str(turn))


def link_turned(folder: Path, turn: int) -> None:
    """Turn the link in the middle, as container platforms do."""
    (folder / f"..{turn}").mkdir()
    (folder / f"..{turn}" / "file").write_text(str(turn))
    (folder / "..tmp").symlink_to(f"..{turn}")
    (folder / "..tmp").replace(folder / "..data")
    if not (folder / "file").is_symlink():
        (folder / "file").unlink(missing_ok=True)
        (folder / "file").symlink_to("..data/file")


@pytest.mark.usefixtures("_not_by_the_clock")
@pytest.mark.parametrize(
    "happen", [written, replaced, removed_and_made, link_turned], ids=lambda each: each.__name__.replace("_", " ")
)
async def test_what_happens_to_a_file_is_noticed_again_and_again(tmp_path: Path, happen: Happening) -> None:
    turns = iter(range(10_000))
    async with aclosing(touches(lambda: [tmp_path / "file"])) as notices:
        for _ in range(3):
            await noticed(notices, lambda _: happen(tmp_path, next(turns)))


@pytest.mark.usefixtures("_not_by_the_clock")
async def test_the_file_behind_a_link_to_another_folder_is_noticed(tmp_path: Path) -> None:
    for name in ("here", "there", "far"):
        (tmp_path / name).mkdir()
    (tmp_path / "far" / "file").write_text("0")
    (tmp_path / "there" / "link").symlink_to("../far/file")
    (tmp_path / "here" / "file").symlink_to(tmp_path / "there" / "link")
    async with aclosing(touches(lambda: [tmp_path / "here" / "file"])) as notices:
        await noticed(notices, lambda turn: written(tmp_path / "far", turn))


@pytest.mark.usefixtures("_not_by_the_clock")
async def test_a_file_that_was_not_there_at_first_is_noticed(tmp_path: Path) -> None:
    async with aclosing(touches(lambda: [tmp_path / "file"])) as notices:
        await noticed(notices, lambda turn: removed_and_made(tmp_path, turn))


@pytest.mark.usefixtures("_not_by_the_clock")
async def test_which_files_is_asked_anew(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    paths = [tmp_path / "file"]
    async with aclosing(touches(lambda: paths)) as notices:
        await noticed(notices, lambda turn: written(tmp_path, turn))
        paths.append(tmp_path / "more" / "file")
        await noticed(notices, lambda turn: written(tmp_path, turn))
        await noticed(notices, lambda turn: written(tmp_path / "more", turn))


async def test_a_neighbour_is_not_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_watch, "LOOK_SECONDS", NEVER)
    async with aclosing(touches(lambda: [tmp_path / "file"])) as notices:
        noticing = asyncio.ensure_future(anext(notices))
        for turn in range(5):
            (tmp_path / "neighbour").write_text(str(turn))
            await asyncio.wait({noticing}, timeout=0.1)
        assert not noticing.done()
        noticing.cancel()
        await asyncio.wait({noticing})


@pytest.mark.parametrize("folder", ["", "nowhere"], ids=["of a folder that is there", "of one that is gone"])
async def test_where_nothing_is_told_it_is_time_to_look_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(config_watch, "LOOK_SECONDS", 0.05)
    async with aclosing(touches(lambda: [tmp_path / folder / "file"])) as notices, asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(3):
            await anext(notices)


async def test_a_folder_that_goes_and_comes_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_watch, "LOOK_SECONDS", 0.05)
    folder = tmp_path / "folder"
    folder.mkdir()
    async with aclosing(touches(lambda: [folder / "file"])) as notices, asyncio.timeout(PATIENCE_SECONDS):
        await anext(notices)
        shutil.rmtree(folder)
        await anext(notices)
        folder.mkdir()
        monkeypatch.setattr(config_watch, "LOOK_SECONDS", NEVER)
        await noticed(notices, lambda turn: written(folder, turn))


async def test_links_in_a_circle_are_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_watch, "LOOK_SECONDS", 0.05)
    (tmp_path / "file").symlink_to("other")
    (tmp_path / "other").symlink_to("file")
    async with aclosing(touches(lambda: [tmp_path / "file"])) as notices, asyncio.timeout(PATIENCE_SECONDS):
        await anext(notices)


async def test_who_stops_watching_is_not_held_up(tmp_path: Path) -> None:
    async def watch() -> None:
        async for _ in touches(lambda: [tmp_path / "file"]):
            pass

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    watching.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait({watching})
    assert watching.cancelled()
