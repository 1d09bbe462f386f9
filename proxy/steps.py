"""Steps that are taken at once, outside of any task, and finished within one where they have to wait.

To wake a task for what waits for nothing costs several times what is done then. Knows nothing of what is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


class Unfinished(Generic[T]):
    """A step that waits for something; to be awaited once, or closed."""

    __slots__ = ("_step", "_waits_for")

    def __init__(self, step: Coroutine[Any, Any, T], waits_for: object) -> None:
        self._step = step
        self._waits_for = waits_for

    def __await__(self) -> Generator[object, Any, T]:
        """Go on, in the task that awaits this, and return or raise what the step does."""
        waits_for = self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001  whatever it is, it is for the step
                    waits_for = self._step.throw(error)
                else:
                    waits_for = self._step.send(sent)
        except StopIteration as ended:
            value: T = ended.value
            return value

    def close(self) -> None:
        """Give the step up."""
        self._step.close()


def begin(step: Coroutine[Any, Any, T]) -> T | Unfinished[T]:
    """Take a step as far as it goes without waiting; raises what it raises.

    Until it waits for the first time it has no task of its own, so that it must not ask for one, as time-outs do.
    """
    try:
        waits_for = step.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    return Unfinished(step, waits_for)
