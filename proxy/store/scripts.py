"""Lua scripts by name: read once from `proxy/store/scripts/<name>.lua`, hashed once.

Knows where scripts lie and how the server names them. It does not know what any of them does, and never talks to a
store; `connection.Store.run` does.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from importlib import resources

_FOLDER = resources.files("proxy.store") / "scripts"


class Script:
    """One verb of the store.

    A script is run at least once: when the connection breaks before its answer came, it is sent again. It has to be
    idempotent (SPEC §5: admission and settlement are idempotent by request id).
    """

    __slots__ = ("__dict__", "name")

    def __init__(self, name: str) -> None:
        """Name a script of this package, without folder and suffix; nothing is read yet."""
        self.name = name

    def __repr__(self) -> str:
        """Show the name."""
        return f"Script({self.name!r})"

    @cached_property
    def source(self) -> bytes:
        """The Lua text as it is sent. Raises FileNotFoundError if there is no such script."""
        return (_FOLDER / f"{self.name}.lua").read_bytes()

    @cached_property
    def sha(self) -> bytes:
        """The SHA-1 by which the server calls the script, in lower-case hexadecimal."""
        return hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


def script_names() -> list[str]:
    """Every script of the package, in alphabetical order."""
    return sorted(entry.name.removesuffix(".lua") for entry in _FOLDER.iterdir() if entry.name.endswith(".lua"))
