"""How the control plane reads a body: a JSON object whose members are strictly those of a model.

Knows no page. A model's fields say in their docstrings what each member must be; errors repeat them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from policies.errors import InvalidRequest
from policies.requests.body import decode_body
from proxy.config_references import suggest

if TYPE_CHECKING:
    from aiohttp import web

_SHOWN_CHARACTERS = 100


class Members(BaseModel):
    """The members of a body; absent and null mean the same where a member may be absent."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


MembersT = TypeVar("MembersT", bound=Members)


async def leave_it_to_the_reader(_request: web.Request) -> None:
    """Send no `100 Continue`: whoever reads the body does."""


def read_members(model: type[MembersT], raw: bytes, *, noun: str, max_depth: int) -> MembersT:
    """Read a body, which messages call by the noun. Raises InvalidRequest, saying what its member must be."""
    members = decode_body(raw, max_depth=max_depth)
    try:
        return model.model_validate(members)
    except ValidationError as error:
        raise _refusal(error, model, noun) from None


def _refusal(error: ValidationError, model: type[Members], noun: str) -> InvalidRequest:
    """Say what is wrong: all members that are unknown, else the first that is missing or of a wrong type."""
    found: list[Any] = list(error.errors(include_url=False, include_input=False))
    words = {field.alias or name: field.description for name, field in model.model_fields.items()}
    unknown = [str(each["loc"][0]) for each in found if each["type"] == "extra_forbidden"]
    if unknown:
        names = ", ".join(repr(name[:_SHOWN_CHARACTERS]) for name in unknown)
        return InvalidRequest(f"{noun} has unknown members: {names}; {suggest(unknown[0], words)}.", param=unknown[0])
    member = str(found[0]["loc"][0])
    said = f"{member} is missing: it" if found[0]["type"] == "missing" else member
    return InvalidRequest(f"{said} must be {words[member]}.", param=member)
