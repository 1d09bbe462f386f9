"""Breakers and calls over time as an SVG picture, a few lines of text for a page of documentation.

Knows samples and spans of time; not how they came about.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from failover import Sample

    Across = Callable[[float], str]
    """Where a time stands, from left to right."""

_WIDTH: Final = 1000
_LEFT: Final = 90
_RIGHT: Final = 12
_TOP: Final = 58
_LANE: Final = 16
_CHART: Final = 120
_COLOURS: Final = {"closed": "#a6d8a8", "half_open": "#f2c14e", "open": "#d9534f"}
_LINES: Final = ("#1f4e9c", "#7a3b9a", "#2b7a78")
_RATE_SECONDS: Final = 1.0


class Span(NamedTuple):
    """A time in which something ailed an upstream."""

    name: str
    begin: float
    end: float


def draw(samples: Sequence[Sample], spans: Sequence[Span], upstreams: Sequence[str]) -> str:
    """Draw the breaker of each upstream as a lane, and the calls of all as lines, above the spans."""
    begin, end = samples[0].at, samples[-1].at
    scale = (_WIDTH - _LEFT - _RIGHT) / (end - begin)

    def x(at: float) -> str:
        return f"{_LEFT + (at - begin) * scale:.1f}"

    chart_top = _TOP + len(upstreams) * (_LANE + 4) + 8
    bottom = chart_top + _CHART
    box = f'viewBox="0 0 {_WIDTH} {bottom + 40}" font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{_WIDTH}" height="{bottom + 40}" fill="white"/>',
        *_spans(spans, x, bottom),
        *_lanes(samples, upstreams, x),
        *_rates(samples, upstreams, x, chart_top),
        *_time_axis(begin, end, x, bottom),
        *_legend(bottom + 32),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _spans(spans: Sequence[Span], x: Across, bottom: int) -> Iterator[str]:
    for span in spans:
        left, right = x(span.begin), x(span.end)
        width = float(right) - float(left)
        yield f'<rect x="{left}" y="{_TOP - 4}" width="{width:.1f}" height="{bottom - _TOP + 4}" fill="#eeeeee"/>'
        for line, word in enumerate(reversed(_wrapped(span.name))):
            yield f'<text x="{left}" y="{_TOP - 10 - 12 * line}">{escape(word)}</text>'


def _wrapped(name: str) -> list[str]:
    lines = [""]
    for word in name.split():
        if lines[-1] and len(lines[-1]) + len(word) > 10:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _lanes(samples: Sequence[Sample], upstreams: Sequence[str], x: Across) -> Iterator[str]:
    for row, upstream in enumerate(upstreams):
        top = _TOP + row * (_LANE + 4)
        yield f'<text x="4" y="{top + 12}">breaker of {escape(upstream)}</text>'
        began = samples[0]
        for before, sample in pairwise(samples):
            is_last = sample is samples[-1]
            if is_last or sample.states.get(upstream) != before.states.get(upstream):
                colour = _COLOURS[began.states.get(upstream, "closed")]
                width = float(x(sample.at)) - float(x(began.at))
                yield f'<rect x="{x(began.at)}" y="{top}" width="{width:.1f}" height="{_LANE}" fill="{colour}"/>'
                began = sample


def _rates(samples: Sequence[Sample], upstreams: Sequence[str], x: Across, top: int) -> Iterator[str]:
    rates = {upstream: list(_calls_a_second(samples, upstream)) for upstream in upstreams}
    most = _usual_most([rate for points in rates.values() for _, rate in points])
    yield f'<text x="4" y="{top + 10}">calls a second</text><text x="{_LEFT - 30}" y="{top + 24}">{most:.0f}</text>'
    yield f'<text x="{_LEFT - 30}" y="{top + _CHART}">0</text>'
    for row, (upstream, points) in enumerate(rates.items()):
        line = " ".join(f"{x(at)},{top + _CHART - min(1.0, rate / most) * (_CHART - 16):.1f}" for at, rate in points)
        yield f'<polyline fill="none" stroke="{_LINES[row]}" stroke-width="1.3" points="{line}"/>'
        yield f'<text x="4" y="{top + 44 + 14 * row}" fill="{_LINES[row]}">{escape(upstream)}</text>'


def _usual_most(rates: Sequence[float]) -> float:
    """Return what all but a few peaks keep to; who has been frozen reads all at once what came meanwhile."""
    return (sorted(rates)[len(rates) * 98 // 100] if rates else 0.0) or 1.0


def _calls_a_second(samples: Sequence[Sample], upstream: str) -> Iterator[tuple[float, float]]:
    before = samples[0]
    for sample in samples[1:]:
        if sample.at - before.at >= _RATE_SECONDS:
            yield sample.at, (sample.calls[upstream] - before.calls[upstream]) / (sample.at - before.at)
            before = sample


def _time_axis(begin: float, end: float, x: Across, bottom: int) -> Iterator[str]:
    yield f'<line x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - _RIGHT}" y2="{bottom}" stroke="black"/>'
    step = next((each for each in (1, 5, 10, 20, 30, 60) if (end - begin) / each <= 20), 120)
    for number in range(int((end - begin) / step) + 1):
        yield f'<text x="{x(begin + number * step)}" y="{bottom + 13}">{number * step} s</text>'


def _legend(y: int) -> Iterator[str]:
    for number, (state, colour) in enumerate((*_COLOURS.items(), ("upstream a is ailing", "#eeeeee"))):
        left = _LEFT + 110 * number
        yield f'<rect x="{left}" y="{y - 10}" width="12" height="12" fill="{colour}" stroke="#999999"/>'
        yield f'<text x="{left + 17}" y="{y}">{state.replace("_", "-")}</text>'
