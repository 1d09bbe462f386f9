"""Addresses of stores: what may be written, what comes of it, and that no message repeats a password."""

from __future__ import annotations

import pytest

from proxy.store.addresses import Address, Kind, Node, is_cluster, parse

SECRET = "hunter2"  # noqa: S105  it is to be found in messages, and is nobody's


def server(url: str) -> Address:
    return Address(Kind.SERVER, url)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        pytest.param("redis://h", server("redis://h"), id="one server"),
        pytest.param("redis://u:p@h:6380/2", server("redis://u:p@h:6380/2"), id="with all that a server may have"),
        pytest.param("redis://[::1]:6379/", server("redis://[::1]:6379/"), id="an IPv6 host"),
        pytest.param("REDISS://h/0?ssl_cert_reqs=none", server("REDISS://h/0?ssl_cert_reqs=none"), id="over TLS"),
        pytest.param("unix:///run/s.sock?db=1", server("unix:///run/s.sock?db=1"), id="a socket"),
        pytest.param(
            "redis+sentinel://a,b:1,[::1]:2/main",
            Address(
                Kind.SENTINEL,
                "redis://a:26379?",
                (Node("a", 26379), Node("b", 1), Node("::1", 2)),
                "main",
            ),
            id="sentinels, at their port unless another is said",
        ),
        pytest.param(
            "rediss+sentinel://u:p%40@a/the%20one/3?sentinel_username=s&sentinel_password=t%3F&ssl_cert_reqs=none",
            Address(
                Kind.SENTINEL,
                "rediss://u:p%40@a:26379/3?ssl_cert_reqs=none",
                (Node("a", 26379),),
                "the one",
                (("username", "s"), ("password", "t?")),
            ),
            id="sentinels with credentials of their own, over TLS",
        ),
        pytest.param(
            "redis+cluster://a,b:7001",
            Address(Kind.CLUSTER, "redis://a:6379?", (Node("a", 6379), Node("b", 7001))),
            id="a cluster, at the usual port unless another is said",
        ),
        pytest.param(
            "rediss+cluster://:p@[fe80::1]:7000/0?ssl_check_hostname=no",
            Address(Kind.CLUSTER, "rediss://:p@[fe80::1]:7000?ssl_check_hostname=no", (Node("fe80::1", 7000),)),
            id="a cluster over TLS, its one database named",
        ),
    ],
)
def test_an_address_is_taken_apart(text: str, address: Address) -> None:
    assert parse(text) == address
    assert is_cluster(text) is (address.kind is Kind.CLUSTER)


NO_STORE = "no store: write embedded, or an address such as redis://host:6379/0"
MALFORMED = "no address: the host or the port is malformed"
NOT_ESCAPED = "no address: characters such as / ? # @ in a user or password are written as"
NO_SERVICE = "no store: the path of its address is the name that sentinels know the service by"
ONE_DATABASE = "no store: a cluster has only database 0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(SECRET, NO_STORE, id="no address at all"),
        pytest.param(f"http://:{SECRET}@h", NO_STORE, id="another protocol"),
        pytest.param(f"redis+sentry://:{SECRET}@h/main", NO_STORE, id="another way to a server"),
        pytest.param(f"unix+cluster://:{SECRET}@h", NO_STORE, id="a cluster of sockets"),
        pytest.param(f"redis://:{SECRET}@", NO_STORE, id="a server without a host"),
        pytest.param(f"unix://{SECRET}", NO_STORE, id="a socket without a path"),
        pytest.param(f"redis://:{SECRET}@[h", MALFORMED, id="a bracket that is not closed"),
        pytest.param(f"redis://:{SECRET}@h:port/0", MALFORMED, id="a port that is no number"),
        pytest.param(f"redis://:{SECRET}@h:0/0", MALFORMED, id="port 0"),
        pytest.param(f"redis+cluster://:{SECRET}@h:65536", MALFORMED, id="a port above all ports"),
        pytest.param(f"redis+cluster://:{SECRET}@a,,b", MALFORMED, id="two commas"),
        pytest.param(f"redis+cluster://:{SECRET}@", MALFORMED, id="a cluster without a host"),
        pytest.param(f"redis+sentinel://:{SECRET}@a:1:2/main", MALFORMED, id="two ports"),
        pytest.param(f"redis://:{SECRET}@h/prod", "the path of its address is a database's number", id="a name"),
        pytest.param(f"redis://:{SECRET}@a,b/0", "redis:// takes one host", id="several servers of none"),
        pytest.param(f"redis+sentinel://:{SECRET}@h", NO_SERVICE, id="sentinels and no service"),
        pytest.param(f"redis+sentinel://:{SECRET}@h/main/x", NO_SERVICE, id="a database of sentinels by name"),
        pytest.param(f"redis+cluster://:{SECRET}@h/1", ONE_DATABASE, id="a second database of a cluster"),
        pytest.param(f"redis+cluster://:{SECRET}@h/?db=1", ONE_DATABASE, id="the same as an option"),
        pytest.param(f"redis://u:12/{SECRET}@h", "database's number", id="a slash in a password"),
        pytest.param(f"redis://u:12?{SECRET}@h", NOT_ESCAPED, id="a question mark in a password"),
        pytest.param(f"redis://u:12#{SECRET}@h", NOT_ESCAPED, id="a hash in a password"),
        pytest.param(f"redis+sentinel://u:12/{SECRET}@h/main", NO_SERVICE, id="a slash in a password for sentinels"),
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^no ") as caught:
        parse(text)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_address_that_is_printed_shows_no_password() -> None:
    address = parse(f"redis+sentinel://u:{SECRET}@h/main?sentinel_password={SECRET}")
    assert SECRET not in repr(address)


@pytest.mark.parametrize(
    ("node", "text"),
    [pytest.param(Node("h", 1), "h:1", id="a name"), pytest.param(Node("::1", 1), "[::1]:1", id="an IPv6 address")],
)
def test_a_node_is_written_as_one_writes_it(node: Node, text: str) -> None:
    assert str(node) == text
