"""Lua scripts by name: read once from `proxy/store/scripts/<name>.lua`, hashed once.

A line `-- include <name>` stands for the text of that file, so that what several scripts share is written once. Knows
where scripts lie and how the server names them. It does not know what any of them does, and never talks to a store;
`connection.Store.run` does.
"""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from importlib import resources

_FOLDER = resources.files("proxy.store") / "scripts"
_INCLUDE = re.compile(rb"^-- include (\w+)\n", re.MULTILINE)


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
        return _INCLUDE.sub(lambda found: _read(found[1].decode()), _read(self.name))

    @cached_property
    def sha(self) -> bytes:
        """The SHA-1 by which the server calls the script, in lower-case hexadecimal."""
        return hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


def _read(name: str) -> bytes:
    return (_FOLDER / f"{name}.lua").read_bytes()
