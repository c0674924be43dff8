"""Downloads an image for a client without lending it the server's place in the network.

The fence, and why it holds:

- A host name is resolved once for each request. Every address must be public, or none is used.
- The connection is opened to one of these addresses, as a literal: `_Pinned` stands between the HTTP connection and the
  network and never passes the name on, so nothing resolves it a second time and a second answer can move nothing.
- TLS still speaks to the name: it is in the handshake, and the certificate must be valid for it.
- A redirect is an answer like any other. Its target goes through the same checks from the start, at most three times.
- The HTTP connection is httpcore2's bare one. It knows no proxy, no cookie, no credentials, no redirect and no content
  decoding, so there is none of these to forget to switch off. Each request gets a connection of its own.
- One clock runs over the whole download, resolving and redirects included, and the bytes are counted as they come.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence as Seq
from typing import Protocol

import httpcore2
import httpx2

from tandem.api.images.addresses import is_public, is_unicast
from tandem.api.images.data_url import too_large
from tandem.api.images.errors import BadImage
from tandem.api.images.limits import Limits

MAX_REDIRECTS = 3
MAX_ADDRESSES = 4
"""How many of a host's addresses are tried."""
CONNECT_TIMEOUT_S = 5.0
"""For each address."""
_HEADERS = (
    (b"User-Agent", b"tandem-llm"),
    (b"Accept", b"image/*"),
    (b"Accept-Encoding", b"identity"),
    (b"Connection", b"close"),
)
"""All that a server is told, besides the host."""

Resolve = Callable[[str, int], Awaitable[Seq[str]]]
"""The addresses of a host, as literals. Raises OSError or UnicodeError when it has none."""


class Fetcher(Protocol):
    """Where the bytes behind an https URL come from."""

    async def fetch(self, url: str) -> bytes:
        """Raises BadImage."""
        ...


async def system_addresses(host: str, port: int) -> Seq[str]:
    """What the system's resolver answers."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class HttpsFetcher:
    """The fenced download (see the module)."""

    def __init__(
        self,
        limits: Limits,
        *,
        resolve: Resolve = system_addresses,
        network: httpcore2.AsyncNetworkBackend | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`network` opens connections to address literals. `ssl_context` trusts the system's authorities if not given
        (OpenSSL's SSL_CERT_FILE and SSL_CERT_DIR are honoured); it must verify certificates and names."""
        self._limits = limits
        self._resolve = resolve
        self._network = network or httpcore2.AnyIOBackend()
        self._ssl = ssl_context or httpcore2.default_ssl_context()
        if self._ssl.verify_mode is not ssl.CERT_REQUIRED or not self._ssl.check_hostname:
            raise ValueError("the ssl_context must verify certificates and host names")

    async def fetch(self, url: str) -> bytes:
        """The body behind an https URL. Raises BadImage with what went wrong; no text of it holds an address."""
        if not self._limits.https:
            raise BadImage("is an https URL, and downloads are switched off here; send a data: URL")
        try:
            async with asyncio.timeout(self._limits.fetch_timeout_s):
                return await self._follow(_checked(url, "is"))
        except TimeoutError:
            raise BadImage(f"can't be downloaded: it takes more than {self._limits.fetch_timeout_s:g} s") from None

    async def _follow(self, url: httpx2.URL) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(url)
            if isinstance(answer, bytes):
                return answer
            url = answer
        raise BadImage(f"can't be downloaded: it redirects more than {MAX_REDIRECTS} times")

    async def _get(self, url: httpx2.URL) -> bytes | httpx2.URL:
        """The body, or where a redirect leads."""
        port = url.port or 443
        network = _Pinned(await self._addresses(url.raw_host.decode("ascii"), port), self._network)
        origin = httpcore2.Origin(b"https", url.raw_host, port)
        target = httpcore2.URL(scheme=b"https", host=url.raw_host, port=port, target=url.raw_path)
        headers = [(b"Host", url.netloc), *_HEADERS]
        timeout = {"connect": CONNECT_TIMEOUT_S}
        try:
            async with (
                httpcore2.AsyncHTTPConnection(origin, ssl_context=self._ssl, network_backend=network) as connection,
                connection.stream("GET", target, headers=headers, extensions={"timeout": timeout}) as response,
            ):
                fields = {name.lower(): value.decode("latin-1") for name, value in response.headers}
                if response.status in (301, 302, 303, 307, 308) and b"location" in fields:
                    return _checked(_joined(url, fields[b"location"]), "redirects to")
                if response.status != 200:
                    raise BadImage(f"can't be downloaded: its server answers {response.status}")
                return await self._body(response, fields)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            raise BadImage(f"can't be downloaded: {_reason(error)}") from None

    async def _addresses(self, host: str, port: int) -> Seq[str]:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):
            addresses = ()
        if not addresses:
            raise BadImage("can't be downloaded: its host has no address")
        allowed = is_unicast if self._limits.https_private else is_public
        if not all(map(allowed, addresses)):
            raise BadImage("can't be downloaded: its host does not lie at a public address")
        return addresses[:MAX_ADDRESSES]

    async def _body(self, response: httpcore2.Response, fields: dict[bytes, str]) -> bytes:
        encoding = fields.get(b"content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise BadImage("can't be downloaded: its server compresses it although it was asked not to")
        length = fields.get(b"content-length", "")
        if length.isdecimal() and int(length) > self._limits.max_bytes:
            raise too_large(self._limits.max_bytes)
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > self._limits.max_bytes:
                raise too_large(self._limits.max_bytes)
        return bytes(body)


class _Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to the checked addresses, in order until one answers, whatever name it is asked for."""

    def __init__(self, addresses: Seq[str], network: httpcore2.AsyncNetworkBackend) -> None:
        self._addresses = addresses
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        *others, last = self._addresses
        for address in others:
            try:
                return await self._network.connect_tcp(address, port, timeout)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port, timeout)


def _checked(url: str, leads: str) -> httpx2.URL:
    """The parsed URL: the one reading of it, from which both the check and the request are made."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError):
        raise BadImage(f"{leads} no valid URL") from None
    if parsed.scheme != "https":
        raise BadImage(f"{leads} no https URL")
    if parsed.port is not None and not 0 < parsed.port < 2**16:
        raise BadImage(f"{leads} a URL with the port {parsed.port}; there is no such port")
    if not parsed.raw_host:
        raise BadImage(f"{leads} a URL without a host")
    if parsed.userinfo:
        raise BadImage(f"{leads} a URL with credentials in it; they are never sent")
    return parsed


def _joined(url: httpx2.URL, location: str) -> str:
    try:
        return str(url.join(location))
    except (httpx2.InvalidURL, ValueError):
        return ""


def _reason(error: Exception) -> str:
    """Why a connection failed, without naming an address."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its server's certificate is not valid ({cause.verify_message})"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore2.ConnectError | httpcore2.ConnectTimeout):
        return "its server can't be reached over TLS"
    return "the connection broke off"
