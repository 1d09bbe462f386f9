"""What is counted for which exchange, and what a page over several processes says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest

from policies.cacheability import Bypass, Keyed
from policies.charges import Charged
from policies.merging import EffectivePolicy
from policies.principals import Principal
from policies.requests.asked import Action, Adjustment
from policies.windows import Level, Tank
from proxy.durations import BUCKETS_SECONDS, Durations
from proxy.exchange import CacheResult, Exchange, Observed, Outcome
from proxy.metrics import DECLARED, Metrics, add_up, counters_of, render

if TYPE_CHECKING:
    from policies.decision import Decision
    from policies.room import Room

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "metrics.txt"
KEYED = Keyed(key="00", ttl_seconds=60)
LINE = re.compile(r'^(#.*|[a-zA-Z_:][\w:]*(\{([a-zA-Z_]\w*="(\\.|[^"\\\n])*",?)*\})? \S+)?$')


def make_decision(
    cache: Keyed | Bypass = KEYED,
    adjustments: tuple[Adjustment, ...] = (),
    observed: tuple[Adjustment, ...] = (),
    advisories: tuple[str, ...] = (),
) -> Decision:
    """Return as much of a decision as is told of one."""
    told = {
        "model": SimpleNamespace(name="m"),
        "policy": EffectivePolicy(),
        "cache": cache,
        "adjustments": adjustments,
        "observed": observed,
        "advisories": advisories,
    }
    return cast("Decision", SimpleNamespace(**told))


def gaps(*seconds: float) -> Durations:
    """Count some durations."""
    counted = Durations()
    for each in seconds:
        counted.observe(each)
    return counted


def make_exchange(**facts: Any) -> Exchange:  # noqa: ANN401  any of an exchange's facts
    """Return a completed exchange over half a second, some of its facts replaced."""
    principal = Principal(organization="o", project="p", owner="alice", key="k")
    given = {
        "route": "/v1/completions",
        "principal": principal,
        "decision": make_decision(),
        "status": 200,
        "outcome": Outcome.COMPLETED,
        "cache": CacheResult.MISS,
        "ended": 10.5,
        **facts,
    }
    return Exchange("req_1", 1_700_000_000.0, 10.0, **given)


def page(*metrics: Metrics) -> str:
    return render(add_up([each.snapshot() for each in metrics])).decode()


def samples(text: str) -> dict[str, float]:
    """Return every sample that is not zero."""
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("tidegate_"): float(value) for name, _, value in rows if float(value)}


COUNTED = {
    "a completed request is counted under the names that the configuration gives": (
        make_exchange(),
        None,
        {
            'requests_total{model="m",outcome="completed",project="p",route="/v1/completions",status_class="2xx"}': 1,
            'cache_lookups_total{reason="none",result="miss"}': 1,
            'request_duration_seconds_sum{cache="miss",model="m",route="/v1/completions"}': 0.5,
        },
    ),
    "a request that nobody could make sense of is counted as unknown": (
        make_exchange(route="unknown", principal=None, decision=None, status=404, outcome=Outcome.REJECTED),
        None,
        {
            'requests_total{model="unknown",outcome="rejected",project="unknown",'
            'route="unknown",status_class="4xx"}': 1,
        },
    ),
    "a client that left before any status has none": (
        make_exchange(status=0, outcome=Outcome.CLIENT_LEFT),
        None,
        {
            'requests_total{model="m",outcome="client_left",project="p",'
            'route="/v1/completions",status_class="none"}': 1,
        },
    ),
    "a status that no specification knows is a server's fault": (
        make_exchange(status=999),
        None,
        {'requests_total{model="m",outcome="completed",project="p",route="/v1/completions",status_class="5xx"}': 1},
    ),
    "tokens and money are counted as charged": (
        make_exchange(),
        Charged(input_tokens=3, output_tokens=4, reasoning_tokens=1, cost_microdollars=11),
        {
            'tokens_total{direction="input",model="m",project="p"}': 3,
            'tokens_total{direction="output",model="m",project="p"}': 4,
            'tokens_total{direction="reasoning",model="m",project="p"}': 1,
            'spent_usd_total{model="m",project="p"}': 0.000011,
        },
    ),
    "a hit is a look-up that found something": (
        make_exchange(cache=CacheResult.HIT),
        None,
        {'cache_lookups_total{reason="none",result="hit"}': 1},
    ),
    "who joined the fetch of another is told apart": (
        make_exchange(cache=CacheResult.HIT, is_collapsed=True),
        None,
        {'cache_lookups_total{reason="none",result="joined"}': 1},
    ),
    "a bypass says why": (
        make_exchange(decision=make_decision(Bypass("not-deterministic")), cache=CacheResult.BYPASS),
        Charged(),
        {'cache_lookups_total{reason="not-deterministic",result="bypass"}': 1},
    ),
    "an answer put into the cache is counted": (
        make_exchange(is_stored=True),
        None,
        {"cache_stores_total": 1},
    ),
    "every adjustment is counted by parameter and rule": (
        make_exchange(
            decision=make_decision(
                adjustments=(Adjustment("n", 8, 4, Action.CLAMP), Adjustment("best_of", 8, 4, Action.CLAMP))
            )
        ),
        None,
        {
            'adjustments_total{parameter="n",rule="clamp"}': 1,
            'adjustments_total{parameter="best_of",rule="clamp"}': 1,
        },
    ),
    "what observed rules would have done is counted apart": (
        make_exchange(decision=make_decision(observed=(Adjustment("n", 8, None, Action.REJECT),))),
        None,
        {'observed_adjustments_total{parameter="n",rule="reject"}': 1},
    ),
    "a client's own word is no label": (
        make_exchange(decision=make_decision(adjustments=(Adjustment("client's word", 8, None, Action.DROP),))),
        None,
        {'adjustments_total{parameter="unknown_parameters",rule="drop"}': 1},
    ),
    "an advisory is counted by its name": (
        make_exchange(decision=make_decision(advisories=("prompt-ends-in-space",))),
        None,
        {'advisories_total{advisory="prompt-ends-in-space"}': 1},
    ),
    "a client that was given up is counted": (
        make_exchange(outcome=Outcome.CLIENT_LEFT, error_code="client_too_slow"),
        None,
        {'slow_clients_total{model="m"}': 1},
    ),
    "a stream's first byte and the gaps after it are measured": (
        make_exchange(first_byte=10.25, answer=Observed(content_events=3, token_gaps=gaps(0.125, 0.25))),
        None,
        {
            'time_to_first_token_seconds_sum{model="m",route="/v1/completions"}': 0.25,
            'time_between_tokens_seconds_sum{model="m"}': 0.375,
            'time_between_tokens_seconds_bucket{le="0.25",model="m"}': 2,
            'time_between_tokens_seconds_count{model="m"}': 2,
        },
    ),
}


@pytest.mark.parametrize(
    "exchange",
    [
        pytest.param(make_exchange(first_byte=10.25), id="a whole answer"),
        pytest.param(make_exchange(first_byte=10.25, cache=CacheResult.HIT), id="a hit"),
        pytest.param(make_exchange(answer=Observed(content_events=3)), id="a stream that never began"),
    ],
)
def test_only_streams_have_a_first_token(exchange: Exchange) -> None:
    metrics = Metrics()
    metrics.observe(exchange, None)
    assert metrics.snapshot()["time_to_first_token_seconds"] == []


@pytest.mark.parametrize(("exchange", "charged", "expected"), COUNTED.values(), ids=COUNTED.keys())
def test_an_exchange_is_counted(exchange: Exchange, charged: Charged | None, expected: dict[str, float]) -> None:
    metrics = Metrics()
    metrics.observe(exchange, charged)
    told = samples(page(metrics))
    assert {name: told.get(name) for name in expected} == pytest.approx(expected)


def test_what_a_hit_saved_is_counted_in_dollars() -> None:
    metrics = Metrics()
    metrics.observe(make_exchange(cache=CacheResult.HIT), None, saved_microdollars=3_000)
    assert samples(page(metrics))['saved_usd_total{model="m",project="p"}'] == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("status", "outcome", "reason"),
    [
        pytest.param(429, Outcome.REJECTED, None, id="a limit refused it"),
        pytest.param(429, Outcome.REJECTED, "not-deterministic", id="which would not have looked anyway"),
        pytest.param(503, Outcome.FAILED, None, id="its limits could not be counted"),
        pytest.param(0, Outcome.CLIENT_LEFT, None, id="its client left before it was admitted"),
    ],
)
def test_what_ended_before_its_admission_is_no_verdict_of_the_cache(
    status: int, outcome: Outcome, reason: str | None
) -> None:
    metrics = Metrics()
    metrics.observe(make_exchange(cache=CacheResult.BYPASS, cache_reason=reason, outcome=outcome, status=status), None)
    assert metrics.snapshot()["cache_lookups_total"] == []


def test_the_same_page_is_written_for_the_same_counts() -> None:
    metrics = Metrics()
    streamed = make_exchange(first_byte=10.25, answer=Observed(content_events=4))
    metrics.observe(streamed, Charged(input_tokens=3, output_tokens=4, cost_microdollars=11))
    metrics.store_errors_total.labels("state").inc()
    metrics.worker_up.labels("0").set(1)
    assert page(metrics) == GOLDEN.read_text()


def test_counters_gauges_and_histograms_of_all_processes_are_added() -> None:
    one, other = Metrics(), Metrics()
    for metrics, seconds in ((one, 0.001), (other, 1000.0)):
        metrics.open_streams.inc(2)
        metrics.store_errors_total.labels("state").inc()
        metrics.store_duration_seconds.labels("state").observe(seconds)
    other.open_streams.dec()
    told = samples(page(one, other))
    assert told["open_streams"] == 3
    assert told['store_errors_total{store="state"}'] == 2
    assert told['store_duration_seconds_bucket{le="0.001",store="state"}'] == 1
    assert told['store_duration_seconds_bucket{le="600.0",store="state"}'] == 1
    assert told['store_duration_seconds_bucket{le="+Inf",store="state"}'] == 2


def room(name: str, level: Level, capacity: int = 100) -> Room:
    """Return as much of a limit's room as is looked at."""
    return cast("Room", SimpleNamespace(bound=SimpleNamespace(policy="p", name=name), level=level, tank=Tank(capacity)))


