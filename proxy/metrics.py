"""Every metric, declared once: what workers count, and how the supervisor adds it up into one page (SPEC §11).

A worker counts into plain cells (a third of a microsecond each, no lock: one event loop writes them) and hands them
over as a `Snapshot`; the supervisor adds the snapshots of all workers to what dead workers left behind and renders
the page with prometheus_client. Label values come from the configuration or from closed sets in the code; a client's
string never becomes one.

`observe` tells everything that a finished `Exchange` knows: requests, latencies, tokens, money, look-ups, stored
answers, adjustments, advisories. The other attributes have one owner each, named beside them. This file does not know
who asks for the page, nor how snapshots travel.
"""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from policies.cacheability import Bypass
from policies.parameters import label_of
from proxy.durations import BUCKETS_SECONDS, Durations
from proxy.errors import CLIENT_TOO_SLOW
from proxy.exchange import CacheResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from policies.cacheability import CachePlan
    from policies.charges import Charged
    from policies.decision import Decision
    from policies.room import Room
    from proxy.exchange import Exchange

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "tidegate_"
UNKNOWN = "unknown"
"""Label value for whatever the configuration does not name."""
_JOINED = "joined"
"""Result of a look-up that found the fetch of another request under way (SPEC §11)."""

PEAK_SECONDS = 30.0
"""How long a highest value stands at least."""

MICRODOLLARS_PER_USD = 1_000_000
_STATUS_CLASSES = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")

Kind = Literal["counter", "gauge", "histogram"]

CellData = float | list[float]
Series = list[tuple[list[str], CellData]]
Snapshot = dict[str, Series]
"""Plain data, fit for JSON: by metric name, the label values of each series and its number.

A histogram's data is its sum, followed by the count of each bucket (not cumulated), the unbounded one last.
"""


class CounterCell:
    """One counter series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        """Begin at zero."""
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add a non-negative amount."""
        self.value += amount

    def data(self) -> CellData:
        """Return the number as a snapshot carries it."""
        return self.value


class GaugeCell(CounterCell):
    """One gauge series; gauges of several workers are added."""

    __slots__ = ()

    def dec(self, amount: float = 1.0) -> None:
        """Subtract an amount."""
        self.value -= amount

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value


class PeakCell:
    """One gauge series of the highest value that was seen lately; of several workers the highest counts.

    Lately: since between one and two times `PEAK_SECONDS`, so that whoever reads that often misses none.
    """

    __slots__ = ("_before", "_highest", "_since")

    def __init__(self) -> None:
        """Begin at zero, which is what there is when nothing is seen."""
        self._before = self._highest = 0.0
        self._since = time.monotonic()

    def see(self, value: float) -> None:
        """Take a value that is not below zero."""
        if value > self._highest:  # noqa: PLR1730  on the path, where a call costs more than this
            self._highest = value

    def data(self) -> CellData:
        """Return the highest value as a snapshot carries it."""
        found = max(self._before, self._highest)
        now = time.monotonic()
        if now - self._since >= PEAK_SECONDS:
            self._before, self._highest, self._since = self._highest, 0.0, now
        return found


class HistogramCell(Durations):
    """One histogram series."""

    __slots__ = ()

    def data(self) -> CellData:
        """Return sum and counts as a snapshot carries them."""
        return [self.sum, *self.counts]


class Cell(Protocol):
    """What a family needs of its series."""

    def data(self) -> CellData:
        """Return the series as a snapshot carries it."""


CellT = TypeVar("CellT", bound=Cell)


class Family(Generic[CellT]):
    """One metric with its help sentence and its series by label values."""

    __slots__ = ("_cells", "_make", "help", "is_peak", "kind", "label_names", "name")

    def __init__(
        self, kind: Kind, make: Callable[[], CellT], text: tuple[str, str], label_names: Sequence[str]
    ) -> None:
        """Declare a metric: `make` makes one of its series, `text` is its name and its help sentence."""
        self._make = make
        self._cells: dict[tuple[str, ...], CellT] = {}
        self.kind = kind
        self.is_peak = make is PeakCell
        self.name, self.help = text
        self.label_names = tuple(label_names)

    def labels(self, *values: str, **named: str) -> CellT:
        """Return the series of these label values, by position or all by name; it is made at first use."""
        if named:
            values = tuple(named[label] for label in self.label_names)
        cell = self._cells.get(values)
        if cell is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, got {values}")
            cell = self._cells[values] = self._make()
        return cell

    def forget(self) -> None:
        """Forget all series: what their labels say is no longer so."""
        self._cells.clear()

    def remove(self, *values: str) -> None:
        """Forget the series of these label values, if there is one: what it told of is no more."""
        self._cells.pop(values, None)

    def series(self) -> Series:
        """Return all series as plain data."""
        return [(list(values), cell.data()) for values, cell in self._cells.items()]


