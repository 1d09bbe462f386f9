"""A whole gateway as its operator sees it: what it prints, how it becomes ready, and how it ends however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import FakeUpstream, sse_reply
from gateway import (
    ROOT,
    CommandFailed,
    Gateway,
    bearer,
    children_of,
    command_line,
    descendants_of,
    eventually,
    is_alive,
    settings,
)
from harness import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stores import StoreServer

START_SECONDS = 30
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run one gateway for all tests that leave it as it is."""
    with Gateway(tmp_path_factory.mktemp("shared"), settings(NOWHERE, users={"alice": {}}, workers=2)) as running:
        yield running


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path, settings(NOWHERE, users={"alice": {}}, workers=2)) as running:
        yield running


def status(gateway: Gateway, path: str) -> int:
    return call(gateway.admin_url, "GET", path).status


def metric(gateway: Gateway, sample: str) -> float | None:
    """Return a sample of the metrics page by its full name, None when it is not there."""
    page = call(gateway.admin_url, "GET", "/metrics").body.decode()
    found = re.search(rf"^tidegate_{re.escape(sample)} (\S+)$", page, re.MULTILINE)
    return None if found is None else float(found[1])


def stores_of(gateway: Gateway) -> list[int]:
    return [pid for pid in children_of(gateway.pid) if pid not in gateway.worker_pids]


def run_again(gateway: Gateway, **changed: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: ANN401  any setting
    """Start a second gateway beside a running one and return how it ended."""
    second = Gateway(gateway.folder / "second", {**gateway.settings, **changed})
    arguments = [sys.executable, "-m", "proxy", "run", "--config", str(second.config_path)]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, timeout=START_SECONDS, check=False)


def test_a_gateway_that_is_up_is_ready_and_says_so_in_one_line(shared: Gateway) -> None:
    assert len(shared.output.splitlines()) == 1
    assert status(shared, "/healthz") == 200
    assert status(shared, "/readyz") == 200
    assert metric(shared, 'worker_up{worker="0"}') == 1
    assert metric(shared, 'worker_up{worker="1"}') == 1
    assert metric(shared, 'store_up{store="state"}') == 1
    assert metric(shared, 'store_up{store="cache_state"}') == 1


def test_every_worker_serves_the_shared_port_and_one_page_counts_them_all(shared: Gateway) -> None:
    for _ in range(20):
        assert call(shared.base_url, "GET", "/v1/models", bearer("alice")).status == 200
    counted = metric(
        shared,
        'requests_total{model="unknown",outcome="completed",project="proj_tests",'
        'route="/v1/models",status_class="2xx"}',
    )
    assert counted == 20


def test_a_killed_worker_is_started_again_and_what_it_counted_stays(gateway: Gateway) -> None:
    for _ in range(20):
        call(gateway.base_url, "GET", "/nothing")
    sample = 'requests_total{model="unknown",outcome="rejected",project="unknown",route="unknown",status_class="4xx"}'
    assert metric(gateway, sample) == 20
    victims = gateway.worker_pids
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    assert eventually(lambda: not set(victims) & set(gateway.worker_pids) and status(gateway, "/readyz") == 200)
    assert metric(gateway, sample) == 20
    assert metric(gateway, 'worker_restarts_total{worker="0"}') == 1


def test_a_worker_that_is_away_keeps_nobody_out(tmp_path: Path) -> None:
    with Gateway(tmp_path, settings(NOWHERE, users={"alice": {}})) as gateway:
        os.kill(gateway.worker_pids[0], signal.SIGKILL)
        assert call(gateway.base_url, "GET", "/v1/models", bearer("alice")).status == 200


def test_readiness_follows_the_state_store(tmp_path: Path, own_valkey_on_tcp: StoreServer) -> None:
    made = settings(NOWHERE, users={"alice": {}}, state=own_valkey_on_tcp.url)
    with Gateway(tmp_path, made) as gateway:
        assert status(gateway, "/readyz") == 200
        own_valkey_on_tcp.kill()
        assert eventually(lambda: status(gateway, "/readyz") == 503)
        assert status(gateway, "/healthz") == 200
        assert metric(gateway, 'store_up{store="state"}') == 0
        assert call(gateway.base_url, "GET", "/v1/models", bearer("alice")).status == 200


