"""Reads the configuration: one YAML file, the environment and the files of secrets. The only place that does.

Tells everything that is wrong at once, each on a line with its place in the file, and never repeats a secret. Knows
how settings are told apart in messages; what they mean is in `config`.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from proxy.config import Configuration
from proxy.config_document import read_document
from proxy.config_problems import told_problems
from proxy.config_references import Problem, written
from proxy.config_values import ReadingContext
from proxy.upstreams.connections import find_way_problems, tls_files
from proxy.upstreams.proxies import PROXY_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from proxy.config_document import Document

DEFAULT_NAME = "tidegate.yaml"
_ENVIRONMENT = "env:"
_FILE = "file:"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SECRET_BYTES = 65_536
_NOTHING = b""


class ConfigurationError(Exception):
    """The configuration cannot be used; `lines` say what is wrong, one place each, and what would be right."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Keep the lines; the error's text is all of them."""
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def default_path() -> Path | None:
    """Return the file that is read when none is named, or None when it does not exist."""
    path = Path(DEFAULT_NAME)
    return path if path.exists() else None


def load(path: str | Path, environ: Mapping[str, str] | None = None) -> Configuration:
    """Read, resolve and check a configuration; `environ` is the process's environment unless given.

    Raises ConfigurationError with all that is wrong.
    """
    return ConfigurationFile(path, environ).read()


class ConfigurationFile:
    """One configuration file, read as often as one likes, with the files that it names.

    It remembers what each of them held when it was read last, and so can tell whether another reading would find more.
    """

    def __init__(self, path: str | Path, environ: Mapping[str, str] | None = None) -> None:
        """Read nothing yet; `environ` is the process's environment unless given."""
        self.path = Path(path)
        self._environ = os.environ if environ is None else environ
        self._contents = _Contents()

    def read(self) -> Configuration:
        """Read, resolve and check, everything anew. Raises ConfigurationError with all that is wrong."""
        contents = _Contents()
        try:
            return self._read(contents)
        finally:
            self._contents = contents

    def _read(self, contents: _Contents) -> Configuration:
        document = read_document(_text_of(self.path, contents))
        if document.values is None and not document.problems:
            raise ConfigurationError([f"{self.path}: the file is empty: it needs upstreams, models, projects and keys"])
        problems = list(document.problems)
        secrets = _Secrets(self.path.parent, self._environ, contents)
        context = ReadingContext(resolve=secrets.resolve, directory=self.path.parent.absolute())
        made = None
        values = document.values
        if values is not None:  # a text that is no YAML at all has no values to judge
            try:
                made = Configuration.model_validate(_with_defaults(values), context=context)
            except ValidationError as error:
                problems += told_problems(error, values)
        if made is not None:
            contents.look_at_named(made)
            problems += _way_problems(made, self._environ)
        if problems or made is None:
            raise ConfigurationError(_lines(self.path, document, problems))
        return made

    @property
    def paths(self) -> frozenset[Path]:
        """The file itself, and those that the last reading found named in it."""
        return frozenset({self.path, *self._contents.digests})

    @property
    def named_files(self) -> Mapping[Path, bytes]:
        """Digests of the files that others will read, such as certificates: what stands in them is no setting."""
        return self._contents.named

    def has_changed(self) -> bool:
        """Tell whether a file holds something else than the last reading found there. Reads them."""
        return any(_digest_of(path) != seen for path, seen in self._contents.digests.items())

    def lacks(self) -> frozenset[Path]:
        """Return which files are gone that the last reading found; one that is empty is about to be written."""
        held = self._contents.digests.items()
        return frozenset(path for path, seen in held if seen != _NOTHING and _digest_of(path) == _NOTHING)


