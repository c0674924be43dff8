"""Who may call which route: the admin token, the metrics token, and the machine itself.

Without an admin token every route answers anybody, but for `/metrics` when a metrics token is set. With one, a route
says what it asks for (`Access`), and a request that does not have it gets a 401 before its handler runs.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.api.errors import ApiError
from tandem.core.kernel import Manifest, ManifestError
from tandem.core.kernel.problems import Problem

SHORTEST = 32
"""Characters of a token. A token is not a password that a person remembers: let a program draw it."""

PROXY_HEADERS = ("forwarded", "via", "x-real-ip")
PROXY_PREFIX = "x-forwarded-"
"""A proxy writes one of these, and then the machine that connects is not the one that asks."""


class Access(Enum):
    """What a route asks for once there is an admin token."""

    OPEN = "open"
    """Nothing."""
    ADMIN = "admin"
    """The admin token, or a request from this machine itself."""
    BEARER = "bearer"
    """The admin token in the header, from everywhere. For what empties or deletes: a page in a browser on this machine
    can send a request here, but it can't know the token."""
    METRICS = "metrics"
    """The metrics token or the admin token, from everywhere and without an admin token too; the same as `ADMIN` while
    no metrics token is set."""


class Secret:
    """A token, kept as its hash: no log, no error and no dump of an object can show it."""

    def __init__(self, token: str) -> None:
        self._digest = _digest(token.encode())

    def is_in(self, headers: Headers) -> bool:
        """Whether a request carries it as `Authorization: Bearer TOKEN`. Takes as long for a wrong one."""
        given = headers.get("authorization", "")
        scheme, _, token = given.strip().partition(" ")
        # Header values are Latin-1 here, whatever the client meant.
        equal = hmac.compare_digest(_digest(token.strip().encode("latin-1", "replace")), self._digest)
        return equal and scheme.lower() == "bearer"


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides who may pass."""

    admin: Secret | None = None
    metrics: Secret | None = None
    trust_loopback: bool = True

    def allows(self, access: Access, scope: Scope) -> bool:
        """Whether the request of this ASGI scope has what `access` asks for."""
        if access is Access.OPEN:
            return True
        headers = Headers(scope=scope)
        if access is Access.METRICS and self.metrics is not None:
            # Both are compared, so that the time does not say which it was.
            known = [secret.is_in(headers) for secret in (self.metrics, self.admin) if secret is not None]
            return any(known)
        if self.admin is None or self.admin.is_in(headers):
            return True
        return access is not Access.BEARER and self.trust_loopback and from_this_machine(scope, headers)

    def refusal(self, access: Access, scope: Scope) -> ApiError:
        """The 401 for a request that `allows` refused."""
        wanted = "the admin token"
        if access is Access.METRICS and self.metrics is not None:
            wanted = "the metrics token or the admin token" if self.admin is not None else "the metrics token"
        challenge = 'Bearer realm="tandem"'
        if Headers(scope=scope).get("authorization"):
            message = f"{scope['path']} needs {wanted}, and the Authorization header holds another"
            challenge += ', error="invalid_token"'
        else:
            message = f"{scope['path']} needs {wanted}: send Authorization: Bearer TOKEN"
        error = ApiError(401, message, code="invalid_api_key")
        error.headers["www-authenticate"] = challenge
        return error


def from_this_machine(scope: Scope, headers: Headers) -> bool:
    """Whether the peer is a loopback address and no proxy stands between. A socket without an address is neither."""
    client = scope.get("client")
    if client is None or any(name in PROXY_HEADERS or name.startswith(PROXY_PREFIX) for name in headers):
        return False
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class Guard:
    """ASGI middleware in front of one route."""

    def __init__(self, app: ASGIApp, gate: Gate, access: Access) -> None:
        self._app = app
        self._gate = gate
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._gate.allows(self._access, scope):
            await self._app(scope, receive, send)
        else:
            await self._gate.refusal(self._access, scope).response()(scope, receive, send)


# -------------------------------------------------------------------------------------------------- from the manifest


TOKENS = ("admin_token", "metrics_token")


def read_gate(manifest: Manifest) -> Gate:
    """The gate that the `server` section describes. Raises ManifestError for a token that is none."""
    options = manifest.section("server")
    problems = [
        _problem(manifest, name, sentence)
        for name in TOKENS
        if options[name] is not None
        for sentence in _wrong(options[name], written_here=_written_here(manifest, name))
    ]
    if problems:
        raise ManifestError(problems)
    secrets = {name: Secret(options[name]) if options[name] is not None else None for name in TOKENS}
    return Gate(secrets["admin_token"], secrets["metrics_token"], options["trust_loopback"])


def _wrong(token: str, *, written_here: bool) -> Iterable[str]:
    """What is wrong with a token, in words that do not show it."""
    if written_here:
        yield "a token is a secret, so it does not stand in the manifest; write {$env: NAME} or {$file: PATH}"
    elif not token:
        yield "is empty; leave the option out for no token"
    elif len(token) < SHORTEST:
        yield f"has {len(token)} characters, and a token has at least {SHORTEST}; `openssl rand -hex 32` makes one"
    elif not all("!" <= character <= "~" for character in token):
        yield "has a character that a header can't carry; take letters, digits and signs, without a space"


def _written_here(manifest: Manifest, name: str) -> bool:
    return ("server", name) not in manifest.origins


def _problem(manifest: Manifest, name: str, sentence: str) -> Problem:
    file, line = manifest.locate(("server", name))
    return Problem(file, line, f"server.{name}", sentence)
