"""Which addresses are public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given, strategies as st

from tandem.api.images.addresses import is_public, is_unicast

PRIVATE_4 = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255",
]  # fmt: skip
PUBLIC_4 = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
    "169.253.255.255", "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
    "223.255.255.255",
]  # fmt: skip
PRIVATE_6 = [
    "::", "::1", "::127.0.0.1", "::8.8.8.8", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1",
    "100::1", "64:ff9b:1::1", "2001::1", "2001:0:7f00:1::", "2001:2::1", "2001:10::1", "2001:db8::1", "2002:808:808::1",
    "2002:7f00:1::1", "3fff::1", "4000::1", "5f00::1",
]  # fmt: skip
PUBLIC_6 = ["2606:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2400:cb00::1"]


@pytest.mark.parametrize("address", PRIVATE_4 + PRIVATE_6)
def test_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC_4 + PUBLIC_6)
def test_their_neighbours_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("prefix", ["::ffff:0:0", "64:ff9b::"])
@pytest.mark.parametrize("address", PRIVATE_4 + PUBLIC_4)
def test_an_address_inside_a_mapped_or_nat64_one_counts_as_itself(prefix: str, address: str) -> None:
    inside = IPv6Address(int(IPv6Address(prefix)) + int(IPv4Address(address)))
    assert is_public(str(inside)) is (address in PUBLIC_4)


@given(st.ip_addresses().map(str))
@example("203.0.114.1")
def test_no_address_is_public_that_python_holds_for_local(address: str) -> None:
    if is_public(address):
        ip = ip_address(address)
        assert ip.is_global
        assert not ip.is_multicast
        assert is_unicast(address)


def test_private_addresses_are_unicast_and_others_are_not() -> None:
    assert all(map(is_unicast, ["127.0.0.1", "10.0.0.1", "::1", "fe80::1%1", "::ffff:10.0.0.1"]))
    assert not any(map(is_unicast, ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1", "::ffff:224.0.0.1"]))
