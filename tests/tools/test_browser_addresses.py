"""Which addresses the browser connects to. No name is looked up outside of this file."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.settings.reading import read
from marsrl_verl.tools.browser import addresses as addresses_module
from marsrl_verl.tools.browser.addresses import AddressRules, CheckedResolver, RefusedAddressError, is_public
from marsrl_verl.tools.browser.config import BrowserConfig

PUBLIC = """
8.8.8.8 1.1.1.1 93.184.215.14 172.15.255.255 172.32.0.0 192.167.255.255 192.169.0.0 100.63.255.255 100.128.0.0
169.253.255.255 223.255.255.255 168.63.129.15 2606:4700:4700::1111 2001:4860:4860::8888 2a00:1450::1
64:ff9b::808:808
"""

REFUSED = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.255 168.63.129.16 169.254.0.1
169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1
198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 64:ff9b::7f00:1
64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001::1 2001:0:53aa::1 2001:db8::1 2002:7f00:1:: 2002:808:808:: 3fff::1
5f00::1 fc00::1 fd00:ec2::254 fdff::1 fe80::1 febf::1 fec0::1 ff02::1 4000::1
"""


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_addresses(address):
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", REFUSED.split())
def test_refused_addresses(address):
    assert not is_public(ip_address(address))


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_an_ipv4_address_is_refused_in_every_form_of_ipv6_that_carries_it(address):
    value = int(address)
    assert is_public(IPv6Address(int(IPv6Address("64:ff9b::")) | value)) == is_public(address)
    for base in ("::ffff:0:0", "::", "::ffff:0:0:0"):
        assert not is_public(IPv6Address(int(IPv6Address(base)) | value))
    assert not is_public(IPv6Address(int(IPv6Address("2002::")) | value << 80))


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_what_python_calls_private_is_refused(address):
    if is_public(address):
        assert address.is_global and not address.is_multicast and not address.is_reserved


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_what_python_calls_private_is_refused_in_ipv6(address):
    if is_public(address):
        assert address.is_global and not address.is_multicast


NAMED = ["https://user@example.org/", "https://user:word@example.org/", "https://:word@example.org/"]
LOCAL = ["127.0.0.1", "[::1]", "[::ffff:169.254.169.254]", "[fe80::1%25eth0]", "①②⑦.⓪.⓪.①", "127。0。0。1"]
OTHER = ["file:///etc/passwd", "ftp://example.org/x", "gopher://example.org:70/_", "data:text/html,x"]
OTHER += ["javascript:alert(1)", "example.org", "//example.org/x", ""]
REFUSED_URLS = {
    "Only http and https": OTHER,
    "user name": NAMED,
    "Port 22": ["http://example.org:22/"],
    "Port 8080": ["http://example.org:8080/"],
    "no host": ["http:///path"],
    "not on the public Internet": ["https://169.254.169.254/", *(f"http://{host}/x" for host in LOCAL)],
}


@pytest.mark.parametrize(
    ("url", "message"), [(url, message) for message, urls in REFUSED_URLS.items() for url in urls]
)
def test_refused_urls(url, message):
    with pytest.raises(RefusedAddressError, match=message):
        AddressRules((80, 443), ()).check_url(URL(url))


def test_read_urls():
    rules = AddressRules((80, 443, 8080), ["10.1.2.0/24", "fd00::5"])
    rules.check_url(URL("https://example.org/x?y#z"))
    for host in ("8.8.8.8", "example.org:8080", "10.1.2.3", "[fd00::5]"):
        rules.check_url(URL(f"http://{host}/"))
    for url in ("http://10.1.3.1/", "http://[fd00::6]/", "http://[::ffff:10.1.2.3]/"):
        with pytest.raises(RefusedAddressError):
            rules.check_url(URL(url))


def resolve(*addresses, family=socket.AF_UNSPEC, allowed=()):
    async def lookup(host, port):
        kinds = {True: (socket.AF_INET6, (port, 0, 0)), False: (socket.AF_INET, (port,))}
        found = [(one, *kinds[":" in one]) for one in addresses]
        return [(family, socket.SOCK_STREAM, 6, "", (one, *more)) for one, family, more in found]

    resolver = CheckedResolver(AddressRules((80,), allowed))
    with mock.patch.object(addresses_module, "look_up", lookup):
        return asyncio.run(resolver.resolve("name.example", 80, family))


def test_a_name_is_its_addresses():
    found = resolve("8.8.8.8", "2606:4700::1")
    assert [one["host"] for one in found] == ["8.8.8.8", "2606:4700::1"]
    assert all(one["hostname"] == "name.example" and one["port"] == 80 for one in found)
    assert [one["host"] for one in resolve("8.8.8.8", "2606:4700::1", family=socket.AF_INET)] == ["8.8.8.8"]
    assert [one["host"] for one in resolve("10.0.0.1", allowed=["10.0.0.0/8"])] == ["10.0.0.1"]


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.1.1", "::1", "::ffff:127.0.0.1", "fe80::1%eth0"])
def test_a_name_of_which_one_address_is_refused_is_refused(address):
    with pytest.raises(RefusedAddressError):
        resolve(address)
    with pytest.raises(RefusedAddressError):
        resolve("8.8.8.8", address)


def test_a_name_without_addresses():
    with pytest.raises(OSError, match=r"name\.example has no address"):
        resolve()


def test_networks_in_the_settings():
    said = r"tools\.browser\.allow_networks(.|\n)*Write networks as 10\.1\.2\.0/24"
    with pytest.raises(ConfigError, match=said):
        read(BrowserConfig, {"allow_networks": ["10.1.2.3/24"]}, "marsrl.tools.browser")
