"""Which IP addresses belong to the public internet."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared, behind a carrier's NAT
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, where clouds put their metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)
_GLOBAL_UNICAST_6 = IPv6Network("2000::/3")
"""All that is assigned for public use lies here: loopback, unspecified, link-local, unique local, multicast and
IPv4-compatible addresses lie outside."""
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo with its IPv4 addresses among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, an IPv4 address inside
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
"""How a network without IPv4 names every IPv4 host (RFC 6052); the last 32 bits are the host's address."""


def is_public(address: str) -> bool:
    """Whether the address is a public unicast one, after the special-purpose registries of IANA (RFC 6890).

    An IPv4 address inside an IPv6 one counts as itself where networks of today use it (mapped, NAT64); the tunnels that
    nobody serves from any more (6to4, Teredo) are never public. A NAT64 prefix of a network's own can't be told from
    other addresses; such a network is the operator's to fence. Raises ValueError for what is no address.
    """
    ip = ip_address(address)
    if isinstance(ip, IPv6Address):
        inside = ip.ipv4_mapped or (IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None)
        if inside is None:
            return ip in _GLOBAL_UNICAST_6 and not any(ip in network for network in _NOT_PUBLIC_6)
        ip = inside
    return not any(ip in network for network in _NOT_PUBLIC_4)


def is_unicast(address: str) -> bool:
    """Whether a connection to the address reaches the one host that it names: not multicast, broadcast or all zeros."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address):
        ip = ip.ipv4_mapped or ip
    return not (ip.is_multicast or ip.is_unspecified or ip == IPv4Address("255.255.255.255"))
