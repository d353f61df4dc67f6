"""Fetching pages: real servers on the loopback interface, names that a test makes up."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from unittest import mock

import pytest
from aiohttp import web
from fake_services import FakeService
from yarl import URL

from marsrl_verl.tools.browser import addresses
from marsrl_verl.tools.browser.config import BrowserConfig
from marsrl_verl.tools.browser.fetch import Fetcher, PageError

PAGE = "<html><body><p>Bäche</p></body></html>"


def html(text=PAGE, **more):
    return web.Response(text=text, content_type="text/html", **more)


def fetch(answer, address="http://site.example{port}/page", names=None, **settings):
    """What a fetcher reads: `{port}` stands for the server's. All names are the loopback address unless
    `names` says which addresses a name has, one after the other."""
    service = FakeService(answer)
    looked_up = []

    async def lookup(host, port):
        looked_up.append(host)
        known = (names or {}).get(host, ["127.0.0.1"])
        address = known.pop(0) if len(known) > 1 else known[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async def run():
        async with service.running() as url:
            port = URL(url).port
            config = {"ports": [port], "allow_networks": ["127.0.0.0/8"], "timeout_s": 10.0, **settings}
            fetcher = Fetcher(BrowserConfig(**config), 30.0)
            fetcher.open()
            try:
                return await fetcher.fetch(address.replace("{port}", f":{port}"))
            finally:
                await fetcher.close()

    with mock.patch.object(addresses, "look_up", lookup):
        return asyncio.run(run()), service, looked_up


def refused(answer, *given, **more):
    with pytest.raises(PageError) as caught:
        fetch(answer, *given, **more)
    return str(caught.value)


def test_a_page_is_read():
    fetched, service, looked_up = fetch(lambda received: html(), "http://site.example{port}/page?q=1#part")
    assert fetched.content.decode() == PAGE
    assert (fetched.kind, fetched.charset, fetched.truncated) == ("text/html", "utf-8", False)
    (received,) = service.requests
    assert received.request.method == "GET"
    assert received.request.path_qs == "/page?q=1"
    assert received.request.host.startswith("site.example:")
    assert looked_up == ["site.example"]  # once: what was checked is what was connected to


def test_nothing_of_this_machine_is_sent(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    _, service, _ = fetch(lambda received: html())
    headers = service.requests[0].request.headers
    assert not {"Cookie", "Authorization", "Referer"} & set(headers)
    assert headers["User-Agent"] == "marsrl-verl-browser"


def to(place):
    return web.Response(status=302, headers={"Location": place})


def test_redirects_are_followed_without_cookies():
    def answer(received):
        if received.request.path == "/page":
            made = to("../other")
            made.set_cookie("name", "value")
            return made
        return html("there" if "Cookie" not in received.request.headers else "with a cookie")

    fetched, _, _ = fetch(answer)
    assert fetched.content == b"there"
    assert fetched.url.endswith("/other")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("http://169.254.169.254/latest/meta-data/", "Port 80 can't be read."),
        ("http://[::1]{port}/", "not on the public Internet"),
        ("http://inside.example{port}/", "not on the public Internet"),
        ("http://[", "no address of a page"),
    ],
)
def test_every_redirect_is_checked(place, message):
    """By the rules of test_browser_addresses.py."""

    def answer(received):
        return to(place.replace("{port}", f":{received.request.url.port}"))

    assert message in refused(answer, names={"inside.example": ["10.0.0.7"]})


def test_redirects_without_end():
    assert refused(lambda received: to("/page"), redirects=3) == "The page redirects more than 3 times."


def test_a_name_that_changes_its_address_is_not_followed_there():
    """The first look-up, which is checked, is the one that is connected to; the second is never made."""
    names = {"site.example": ["127.0.0.1", "10.0.0.7"]}
    fetched, _, looked_up = fetch(lambda received: html(), names=names)
    assert fetched.content.decode() == PAGE
    assert looked_up == ["site.example"]
    names = {"site.example": ["10.0.0.7", "127.0.0.1"]}
    assert "not on the public Internet" in refused(lambda received: html(), names=names)


def test_numbers_that_the_system_reads_as_addresses_are_looked_up_and_refused():
    """`2130706433`, `0x7f.1` and `127.1` are the loopback address to `getaddrinfo`."""

    async def run(host):
        fetcher = Fetcher(BrowserConfig(), 30.0)
        fetcher.open()
        try:
            await fetcher.fetch(f"http://{host}/")
        finally:
            await fetcher.close()

    for host in ("2130706433", "0x7f.1", "127.1", "0177.0.0.1", "localhost"):  # some aiohttp refuses itself
        with pytest.raises(PageError, match=r"not on the public Internet|InvalidUrl"):
            asyncio.run(run(host))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda received: web.Response(status=404), "HTTP 404"),
        (lambda received: web.Response(status=500), "HTTP 500"),
        (lambda received: web.Response(status=302), "HTTP 302"),
        (lambda received: web.Response(body=b"%PDF", content_type="application/pdf"), "is application/pdf"),
        (lambda received: web.Response(body=b"x", content_type="image/png"), "is image/png"),
        (lambda received: packed_as("gzip", b"no gzip"), "compressed"),
        (lambda received: packed_as("br", b"no gzip"), "not asked for"),
        (lambda received: None, "can't be read (ServerDisconnectedError)"),
    ],
)
def test_what_is_no_page(answer, message):
    assert message in refused(answer)


def test_addresses_that_are_none():
    for address in ("http://site.example:port/", "http://[", "not an address", "http://" + "x" * 3000):
        assert refused(lambda received: html(), address)
    assert "no such server" in refused(lambda received: html(), names={"site.example": ["127.0.0.2"]})


def test_a_page_is_read_as_far_as_its_limit():
    fetched, _, _ = fetch(lambda received: html("x" * 5000), page_kib=1)
    assert (fetched.content, fetched.truncated) == (b"x" * 1024, True)
    fetched, _, _ = fetch(lambda received: html("x" * 1024), page_kib=1)
    assert (len(fetched.content), fetched.truncated) == (1024, False)


def packed_as(encoding, body):
    return web.Response(body=body, content_type="text/html", headers={"Content-Encoding": encoding})


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_pages(encoding):
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    fetched, service, _ = fetch(lambda received: packed_as(encoding, pack(b"x" * 10_000)))
    assert fetched.content == b"x" * 10_000
    assert service.requests[0].request.headers["Accept-Encoding"] == "gzip"


def test_a_small_answer_that_unpacks_to_a_large_one_is_unpacked_as_far_as_the_limit():
    packer, zeros = zlib.compressobj(9, zlib.DEFLATED, 31), b"\0" * (1 << 20)
    packed = b"".join(packer.compress(zeros) for _ in range(64)) + packer.flush()
    fetched, _, _ = fetch(lambda received: packed_as("gzip", packed), page_kib=1024)
    assert (len(fetched.content), fetched.truncated) == (1 << 20, True)