class Metrics:
    """The metrics of one process: attributes named as on the page, less `tidegate_`.

    A metric with labels is used as `metrics.store_errors_total.labels("state").inc()`; one without is its cell:
    `metrics.open_streams.inc()`.
    """

    def __init__(self) -> None:
        """Declare all metrics."""
        self.families: list[Family[CounterCell] | Family[GaugeCell] | Family[PeakCell] | Family[HistogramCell]] = []
        self._declare_exchanges()
        self._declare_cache()
        self._declare_decisions()
        self._declare_upstreams()
        self._declare_own_requests()
        self._declare_limits()
        self._declare_stores()
        self._declare_processes()

    def _counter(self, name: str, text: str, *labels: str) -> Family[CounterCell]:
        family = Family("counter", CounterCell, (name, text), labels)
        self.families.append(family)
        return family

    def _gauge(self, name: str, text: str, *labels: str) -> Family[GaugeCell]:
        family = Family("gauge", GaugeCell, (name, text), labels)
        self.families.append(family)
        return family

    def _peak(self, name: str, text: str, *labels: str) -> Family[PeakCell]:
        family = Family("gauge", PeakCell, (name, text), labels)
        self.families.append(family)
        return family

    def _histogram(self, name: str, text: str, *labels: str) -> Family[HistogramCell]:
        family = Family("histogram", HistogramCell, (name, text), labels)
        self.families.append(family)
        return family

    def _declare_exchanges(self) -> None:
        """Declare what `observe` tells of every exchange."""
        self.requests_total = self._counter(
            "requests_total",
            "Finished requests.",
            *("route", "model", "project", "status_class", "outcome"),
        )
        self.slow_clients_total = self._counter(
            "slow_clients_total",
            "Requests whose client was given up: it took nothing for long, or less than others who read the same.",
            "model",
        )
        self.request_duration_seconds = self._histogram(
            "request_duration_seconds",
            "Time from a request's head to the end of its answer.",
            *("route", "model", "cache"),
        )
        self.time_to_first_token_seconds = self._histogram(
            "time_to_first_token_seconds",
            "Time from a request's head to the first token of its stream; whole and cached answers have none.",
            *("route", "model"),
        )
        self.time_between_tokens_seconds = self._histogram(
            "time_between_tokens_seconds",
            "Time between two content events of a stream.",
            "model",
        )
        self.tokens_total = self._counter(
            "tokens_total",
            "Tokens charged; cached_input and reasoning are parts of input and output. "
            "No project: the gateway's own requests.",
            *("model", "project", "direction"),
        )
        self.spent_usd_total = self._counter(
            "spent_usd_total",
            "Money charged, in USD, but for what killed workers left. No project: the gateway's own requests.",
            *("model", "project"),
        )
        self.saved_usd_total = self._counter(
            "saved_usd_total",
            "What answers served from the cache would have cost upstream, in USD.",
            *("model", "project"),
        )

    def _declare_cache(self) -> None:
        """Declare what the cache did (owners: proxy/answer_cache.py and proxy/drift.py, `observe` for the verdicts)."""
        self.cache_lookups_total = self._counter(
            "cache_lookups_total",
            "Verdicts of the cache on requests that reached it: hit, joined, partial, stale, miss, bypass; and why.",
            *("result", "reason"),
        )
        self.cache_divergence_total = self._counter(
            "cache_divergence_total",
            "Hits that were fetched again in the background: same, different, or failed.",
            *("model", "result"),
        )
        self.cache_memory_bytes = self._gauge("cache_memory_bytes", "What answers in memory take.").labels()
        self.cache_memory_entries = self._gauge("cache_memory_entries", "Answers in memory.").labels()
        self.cache_stores_total = self._counter("cache_stores_total", "Answers put into the cache.").labels()

    def _declare_decisions(self) -> None:
        """Declare what policies did to requests, and the streams under way (owner: proxy/relay.py)."""
        self.adjustments_total = self._counter(
            "adjustments_total",
            "Changes that policies and normalising made to requests.",
            *("parameter", "rule"),
        )
        self.observed_adjustments_total = self._counter(
            "observed_adjustments_total",
            "What rules with mode observe would have done to requests; reject: refused them.",
            *("parameter", "rule"),
        )
        self.advisories_total = self._counter(
            "advisories_total",
            "Advice that requests drew which were valid as they were.",
            "advisory",
        )
        self.open_streams = self._gauge("open_streams", "Streams that are being relayed.").labels()

    def _declare_upstreams(self) -> None:
        """Declare what upstreams did (owner: proxy/upstreams)."""
        self.upstream_request_duration_seconds = self._histogram(
            "upstream_request_duration_seconds",
            "Time from sending a request upstream to the end of the answer, per attempt.",
            "upstream",
        )
        self.upstream_errors_total = self._counter(
            "upstream_errors_total",
            "Attempts that failed upstream: how they failed, 429, or the status class of another error.",
            *("upstream", "kind"),
        )
        self.upstream_retries_total = self._counter(
            "upstream_retries_total",
            "Attempts after the first one of a request.",
            "upstream",
        )
        self.upstream_unknown_cost_total = self._counter(
            "upstream_unknown_cost_total",
            "Attempts that an upstream may be billing and that brought no answer: broken, timed out, or cancelled.",
            "upstream",
        )
        self.upstream_breaker_state = self._gauge(
            "upstream_breaker_state",
            "Workers in which the breaker of a deployment is in this state: closed, half_open or open.",
            *("model", "upstream", "deployment", "state"),
        )
        self.upstream_outstanding = self._gauge(
            "upstream_outstanding", "Attempts under way at an upstream.", "upstream"
        )
        self.upstream_waiting = self._gauge(
            "upstream_waiting",
            "Requests in the line before an upstream; one may stand in several.",
            "upstream",
        )
        self.upstream_queue_seconds = self._histogram(
            "upstream_queue_seconds",
            "How long requests waited for room at an upstream, those that were refused in the end too.",
            "upstream",
        )
        self.upstream_healthy = self._gauge(
            "upstream_healthy",
            "Workers in whose checks an upstream is healthy; only where it has `health` settings.",
            "upstream",
        )

    def _declare_own_requests(self) -> None:
        """Declare what came of requests that the gateway sent of its own accord (owners: proxy/shadow.py, hedging.py).

        Drift checks are told of beside the cache that they check.
        """
        self.shadow_requests_total = self._counter(
            "shadow_requests_total",
            "Requests for the shadow deployment: same or different, sent but not compared, failed, or dropped.",
            *("model", "result"),
        )
        self.hedges_total = self._counter(
            "hedges_total",
            "Second attempts at requests that waited long for an answer: won, lost, or dropped for want of room.",
            *("model", "result"),
        )

    def _declare_limits(self) -> None:
        """Declare what limits did (owner: proxy/admission.py)."""
        self.limit_refusals_total = self._counter(
            "limit_refusals_total",
            "Requests that a limit refused.",
            *("policy", "limit"),
        )
        self.limit_utilization_ratio = self._peak(
            "limit_utilization_ratio",
            "Largest share of a limit that was used or held when a request came, in about the last minute.",
            *("policy", "limit"),
        )
        self.limit_waiting = self._gauge(
            "limit_waiting",
            "Requests that wait for room in a limit.",
            *("policy", "limit"),
        )
        self.limit_wait_seconds = self._histogram(
            "limit_wait_seconds",
            "How long requests waited for room in a limit, those that were refused in the end too.",
            *("policy", "limit"),
        )
        self.observed_refusals_total = self._counter(
            "observed_refusals_total",
            "Requests that a limit with mode observe would have refused.",
            *("policy", "limit"),
        )
        self.reservations_outstanding = self._gauge(
            "reservations_outstanding",
            "Requests that are admitted and not yet settled.",
        ).labels()
        self.reservations_expired_total = self._counter(
            "reservations_expired_total",
            "Holds whose owner died, settled at their worst case after their lease.",
        ).labels()
        self.underestimates_total = self._counter(
            "underestimates_total",
            "Settlements above what was held.",
        ).labels()

    def _declare_stores(self) -> None:
        """Declare what the stores did (owners: proxy/store/connection.py, proxy/{spool,rebuild,supervisor}.py)."""
        self.store_duration_seconds = self._histogram(
            "store_duration_seconds",
            "Time of one round trip to a store.",
            "store",
        )
        self.store_errors_total = self._counter("store_errors_total", "Failed round trips to a store.", "store")
        self.store_up = self._gauge(
            "store_up",
            "Whether the supervisor reaches a store, and may write what limits need (1), or not (0).",
            "store",
        )
        self.store_evicts = self._gauge(
            "store_evicts",
            "Whether a store that must keep limits forgets them when its memory is full (1) or not (0).",
            "store",
        )
        self.clock_skew_seconds = self._gauge(
            "clock_skew_seconds",
            "How far this machine's clock is ahead of a store's, by whose time limits count; below 0 if behind.",
            "store",
        )
        self.spool_records = self._gauge(
            "spool_records",
            "Records that wait on local disk for the state store to come back.",
        ).labels()
        self.rebuilds_total = self._counter(
            "rebuilds_total",
            "Times that limits were counted anew from usage records, as the state store came up without its data.",
        ).labels()

    def _declare_processes(self) -> None:
        """Declare what the supervisor knows of its processes (owners: proxy/supervisor.py, proxy/reload.py)."""
        self.worker_up = self._gauge("worker_up", "Whether a worker is ready (1) or not (0).", "worker")
        self.worker_restarts_total = self._counter(
            "worker_restarts_total",
            "Workers that died and were started again.",
            "worker",
        )
        self.event_loop_lag_seconds = self._histogram(
            "event_loop_lag_seconds",
            "How late workers' event loops came to what was due, ten times a second.",
        ).labels()
        self.unhandled_errors_total = self._counter(
            "unhandled_errors_total",
            "Exceptions that reached the outermost frame of a request or a background task; each one is a fault.",
            "where",
        )
        self.build_info = self._gauge("build_info", "Always 1; the labels say what runs.", "version", "configuration")
        self.config_reloads_total = self._counter(
            "config_reloads_total",
            "Times that the configuration was read again, by what came of it: applied, rejected, unchanged.",
            "result",
        )
        self.config_last_reload_successful = self._gauge(
            "config_last_reload_successful",
            "Whether the configuration could be used when it was read last (1) or not (0): the one before it stays.",
        ).labels()
        self.config_applied_timestamp_seconds = self._gauge(
            "config_applied_timestamp_seconds",
            "Since when the configuration is in force, in Unix seconds.",
        ).labels()

    def observe(self, exchange: Exchange, charged: Charged | None, *, saved_microdollars: int = 0) -> None:
        """Count one finished exchange; call it exactly once, with what it was charged (None: nothing).

        `saved_microdollars` is what a hit would have cost upstream.
        """
        decision, principal = exchange.decision, exchange.principal
        model = UNKNOWN if decision is None else decision.model.name
        project = UNKNOWN if principal is None else principal.project
        status_class = _STATUS_CLASSES[min(exchange.status // 100, len(_STATUS_CLASSES) - 1)]
        self.requests_total.labels(exchange.route, model, project, status_class, exchange.outcome.value).inc()
        if exchange.error_code == CLIENT_TOO_SLOW:
            self.slow_clients_total.labels(model).inc()
        self._observe_times(exchange, model)
        if decision is not None:
            self._observe_cache(exchange, decision.cache, is_admitted=charged is not None)
            self._observe_adjustments(decision)
            for advisory in decision.advisories:
                self.advisories_total.labels(advisory).inc()
        if charged is not None:
            self.observe_charge(charged, model, project)
        if saved_microdollars:
            self.saved_usd_total.labels(model, project).inc(saved_microdollars / MICRODOLLARS_PER_USD)

    def see_rooms(self, rooms: Sequence[Room]) -> None:
        """Take how the limits of a request stand that was just admitted or refused."""
        for room in rooms:
            if room.tank.capacity:
                used = (room.level.spent + room.level.held) / room.tank.capacity
                self.limit_utilization_ratio.labels(room.bound.policy, room.bound.name).see(used)

    def _observe_times(self, exchange: Exchange, model: str) -> None:
        if (duration_seconds := exchange.duration_seconds) is not None:
            duration = self.request_duration_seconds.labels(exchange.route, model, exchange.cache.value)
            duration.observe(duration_seconds)
        if (first_token_seconds := exchange.time_to_first_token_seconds) is not None:
            first = self.time_to_first_token_seconds.labels(exchange.route, model)
            first.observe(first_token_seconds)
        if exchange.answer.token_gaps is not None:
            self.time_between_tokens_seconds.labels(model).add(exchange.answer.token_gaps)

    def _observe_cache(self, exchange: Exchange, plan: CachePlan, *, is_admitted: bool) -> None:
        if exchange.cache is CacheResult.BYPASS and not is_admitted:
            return  # it ended before the cache had a say
        reason = exchange.cache_reason or (plan.reason if isinstance(plan, Bypass) else "none")
        result = _JOINED if exchange.is_collapsed else exchange.cache.value
        self.cache_lookups_total.labels(result, reason).inc()
        if exchange.is_stored:
            self.cache_stores_total.inc()

    def _observe_adjustments(self, decision: Decision) -> None:
        for counter, adjustments in (
            (self.adjustments_total, decision.adjustments),
            (self.observed_adjustments_total, decision.observed),
        ):
            for each in adjustments:
                counter.labels(label_of(each.parameter, decision.policy), each.action.value).inc()

    def observe_charge(self, charged: Charged, model: str, project: str) -> None:
        """Count what a request was charged that is counted otherwise elsewhere, if at all."""
        for direction, tokens in (
            ("input", charged.input_tokens),
            ("output", charged.output_tokens),
            ("cached_input", charged.cached_input_tokens),
            ("reasoning", charged.reasoning_tokens),
        ):
            if tokens:
                self.tokens_total.labels(model, project, direction).inc(tokens)
        if charged.cost_microdollars:
            self.spent_usd_total.labels(model, project).inc(charged.cost_microdollars / MICRODOLLARS_PER_USD)

    def snapshot(self) -> Snapshot:
        """Return everything counted so far."""
        return {family.name: family.series() for family in self.families}


DECLARED = {family.name: family for family in Metrics().families}
"""Name, kind, help and labels of every metric; its series stay empty."""


def counters_of(snapshot: Snapshot) -> Snapshot:
    """Return what remains of a process that died: its counters and histograms, not its gauges."""
    return {name: series for name, series in snapshot.items() if DECLARED[name].kind != "gauge"}


def add_up(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Add series with the same labels, gauges like everything else; but of highest values the highest one counts."""
    sums: dict[str, dict[tuple[str, ...], CellData]] = {}
    for snapshot in snapshots:
        for name, series in snapshot.items():
            by_labels = sums.setdefault(name, {})
            join = _highest_of if DECLARED[name].is_peak else _sum_of
            for values, data in series:
                labels = tuple(values)
                by_labels[labels] = join(by_labels[labels], data) if labels in by_labels else data
    return {name: [(list(labels), data) for labels, data in by_labels.items()] for name, by_labels in sums.items()}


def _highest_of(one: CellData, other: CellData) -> CellData:
    return max(_number(one), _number(other))


def _sum_of(one: CellData, other: CellData) -> CellData:
    if isinstance(one, list) and isinstance(other, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    if isinstance(one, list) or isinstance(other, list):
        raise TypeError("a histogram and a number do not add up")
    return one + other


def render(total: Snapshot) -> bytes:
    """Write the page that Prometheus scrapes; a metric without series keeps its help. Not for an event loop."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(total))
    return generate_latest(registry)


class _Page(Collector):
    """Gives prometheus_client a snapshot in its own terms."""

    def __init__(self, total: Snapshot) -> None:
        self._total = total

    def collect(self) -> Iterator[Metric]:
        for name, family in DECLARED.items():
            yield _family_for_page(family.kind, name, self._total.get(name, []))


def _family_for_page(kind: Kind, name: str, series: Series) -> Metric:
    help_, labels = DECLARED[name].help, DECLARED[name].label_names
    if kind == "histogram":
        histogram = HistogramMetricFamily(PREFIX + name, help_, labels=labels)
        for values, data in series:
            histogram.add_metric(values, buckets=_cumulated(data), sum_value=_sum_in(data))
        return histogram
    numbers = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(PREFIX + name, help_, labels=labels)
    for values, data in series:
        numbers.add_metric(values, _number(data))
    return numbers


def _number(data: CellData) -> float:
    if isinstance(data, list):
        raise TypeError("a histogram where a number is declared")
    return data


def _sum_in(data: CellData) -> float:
    return data[0] if isinstance(data, list) else data


def _cumulated(data: CellData) -> list[tuple[str, float]]:
    """Return (upper bound, how many at most this long), as the exposition format wants them."""
    counts = data[1:] if isinstance(data, list) else []
    bounds = [*(str(bound) for bound in BUCKETS_SECONDS), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))
