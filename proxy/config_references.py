"""Names in a configuration that must exist, and names that must be unique.

Works on the plain values of a file as well as on settings already made, and shrugs at anything malformed: that is
reported by the settings themselves. So everything wrong with a file is told at once. Knows no file and no line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]
"""Where a value stands: keys and positions from the root."""

ANY = "*"
_LISTED = 8
_WILDCARDS = "*?["
_NO_PSEUDONYM_KEY = "pseudonyms are made with a secret: give pseudonym_key, such as env:PSEUDONYM_KEY"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong at one place; `line` where the path alone does not tell it."""

    path: Path
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A setting that names an entry elsewhere; `*` in a path stands for every key or position."""

    what: str
    source: Path
    target: Path


REFERENCES = (
    Reference("policy", ("organization", "policy"), ("policies",)),
    Reference("policy", ("projects", ANY, "policy"), ("policies",)),
    Reference("policy", ("users", ANY, "policy"), ("policies",)),
    Reference("policy", ("keys", ANY, "policy"), ("policies",)),
    Reference("project", ("keys", ANY, "project"), ("projects", ANY, "id")),
    Reference("upstream", ("models", ANY, "deployments", ANY, "upstream"), ("upstreams",)),
    Reference("upstream", ("models", ANY, "shadow", "upstream"), ("upstreams",)),
)

ALIASES: Path = ("models", ANY, "aliases", ANY)

MODEL_PATTERNS: tuple[Path, ...] = (
    ("projects", ANY, "models", ANY),
    ("keys", ANY, "models", ANY),
    ("policies", ANY, "models", ANY),
    ("policies", ANY, "limits", ANY, "models", ANY),
)

UNIQUE: tuple[tuple[str, Path], ...] = (
    ("project id", ("projects", ANY, "id")),
    ("user id", ("users", ANY, "id")),
    ("key id", ("keys", ANY, "id")),
    ("key's sha256", ("keys", ANY, "sha256")),
    ("admin key name", ("admin_keys", ANY, "name")),
    ("admin key's sha256", ("admin_keys", ANY, "sha256")),
)


def find_problems(data: object) -> list[Problem]:
    """Return every unknown reference, double name and clash, in the order of the tables above."""
    return [
        *(problem for reference in REFERENCES for problem in _unknown(data, reference)),
        *(problem for pattern in MODEL_PATTERNS for problem in _unmatched(data, pattern)),
        *(problem for what, path in UNIQUE for problem in _doubled(data, what, path)),
        *_alias_clashes(data),
        *_doubled_limits(data),
        *_without_pseudonym_key(data),
        *_shared_address(data),
    ]


def with_problems(error: ValidationError | None, problems: Iterable[Problem]) -> ValidationError:
    """Return one error that tells what the settings found (`error`) and these problems."""
    lines = [] if error is None else [_again(found) for found in error.errors(include_url=False)]
    lines += [_detail(problem) for problem in problems]
    return ValidationError.from_exception_data("Configuration", lines)


def suggest(wrong: str, right: Iterable[str]) -> str:
    """Say what would be right: the nearest name, or the names there are."""
    names = sorted(right)
    near = get_close_matches(wrong, names, n=1)
    if near:
        return f'did you mean "{near[0]}"?'
    if not names:
        return "none is configured"
    return f"there is {listed(names)}"


def listed(names: Iterable[str]) -> str:
    """Write names in one line; of many, the first and how many more there are."""
    said = list(names)
    more = f" and {len(said) - _LISTED} more" if len(said) > _LISTED else ""
    return ", ".join(said[:_LISTED]) + more


def check_time_zone(name: str) -> str:
    """Return the name of a time zone as it is; raises ValueError with the nearest one there is."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        near = get_close_matches(name, available_timezones(), n=1)
        hint = f'did you mean "{near[0]}"?' if near else "write a name such as Europe/Berlin or UTC"
        msg = f'unknown time zone "{name}"; {hint}'
        raise ValueError(msg) from None
    return name


def _again(found: ErrorDetails) -> InitErrorDetails:
    return {
        "type": PydanticCustomError(found["type"], "{told}", {**found.get("ctx", {}), "told": found["msg"]}),
        "loc": found["loc"],
        "input": found["input"],
    }


def _detail(problem: Problem) -> InitErrorDetails:
    told = PydanticCustomError("reference", "{told}", {"told": problem.message})
    return {"type": told, "loc": problem.path, "input": None}


