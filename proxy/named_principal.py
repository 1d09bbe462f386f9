"""Whom an operator means who names a key, or a project and perhaps a user in it: for explain and for limits.

Knows the configuration's ids. What is asked about the principal, and where, is known by whoever asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.config import Key
from proxy.config_references import suggest
from proxy.credentials import digest

if TYPE_CHECKING:
    from policies.principals import Principal
    from proxy.config import Configuration


class CannotAnswer(Exception):  # noqa: N818  the reason says why
    """The question cannot be answered as it was asked: `member` of it is wrong, `reason` says what would be right.

    Repeats no key, not even one that is unknown.
    """

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(f"{member}: {reason}")
        self.member = member
        self.reason = reason


class UnknownName(CannotAnswer):
    """Nothing of this id is configured."""


def find_principal(
    configuration: Configuration, *, key: str | None = None, project: str | None = None, user: str | None = None
) -> Principal:
    """Return the principal of a key, or somebody in a project, perhaps a certain user, without a key of their own.

    `key` is a key's id or the key itself, and called `as` where something is wrong with it; the only key that is
    configured need not be named. Who has no key, or is nobody in particular, has an empty one, and no owner. Raises
    CannotAnswer, and UnknownName for what is not configured.
    """
    if project is not None:
        if key is not None:
            raise CannotAnswer("project", "names somebody beside the key; say one of both")
        return _find_keyless(configuration, project, user)
    if user is not None:
        raise CannotAnswer("user", "needs the project that the user is in")
    principals = configuration.principals()
    by_id = {principal.key: principal for principal in principals.values()}
    if key is None:
        if len(by_id) == 1:
            return next(iter(by_id.values()))
        raise CannotAnswer("as", f"say which key, or name a project; {suggest('', by_id)}")
    found = by_id.get(key) or principals.get(digest(key))
    if found is None:
        raise UnknownName("as", f"no key has this id, and none is this one; {suggest(key, by_id)}")
    return found


def _find_keyless(configuration: Configuration, project: str, user: str | None) -> Principal:
    projects = {each.id for each in configuration.projects}
    if project not in projects:
        raise UnknownName("project", f"no project has this id; {suggest(project, projects)}")
    users = {each.id for each in configuration.users} | {key.user for key in configuration.keys if key.user}
    if user is not None and user not in users:
        raise UnknownName("user", f"no user has this id; {suggest(user, users)}")
    nameless = Key.model_construct(id="", project=project, user=user, sha256="")
    [principal] = configuration.model_copy(update={"keys": (nameless,)}).principals().values()
    return principal
