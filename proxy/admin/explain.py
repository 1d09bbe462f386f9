"""`POST /v1/tidegate/explain`: what would happen to a request, by the configuration that is in force.

Knows the question's members and their types; what is told is made by `proxy/explanation`, how limits stand is asked of
the gateway behind the control plane.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from aiohttp import web
from pydantic import Field

from policies.errors import InvalidRequest
from policies.requests.body import encode_body
from policies.requests.media import check_media
from proxy.admin.answers import json_answer
from proxy.admin.bodies import Members, leave_it_to_the_reader, read_members
from proxy.explanation import DEFAULT_PATH, Question, describe, explain
from proxy.named_principal import CannotAnswer
from proxy.server import ServedRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.limits import BoundLimit
    from policies.room import Room
    from proxy.config import Configuration
    from proxy.explanation import Explained

PATH: Final = "/v1/tidegate/explain"


class Running(Protocol):
    """What has to be known of the gateway that runs."""

    @property
    def configuration(self) -> Configuration:
        """The configuration that is in force."""

    async def rooms(self, limits: Sequence[BoundLimit]) -> Sequence[Room]:
        """Return how limits stand, in their order, without taking anything. Raises StoreUnavailable."""


class AskedRequest(Members):
    """Which request is meant, and whose: the question, or a part of it."""

    request: dict[str, Any] | str
    """the body to be explained: an object, or a string with its raw text"""
    path: str | None = None
    """a string: the path that it is sent to, with its query"""
    key: str | None = Field(default=None, alias="as")
    """a string: the id of the key that sends it"""
    project: str | None = None
    """a string: the id of the project in which it is sent without a key"""
    user: str | None = None
    """a string: the id of the user in that project who sends it"""
    cache_control: str | None = None
    """a string: the request's Cache-Control header"""

    @property
    def question(self) -> Question:
        """The question as it is answered; an object is written as it was read."""
        return Question(
            body=self.request.encode() if isinstance(self.request, str) else encode_body(self.request),
            path=DEFAULT_PATH if self.path is None else self.path,
            key=self.key,
            project=self.project,
            user=self.user,
            cache_control=self.cache_control,
        )


QuestionT = TypeVar("QuestionT", bound=AskedRequest)


class Asked(AskedRequest):
    """The question."""

    live: bool | None = None
    """true or false: whether to tell how limits stand now"""


def explain_route(gateway: Running) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        configuration = gateway.configuration
        check_media(request.headers.get("Content-Type"))
        raw = await ServedRequest(request, configuration.bounds).read()
        asked, explained = await asyncio.to_thread(_explain, configuration, raw)
        rooms = await gateway.rooms(explained.limits) if asked.live else None
        return await asyncio.to_thread(lambda: json_answer(describe(explained, rooms)))

    return web.post(PATH, answer, expect_handler=leave_it_to_the_reader)


def _explain(configuration: Configuration, raw: bytes) -> tuple[Asked, Explained]:
    asked = read_question(Asked, raw, configuration)
    return asked, answer_question(asked, configuration)


def read_question(model: type[QuestionT], raw: bytes, configuration: Configuration) -> QuestionT:
    """Read a question, which may be as long as a request's body and is one level deeper. Raises InvalidRequest."""
    return read_members(model, raw, noun="The question", max_depth=configuration.bounds.json_depth + 1)


def answer_question(asked: AskedRequest, configuration: Configuration) -> Explained:
    """Decide on the request that is asked about. Raises InvalidRequest for an unknown sender, and for no path."""
    try:
        return explain(configuration, asked.question)
    except CannotAnswer as error:
        raise InvalidRequest(f"{error.member}: {error.reason}.", param=error.member) from None
