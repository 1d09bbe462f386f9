"""Steps begun outside of a task and finished within one."""

from __future__ import annotations

import asyncio

import pytest

from proxy.steps import Unfinished, begin


class Waits:
    """A step that waits for some futures, and notes how it fared."""

    def __init__(self, *futures: asyncio.Future[str]) -> None:
        self.futures = futures
        self.notes: list[str] = []

    async def run(self) -> str:
        try:
            for future in self.futures:
                self.notes.append(await future)
        except BaseException as error:
            self.notes.append(type(error).__name__)
            raise
        return " ".join(self.notes)


def futures(count: int) -> list[asyncio.Future[str]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def raises() -> None:
    raise LookupError("wrong")


async def test_a_step_that_waits_for_nothing_is_finished_at_once() -> None:
    [future] = futures(1)
    future.set_result("done")
    assert begin(Waits(future).run()) == "done"
    with pytest.raises(LookupError, match="wrong"):
        begin(raises())


async def test_a_step_that_waits_is_finished_by_the_task_that_awaits_it() -> None:
    first, second = futures(2)
    begun = begin(Waits(first, second).run())
    assert isinstance(begun, Unfinished)
    finishing = asyncio.ensure_future(_finish(begun))
    first.set_result("one")
    await asyncio.sleep(0)
    second.set_result("two")
    assert await finishing == "one two"


async def test_what_was_waited_for_may_have_come_before_anybody_awaits_the_step() -> None:
    [future] = futures(1)
    begun = begin(Waits(future).run())
    future.set_result("early")
    assert isinstance(begun, Unfinished)
    assert await begun == "early"


@pytest.mark.parametrize("kind", [LookupError, asyncio.CancelledError])
async def test_what_goes_wrong_while_it_waits_reaches_the_step_and_who_awaits_it(kind: type[BaseException]) -> None:
    [future] = futures(1)
    waits = Waits(future)
    begun = begin(waits.run())
    assert isinstance(begun, Unfinished)
    future.get_loop().call_soon(
        future.cancel if kind is asyncio.CancelledError else lambda: future.set_exception(kind())
    )
    with pytest.raises(kind):
        await begun
    assert waits.notes == [kind.__name__]


async def test_a_cancelled_task_cancels_the_step_that_it_awaits() -> None:
    [future] = futures(1)
    waits = Waits(future)
    begun = begin(waits.run())
    assert isinstance(begun, Unfinished)
    finishing = asyncio.ensure_future(_finish(begun))
    await asyncio.sleep(0)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert waits.notes == ["CancelledError"]
    assert future.cancelled()


async def test_a_step_that_nobody_awaits_is_given_up() -> None:
    waits = Waits(*futures(1))
    begun = begin(waits.run())
    assert isinstance(begun, Unfinished)
    begun.close()
    assert waits.notes == ["GeneratorExit"]


async def _finish(begun: Unfinished[str]) -> str:
    return await begun
