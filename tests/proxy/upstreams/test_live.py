"""How upstreams are doing: what attempts leave behind, what the operator sees of it, and what a reload keeps."""

from __future__ import annotations

from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from sending import dispatcher_of, series
from stores import eventually

from policies.catalog import Deployment
from proxy.config import Configuration
from proxy.metrics import Metrics
from proxy.upstreams.client import UpstreamClient
from proxy.upstreams.live import Upstreams, targets_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from policies.catalog import Model

ONE = Deployment(upstream="one")


def configured(breaker: dict[str, Any] | None = None, **one: Any) -> Configuration:  # noqa: ANN401  settings
    return Configuration.model_validate(
        {
            "upstreams": {"one": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", **one}},
            "models": {"m": {"deployments": [{"upstream": "one"}], "breaker": breaker or {}}},
        }
    )


def model_of(configuration: Configuration) -> Model:
    return configuration.rulebook().model("m")


@asynccontextmanager
async def living(configuration: Configuration) -> AsyncIterator[Upstreams]:
    async with UpstreamClient() as client, Upstreams(client, metrics=Metrics(), worker=0, workers=1) as upstreams:
        dispatcher_of(upstreams, configuration)
        yield upstreams


def fail(upstreams: Upstreams, model: Model, times: int) -> None:
    for _ in range(times):
        gate = upstreams.gate("one")
        assert gate.try_enter()
        running = upstreams.place(model, ONE).begin(gate)
        running.failed()
        running.end()


def states(upstreams: Upstreams) -> dict[str, float]:
    found = series(upstreams.metrics, "upstream_breaker_state")
    return {state: value for (*_, state), value in found.items()}


async def test_failures_open_the_breaker_and_the_operator_sees_it() -> None:
    configuration = configured({"failures": 3})
    model = model_of(configuration)
    async with living(configuration) as upstreams:
        fail(upstreams, model, 2)
        assert upstreams.standing(model, ONE, monotonic()).is_available
        assert states(upstreams) == {"closed": 1, "half_open": 0, "open": 0}
        fail(upstreams, model, 1)
        assert not upstreams.standing(model, ONE, monotonic()).is_available
        assert states(upstreams) == {"closed": 0, "half_open": 0, "open": 1}


async def test_an_attempt_under_way_counts_until_its_end_and_takes_up_room() -> None:
    configuration = configured(concurrency=1)
    model = model_of(configuration)
    async with living(configuration) as upstreams:
        gate = upstreams.gate("one")
        assert gate.try_enter()
        running = upstreams.place(model, ONE).begin(gate)
        standing = upstreams.standing(model, ONE, monotonic())
        assert (standing.outstanding, standing.has_room) == (1, False)
        running.end()
        standing = upstreams.standing(model, ONE, monotonic())
        assert (standing.outstanding, standing.has_room, gate.outstanding) == (0, True, 0)


async def test_an_answer_is_measured_and_a_refusal_is_not() -> None:
    configuration = configured()
    model = model_of(configuration)
    async with living(configuration) as upstreams:
        gate = upstreams.gate("one")
        for is_failure, is_refusal in ((True, True), (False, True), (False, False)):
            assert upstreams.standing(model, ONE, monotonic()).latency_seconds is None
            gate.try_enter()
            running = upstreams.place(model, ONE).begin(gate)
            running.answered(is_failure=is_failure, is_refusal=is_refusal, cool_down_seconds=None)
            running.end()
        assert upstreams.standing(model, ONE, monotonic()).latency_seconds is not None


async def test_who_asks_to_be_left_alone_is() -> None:
    configuration = configured()
    model = model_of(configuration)
    async with living(configuration) as upstreams:
        gate = upstreams.gate("one")
        gate.try_enter()
        running = upstreams.place(model, ONE).begin(gate)
        running.answered(is_failure=False, is_refusal=True, cool_down_seconds=60)
        running.end()
        now = monotonic()
        assert not upstreams.standing(model, ONE, now).is_available
        assert upstreams.standing(model, ONE, now + 61).is_available


async def test_a_reload_keeps_what_was_seen_and_brings_other_rules() -> None:
    model = model_of(configured({"failures": 3}))
    async with living(configured({"failures": 3})) as upstreams:
        fail(upstreams, model, 2)
        dispatcher_of(upstreams, configured({"failures": 4}, concurrency=2))
        fail(upstreams, model, 1)
        assert upstreams.standing(model, ONE, monotonic()).is_available
        fail(upstreams, model, 1)
        assert not upstreams.standing(model, ONE, monotonic()).is_available
        assert [upstreams.gate("one").try_enter() for _ in range(3)] == [True, True, False]


async def test_what_is_only_prepared_changes_nothing() -> None:
    configuration = configured({"failures": 1})
    async with living(configuration) as upstreams:
        fail(upstreams, model_of(configuration), 1)
        other = Configuration(upstreams=configuration.upstreams)
        upstreams.dispatcher(other, targets_of(other, {}))
        assert states(upstreams) == {"closed": 0, "half_open": 0, "open": 1}
        assert not upstreams.standing(model_of(configuration), ONE, monotonic()).is_available


async def test_a_request_under_an_earlier_configuration_brings_nothing_back() -> None:
    configuration = configured({"failures": 1})
    model = model_of(configuration)
    async with living(configuration) as upstreams:
        gate = upstreams.gate("one")
        gate.try_enter()
        running = upstreams.place(model, ONE).begin(gate)
        dispatcher_of(upstreams, Configuration(upstreams=configuration.upstreams))
        running.failed()
        running.end()
        fail(upstreams, model, 1)
        assert states(upstreams) == {}


async def test_the_operator_sees_that_an_open_breaker_has_become_half_open() -> None:
    configuration = configured({"failures": 1, "open_for": "1ms"})
    async with living(configuration) as upstreams:
        fail(upstreams, model_of(configuration), 1)
        await eventually(lambda: states(upstreams)["half_open"] == 1)


async def test_a_deployment_that_is_gone_is_forgotten() -> None:
    configuration = configured({"failures": 1})
    async with living(configuration) as upstreams:
        fail(upstreams, model_of(configuration), 1)
        dispatcher_of(upstreams, Configuration(upstreams=configuration.upstreams))
        assert states(upstreams) == {}
        dispatcher_of(upstreams, configuration)
        assert upstreams.standing(model_of(configuration), ONE, monotonic()).is_available


async def test_repetitions_are_a_tenth_of_requests_and_what_quiet_times_saved() -> None:
    async with living(configured()) as upstreams:
        assert sum(upstreams.spend_retry() for _ in range(20)) == 10
        for _ in range(21):
            upstreams.earn_retries()
        assert [upstreams.spend_retry() for _ in range(3)] == [True, True, False]