@pytest.mark.parametrize(
    ("spoil", "mend"),
    [
        pytest.param("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", id="a replica"),
        pytest.param("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", id="a full memory"),
        pytest.param("SET tidegate:{org_default}:outbox junk", "DEL tidegate:{org_default}:outbox", id="a wrong type"),
    ],
)
def test_readiness_follows_whether_the_state_store_takes_writes(
    tmp_path: Path, own_valkey_on_tcp: StoreServer, spoil: str, mend: str
) -> None:
    made = settings(NOWHERE, users={"alice": {}}, state=own_valkey_on_tcp.url)
    with Gateway(tmp_path, made) as gateway, own_valkey_on_tcp.client() as client:
        client.execute_command(*spoil.split())
        assert eventually(lambda: status(gateway, "/readyz") == 503)
        assert metric(gateway, 'store_up{store="state"}') == 0
        client.execute_command(*mend.split())
        assert eventually(lambda: status(gateway, "/readyz") == 200)
        assert metric(gateway, 'store_up{store="state"}') == 1


def test_a_cache_that_is_away_is_told_and_keeps_nobody_out(tmp_path: Path, own_valkey_on_tcp: StoreServer) -> None:
    made = settings(NOWHERE, users={"alice": {}}, cache_state=own_valkey_on_tcp.url)
    with Gateway(tmp_path, made) as gateway:
        own_valkey_on_tcp.kill()
        assert eventually(lambda: metric(gateway, 'store_up{store="cache_state"}') == 0)
        assert metric(gateway, 'store_up{store="state"}') == 1
        assert status(gateway, "/readyz") == 200


def test_a_gateway_starts_while_its_store_is_away(tmp_path: Path) -> None:
    with Gateway(tmp_path, settings(NOWHERE, users={"alice": {}}, state="redis://127.0.0.1:9/0")) as gateway:
        assert status(gateway, "/healthz") == 200
        assert status(gateway, "/readyz") == 503


def test_an_embedded_store_that_dies_is_started_again(gateway: Gateway) -> None:
    victims = stores_of(gateway)
    assert len(victims) == 2
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    assert eventually(lambda: len(set(stores_of(gateway)) - set(victims)) == 2)
    assert eventually(lambda: status(gateway, "/readyz") == 200)


def test_sigterm_ends_everything_with_status_zero(gateway: Gateway) -> None:
    below = descendants_of(gateway.pid)
    assert gateway.terminate() == 0
    assert not [command_line(pid) for pid in below if is_alive(pid)]


def test_the_terminals_interrupt_ends_it_as_well(gateway: Gateway) -> None:
    gateway.process.send_signal(signal.SIGINT)
    assert gateway.process.wait(START_SECONDS) == 0


def test_a_hangup_ends_nothing(gateway: Gateway) -> None:
    gateway.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: metric(gateway, 'config_reloads_total{result="unchanged"}') == 1)
    assert status(gateway, "/readyz") == 200


def test_a_killed_supervisor_takes_its_workers_and_stores_with_it(gateway: Gateway) -> None:
    below = descendants_of(gateway.pid)
    assert len(below) == 4
    gateway.kill()
    assert eventually(lambda: not [pid for pid in below if is_alive(pid)])


def test_after_a_kill_the_next_gateway_starts_on_the_same_data_and_port(tmp_path: Path) -> None:
    made = settings(NOWHERE, users={"alice": {}})
    with Gateway(tmp_path, made) as gateway:
        port = gateway.base_url.rpartition(":")[2]
        gateway.kill()
        again = eventually(lambda: started(tmp_path, {**made, "listen": f"127.0.0.1:{port}"}), seconds=START_SECONDS)
        try:
            assert call(again.base_url, "GET", "/v1/models", bearer("alice")).status == 200
        finally:
            again.__exit__(None, None, None)


def started(folder: Path, made: dict[str, Any]) -> Gateway | None:
    try:
        return Gateway(folder, made).__enter__()
    except CommandFailed:
        return None


def test_a_second_gateway_on_the_same_data_is_refused_in_one_line(shared: Gateway) -> None:
    done = run_again(shared, data_dir=str(shared.data_dir))
    assert done.returncode == 2
    [line] = done.stderr.decode().splitlines()
    assert f"process {shared.pid}" in line
    assert status(shared, "/readyz") == 200


@pytest.mark.parametrize("setting", ["listen", "admin_listen"])
def test_a_taken_port_is_refused_in_one_line(shared: Gateway, setting: str) -> None:
    url = shared.base_url if setting == "listen" else shared.admin_url
    done = run_again(shared, **{setting: url.removeprefix("http://")})
    assert done.returncode == 2
    [line] = done.stderr.decode().splitlines()
    assert f"`{setting}`" in line


