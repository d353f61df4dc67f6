"""Addresses that the browser connects to: public ones, however they are written."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

from aiohttp.abc import AbstractResolver
from yarl import URL

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL_4 = (
    "0.0.0.0/8 10.0.0.0/8 127.0.0.0/8 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 "
    "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    "100.64.0.0/10 "  # carriers' networks; the metadata service of one cloud
    "168.63.129.16/32 "  # a public address that one cloud answers itself
    "169.254.0.0/16"  # link-local; the metadata service of most clouds
)
_REFUSED_4 = tuple(map(IPv4Network, _SPECIAL_4.split()))
"""IANA's special-purpose addresses, multicast and the reserved rest. Listed here, since what Python calls
private differs between its versions."""
_GLOBAL_6 = IPv6Network("2000::/3")
_REFUSED_6 = tuple(IPv6Network(one) for one in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
"""Within the global addresses: protocol assignments (Teredo), documentation, 6to4, which carries an IPv4
address."""
_NAT64 = IPv6Network("64:ff9b::/96")


class RefusedAddressError(ValueError):
    """An address that the browser does not connect to; the message says why, for the model."""


def is_public(address: Address) -> bool:
    """True if an address is one of the public Internet. An IPv4 address in an IPv6 one counts as what it is
    where translators carry it there (NAT64), and is rejected in every other form."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _REFUSED_4)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _GLOBAL_6 and not any(address in network for network in _REFUSED_6)


class AddressRules:
    """The rules of what may be connected to: `ports` of URLs, and networks that are `allowed` although they
    are not public."""

    def __init__(self, ports: Iterable[int], allowed: Iterable[str] = ()) -> None:
        self._ports = frozenset(ports)
        self._allowed: tuple[Network, ...] = tuple(ip_network(one) for one in allowed)

    def check_url(self, url: URL) -> None:
        """Raises RefusedAddressError for a URL that is not read, by its parts as the connection will use
        them."""
        if url.scheme not in ("http", "https"):
            raise RefusedAddressError("Only http and https addresses can be read.")
        if url.user is not None or url.password is not None:
            raise RefusedAddressError("Addresses with a user name can't be read.")
        if not url.raw_host:
            raise RefusedAddressError("The address names no host.")
        if url.port not in self._ports:
            raise RefusedAddressError(f"Port {url.port} can't be read.")
        if (literal := _literal(url.raw_host)) is not None:
            self.check(literal)

    def check(self, address: Address) -> None:
        """Raises RefusedAddressError for an address that would be connected to and is not public."""
        inside = any(address in one for one in self._allowed if one.version == address.version)
        if not inside and not is_public(address):
            raise RefusedAddressError("The address is not on the public Internet.")


def _literal(host: str) -> Address | None:
    """The IP address that a host is; None for a name. A zone (`%eth0`) is part of an address's text only."""
    try:
        return ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


async def look_up(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """The system's addresses of a host, for TCP."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class CheckedResolver(AbstractResolver):
    """Resolves a name once, for the connection itself: what was checked is what is connected to, so that a
    name can't have another address a moment later. A name of which one address is rejected is rejected."""

    def __init__(self, rules: AddressRules) -> None:
        self._rules = rules

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses: list[ResolveResult] = []
        for kind, _, protocol, _, place in await look_up(host, port):
            address = _literal(str(place[0]))
            if address is None:
                continue
            self._rules.check(address)
            if family in (socket.AF_UNSPEC, kind):
                addresses.append(
                    {
                        "hostname": host,
                        "host": str(address),
                        "port": port,
                        "family": kind,
                        "proto": protocol,
                        "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                    }
                )
        if not addresses:
            raise OSError(f"{host} has no address")
        return addresses

    async def close(self) -> None:
        """See aiohttp."""