def _unknown(data: object, reference: Reference) -> Iterator[Problem]:
    known = set(_names(data, reference.target))
    for path, name in _select(data, reference.source):
        if isinstance(name, str) and name not in known:
            yield Problem(path, f'unknown {reference.what} "{name}"; {suggest(name, known)}')


def _unmatched(data: object, pattern: Path) -> Iterator[Problem]:
    models = set(_names(data, ("models",)))
    aliases = {
        alias: path[1] for path, alias in _select(data, ("models", ANY, "aliases", ANY)) if isinstance(alias, str)
    }
    for path, name in _select(data, pattern):
        if not isinstance(name, str) or name == ANY or any(fnmatchcase(model, name) for model in models):
            continue
        if name in aliases:
            yield Problem(path, f'"{name}" is an alias; write the model\'s own name "{aliases[name]}"')
        elif any(character in name for character in _WILDCARDS):
            yield Problem(path, f'no model matches "{name}"; {suggest(name, models)}')
        else:
            yield Problem(path, f'unknown model "{name}"; {suggest(name, models)}')


def _doubled(data: object, what: str, pattern: Path) -> Iterator[Problem]:
    seen: dict[str, Path] = {}
    for path, name in _select(data, pattern):
        if not isinstance(name, str):
            continue
        # Hashes are hexadecimal, in which case means nothing.
        first = seen.setdefault(name.lower() if path[-1] == "sha256" else name, path)
        if first != path:
            yield Problem(path, f"the same {what} as {written(first)}; each must be unique")


def _alias_clashes(data: object) -> Iterator[Problem]:
    models = set(_names(data, ("models",)))
    seen: dict[str, Path] = {}
    for path, alias in _select(data, ALIASES):
        if not isinstance(alias, str):
            continue
        first = seen.setdefault(alias, path)
        if alias in models:
            yield Problem(path, f'"{alias}" is the name of a model; choose another alias')
        elif first != path:
            yield Problem(path, f'"{alias}" is already an alias at {written(first)}; each must be unique')


def _doubled_limits(data: object) -> Iterator[Problem]:
    for policy in _names(data, ("policies",)):
        yield from _doubled(data, "limit name", ("policies", policy, "limits", ANY, "name"))


def _without_pseudonym_key(data: object) -> Iterator[Problem]:
    if any(key is not None for _, key in _select(data, ("pseudonym_key",))):
        return
    for path, is_asked in _select(data, ("policies", ANY, "parameters", ANY, "pseudonymise")):
        if is_asked is True:
            yield Problem(path, _NO_PSEUDONYM_KEY)
    for path, name in _select(data, ("upstreams", ANY, "identity_headers", ANY)):
        if name == "user":
            yield Problem(path, _NO_PSEUDONYM_KEY)


def _shared_address(data: object) -> Iterator[Problem]:
    listen, admin = (next((value for _, value in _select(data, (name,))), None) for name in ("listen", "admin_listen"))
    if isinstance(listen, str) and listen == admin and not listen.endswith(":0"):
        yield Problem(("admin_listen",), "the same address as listen; data plane and control plane need one each")


def _names(data: object, target: Path) -> Iterator[str]:
    """Yield the names defined at a target: the keys of a mapping, or the values that the path selects."""
    for _, found in _select(data, target):
        if isinstance(found, Mapping):
            yield from (key for key in found if isinstance(key, str))
        elif isinstance(found, str):
            yield found


def _select(data: object, pattern: Path, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield every value that a path with wildcards selects, with its own path."""
    if not pattern:
        yield path, data
        return
    for step, child in _children(data, pattern[0]):
        yield from _select(child, pattern[1:], (*path, step))


def _children(data: object, step: str | int) -> Iterator[tuple[str | int, object]]:
    members: Iterable[tuple[object, object]] = ()
    if isinstance(data, BaseModel):
        members = ((name, getattr(data, name)) for name in type(data).model_fields)
    elif isinstance(data, Mapping):
        members = data.items()
    elif isinstance(data, (list, tuple)):
        members = enumerate(data)
    for key, child in members:
        if isinstance(key, (str, int)) and step in {ANY, key}:
            yield key, child


def written(path: Path) -> str:
    """Write a path as it is shown to people: `keys[2].project`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".") or "the file"