SECRET_FROM = {"only": {"kind": "openai", "base_url": NOWHERE, "api_key": "file:secret"}}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(lambda at: (at / "tidegate.yaml").mkdir(), "is a directory", id="the file"),
        pytest.param(lambda _: None, "no such file", id="no file at all"),
        pytest.param(
            lambda at: (at / "tidegate.yaml").write_text(json.dumps({"upstreams": SECRET_FROM})),
            "upstreams.only.api_key: the file secret cannot be read",
            id="a secret",
        ),
        pytest.param(
            lambda at: (at / "tidegate.yaml").write_text("workers: many"), "tidegate.yaml:1: workers", id="a setting"
        ),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line_and_leaves_nothing_behind(
    tmp_path: Path, spoil: Callable[[Path], object], told: str
) -> None:
    spoil(tmp_path)
    arguments = [sys.executable, "-m", "proxy", "run", "--config", "tidegate.yaml"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, cwd=tmp_path, env=environ, capture_output=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 2
    [line] = done.stderr.decode().splitlines()
    assert told in line
    assert not (tmp_path / "data").exists()


def test_a_store_that_evicts_is_refused(tmp_path: Path, own_valkey_on_tcp: StoreServer) -> None:
    with own_valkey_on_tcp.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    made = settings(NOWHERE, users={"alice": {}}, state=own_valkey_on_tcp.url)
    with pytest.raises(CommandFailed, match=r"exit status 2\n+.*maxmemory-policy allkeys-lru"), Gateway(tmp_path, made):
        pass


def test_a_store_that_evicts_once_it_is_there_is_told(tmp_path: Path, own_valkey_on_tcp: StoreServer) -> None:
    own_valkey_on_tcp.kill()
    with Gateway(tmp_path, settings(NOWHERE, users={"alice": {}}, state=own_valkey_on_tcp.url)) as gateway:
        own_valkey_on_tcp.start()
        assert eventually(lambda: metric(gateway, 'store_evicts{store="state"}') == 0)
        with own_valkey_on_tcp.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        assert eventually(lambda: metric(gateway, 'store_evicts{store="state"}') == 1)
        assert gateway.log.count("maxmemory-policy allkeys-lru") == 1


def occupy(path: Path) -> None:
    """Put a folder where a file belongs, or the reverse."""
    path.parent.mkdir()
    if path.suffix:
        path.mkdir()
    else:
        path.touch()


@pytest.mark.parametrize("name", ["spool", "usage.jsonl"])
def test_a_data_folder_that_holds_something_else_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    occupy(tmp_path / "data" / name)
    with pytest.raises(CommandFailed) as failed, Gateway(tmp_path, settings(NOWHERE, users={"alice": {}})):
        pass
    [status_line, line] = [line for line in str(failed.value).splitlines() if line]
    assert status_line == "exit status 2"
    assert line.startswith(f"tidegate: {tmp_path / 'data' / name} cannot be used (")


def test_a_worker_that_cannot_serve_ends_the_start_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data" / "spool" / "0-0.spool").mkdir(parents=True)
    with pytest.raises(CommandFailed) as failed, Gateway(tmp_path, settings(NOWHERE, users={"alice": {}})):
        pass
    said = [line for line in str(failed.value).splitlines() if line]
    assert said[0] == "exit status 1"
    assert [line for line in said[1:] if not line.startswith("{")] == [
        "tidegate: the workers do not start; the log above says why"
    ]


def test_without_an_admin_key_one_is_made_and_works(tmp_path: Path) -> None:
    with Gateway(tmp_path, {**settings(NOWHERE, users={"alice": {}}), "admin_keys": []}) as gateway:
        [key] = eventually(lambda: re.findall(r"tg-admin-[\w-]+", gateway.output))
        with_key = [("Authorization", f"Bearer {key}")]
        assert call(gateway.admin_url, "GET", "/v1/x").status == 401
        assert call(gateway.admin_url, "GET", "/v1/x", with_key).status == 404
        assert key not in gateway.log


def test_a_second_signal_does_not_wait_for_answers_under_way(tmp_path: Path) -> None:
    upstream = FakeUpstream().start()
    upstream.script(sse_reply([3600.0]))
    with Gateway(tmp_path, settings(f"{upstream.url}/v1", users={"alice": {}}, drain_timeout="1h")) as gateway:
        host, port = gateway.base_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            body = b'{"model": "m", "prompt": "x"}'
            head = "".join(f"{name}: {value}\r\n" for name, value in bearer("alice"))
            client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}".encode())
            client.sendall(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert upstream.wait(lambda: len(upstream.served) == 1)
            gateway.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: status(gateway, "/readyz") == 503)
            began = time.monotonic()
            gateway.process.send_signal(signal.SIGTERM)
            assert gateway.process.wait(START_SECONDS) == 0
            assert time.monotonic() - began < START_SECONDS