def read_secret(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the secret that `env:NAME` or `file:PATH` stands for, or that the text is. Raises ValueError."""
    return _Secrets(Path(), os.environ if environ is None else environ, _Contents()).resolve(text)


def proxy_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that say through which proxies upstreams are reached."""
    found = os.environ if environ is None else environ
    return {name: value for name, value in found.items() if name.lower() in PROXY_VARIABLES}


def _with_defaults(values: object) -> object:
    """Write out the defaults that depend on where the file is."""
    if not isinstance(values, dict):
        return values
    return {"data_dir": str(Configuration.model_fields["data_dir"].default), **values}


def _way_problems(configuration: Configuration, environ: Mapping[str, str]) -> Iterator[Problem]:
    environment = proxy_environment(environ)
    for name, upstream in configuration.upstreams.items():
        for problem in find_way_problems(upstream, environment):
            yield Problem(("upstreams", name, *problem.path), problem.message)


def _text_of(path: Path, contents: _Contents) -> str:
    try:
        raw = path.read_bytes()
        contents.note(path, raw)
        return raw.decode("utf-8-sig")
    except OSError as error:
        contents.note(path, b"")
        raise ConfigurationError([f"{path}: cannot be read: {_reason(error)}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError([f"{path}: not UTF-8: byte {error.start} has no meaning in it"]) from None


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _lines(path: Path, document: Document, problems: Iterable[Problem]) -> list[str]:
    told = []
    for problem in problems:
        line = problem.line or document.line_of(problem.path)
        told.append((line, f"{path}:{line}: {written(problem.path)}: {problem.message}"))
    return list(dict.fromkeys(text for _, text in sorted(told, key=lambda pair: pair[0])))


class _Contents:
    """What files held when they were read, as digests."""

    def __init__(self) -> None:
        self.digests: dict[Path, bytes] = {}
        self.named: dict[Path, bytes] = {}

    def note(self, path: Path, content: bytes) -> None:
        """Note what a file was found to hold; of one that cannot be read, nothing."""
        if path.is_file() or not path.exists():  # a pipe can be read once only
            self.digests[path] = _digest(content)

    def look_at(self, path: Path) -> None:
        """Note what a file holds of which not everything was read."""
        if path.is_file():
            self.digests[path] = _digest_of(path)

    def look_at_named(self, configuration: Configuration) -> None:
        """Note what the files hold that are read when upstreams are reached."""
        for upstream in configuration.upstreams.values():
            for path in tls_files(upstream):
                self.digests[path] = self.named[path] = _digest_of(path)


def _digest_of(path: Path) -> bytes:
    """Return the digest of what a file holds; of one that cannot be read as of one that is empty."""
    try:
        return _digest(path.read_bytes()) if path.is_file() else _NOTHING
    except OSError:
        return _NOTHING


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() if content else _NOTHING


@dataclass(frozen=True, slots=True)
class _Secrets:
    """Replaces `env:NAME` and `file:PATH`; raises ValueError with what is missing."""

    directory: Path
    environ: Mapping[str, str]
    contents: _Contents

    def resolve(self, text: str) -> str:
        if text.startswith(_ENVIRONMENT):
            return self._variable(text.removeprefix(_ENVIRONMENT))
        if text.startswith(_FILE):
            return self._content(text.removeprefix(_FILE))
        return text

    def _variable(self, name: str) -> str:
        if _VARIABLE.fullmatch(name) is None:
            msg = "env: takes the name of an environment variable: letters, digits and underscores"
            raise ValueError(msg)
        value = self.environ.get(name, "")
        if not value:
            state = "empty" if name in self.environ else "not set"
            msg = f"the environment variable {name} is {state}"
            raise ValueError(msg)
        return value

    def _content(self, name: str) -> str:
        path = self.directory / name
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_SECRET_BYTES + 1)
            self.contents.note(path, raw)
            value = raw.decode().strip()
        except OSError as error:
            self.contents.note(path, b"")
            msg = f"the file {path} cannot be read: {_reason(error)}"
            raise ValueError(msg) from None
        except UnicodeDecodeError:
            msg = f"the file {path} holds no UTF-8 text"
            raise ValueError(msg) from None
        if not value or len(raw) > _MAX_SECRET_BYTES:
            self.contents.look_at(path)
            msg = f"the file {path} is {'too long for a secret' if value else 'empty'}"
            raise ValueError(msg)
        return value
