"""Reloads from a real file, put in force by whoever the test says."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from tls_files import tls_file

from proxy import reload
from proxy.config_file import ConfigurationFile
from proxy.metrics import Metrics
from proxy.reload import Reloads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from structlog.typing import EventDict

    from proxy.config import Configuration

PATIENCE_SECONDS = 20
UPSTREAM = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "file:secret"}


@dataclass
class Gateway:
    """What reloads are put in force by: `answers` says what becomes of each, nothing wrong once they are used up."""

    folder: Path
    metrics: Metrics = field(default_factory=Metrics)
    taken: list[Configuration] = field(default_factory=list)
    answers: list[str | Exception | None] = field(default_factory=list)
    reloads: Reloads = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "secret").write_text("a-secret")
        self.write()
        file = ConfigurationFile(self.path)
        self.reloads = Reloads(file, file.read(), self.metrics)

    @property
    def path(self) -> Path:
        return self.folder / "tidegate.yaml"

    def write(self, **more: Any) -> None:  # noqa: ANN401  any setting
        self.path.write_text(json.dumps({"upstreams": {"only": UPSTREAM}, **more}))

    async def take(self, configuration: Configuration) -> str | None:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self.taken.append(configuration)
        return answer

    def count(self, result: str) -> float:
        return self.metrics.config_reloads_total.labels(result).value

    async def until(self, result: str, count: int) -> None:
        """Wait for what becomes of a reload."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.count(result) < count:  # noqa: ASYNC110  a metric tells nobody
                await asyncio.sleep(0.01)
        assert self.count(result) == count


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    made = Gateway(tmp_path)
    async with following(made):
        yield made


@asynccontextmanager
async def following(gateway: Gateway) -> AsyncIterator[None]:
    task = asyncio.create_task(gateway.reloads.follow(gateway.take))
    yield
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.fixture
def logged() -> Iterator[list[EventDict]]:
    with capture_logs() as lines:
        yield lines


async def test_what_has_changed_is_put_in_force(gateway: Gateway) -> None:
    before = gateway.metrics.config_applied_timestamp_seconds.value
    gateway.write(drain_timeout="7s")
    await gateway.until("applied", 1)
    assert [each.drain_timeout for each in gateway.taken] == [7_000]
    assert gateway.metrics.config_applied_timestamp_seconds.value > before


async def test_whoever_asks_is_heard_although_nothing_has_changed(gateway: Gateway) -> None:
    for times in (1, 2):
        gateway.reloads.ask()
        await gateway.until("unchanged", times)
    assert gateway.taken == []


async def test_what_cannot_be_used_is_told_and_asked_of_nobody(gateway: Gateway, logged: list[EventDict]) -> None:
    gateway.write(drain_timeouts="7s")
    await gateway.until("rejected", 1)
    assert gateway.taken == []
    assert gateway.metrics.config_last_reload_successful.value == 0
    [line] = [line for line in logged if "problems" in line]
    [problem] = line["problems"]
    assert problem.startswith(f"{gateway.path}:1: ")
    assert "drain_timeout" in problem


async def test_what_cannot_be_put_in_force_is_tried_again_when_asked(gateway: Gateway, logged: list[EventDict]) -> None:
    gateway.answers = ["worker 1: no memory left"]
    gateway.write(drain_timeout="7s")
    await gateway.until("rejected", 1)
    assert [line["problems"] for line in logged if "problems" in line] == [["worker 1: no memory left"]]
    gateway.reloads.ask()
    await gateway.until("applied", 1)
    assert [each.drain_timeout for each in gateway.taken] == [7_000]
    assert gateway.metrics.config_last_reload_successful.value == 1


async def test_a_fault_ends_one_reload_and_not_all(gateway: Gateway, logged: list[EventDict]) -> None:
    gateway.answers = [ValueError("a fault")]
    gateway.write(drain_timeout="7s")
    await gateway.until("rejected", 1)
    assert gateway.metrics.unhandled_errors_total.labels("reload").value == 1
    assert [line for line in logged if line.get("exc_info")]
    gateway.write(drain_timeout="8s")
    await gateway.until("applied", 1)


