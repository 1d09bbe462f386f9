"""YAML text as plain values, with the line on which each of them stands.

Refuses what would be read in two ways (double keys, anchors within themselves, tags). Keys are text as written, and
a date is text too, so that `api_version: 2024-10-21` means what it says. Knows nothing of settings or files, and
repeats no value in a message: it may be a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from proxy.config_references import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ruamel.yaml.nodes import Node

    from proxy.config_references import Path

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_TEXT = frozenset(_TAG + name for name in ("str", "timestamp", "value"))
_PLAIN = frozenset(_TAG + name for name in ("null", "bool", "int", "float"))
_COLLECTIONS = frozenset(_TAG + name for name in ("map", "seq"))
_MOST_VALUES = 1_000_000
_LONGEST_QUOTE = 3


@dataclass(slots=True)
class Document:
    """What a text says.

    `values` are mappings, lists and scalars as JSON has them; `lines` the line, from 1, on which the value at a path
    begins; `problems` what kept parts from being read.
    """

    values: object = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: Path) -> int:
        """Return the line of a value, or of the nearest thing around it that exists."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _TooMuch(Exception):  # noqa: N818  a signal within this file
    """The aliases of the text multiply to more values than any configuration has."""


def read_document(text: str) -> Document:
    """Read one YAML document; whatever is wrong with it stands in `problems`, nothing is raised."""
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        return _Reader(yaml).read(root)
    except YAMLError as error:
        return _unreadable(error, text)
    except _TooMuch:
        return Document(problems=[Problem((), f"aliases multiply to more than {_MOST_VALUES} values")])
    except RecursionError:
        return Document(problems=[Problem((), "nested too deeply")])


def _unreadable(error: YAMLError, text: str) -> Document:
    line, said = 1, "a character that YAML does not allow"
    if isinstance(error, MarkedYAMLError):
        said = _without_quotes(error.problem or error.context or "cannot be understood")
        if error.problem_mark is not None:
            line = error.problem_mark.line + 1
    else:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
    return Document(lines={(): line}, problems=[Problem((), f"not YAML: {said}")])


def _without_quotes(said: str) -> str:
    """Leave out what a parser quotes from the text, unless it is punctuation."""
    parts = said.split("'")
    for position in range(1, len(parts), 2):
        if len(parts[position]) > _LONGEST_QUOTE:
            parts[position] = "…"
    return "'".join(parts)


class _Reader:
    def __init__(self, yaml: YAML) -> None:
        self._constructor = yaml.constructor
        self._document = Document()
        self._open: list[int] = []
        self._count = 0

    def read(self, root: Node | None) -> Document:
        if root is not None:
            self._document.values = self._value(root, ())
        return self._document

    def _value(self, node: Node, path: Path) -> object:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise _TooMuch
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._open:
            self._report(path, "an alias stands within its own anchor")
            return None
        self._open.append(id(node))
        try:
            return self._collection(node, path)
        finally:
            self._open.pop()

    def _collection(self, node: Node, path: Path) -> object:
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if node.tag not in _COLLECTIONS:
            self._report(path, "tags are not read here: leave out what begins with !")
        if isinstance(node, SequenceNode):
            return [self._value(item, (*path, position)) for position, item in enumerate(node.value)]
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        return None

    def _scalar(self, node: ScalarNode, path: Path) -> object:
        if node.tag in _TEXT:
            return node.value
        if node.tag in _PLAIN:
            return self._plain(node, path)
        self._report(path, "tags are not read here: leave out what begins with !")
        return node.value

    def _plain(self, node: ScalarNode, path: Path) -> object:
        try:
            value: object = self._constructor.construct_object(node)
            repr(value)  # a hexadecimal int may have more digits than a message could show
        except (ValueError, LookupError, ArithmeticError):  # the parser trusts a tag, and Python bounds an int's digits
            kind = str(node.tag).removeprefix(_TAG)
            self._report(path, f"cannot be read as {kind}: write another value, and leave out what begins with !")
            return node.value
        return value

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE or not isinstance(key_node, ScalarNode):
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in found:
                told = f'the key "{key}" stands here twice, first in line {first_line[key]}; leave one out'
                self._document.problems.append(Problem((*path, key), told, line))
                continue
            first_line[key] = self._document.lines[(*path, key)] = line
            found[key] = self._value(value_node, (*path, key))
        for merged in self._merged(node, path):
            found = {**merged, **found}
        return found

    def _merged(self, node: MappingNode, path: Path) -> Iterator[dict[str, object]]:
        """Yield the mappings that `<<` adds below the mapping's own keys, the strongest first."""
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                sources = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                for source in sources:
                    merged = self._value(source, path)
                    if isinstance(merged, dict):
                        yield merged
                    else:
                        self._report(path, "<< takes a mapping or a list of mappings")
            elif not isinstance(key_node, ScalarNode):
                self._report(path, "a key must be text")

    def _report(self, path: Path, message: str) -> None:
        self._document.problems.append(Problem(path, message))
