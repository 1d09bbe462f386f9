from __future__ import annotations

from base64 import b64encode

import pytest

from proxy.upstreams.proxies import Proxy, UnusableProxy, find_proxy

FIRST, SECOND, THIRD = "http://first:1", "http://second:2", "http://third:3"


@pytest.mark.parametrize(
    ("base_url", "environment", "address"),
    [
        pytest.param("http://host.test/v1", {}, None, id="nothing is said"),
        pytest.param("http://host.test/v1", {"http_proxy": FIRST}, FIRST, id="http"),
        pytest.param("https://host.test/v1", {"http_proxy": FIRST}, None, id="the other scheme's is not used"),
        pytest.param("https://host.test/v1", {"http_proxy": FIRST, "https_proxy": SECOND}, SECOND, id="https"),
        pytest.param("https://host.test/v1", {"HTTPS_PROXY": FIRST}, FIRST, id="in capitals"),
        pytest.param("https://host.test/v1", {"HTTPS_PROXY": FIRST, "https_proxy": SECOND}, SECOND, id="small wins"),
        pytest.param(
            "https://host.test/v1", {"HTTPS_PROXY": FIRST, "https_proxy": ""}, None, id="an empty one is none"
        ),
        pytest.param("https://host.test/v1", {"all_proxy": THIRD}, THIRD, id="the one for all"),
        pytest.param("https://host.test/v1", {"ALL_PROXY": THIRD, "https_proxy": SECOND}, SECOND, id="unless said"),
        pytest.param("http://host.test", {"http_proxy": "first:1"}, FIRST, id="without a scheme"),
        pytest.param("http://host.test", {"http_proxy": "http://first"}, "http://first:80", id="without a port"),
        pytest.param("http://host.test", {"http_proxy": "https://first/"}, "https://first:443", id="itself by TLS"),
        pytest.param("http://host.test", {"http_proxy": "http://[fd00::1]:1"}, "http://[fd00::1]:1", id="IPv6"),
    ],
)
def test_variables(base_url: str, environment: dict[str, str], address: str | None) -> None:
    assert find_proxy(base_url, environment) == (None if address is None else Proxy(address))


@pytest.mark.parametrize(
    ("host", "exempt", "is_direct"),
    [
        pytest.param("host.test", "", False, id="nobody"),
        pytest.param("host.test", "*", True, id="everybody"),
        pytest.param("host.test", "other.test, *", True, id="everybody, within a list"),
        pytest.param("host.test", "host.test", True, id="the name"),
        pytest.param("HOST.test", "Host.Test", True, id="the name in capitals"),
        pytest.param("host.test.", "host.test", True, id="the name with a root"),
        pytest.param("host.test", "test", True, id="what it is below"),
        pytest.param("host.test", ".test", True, id="what it is below, with a dot"),
        pytest.param("host.test", "*.test", True, id="what it is below, with an asterisk"),
        pytest.param("host.test", ".host.test", True, id="the name with a dot"),
        pytest.param("ghost.test", "host.test", False, id="a name that ends alike"),
        pytest.param("host.test", "sub.host.test", False, id="a name below it"),
        pytest.param("host.test", "a.test b.test,host.test", True, id="spaces between"),
        pytest.param("host.test", "host.test:80", True, id="the scheme's port"),
        pytest.param("host.test:8000", "host.test:8000", True, id="the port"),
        pytest.param("host.test:8000", "host.test:80", False, id="another port"),
        pytest.param("host.test:8000", "host.test", True, id="any port"),
        pytest.param("10.1.2.3", "10.1.2.3", True, id="the address"),
        pytest.param("10.1.2.3:8000", "10.1.2.3:8000", True, id="the address and port"),
        pytest.param("10.1.2.3:8000", "10.1.2.3:80", False, id="the address and another port"),
        pytest.param("10.1.2.3", "10.0.0.0/8", True, id="a range"),
        pytest.param("10.1.2.3", "10.9.9.9/8", True, id="a range named by one of it"),
        pytest.param("11.1.2.3", "10.0.0.0/8", False, id="outside the range"),
        pytest.param("10.1.2.3", "10.0.0.0/99", False, id="no range at all"),
        pytest.param("10.1.2.3", "2.3", False, id="an address is below nothing"),
        pytest.param("host.test", "10.0.0.0/8", False, id="a name is in no range"),
        pytest.param("[fd00::1]", "fd00::1", True, id="an IPv6 address"),
        pytest.param("[fd00::1]", "[fd00:0::1]", True, id="an IPv6 address written otherwise"),
        pytest.param("[fd00::1]:8000", "[fd00::1]:8000", True, id="an IPv6 address and port"),
        pytest.param("[fd00::1]:8000", "[fd00::1]:80", False, id="an IPv6 address and another port"),
        pytest.param("[fd00::1]", "fd00::/8", True, id="an IPv6 range"),
        pytest.param("[::ffff:10.1.2.3]", "10.0.0.0/8", True, id="an IPv4 address in IPv6's clothes"),
        pytest.param("localhost", "", True, id="localhost never"),
        pytest.param("llama.localhost", "", True, id="what is below localhost neither"),
        pytest.param("127.0.0.1", "", True, id="loopback never"),
        pytest.param("127.9.9.9", "", True, id="any of loopback"),
        pytest.param("[::1]", "", True, id="loopback of IPv6"),
        pytest.param("localhost.test", "", False, id="a name that begins like localhost"),
    ],
)
def test_who_is_reached_directly(host: str, exempt: str, *, is_direct: bool) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        found = find_proxy(f"http://{host}/v1", {"http_proxy": FIRST, name: exempt})
        assert found == (None if is_direct else Proxy(FIRST))


@pytest.mark.parametrize(
    ("credentials", "sent"),
    [
        pytest.param("user:word", "user:word", id="user and password"),
        pytest.param("user", "user:", id="a user alone"),
        pytest.param("us%40er:p%3Aw%2F%C3%A9", "us@er:p:w/\u00e9", id="percent-encoded"),
    ],
)
def test_credentials_leave_the_address(credentials: str, sent: str) -> None:
    found = find_proxy("http://host.test", {"http_proxy": f"http://{credentials}@first:1"})
    assert found == Proxy(FIRST, f"Basic {b64encode(sent.encode()).decode()}")
    assert "Basic" not in repr(found)


@pytest.mark.parametrize(
    "value",
    [
        "ftp://u:secret@first:1",
        "http://u:secret@first:port",
        "http://u:secret@first:99999",
        "http://u:secret@",
        "http://u:secret@first:1/path",
        "http://u:secret@first:1?query",
        "http://u:secret@fi rst:1",
        "http://u:secret@[fd00:1",
        "http://",
        "socks5://u:secret@first:1",
        "socks5h://first:1",
    ],
)
def test_an_address_that_is_none_is_told_and_not_repeated(value: str) -> None:
    with pytest.raises(UnusableProxy, match="the environment's ALL_PROXY") as raised:
        find_proxy("http://host.test", {"all_proxy": value})
    assert "secret" not in str(raised.value)
    assert "proxy: none" in str(raised.value)


def test_a_proxy_that_is_not_needed_is_not_looked_at() -> None:
    assert find_proxy("http://host.test", {"http_proxy": "socks5://first", "no_proxy": "host.test"}) is None
