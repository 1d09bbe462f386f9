"""A configuration changes under a gateway that serves: nothing is dropped, nobody sees a part of it (SPEC §10, §13)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import DONE, FakeUpstream, ev, json_reply, sse_reply, tchunk
from gateway import ADMIN_KEY, Gateway, Settings, bearer, eventually, settings, sha256
from harness import Raw, Resp, call, joined, uniq
from swarm import Connection, request_bytes

from proxy.commands import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_upstream import Ops, Req

    StartGateway = Callable[[Settings], Gateway]

ADMIN = [("Authorization", f"Bearer {ADMIN_KEY}"), ("Content-Type", "application/json")]
ONE = {"parameters": {"max_tokens": {"force": 11}}}
OTHER = {"parameters": {"max_tokens": {"force": 22}}}
PATIENCE_SECONDS = 60


def made(upstream: FakeUpstream, policy: Settings, path: str = "one", **more: Any) -> Settings:  # noqa: ANN401
    """Write a configuration whose policy and upstream tell which of several it is."""
    return settings(f"{upstream.url}/{path}/v1", users={"alice": policy}, **more)


def rewrite(gateway: Gateway, written: Settings | str) -> None:
    """Write another configuration into the gateway's file; ports and folder stay."""
    fixed = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "data_dir": "data"}
    text = written if isinstance(written, str) else json.dumps({**fixed, **written}, indent=1)
    gateway.config_path.write_text(text)


def metric(gateway: Gateway, sample: str) -> float:
    page = call(gateway.admin_url, "GET", "/metrics", ADMIN).body.decode()
    found = re.search(rf"^tidegate_{re.escape(sample)} (\S+)$", page, re.MULTILINE)
    return -1.0 if found is None else float(found[1])


def reloads(gateway: Gateway, result: str = "applied") -> float:
    return metric(gateway, f'config_reloads_total{{result="{result}"}}')


def reload(gateway: Gateway, written: Settings | str, result: str = "applied") -> None:
    """Write another configuration, and wait for what becomes of it."""
    before = reloads(gateway, result)
    rewrite(gateway, written)
    assert eventually(lambda: reloads(gateway, result) == before + 1, seconds=PATIENCE_SECONDS), gateway.log


def ask(gateway: Gateway, user: str = "alice", **more: object) -> Resp:
    body = json.dumps({"model": "m", "prompt": uniq(), "temperature": 1, **more}).encode()
    return call(gateway.base_url, "POST", "/v1/completions", bearer(user), body)


def seen(upstream: FakeUpstream) -> tuple[str, int]:
    """Return what tells under which configuration the latest request was sent: its path, and its token ceiling."""
    latest = upstream.served[-1]
    return latest.path.split("/")[1], latest.json()["max_tokens"]


