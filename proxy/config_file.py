"""Reads the configuration: one YAML file, the environment and the files of secrets. The only place that does.

Tells everything that is wrong at once, each on a line with its place in the file, and never repeats a secret. Knows
how settings are told apart in messages; what they mean is in `config`.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.config_document import Document

DEFAULT_NAME = "tidegate.yaml"
_ENVIRONMENT = "env:"
_FILE = "file:"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SECRET_BYTES = 65_536


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
    path = Path(path)
    document = read_document(_text_of(path))
    if document.values is None and not document.problems:
        raise ConfigurationError([f"{path}: the file is empty: it needs upstreams, models, projects and keys"])
    problems = list(document.problems)
    secrets = _Secrets(path.parent, os.environ if environ is None else environ)
    context = ReadingContext(resolve=secrets.resolve, directory=path.parent.absolute())
    made = None
    values = document.values
    if values is not None:  # a text that is no YAML at all has no values to judge
        try:
            made = Configuration.model_validate(_with_defaults(values), context=context)
        except ValidationError as error:
            problems += told_problems(error, values)
    if problems or made is None:
        raise ConfigurationError(_lines(path, document, problems))
    return made


def read_secret(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the secret that `env:NAME` or `file:PATH` stands for, or that the text is. Raises ValueError."""
    return _Secrets(Path(), os.environ if environ is None else environ).resolve(text)


def _with_defaults(values: object) -> object:
    """Write out the defaults that depend on where the file is."""
    if not isinstance(values, dict):
        return values
    return {"data_dir": str(Configuration.model_fields["data_dir"].default), **values}


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
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


@dataclass(frozen=True, slots=True)
class _Secrets:
    """Replaces `env:NAME` and `file:PATH`; raises ValueError with what is missing."""

    directory: Path
    environ: Mapping[str, str]

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
            value = raw.decode().strip()
        except OSError as error:
            msg = f"the file {path} cannot be read: {_reason(error)}"
            raise ValueError(msg) from None
        except UnicodeDecodeError:
            msg = f"the file {path} holds no UTF-8 text"
            raise ValueError(msg) from None
        if not value or len(raw) > _MAX_SECRET_BYTES:
            msg = f"the file {path} is {'too long for a secret' if value else 'empty'}"
            raise ValueError(msg)
        return value