def test_of_how_full_limits_were_the_highest_of_all_processes_counts() -> None:
    one, other = Metrics(), Metrics()
    one.see_rooms([room("rpm", Level(spent=30, held=20)), room("tpm", Level(spent=10)), room("none", Level(), 0)])
    one.see_rooms([room("rpm", Level(spent=40))])
    other.see_rooms([room("rpm", Level(held=20)), room("tpm", Level(spent=150))])
    told = samples(page(one, other))
    assert told == {
        'limit_utilization_ratio{limit="rpm",policy="p"}': 0.5,
        'limit_utilization_ratio{limit="tpm",policy="p"}': 1.5,
    }


def test_how_full_a_limit_was_stands_for_half_a_minute_at_least_and_a_minute_at_most() -> None:
    metrics, told = Metrics(), []
    with patch("proxy.metrics.time.monotonic") as clock:
        clock.return_value = 1_000.0
        metrics.see_rooms([room("rpm", Level(spent=50))])
        for second, seen in ((1, None), (29, 70), (31, 60), (60, None), (62, None), (93, None)):
            clock.return_value = 1_000.0 + second
            if seen is not None:
                metrics.see_rooms([room("rpm", Level(spent=seen))])
            told.append(metrics.snapshot()["limit_utilization_ratio"][0][1])
    assert told == [0.5, 0.7, 0.7, 0.7, 0.7, 0.0]


