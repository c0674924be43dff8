"""The fence around downloads: where a connection goes, what it carries and what ends it."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence as Seq

import pytest
from image_site import OTHER_PUBLIC, PUBLIC, Site, Web, http, redirect

from tandem.api.images import BadImage, HttpsFetcher, Limits
from tandem.api.images.fetch import system_addresses

URL = "https://img.test/a.png"
NOT_PUBLIC = "its host does not lie at a public address"


def endless(
    piece: bytes, every_s: float = 0.0, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n"
) -> Callable[..., Awaitable[None]]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_s)

    return answer


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


# ------------------------------------------------------------------------------------------------ what is sent


def test_the_connection_goes_to_the_checked_address_and_tls_speaks_to_the_name(web: Web) -> None:
    assert web.get(URL, {"/a.png": http(b"bytes")}) == b"bytes"
    assert web.wire.dialled == [PUBLIC]
    assert web.site.asked_for == ["img.test"]


def test_a_request_says_no_more_than_it_must(web: Web) -> None:
    web.get("https://img.test:443/a.png?b=c#d", {"/a.png?b=c": http(b"x")})
    (head,) = web.site.heads
    lines = head.strip().split("\r\n")
    assert lines[0] == "GET /a.png?b=c HTTP/1.1"
    assert sorted(line.partition(":")[0].lower() for line in lines[1:]) == [
        "accept",
        "accept-encoding",
        "connection",
        "host",
        "user-agent",
    ]
    assert "Host: img.test" in lines
    assert "Accept-Encoding: identity" in lines


def test_no_proxy_of_the_environment_is_used(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert web.get(URL, {"/a.png": http(b"bytes")}) == b"bytes"


def test_a_cookie_from_a_redirect_is_not_sent_on(web: Web) -> None:
    routes = {"/a.png": redirect("/b.png", set_cookie="a=b"), "/b.png": http(b"bytes")}
    assert web.get(URL, routes) == b"bytes"
    assert "cookie" not in web.site.heads[1].lower()


def test_a_port_of_its_own_is_named_to_the_host(web: Web) -> None:
    web.get("https://img.test:8443/a.png", {"/a.png": http(b"x")})
    assert "Host: img.test:8443\r\n" in web.site.heads[0]


# --------------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "private", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fe80::1%1"]
)
def test_a_host_at_a_private_address_is_never_dialled(web: Web, private: str) -> None:
    with pytest.raises(BadImage, match=NOT_PUBLIC):
        web.get(URL, {}, {"img.test": [[private]]})
    assert web.wire.dialled == []


def test_one_private_address_among_public_ones_refuses_the_host(web: Web) -> None:
    with pytest.raises(BadImage, match=NOT_PUBLIC):
        web.get(URL, {}, {"img.test": [[PUBLIC, OTHER_PUBLIC, "192.168.0.1"]]})
    assert web.wire.dialled == []


def test_a_second_dns_answer_moves_nothing(web: Web) -> None:
    names = {"img.test": [[PUBLIC], ["127.0.0.1"]]}
    assert web.get(URL, {"/a.png": http(b"bytes")}, names) == b"bytes"
    assert web.names.asked == ["img.test"]
    assert web.wire.dialled == [PUBLIC]


def test_a_redirect_to_the_same_host_is_checked_against_its_new_address(web: Web) -> None:
    names = {"img.test": [[PUBLIC], ["127.0.0.1"]]}
    with pytest.raises(BadImage, match=NOT_PUBLIC):
        web.get(URL, {"/a.png": redirect("/b.png"), "/b.png": http(b"secret")}, names)
    assert web.wire.dialled == [PUBLIC]


def test_the_next_address_is_tried_when_one_does_not_answer(web: Web) -> None:
    names = {"img.test": [["8.8.8.8", "8.8.4.4", OTHER_PUBLIC]]}
    assert web.get(URL, {"/a.png": http(b"bytes")}, names) == b"bytes"
    assert web.wire.dialled == ["8.8.8.8", "8.8.4.4", OTHER_PUBLIC]


def test_only_so_many_addresses_are_tried(web: Web) -> None:
    with pytest.raises(BadImage, match="its server can't be reached over TLS"):
        web.get(URL, {}, {"img.test": [[f"8.8.8.{last}" for last in range(9)]]})
    assert len(web.wire.dialled) == 4


def test_an_unknown_host_is_said_to_have_no_address(web: Web) -> None:
    with pytest.raises(BadImage, match="its host has no address"):
        web.get("https://nowhere.test/", {})


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f.1", "127.1", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]", "localhost", "0"]
)
def test_no_spelling_of_a_private_address_gets_by(web: Web, host: str) -> None:
    with pytest.raises(BadImage, match=r"can't be downloaded: its host|no valid URL"):
        web.get(f"https://{host}/a.png", {"/a.png": http(b"secret")}, resolve=system_addresses)
    assert web.wire.dialled == []


def test_a_private_address_is_reached_where_the_operator_allows_it(web: Web) -> None:
    async def run() -> bytes:
        site = Site({"/a.png": http(b"bytes")}, web.certified())
        server = await site.start()
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/a.png"
        try:
            return await HttpsFetcher(Limits(https_private=True), ssl_context=web.trusted()).fetch(url)
        finally:
            server.close()

    assert asyncio.run(run()) == b"bytes"


@pytest.mark.parametrize("address", ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1", "::ffff:0.0.0.0"])
def test_what_is_no_one_host_is_refused_even_then(web: Web, address: str) -> None:
    with pytest.raises(BadImage, match=NOT_PUBLIC):
        web.get(URL, {}, {"img.test": [[address]]}, https_private=True)


# --------------------------------------------------------------------------------------------------- redirects


def test_three_redirects_are_followed_each_through_the_check(web: Web) -> None:
    routes = {
        "/a.png": redirect("b.png"),
        "/b.png": redirect("//cdn.test/c.png"),
        "/c.png": redirect("https://img.test/d.png"),
        "/d.png": http(b"bytes"),
    }
    assert web.get(URL, routes) == b"bytes"
    assert web.names.asked == ["img.test", "img.test", "cdn.test", "img.test"]
    assert web.wire.dialled == [PUBLIC, PUBLIC, OTHER_PUBLIC, PUBLIC]


def test_a_fourth_redirect_is_not_followed(web: Web) -> None:
    with pytest.raises(BadImage, match="it redirects more than 3 times"):
        web.get(URL, {"/a.png": redirect("/a.png")})
    assert len(web.site.heads) == 4


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("http://img.test/b.png", "redirects to no https URL"),
        ("data:image/png;base64,AAAA", "redirects to no https URL"),
        ("file:///etc/passwd", "redirects to no https URL"),
        ("https://me:secret@img.test/b.png", "redirects to a URL with credentials"),
        ("https://private.test/b.png", NOT_PUBLIC),
        ("https://img.test:99999/", "redirects to a URL with the port 99999"),
    ],
)
def test_a_redirect_out_of_the_fence_is_not_followed(web: Web, to: str, message: str) -> None:
    names = {"img.test": [[PUBLIC]], "private.test": [["10.0.0.1"]]}
    with pytest.raises(BadImage, match=message):
        web.get(URL, {"/a.png": redirect(to), "/b.png": http(b"secret")}, names)
    assert len(web.site.heads) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://me@img.test/a.png", "is a URL with credentials in it"),
        ("https://:secret@img.test/a.png", "is a URL with credentials in it"),
        ("https:///a.png", "is a URL without a host"),
        ("https://img.test:0/a.png", "is a URL with the port 0; there is no such port"),
        ("https://img.test:0x50/a.png", "is no valid URL"),
        ("https://img.test/\r\nHost: x", "is no valid URL"),
        ("https://xn--/", "no valid URL|its host has no address"),
        ("https://" + "a" * 70 + ".test/", "no valid URL|its host has no address"),
    ],
)
def test_a_url_is_checked_before_anything_is_asked(web: Web, url: str, message: str) -> None:
    with pytest.raises(BadImage, match=message):
        web.get(url, {})
    assert web.wire.dialled == []


def test_downloads_can_be_switched_off(web: Web) -> None:
    with pytest.raises(BadImage, match="downloads are switched off here; send a data: URL"):
        web.get(URL, {}, https=False)
    assert web.names.asked == []


# --------------------------------------------------------------------------------------------------------- TLS


def test_a_certificate_for_another_name_is_refused(web: Web) -> None:
    with pytest.raises(BadImage, match=r"its server's certificate is not valid \(.*other\.test"):
        web.get("https://other.test/a.png", {"/a.png": http(b"bytes")}, {"other.test": [[PUBLIC]]})
    assert web.site.heads == []


def test_a_certificate_of_an_unknown_authority_is_refused(web: Web) -> None:
    with pytest.raises(BadImage, match="its server's certificate is not valid"):
        web.get(URL, {"/a.png": http(b"bytes")}, trusted=ssl.create_default_context())
    assert web.site.heads == []


def test_a_server_without_tls_is_refused(web: Web) -> None:
    with pytest.raises(BadImage, match="its server can't be reached over TLS"):
        web.get(URL, {"/a.png": http(b"bytes")}, tls=False, fetch_timeout_s=5)


def test_a_context_that_verifies_nothing_is_not_taken() -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    with pytest.raises(ValueError, match="must verify certificates and host names"):
        HttpsFetcher(Limits(), ssl_context=context)


# -------------------------------------------------------------------------------------------------- time and size


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(endless(b"x", 0.05), id="a drip of a body"),
        pytest.param(endless(b"X-More: 1\r\n", 0.05, b"HTTP/1.1 200 OK\r\n"), id="a drip of headers"),
        pytest.param(endless(b"HTTP/1.1 100 Continue\r\n\r\n", 0.05, b""), id="no end of interim answers"),
        pytest.param(never, id="no answer"),
    ],
)
def test_a_slow_server_ends_with_the_whole_downloads_clock(web: Web, answer: Callable[..., Awaitable[None]]) -> None:
    started = time.monotonic()
    with pytest.raises(BadImage, match=r"can't be downloaded: it takes more than 0.4 s"):
        web.get(URL, {"/a.png": answer}, fetch_timeout_s=0.4)
    assert time.monotonic() - started < 3


def test_slow_redirects_share_one_clock(web: Web) -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.25)
        writer.write(redirect("/a.png"))

    with pytest.raises(BadImage, match=r"it takes more than 0.6 s"):
        web.get(URL, {"/a.png": slowly}, fetch_timeout_s=0.6)
    assert 2 <= len(web.site.heads) <= 3


def test_a_resolver_that_hangs_ends_with_the_clock(web: Web) -> None:
    async def hang(host: str, port: int) -> Seq[str]:
        await asyncio.sleep(60)
        return ()

    with pytest.raises(BadImage, match=r"it takes more than 0.2 s"):
        web.get(URL, {}, resolve=hang, fetch_timeout_s=0.2)


def test_a_body_without_an_end_is_cut_at_the_limit(web: Web) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(bytes(65536))
            sent += 65536
            await writer.drain()

    with pytest.raises(BadImage, match="is more than 1 MB"):
        web.get(URL, {"/a.png": flood}, max_bytes=2**20)
    assert 2**20 < sent < 16 * 2**20


def test_a_declared_length_over_the_limit_is_refused_at_once(web: Web) -> None:
    with pytest.raises(BadImage, match="is more than 20 MB"):
        web.get(URL, {"/a.png": http(b"x", content_length=str(20 * 2**20 + 1))})


def test_a_body_of_exactly_the_limit_is_taken(web: Web) -> None:
    assert len(web.get(URL, {"/a.png": http(bytes(1000))}, max_bytes=1000)) == 1000


def test_a_compressed_body_is_refused(web: Web) -> None:
    bomb = gzip.compress(bytes(10**6))
    with pytest.raises(BadImage, match="its server compresses it although it was asked not to"):
        web.get(URL, {"/a.png": http(bomb, content_encoding="gzip")})


@pytest.mark.parametrize(
    "status", ["204 No Content", "206 Partial Content", "304 Not Modified", "404 Not Found", "500 x"]
)
def test_a_status_other_than_200_is_named(web: Web, status: str) -> None:
    with pytest.raises(BadImage, match=f"its server answers {status[:3]}"):
        web.get(URL, {"/a.png": http(b"", status)})


def test_a_redirect_that_leads_nowhere_is_a_status(web: Web) -> None:
    with pytest.raises(BadImage, match="its server answers 302"):
        web.get(URL, {"/a.png": http(b"", "302 Found")})


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="no answer"),
        pytest.param(b"SSH-2.0-x\r\n\r\n", id="not HTTP"),
        pytest.param(http(b"abc", content_length="9"), id="a body cut short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000, id="no end of a header"),
    ],
)
def test_a_broken_answer_is_a_broken_connection(web: Web, answer: bytes) -> None:
    with pytest.raises(BadImage, match="can't be downloaded: the connection broke off"):
        web.get(URL, {"/a.png": answer})


def test_a_connection_that_turns_into_garbage_under_tls_is_a_broken_connection(web: Web) -> None:
    async def garble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await writer.drain()
        writer.get_extra_info("socket")  # the transport below TLS
        raw = writer.transport._ssl_protocol._transport  # type: ignore[attr-defined]
        raw.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        await asyncio.sleep(0.2)

    with pytest.raises(BadImage, match="can't be downloaded: the connection broke off"):
        web.get(URL, {"/a.png": garble})
