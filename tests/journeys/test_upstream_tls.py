"""Upstreams behind TLS: whom a gateway trusts, who it says it is, and what is told when that fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import FakeUpstream
from gateway import CommandFailed, Gateway, bearer, settings
from harness import Resp, call
from tls_files import server_tls, tls_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATH = "/v1/completions"
ASKED = {"prompt": "x", "temperature": 1}
CA = {"ca_file": str(tls_file("ca.pem"))}
CLIENT = {"certificate_file": str(tls_file("client.pem")), "key_file": str(tls_file("client.key"))}
STRANGER = {"certificate_file": str(tls_file("stranger-with-key.pem"))}


@pytest.fixture(scope="module")
def secure() -> dict[str, FakeUpstream]:
    """Return upstreams with the certificates of these names; `asking` wants one of its clients."""
    made = {name: FakeUpstream(tls=server_tls(name)) for name in ("server", "expired", "elsewhere")}
    made["asking"] = FakeUpstream(tls=server_tls(asks_certificate=True))
    return {name: up.start() for name, up in made.items()}


@pytest.fixture(scope="module")
def gateway(secure: dict[str, FakeUpstream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    upstreams = {
        "trusted": ("server", CA),
        "known": ("asking", {**CA, **CLIENT}),
        "untrusted": ("server", {}),
        "of-another": ("server", {"ca_file": str(tls_file("other-ca.pem"))}),
        "expired": ("expired", CA),
        "elsewhere": ("elsewhere", CA),
        "unnamed": ("asking", CA),
        "stranger": ("asking", {**CA, **STRANGER}),
    }
    made = settings(
        "",
        users={"alice": {}},
        upstreams={
            name: {"kind": "openai", "base_url": f"{secure[server].url}/v1", "tls": tls}
            for name, (server, tls) in upstreams.items()
        },
        models={
            **{name: {"deployments": [{"upstream": name, "name": "m"}]} for name in upstreams},
            "either": {"deployments": [{"upstream": name, "name": "m"} for name in ("untrusted", "trusted")]},
        },
    )
    with Gateway(tmp_path_factory.mktemp("gateway"), made) as running:
        yield running


def ask(gateway: Gateway, model: str, **more: Any) -> Resp:  # noqa: ANN401  any member
    body = json.dumps({"model": model, **ASKED, **more}).encode()
    return call(gateway.base_url, "POST", PATH, bearer("alice"), body)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "a stream"])
@pytest.mark.parametrize(("model", "server"), [("trusted", "server"), ("known", "asking")])
def test_who_trusts_is_answered_over_one_connection(
    gateway: Gateway, secure: dict[str, FakeUpstream], model: str, server: str, *, is_stream: bool
) -> None:
    secure[server].reset()
    for _ in range(3):
        answer = ask(gateway, model, stream=is_stream)
        assert (answer.status, answer.complete) == (200, True)
    assert len({request.conn_id for request in secure[server].log}) == 1


@pytest.mark.parametrize(
    ("model", "server", "told"),
    [
        pytest.param("untrusted", "server", "unable to get local issuer certificate; tls.ca_file names", id="nobody's"),
        pytest.param(
            "of-another", "server", "unable to get local issuer certificate; tls.ca_file names", id="another's"
        ),
        pytest.param("expired", "expired", "certificate has expired; the upstream needs a new one", id="too old"),
        pytest.param(
            "elsewhere", "elsewhere", "base_url must name the host as its certificate does", id="another host"
        ),
        pytest.param("unnamed", "asking", None, id="a certificate is asked for, and there is none"),
        pytest.param("stranger", "asking", None, id="a certificate is asked for, and is a stranger's"),
    ],
)
def test_who_is_not_trusted_gets_no_request_and_the_operator_reads_why(
    gateway: Gateway, secure: dict[str, FakeUpstream], model: str, server: str, told: str | None
) -> None:
    secure[server].reset()
    answer = ask(gateway, model)
    assert answer.status in {502, 503}
    assert answer.json()["error"]["type"] == "server_error"
    assert not any(word in answer.body for word in (b"ertificate", b"ssl", b"tls", b"SSL", b"TLS", b".pem"))
    assert secure[server].log == []
    if told is not None:  # who asks for a certificate may hang up before it is heard
        assert answer.status == 503
        line = [line for line in gateway.log.splitlines() if f"upstream {model}: no answer" in line][-1]
        assert "certificate verify failed: " in line
        assert told in line


def test_another_deployment_answers_in_place_of_one_that_is_not_trusted(
    gateway: Gateway, secure: dict[str, FakeUpstream]
) -> None:
    secure["server"].reset()
    assert {ask(gateway, "either").status for _ in range(6)} == {200}
    assert len(secure["server"].log) == 6


@pytest.mark.parametrize(
    ("tls", "setting", "told"),
    [
        pytest.param({"ca_file": "gone.pem"}, "ca_file", "gone.pem cannot be read: no such file", id="no such file"),
        pytest.param(
            {"ca_file": CLIENT["key_file"]}, "ca_file", "client.key holds no certificate", id="no certificate"
        ),
        pytest.param(
            {**CLIENT, "key_file": STRANGER["certificate_file"]},
            "key_file",
            "does not fit the certificate in",
            id="another's key",
        ),
        pytest.param(
            {**CLIENT, "key_file": str(tls_file("encrypted.key"))}, "key_file", "encrypted key", id="an encrypted key"
        ),
    ],
)
def test_files_that_do_not_fit_are_found_at_the_start(
    tmp_path: Path, tls: dict[str, str], setting: str, told: str
) -> None:
    upstreams = {"only": {"kind": "openai", "base_url": "https://127.0.0.1:1/v1", "tls": tls}}
    with pytest.raises(CommandFailed) as raised, Gateway(tmp_path, settings("", users={}, upstreams=upstreams)):
        pass
    text = str(raised.value)
    assert text.startswith("exit status 2\n")
    assert f"upstreams.only.tls.{setting}: the file {tmp_path if tls[setting] == 'gone.pem' else '/'}" in text
    assert told in text
    assert "BEGIN" not in text.replace("-----BEGIN CERTIFICATE-----", "")
    assert "Traceback" not in text


def test_a_renewed_certificate_is_read_at_a_reload(
    secure: dict[str, FakeUpstream], tmp_path: Path, start_gateway: Callable[[dict[str, Any]], Gateway]
) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_bytes(tls_file("other-ca.pem").read_bytes())
    upstream = {"kind": "openai", "base_url": f"{secure['server'].url}/v1", "tls": {"ca_file": str(authority)}}
    gateway = start_gateway(settings("", users={"alice": {}}, upstreams={"only": upstream}))
    assert ask(gateway, "m").status == 503
    authority.write_bytes(tls_file("ca.pem").read_bytes())
    assert secure["server"].wait(lambda: ask(gateway, "m").status == 200, timeout=10)
