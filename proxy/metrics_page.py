"""A page of metrics read back: what all processes of a gateway have counted, for whoever tells people of it.

Reads what `metrics.render` writes, samples in Prometheus' text format, and leaves out what is none. Knows no metric and
not how the page is come by.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX: Final = "tidegate_"
_SAMPLE: Final = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n"}


class Sample(NamedTuple):
    """One number, and the labels by name that it is told for."""

    labels: Mapping[str, str]
    value: float


def read_page(page: bytes) -> dict[str, list[Sample]]:
    """Return the samples by the metrics' names, which are less `tidegate_`, as they are declared."""
    found: dict[str, list[Sample]] = {}
    for line in page.decode(errors="replace").split("\n"):
        sample = _SAMPLE.fullmatch(line)
        if sample is None or not sample["name"].startswith(_PREFIX):
            continue
        try:
            value = float(sample["value"])
        except ValueError:
            continue
        labels = {name: _plain(text) for name, text in _LABEL.findall(sample["labels"] or "")}
        found.setdefault(sample["name"].removeprefix(_PREFIX), []).append(Sample(labels, value))
    return found


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), text)