def test_a_changed_file_is_in_force_without_a_word(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(made(upstream, ONE, workers=2))
    assert ask(gateway).status == 200
    assert seen(upstream) == ("one", 11)
    version = metric_label(gateway)
    reload(gateway, made(upstream, OTHER, "other", workers=2))
    for _ in range(8):
        assert ask(gateway).status == 200
        assert seen(upstream) == ("other", 22)
    assert metric(gateway, "config_last_reload_successful") == 1
    assert metric_label(gateway) != version
    assert gateway.wait_for_records(9)[-1]["configuration_version"] == metric_label(gateway)


def metric_label(gateway: Gateway) -> str:
    """Return the version of the configuration that `build_info` tells of: one and no other."""
    page = call(gateway.admin_url, "GET", "/metrics", ADMIN).body.decode()
    [version] = re.findall(r'^tidegate_build_info\{configuration="(\w+)",version="[^"]+"\} 1', page, re.MULTILINE)
    return str(version)


def test_a_request_keeps_the_configuration_that_it_began_with(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    gateway = start_gateway(made(upstream, ONE))
    before = metric_label(gateway)
    is_reloaded = threading.Event()
    upstream.script(
        [
            *sse_reply([ev(tchunk("first "))])[:-1],
            ("until", is_reloaded.is_set),
            *sse_reply([ev(tchunk("last", finish="stop")), DONE])[1:],
        ]
    )
    client = Raw(gateway.base_url, timeout=30)
    body = {"model": "m", "prompt": "x", "temperature": 1, "stream": True}
    client.request("POST", "/v1/completions", bearer("alice"), json.dumps(body).encode())
    answers: list[Resp] = []
    reading = threading.Thread(target=lambda: answers.append(client.response()))
    reading.start()
    assert upstream.wait(lambda: len(upstream.served) == 1)
    changed = made(upstream, OTHER, "other")
    reload(gateway, {**changed, "models": {"n": changed["models"]["m"]}})
    assert ask(gateway).status == 404
    is_reloaded.set()
    reading.join(30)
    client.close()
    assert joined(answers[0].body)[0] == "first last"
    assert answers[0].complete
    records = {record["configuration_version"]: record for record in gateway.wait_for_records(2)}
    assert records[before]["outcome"] == "completed"
    assert records[metric_label(gateway)]["outcome"] == "rejected"


# ---------------------------------------------------------------- how files change
def in_place(gateway: Gateway, text: str) -> None:
    gateway.config_path.write_text(text)


def in_pieces(gateway: Gateway, text: str) -> None:
    with gateway.config_path.open("w") as file:
        for at in range(0, len(text), 64):
            file.write(text[at : at + 64])
            file.flush()
            os.fsync(file.fileno())


def by_rename(gateway: Gateway, text: str) -> None:
    written = gateway.folder / "tidegate.yaml.new"
    written.write_text(text)
    written.replace(gateway.config_path)


def removed_and_written(gateway: Gateway, text: str) -> None:
    gateway.config_path.unlink()
    gateway.config_path.write_text(text)


@pytest.mark.parametrize("write", [in_place, in_pieces, by_rename, removed_and_written], ids=lambda each: each.__name__)
def test_however_a_file_is_written_it_is_read_once_it_is_whole(
    start_gateway: StartGateway, upstream: FakeUpstream, write: Callable[[Gateway, str], None]
) -> None:
    gateway = start_gateway(made(upstream, ONE))
    fixed = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "data_dir": "data"}
    write(gateway, json.dumps({**fixed, **made(upstream, OTHER)}))
    assert eventually(lambda: reloads(gateway) == 1)
    assert ask(gateway).status == 200
    assert seen(upstream) == ("one", 22)
    write(gateway, json.dumps({**fixed, **made(upstream, ONE)}))
    assert eventually(lambda: reloads(gateway) == 2)
    assert reloads(gateway, "rejected") == 0


def test_a_link_that_is_turned_as_container_platforms_do(tmp_path: Path, upstream: FakeUpstream) -> None:
    gateway = Gateway(tmp_path, made(upstream, ONE, data_dir=str(tmp_path / "data")))
    mount = tmp_path / "mount"
    mount.mkdir()

    def publish(name: str, text: str) -> None:
        (mount / name).mkdir()
        (mount / name / "tidegate.yaml").write_text(text)
        (mount / "..data_tmp").symlink_to(name)
        (mount / "..data_tmp").replace(mount / "..data")

    publish("..first", gateway.config_path.read_text())
    gateway.config_path.unlink()
    (mount / "tidegate.yaml").symlink_to("..data/tidegate.yaml")
    gateway.config_path.symlink_to(mount / "tidegate.yaml")
    with gateway:
        for number, (policy, ceiling) in enumerate([(OTHER, 22), (ONE, 11), (OTHER, 22)], 1):
            publish(
                f"..next{number}",
                json.dumps({**gateway.settings, **made(upstream, policy), "data_dir": str(tmp_path / "data")}),
            )
            if number == 2:
                shutil.rmtree(mount / "..first")
            assert eventually(lambda: reloads(gateway) == number)  # noqa: B023  awaited here
            assert ask(gateway).status == 200
            assert seen(upstream) == ("one", ceiling)


def test_a_secret_of_its_own_file_is_read_anew_when_that_changes(tmp_path: Path, upstream: FakeUpstream) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first-secret")
    written = made(upstream, ONE)
    written["upstreams"]["only"]["api_key"] = "file:secret"
    with Gateway(tmp_path, written) as gateway:
        assert ask(gateway).status == 200
        assert upstream.served[-1].header("authorization") == "Bearer first-secret"
        secret.with_suffix(".new").write_text("second-secret")
        secret.with_suffix(".new").replace(secret)
        assert eventually(lambda: reloads(gateway) == 1)
        assert ask(gateway).status == 200
        assert upstream.served[-1].header("authorization") == "Bearer second-secret"
        assert "second-secret" not in gateway.log


def test_a_file_that_is_gone_changes_nothing(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(made(upstream, ONE))
    text = gateway.config_path.read_text()
    gateway.config_path.unlink()
    assert eventually(lambda: "the configuration file is gone" in gateway.log)
    gateway.config_path.write_text(text)
    reload(gateway, made(upstream, OTHER))
    assert gateway.log.count("the configuration file is gone") == 1
    assert (reloads(gateway, "rejected"), reloads(gateway, "unchanged")) == (0, 0)


def test_what_says_the_same_is_no_other_configuration(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(made(upstream, ONE))
    since = metric(gateway, "config_applied_timestamp_seconds")
    reload(gateway, "# a remark\n" + gateway.config_path.read_text(), "unchanged")
    gateway.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: reloads(gateway, "unchanged") == 2)
    assert reloads(gateway) == 0
    assert metric(gateway, "config_applied_timestamp_seconds") == since


# ---------------------------------------------------------------- what cannot be used
def test_an_invalid_file_changes_nothing_and_is_told_as_check_tells_it(
    start_gateway: StartGateway, upstream: FakeUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = start_gateway(made(upstream, ONE))
    broken = made(upstream, {**OTHER, "limitz": []}, "other")
    broken["models"]["m"]["deployments"] = [{"upstream": "nowhere"}]
    reload(gateway, broken, "rejected")
    assert metric(gateway, "config_last_reload_successful") == 0
    assert ask(gateway).status == 200
    assert seen(upstream) == ("one", 11)

    assert main(["check", str(gateway.config_path)]) == 2
    checked = [line.removeprefix("tidegate: ") for line in capsys.readouterr().err.splitlines()]
    [told] = [json.loads(line) for line in gateway.log.splitlines() if "cannot be used" in line]
    assert len(told["problems"]) == 2
    assert told["problems"] == checked

    reload(gateway, made(upstream, OTHER, "other"))
    assert metric(gateway, "config_last_reload_successful") == 1
    assert ask(gateway).status == 200
    assert seen(upstream) == ("other", 22)


def test_what_needs_a_restart_is_named_and_the_rest_is_in_force(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    gateway = start_gateway(made(upstream, ONE))
    reload(gateway, made(upstream, OTHER, workers=3, lease="7s", organization={"id": "org_other", "name": "Other"}))
    assert ask(gateway).status == 200
    assert seen(upstream) == ("one", 22)
    assert len(gateway.worker_pids) == 1
    [told] = [json.loads(line) for line in gateway.log.splitlines() if "wait for a restart" in line]
    assert told["settings"] == ["workers", "lease", "organization.id"]


# ---------------------------------------------------------------- everybody goes by it
def test_a_worker_that_is_started_later_goes_by_what_is_in_force(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    gateway = start_gateway(made(upstream, ONE))
    reload(gateway, made(upstream, OTHER))
    os.kill(gateway.worker_pids[0], signal.SIGKILL)
    assert ask(gateway).status == 200
    assert seen(upstream) == ("one", 22)


def test_a_worker_that_dies_while_a_reload_is_under_way_holds_nobody_up(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    gateway = start_gateway(made(upstream, ONE, workers=2))
    victim, _ = gateway.worker_pids
    os.kill(victim, signal.SIGSTOP)  # it takes no order
    rewrite(gateway, made(upstream, OTHER, workers=2))
    gateway.process.send_signal(signal.SIGHUP)
    os.kill(victim, signal.SIGKILL)
    assert eventually(lambda: reloads(gateway) == 1)
    assert eventually(lambda: call(gateway.admin_url, "GET", "/readyz").status == 200)
    for _ in range(8):
        assert ask(gateway).status == 200
        assert seen(upstream) == ("one", 22)


def test_the_control_plane_goes_by_it(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(made(upstream, ONE))
    changed = made(
        upstream,
        {**OTHER, "limits": [{"of": "requests", "limit": 5, "per": "hour", "by": ["user"]}]},
        admin_keys=[{"name": "next", "sha256": sha256("next-admin-key")}],
        admin_hosts=["gateway.example"],
        metrics_key="metrics-key",
    )
    assert limits_of_alice(gateway, ADMIN_KEY).json()["limits"] == []
    rewrite(gateway, changed)
    assert eventually(lambda: call(gateway.admin_url, "GET", "/metrics").status == 401)
    assert limits_of_alice(gateway, ADMIN_KEY).status == 401
    [limit] = limits_of_alice(gateway, "next-admin-key").json()["limits"]
    assert limit["limit"] == 5
    asked = json.dumps({"request": {"model": "m", "prompt": "x"}, "as": "key-alice"}).encode()
    explained = call(gateway.admin_url, "POST", "/v1/tidegate/explain", key_header("next-admin-key"), asked)
    assert explained.json()["effective_request"]["max_tokens"] == 22
    page = call(gateway.admin_url, "GET", "/metrics", [("Authorization", "Bearer metrics-key")])
    assert page.status == 200


def key_header(key: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {key}"), ("Content-Type", "application/json")]


def limits_of_alice(gateway: Gateway, key: str) -> Resp:
    headers = [("Authorization", f"Bearer {key}")]
    return call(gateway.admin_url, "GET", "/v1/tidegate/limits?key=key-alice", headers)


def test_without_admin_keys_one_is_made_once(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(made(upstream, ONE))
    rewrite(gateway, made(upstream, ONE, admin_keys=[]))
    [key] = eventually(lambda: re.findall(r"tg-admin-[\w-]+", gateway.output))
    assert limits_of_alice(gateway, ADMIN_KEY).status == 401
    assert limits_of_alice(gateway, key).status == 200


def test_bounds_and_keys_and_timeouts_are_the_new_ones(start_gateway: StartGateway, upstream: FakeUpstream) -> None:
    gateway = start_gateway(made(upstream, ONE))
    kept = Raw(gateway.base_url)
    body = json.dumps({"model": "m", "prompt": "x" * 2000, "temperature": 1}).encode()
    kept.request("POST", "/v1/completions", bearer("alice"), body)
    assert kept.response().status == 200
    changed = made(upstream, ONE, bounds={"body_bytes": 1000}, timeouts={"first_byte": "200ms"})
    changed["keys"][0]["sha256"] = sha256("another-key")
    reload(gateway, changed)
    assert ask(gateway).status == 401
    kept.request("POST", "/v1/completions", [("Authorization", "Bearer another-key")], body)
    assert kept.response().status == 413
    kept.close()
    upstream.script([("hold", 20.0)])
    short = json.dumps({"model": "m", "prompt": "x", "temperature": 1}).encode()
    late = call(gateway.base_url, "POST", "/v1/completions", [("Authorization", "Bearer another-key")], short)
    assert late.status == 504


# ---------------------------------------------------------------- under load
class Telling:
    """An upstream that answers with the path and the ceiling of what it was sent, whole or as a stream."""

    def __call__(self, req: Req) -> Ops:
        asked = req.json()
        text = f"{req.path.split('/')[1]}:{asked['max_tokens']}"
        if asked.get("stream"):
            return sse_reply([ev(tchunk(text)), ev(tchunk("", finish="stop")), DONE], gap=0.01)
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": "stop"}
        return json_reply({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


CLIENTS = 12


async def test_reloads_under_load_drop_nothing_and_nobody_sees_a_mixture(
    start_gateway: StartGateway, upstream: FakeUpstream
) -> None:
    upstream.default = Telling()
    variants = [made(upstream, ONE, "one", workers=2), made(upstream, OTHER, "other", workers=2)]
    broken = {**variants[0], "keys": "all of them"}
    gateway = start_gateway(variants[0])
    ending = asyncio.Event()
    told: list[str] = []
    settled: str | None = "one:11"  # what all requests must be told that begin now; None while a reload is under way
    reloaded = 0

    async def client(number: int) -> None:
        connection = Connection(gateway.base_url)
        for turn in itertools.count():
            began = settled, reloaded
            body = {"model": "m", "prompt": f"{number} {turn}", "temperature": 1, "stream": bool(turn % 2)}
            answers = await connection.ask(request_bytes("/v1/completions", bearer("alice"), json.dumps(body).encode()))
            assert [answer.status for answer in answers] == [200], answers
            told.append(joined(answers[0].body)[0] if turn % 2 else json.loads(answers[0].body)["choices"][0]["text"])
            if began == (settled, reloaded):
                assert told[-1] == settled or settled is None
            if ending.is_set():
                break
        assert connection.opened == 1
        connection.close()

    async with asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(client(number))
        for written, result in [(variants[1], "applied"), (broken, "rejected"), (variants[0], "applied")] * 2:
            before, settled = settled, None
            await asyncio.to_thread(reload, gateway, written, result)
            settled = before if result == "rejected" else {id(variants[0]): "one:11"}.get(id(written), "other:22")
            reloaded += 1
            since = len(told)
            while len(told) < since + 4 * CLIENTS:  # noqa: ASYNC110  answers come by themselves
                await asyncio.sleep(0.01)
        ending.set()
    assert set(told) == {"one:11", "other:22"}
    assert len(gateway.wait_for_records(len(told))) == len(told)
    assert {record["outcome"] for record in gateway.records()} == {"completed"}
