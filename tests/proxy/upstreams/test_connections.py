from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
from sending import make_upstream
from tls_files import tls_file

from proxy.upstreams.connections import (
    DIRECT,
    UnusableWay,
    Way,
    check_tls,
    find_way_problems,
    is_certificate_refused,
    tls_files,
    told_tls_error,
    way_to,
)
from proxy.upstreams.proxies import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.config_upstreams import Upstream

PROXIES = {"https_proxy": "http://user:secret@first:1"}


def upstream_with(tls: dict[str, object], base_url: str = "https://host.test/v1", **settings: object) -> Upstream:
    return make_upstream(base_url, tls=tls, **settings)


def test_a_way_without_settings_is_direct() -> None:
    assert way_to(make_upstream("https://host.test/v1"), {}) == DIRECT


@pytest.mark.parametrize(
    ("settings", "proxy"),
    [
        pytest.param({}, Proxy("http://first:1", "Basic dXNlcjpzZWNyZXQ="), id="the environment's, unless said"),
        pytest.param({"proxy": "none"}, None, id="none where said"),
    ],
)
def test_proxies(settings: dict[str, object], proxy: Proxy | None) -> None:
    assert way_to(make_upstream("https://host.test/v1", **settings), PROXIES) == Way(None, proxy)


def test_a_ca_file_takes_the_place_of_the_systems() -> None:
    context = way_to(upstream_with({"ca_file": tls_file("ca.pem")}), {}).tls
    assert context is not None
    assert [dict(each[0] for each in found["subject"]) for found in context.get_ca_certs()] == [
        {"commonName": "Authority of the tests"}
    ]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_a_certificate_leaves_the_systems_trust() -> None:
    context = way_to(upstream_with({"certificate_file": tls_file("client-with-key.pem")}), {}).tls
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    "tls",
    [
        pytest.param({"ca_file": "ca.pem"}, id="an authority"),
        pytest.param({"certificate_file": "client-with-key.pem"}, id="certificate and key in one file"),
        pytest.param({"certificate_file": "client.pem", "key_file": "client.key"}, id="in two files"),
        pytest.param({"ca_file": "ca.pem", "certificate_file": "client.pem", "key_file": "client.key"}, id="all"),
    ],
)
def test_files_that_fit(tls: dict[str, str]) -> None:
    settings = upstream_with({name: tls_file(file) for name, file in tls.items()})
    assert check_tls(settings) == []
    assert tls_files(settings) == [tls_file(file) for file in tls.values()]


@pytest.mark.parametrize(
    ("tls", "setting", "told"),
    [
        pytest.param({"ca_file": "absent"}, "ca_file", "cannot be read: no such file", id="no such file"),
        pytest.param({"ca_file": "folder"}, "ca_file", "cannot be read: is a directory", id="a folder"),
        pytest.param({"ca_file": "empty"}, "ca_file", "holds no certificate: it must", id="an empty file"),
        pytest.param({"ca_file": "text"}, "ca_file", "holds no certificate: it must", id="some text"),
        pytest.param({"ca_file": "client.key"}, "ca_file", "holds no certificate: it must", id="a key"),
        pytest.param({"certificate_file": "absent"}, "certificate_file", "no such file", id="no certificate"),
        pytest.param({"certificate_file": "text"}, "certificate_file", "holds no certificate", id="text for it"),
        pytest.param({"certificate_file": "client.pem"}, "certificate_file", "give key_file", id="no key in it"),
        pytest.param(
            {"certificate_file": "client.pem", "key_file": "absent"}, "key_file", "no such file", id="no such key"
        ),
        pytest.param(
            {"certificate_file": "client.pem", "key_file": "text"}, "key_file", "holds no private key", id="text for it"
        ),
        pytest.param(
            {"certificate_file": "client.pem", "key_file": "encrypted.key"},
            "key_file",
            "encrypted",
            id="an encrypted key",
        ),
        pytest.param(
            {"certificate_file": "client.pem", "key_file": "stranger-with-key.pem"},
            "key_file",
            "does not fit the certificate in",
            id="somebody else's key",
        ),
    ],
)
def test_files_that_do_not_fit_are_told(tmp_path: Path, tls: dict[str, str], setting: str, told: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("no certificate, but a secret")
    own = {"absent", "folder", "empty", "text"}
    files = {name: tmp_path / file if file in own else tls_file(file) for name, file in tls.items()}
    (problem,) = check_tls(upstream_with(files))
    assert problem.path == ("tls", setting)
    assert problem.message.startswith(f"the file {files[setting]} ")
    assert told in problem.message
    assert "secret" not in problem.message.replace(str(tmp_path), "")


def test_tls_needs_https() -> None:
    (problem,) = check_tls(upstream_with({"ca_file": tls_file("ca.pem")}, "http://host.test/v1"))
    assert (problem.path, problem.message) == (("tls",), "is for upstreams whose base_url begins with https://")


def test_all_that_is_wrong_is_told_at_once_and_there_is_no_way(tmp_path: Path) -> None:
    settings = upstream_with({"ca_file": tmp_path / "a", "certificate_file": tmp_path / "b"})
    environment = {"all_proxy": "socks5://u:secret@first"}
    problems = find_way_problems(settings, environment)
    assert [problem.path for problem in problems] == [("tls", "ca_file"), ("tls", "certificate_file"), ("proxy",)]
    with pytest.raises(UnusableWay, match=r"tls\.ca_file: the file .*; proxy: the environment's ALL_PROXY") as raised:
        way_to(settings, environment)
    assert "secret" not in str(raised.value)


def test_errors_without_a_remedy_are_told_by_their_name() -> None:
    error = ssl.SSLError(1, "[SSL: UNSUPPORTED_PROTOCOL] unsupported protocol")
    error.reason = "UNSUPPORTED_PROTOCOL"
    assert told_tls_error(error) == "TLS failed: unsupported protocol"
    assert not is_certificate_refused(error)
