"""`POST /v1/tidegate/explain`: what would happen to a request, by the configuration that is in force.

Knows the question's members and their types; what is told is made by `proxy/explanation`, how limits stand is asked of
the gateway behind the control plane.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.errors import InvalidRequest
from policies.requests.body import decode_body, encode_body
from policies.requests.media import check_media
from proxy.admin.answers import json_answer
from proxy.config_references import suggest
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


class Asked(BaseModel):
    """The question; absent and null mean the same. Each member's words say what it must be."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

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
    live: bool | None = None
    """true or false: whether to tell how limits stand now"""

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


_WORDS: Final = {field.alias or name: field.description for name, field in Asked.model_fields.items()}


def explain_route(gateway: Running) -> web.RouteDef:
    """Return the page of a gateway."""

    async def answer(request: web.Request) -> web.StreamResponse:
        configuration = gateway.configuration
        check_media(request.headers.get("Content-Type"))
        raw = await ServedRequest(request, configuration.bounds).read()
        asked, explained = await asyncio.to_thread(_explain, configuration, raw)
        rooms = await gateway.rooms(explained.limits) if asked.live else None
        return await asyncio.to_thread(lambda: json_answer(describe(explained, rooms)))

    return web.post(PATH, answer, expect_handler=_leave_it_to_the_reader)


async def _leave_it_to_the_reader(_request: web.Request) -> None:
    """Send no `100 Continue`: whoever reads the body does."""


def _explain(configuration: Configuration, raw: bytes) -> tuple[Asked, Explained]:
    """Answer the question in a body, which may be as long as a request's and is one level deeper."""
    asked = _read(decode_body(raw, max_depth=configuration.bounds.json_depth + 1))
    try:
        return asked, explain(configuration, asked.question)
    except CannotAnswer as error:
        raise InvalidRequest(f"{error.member}: {error.reason}.", param=error.member) from None


def _read(members: dict[str, Any]) -> Asked:
    try:
        return Asked.model_validate(members)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> InvalidRequest:
    """Say what is wrong: all members that are unknown, else the first that is missing or of a wrong type."""
    found = error.errors(include_url=False, include_input=False)
    unknown = [str(each["loc"][0]) for each in found if each["type"] == "extra_forbidden"]
    if unknown:
        names = ", ".join(repr(name[:100]) for name in unknown)
        return InvalidRequest(
            f"The question has unknown members: {names}; {suggest(unknown[0], _WORDS)}.", param=unknown[0]
        )
    member = str(found[0]["loc"][0])
    said = f"{member} is missing: it" if found[0]["type"] == "missing" else member
    return InvalidRequest(f"{said} must be {_WORDS[member]}.", param=member)