def test_of_a_dead_process_the_counters_stay_and_the_gauges_go() -> None:
    dead = Metrics()
    dead.open_streams.inc()
    dead.cache_stores_total.inc()
    dead.store_duration_seconds.labels("state").observe(0.5)
    told = samples(render(counters_of(dead.snapshot())).decode())
    assert told["cache_stores_total"] == 1
    assert told['store_duration_seconds_count{store="state"}'] == 1
    assert "open_streams" not in told


def test_a_snapshot_is_not_changed_by_what_is_counted_later() -> None:
    metrics = Metrics()
    metrics.store_duration_seconds.labels("state").observe(0.5)
    snapshot = metrics.snapshot()
    metrics.store_duration_seconds.labels("state").observe(0.5)
    assert samples(render(snapshot).decode())['store_duration_seconds_count{store="state"}'] == 1


def test_labels_can_be_given_by_position_or_by_name() -> None:
    metrics = Metrics()
    metrics.upstream_errors_total.labels("llama", "connect").inc()
    metrics.upstream_errors_total.labels(kind="connect", upstream="llama").inc()
    assert metrics.snapshot()["upstream_errors_total"] == [(["llama", "connect"], 2.0)]


def test_what_is_no_longer_so_is_forgotten() -> None:
    metrics = Metrics()
    for configuration in ("old", "new"):
        metrics.build_info.forget()
        metrics.build_info.labels("1", configuration).set(1)
    assert metrics.snapshot()["build_info"] == [(["1", "new"], 1.0)]


def test_a_label_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="upstream_errors_total has the labels"):
        Metrics().upstream_errors_total.labels("llama")


@pytest.mark.parametrize("name", ['q"uote', "new\nline", "back\\slash", "é", "{}"])
def test_a_configured_name_of_any_characters_does_not_break_the_page(name: str) -> None:
    metrics = Metrics()
    metrics.store_errors_total.labels(name).inc()
    assert all(LINE.match(line) for line in page(metrics).split("\n"))


def test_latency_buckets_reach_from_a_hit_to_the_longest_generation() -> None:
    assert BUCKETS_SECONDS[0] == 0.001
    assert BUCKETS_SECONDS[-1] == 600
    assert list(BUCKETS_SECONDS) == sorted(BUCKETS_SECONDS)


@pytest.mark.parametrize("family", DECLARED.values(), ids=DECLARED.keys())
def test_every_metric_has_a_help_sentence_and_a_name_that_says_its_unit(family: Any) -> None:  # noqa: ANN401  any kind
    assert family.help.endswith(".")
    assert family.name.endswith("_total") is (family.kind == "counter")
    assert family.name.endswith("_seconds") or family.kind != "histogram"
