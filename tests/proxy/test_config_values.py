"""Kinds of values: what an address may look like, and what is said of one that is none."""

from __future__ import annotations

import pytest

from proxy.config_values import Address, read_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("127.0.0.1:8080", Address("127.0.0.1", 8080), id="an IPv4 address"),
        pytest.param("[::1]:0", Address("::1", 0), id="an IPv6 address, any port"),
        pytest.param("gateway.local:80", Address("gateway.local", 80), id="a name"),
    ],
)
def test_addresses_are_read(text: str, expected: Address) -> None:
    assert read_address(text) == expected


@pytest.mark.parametrize("text", ["", ":80", "h:", "h:x", "h:-1", "h:70000", "::1:80", "h h:80", "http://h:80", "h:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write host:port"):
        read_address(text)
