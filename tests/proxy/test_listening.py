"""Sockets that processes share, and what is said when there is no room for them."""

from __future__ import annotations

import socket

import pytest

from proxy.config_values import Address
from proxy.listening import CannotListen, is_web_address, listening, own_url, url_of


def test_sockets_of_one_port_are_bound_before_anybody_serves() -> None:
    with listening(Address("127.0.0.1", 0), setting="listen", count=3) as sockets:
        assert len({sock.getsockname() for sock in sockets}) == 1
        with socket.create_connection(sockets[0].getsockname()):
            assert url_of(sockets[0]) == f"http://127.0.0.1:{sockets[0].getsockname()[1]}"


def test_sockets_are_closed_on_leaving() -> None:
    with listening(Address("127.0.0.1", 0), setting="listen", count=2) as sockets:
        where = sockets[0].getsockname()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)


@pytest.mark.parametrize("count", [1, 2], ids=["one worker", "several workers, whose port others could share"])
def test_a_port_that_is_taken_is_told_with_its_setting(count: int) -> None:
    with listening(Address("127.0.0.1", 0), setting="listen", count=count) as sockets:
        port = sockets[0].getsockname()[1]
        again = listening(Address("127.0.0.1", port), setting="admin_listen", count=count)
        with pytest.raises(CannotListen, match=rf"127.0.0.1:{port} is in use .*`admin_listen`"), again:
            pass


UNUSABLE = {
    "an address of another machine": Address("192.0.2.1", 0),
    "a name that does not resolve": Address("no-such-host.invalid", 8080),
}


@pytest.mark.parametrize("address", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_address_that_cannot_be_used_is_told(address: Address) -> None:
    with pytest.raises(CannotListen, match="`listen`"), listening(address, setting="listen", count=1):
        pass


def test_an_address_of_version_six_is_written_in_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with listening(Address("::1", 0), setting="listen", count=1) as [sock]:
        assert url_of(sock).startswith("http://[::1]:")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        pytest.param("10.0.0.7", "http://10.0.0.7:80", id="an address"),
        pytest.param("0.0.0.0", "http://127.0.0.1:80", id="all of them"),  # noqa: S104  as configurations have it
        pytest.param("::", "http://[::1]:80", id="all of the newer ones too"),
        pytest.param("fe80::1", "http://[fe80::1]:80", id="one of those"),
        pytest.param("gateway.internal", "http://gateway.internal:80", id="a name"),
    ],
)
def test_this_machine_reaches_what_listens_on_it(host: str, expected: str) -> None:
    assert own_url(host, 80) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:8080", True),
        ("https://[::1]/base", True),
        ("127.0.0.1:8080", False),
        ("ftp://h", False),
        ("http://", False),
        ("http://h:x", False),
        ("http://[", False),
        ("http://h /", False),
        ("http://h\r\n", False),
    ],
)
def test_which_texts_are_addresses_of_servers(text: str, *, expected: bool) -> None:
    assert is_web_address(text) is expected