async def test_what_is_fixed_is_named_and_the_rest_put_in_force(gateway: Gateway, logged: list[EventDict]) -> None:
    gateway.write(drain_timeout="7s", workers=9, listen="127.0.0.1:1")
    await gateway.until("applied", 1)
    assert (gateway.taken[0].workers, gateway.taken[0].drain_timeout) == (1, 7_000)
    assert [line["settings"] for line in logged if "settings" in line] == [["listen", "workers"]]


async def test_a_change_of_only_what_is_fixed_changes_nothing(gateway: Gateway) -> None:
    gateway.write(workers=9)
    await gateway.until("unchanged", 1)
    assert gateway.taken == []


async def test_a_secret_in_a_file_is_read_anew(gateway: Gateway) -> None:
    (gateway.folder / "secret").write_text("another-secret")
    await gateway.until("applied", 1)
    key = gateway.taken[0].upstreams["only"].api_key
    assert key is not None
    assert key.get_secret_value() == "another-secret"


async def test_a_secret_that_is_gone_for_good_is_told(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "ABSENT_SECONDS", 0.05)
    (gateway.folder / "secret").unlink()
    await gateway.until("rejected", 1)
    (gateway.folder / "secret").write_text("another-secret")
    await gateway.until("applied", 1)


@pytest.mark.parametrize("name", ["tidegate.yaml", "secret"])
async def test_what_vanishes_and_comes_back_as_it_was_is_no_reload(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(reload, "ABSENT_SECONDS", 3600.0)
    path = gateway.folder / name
    text = path.read_text()
    path.unlink()
    await asyncio.sleep(0.3)  # long enough to be seen, which is nowhere told
    path.write_text("")
    await asyncio.sleep(0.3)
    path.write_text(text)
    gateway.reloads.ask()
    await gateway.until("unchanged", 1)
    assert (gateway.count("applied"), gateway.count("rejected")) == (0, 0)


async def test_a_file_that_is_gone_for_good_is_told_once(
    gateway: Gateway, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "ABSENT_SECONDS", 0.01)
    gateway.path.unlink()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not [line for line in logged if "is gone" in line["event"]]:  # noqa: ASYNC110  a log tells nobody
            await asyncio.sleep(0.01)
    (gateway.folder / "secret").write_text("another-secret")
    gateway.reloads.ask()
    await gateway.until("rejected", 1)
    gateway.write(drain_timeout="7s")
    await gateway.until("applied", 1)
    assert len([line for line in logged if "is gone" in line["event"]]) == 1


async def test_a_certificate_that_is_renewed_is_a_reload(tmp_path: Path) -> None:
    certificate = tls_file("ca.pem").read_text()
    (tmp_path / "ca.pem").write_text(certificate)
    gateway = Gateway(tmp_path)
    settings = {"kind": "openai", "base_url": "https://127.0.0.1:9/v1", "tls": {"ca_file": "ca.pem"}}
    async with following(gateway):
        gateway.write(upstreams={"only": settings})
        await gateway.until("applied", 1)
        (tmp_path / "ca.pem").write_text(f"\n{certificate}")
        await gateway.until("applied", 2)
    assert gateway.taken[0] == gateway.taken[1]


async def test_a_gateway_without_a_file_has_nothing_to_read(tmp_path: Path, logged: list[EventDict]) -> None:
    gateway = Gateway(tmp_path)
    gateway.reloads = Reloads(None, ConfigurationFile(gateway.path).read(), gateway.metrics)
    async with following(gateway):
        gateway.reloads.ask()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not logged:  # noqa: ASYNC110  a log tells nobody
                await asyncio.sleep(0.01)
    assert "no configuration file" in logged[0]["event"]
    assert sum(gateway.count(result) for result in ("applied", "rejected", "unchanged")) == 0
