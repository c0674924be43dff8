"""Tokens over HTTP: who may call what, and what a refusal looks like."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from tandem.api.app import own_routes
from tandem.api.auth import SHORTEST, Access, Gate, Guard, Secret
from tandem.api.command.group import main
from tandem.core.kernel import ManifestError
from tandem.testing.box import Box
from tandem.testing.server import ServerProcess

ADMIN, METRICS = "admin-" + "a" * 40, "metrics-" + "m" * 40
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
PROXIED = {"X-Forwarded-For": "203.0.113.9"}
"""What makes a request from this machine a foreign one."""


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Box]]:
    """Starts a box with an admin token, a metrics token, both or neither."""
    monkeypatch.setenv("TEST_ADMIN", ADMIN)
    monkeypatch.setenv("TEST_METRICS", METRICS)
    with contextlib.ExitStack() as boxes:

        def start(*, admin: bool = False, metrics: bool = False, **options: Any) -> Box:
            given = {"admin_token": {"$env": "TEST_ADMIN"}} if admin else {}
            given |= {"metrics_token": {"$env": "TEST_METRICS"}} if metrics else {}
            return boxes.enter_context(Box(server={**given, **options}))

        yield start


def statuses(box: Box, headers: Mapping[str, str]) -> dict[str, int]:
    paths = ("/v1/models", "/health", "/v1/plugins", "/metrics")
    return {path: box.get(path, headers).status_code for path in paths} | {
        CHAT: box.post(CHAT, HELLO, headers).status_code
    }


OPEN = {"/v1/models": 200, "/health": 200, CHAT: 200}


def test_without_tokens_everything_is_open(server: Callable[..., Box]) -> None:
    box = server()
    for headers in ({}, PROXIED, bearer("whatever a client has")):
        assert statuses(box, headers) == {**OPEN, "/v1/plugins": 200, "/metrics": 200}
        assert "plugins" in box.get("/health", headers).json()


def test_a_metrics_token_locks_the_metrics_alone(server: Callable[..., Box]) -> None:
    box = server(metrics=True)
    for headers in ({}, PROXIED, bearer("wrong"), bearer(ADMIN)):
        assert statuses(box, headers) == {**OPEN, "/v1/plugins": 200, "/metrics": 401}
    assert statuses(box, {**PROXIED, **bearer(METRICS)})["/metrics"] == 200


def test_an_admin_token_locks_the_admin_routes(server: Callable[..., Box]) -> None:
    box = server(admin=True)
    for wrong in ("wrong", METRICS, ADMIN[:-1], ADMIN + "x", ADMIN.upper()):
        assert statuses(box, {**PROXIED, **bearer(wrong)}) == {**OPEN, "/v1/plugins": 401, "/metrics": 401}
    assert statuses(box, {**PROXIED, **bearer(ADMIN)}) == {**OPEN, "/v1/plugins": 200, "/metrics": 200}
    assert statuses(box, {**PROXIED, "Authorization": f"bearer  {ADMIN}"})["/v1/plugins"] == 200
    assert statuses(box, {**PROXIED, "Authorization": f"Basic {ADMIN}"})["/v1/plugins"] == 401
    assert statuses(box, {**PROXIED, "Authorization": ADMIN})["/v1/plugins"] == 401
    assert statuses(box, {**PROXIED, "Authorization": "Bearer"})["/v1/plugins"] == 401


def test_with_both_tokens_each_opens_its_own(server: Callable[..., Box]) -> None:
    box = server(admin=True, metrics=True)
    assert statuses(box, {**PROXIED, **bearer(METRICS)}) == {**OPEN, "/v1/plugins": 401, "/metrics": 200}
    assert statuses(box, {**PROXIED, **bearer(ADMIN)}) == {**OPEN, "/v1/plugins": 200, "/metrics": 200}
    # From this machine itself the admin routes are open; the metrics keep their own token.
    assert statuses(box, {}) == {**OPEN, "/v1/plugins": 200, "/metrics": 401}


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "x-forwarded-host", "Via"])
def test_a_proxys_header_ends_the_trust_in_this_machine(server: Callable[..., Box], name: str) -> None:
    box = server(admin=True)
    assert box.get("/v1/plugins").status_code == 200
    assert box.get("/v1/plugins", {name: "127.0.0.1"}).status_code == 401
    assert box.get("/v1/plugins", {name: ""}).status_code == 401


def test_the_trust_in_this_machine_can_be_switched_off(server: Callable[..., Box]) -> None:
    box = server(admin=True, trust_loopback=False)
    assert statuses(box, {}) == {**OPEN, "/v1/plugins": 401, "/metrics": 401}
    assert statuses(box, bearer(ADMIN)) == {**OPEN, "/v1/plugins": 200, "/metrics": 200}


def test_health_tells_everybody_the_status_and_nothing_else(server: Callable[..., Box]) -> None:
    box = server(admin=True)
    assert box.get("/health", PROXIED).json() == {"status": "ok"}
    assert {"queue", "caches", "plugins"} <= set(box.get("/health", {**PROXIED, **bearer(ADMIN)}).json())
    box.engine.drain()
    response = box.get("/health", PROXIED)
    assert (response.status_code, response.json()) == (503, {"status": "draining"})
    assert "retry-after" in response.headers


def test_a_refusal_has_the_shape_of_every_error_and_names_no_secret(server: Callable[..., Box]) -> None:
    box = server(admin=True, metrics=True)
    for path, words in (("/v1/plugins", "the admin token"), ("/metrics", "the metrics token or the admin token")):
        bare, wrong = box.get(path, PROXIED), box.get(path, {**PROXIED, **bearer("a-wrong-token")})
        for response in (bare, wrong):
            assert response.status_code == 401
            error = response.json()["error"]
            assert list(error) == ["message", "type", "param", "code"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
            assert f"{path} needs {words}" in error["message"]
            assert not any(secret in response.text for secret in (ADMIN, METRICS, "a-wrong-token"))
            assert response.headers["www-authenticate"].startswith("Bearer ")
        assert "Authorization: Bearer" in bare.json()["error"]["message"]
        assert 'error="invalid_token"' in wrong.headers["www-authenticate"]
        assert 'error="invalid_token"' not in bare.headers["www-authenticate"]
    assert 'route="plugins"' in box.get("/metrics", bearer(METRICS)).text.partition('code="401"')[2]


def test_a_head_request_is_asked_too(server: Callable[..., Box]) -> None:
    box = server(admin=True)
    assert httpx2.head(f"{box.url}/v1/plugins", headers=PROXIED, trust_env=False).status_code == 401


@pytest.mark.parametrize(
    "path", ["/v1/plugins/", "//v1/plugins", "/v1//plugins", "/V1/plugins", "/v1/models/../plugins"]
)
def test_no_other_spelling_of_a_path_gets_around_the_token(server: Callable[..., Box], path: str) -> None:
    box = server(admin=True)
    host, _, port = box.url.removeprefix("http://").partition(":")
    assert "scripted" not in asyncio.run(_raw(host, int(port), path))


async def _raw(host: str, port: int, path: str) -> str:
    """The answer to a path sent as it is; a client library would tidy it up."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    return answer.decode()


def test_every_own_route_says_what_it_asks_for(server: Callable[..., Box]) -> None:
    routes = own_routes(server().app.state.service, Gate())
    changes = {route.path: route.access for route in routes if route.methods == ("PUT",)}
    assert changes == {"/v1/conductor/documents/{name}": Access.BEARER}
    table = {route.path: route.access for route in routes if route.methods != ("PUT",)}
    assert table == {
        "/v1/chat/completions": Access.OPEN,
        "/v1/chat/completions/control": Access.OPEN,
        "/v1/completions": Access.OPEN,
        "/v1/models": Access.OPEN,
        "/v1/models/{id:path}": Access.OPEN,
        "/health": Access.OPEN,
        "/openapi.json": Access.OPEN,
        "/v1/plugins": Access.ADMIN,
        "/v1/cache/stats": Access.ADMIN,
        "/v1/cache/clear": Access.BEARER,
        "/v1/conductor/config": Access.ADMIN,
        "/v1/conductor/documents/{name}": Access.ADMIN,
        "/v1/conductor/documents/{name}/versions": Access.ADMIN,
        "/v1/conductor/documents/{name}/schema": Access.ADMIN,
        "/v1/conductor/documents/{name}/restore": Access.BEARER,
        "/v1/conductor/events": Access.ADMIN,
        "/v1/conductor/watch": Access.ADMIN,
        "/v1/conductor/sessions/{key}": Access.ADMIN,
        "/v1/conductor/sessions/{key}/export": Access.ADMIN,
        "/metrics": Access.METRICS,
    }


# -------------------------------------------------------------------------------------- addresses and classes, alone


def scope(peer: str | None, **headers: str) -> dict[str, Any]:
    return {
        "type": "http",
        "path": "/x",
        "client": (peer, 40000) if peer is not None else None,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.168.1.5", False),
        ("0.0.0.0", False),
        ("::ffff:192.168.1.5", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
        ("testclient", False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_loopback_peer_is_this_machine(peer: str | None, trusted: bool) -> None:
    assert Gate(Secret(ADMIN)).allows(Access.ADMIN, scope(peer)) is trusted


def test_a_route_for_bearers_takes_the_header_alone() -> None:
    gate = Gate(Secret(ADMIN), Secret(METRICS))
    assert not gate.allows(Access.BEARER, scope("127.0.0.1"))
    assert not gate.allows(Access.BEARER, scope("127.0.0.1", authorization=f"Bearer {METRICS}"))
    assert gate.allows(Access.BEARER, scope("203.0.113.9", authorization=f"Bearer {ADMIN}"))
    assert Gate().allows(Access.BEARER, scope("203.0.113.9"))


def test_the_guard_stops_a_request_before_its_handler_runs() -> None:
    reached: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    guard = Guard(handler, Gate(Secret(ADMIN)), Access.BEARER)
    asyncio.run(guard(scope("127.0.0.1"), receive, send))
    assert (reached, sent[0]["status"]) == ([], 401)
    asyncio.run(guard(scope("127.0.0.1", authorization=f"Bearer {ADMIN}"), receive, send))
    assert reached == ["/x"]


@given(st.text(), st.sampled_from(list(Access)))
def test_no_header_but_the_right_one_opens_a_door(value: str, access: Access) -> None:
    gate = Gate(Secret(ADMIN), Secret(METRICS))
    asked = scope("203.0.113.9")
    asked["headers"] = [(b"authorization", value.encode("utf-8", "surrogatepass"))]
    assert gate.allows(access, asked) is (access is Access.OPEN)


def test_a_secret_does_not_show_itself() -> None:
    gate = Gate(Secret(ADMIN), Secret(METRICS))
    assert ADMIN not in repr(gate) + repr(vars(gate.admin)) + str(gate.admin)


# ------------------------------------------------------------------------------------------------- wrong tokens


@pytest.mark.parametrize("name", ["admin_token", "metrics_token"])
@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "empty"),
        ("hunter2", f"7 characters, and a token has at least {SHORTEST}"),
        ("x" * (SHORTEST - 1), "31 characters"),
        ("pass word " * 5, "can't carry"),
        ("p\u00e4ssword" * 5, "can't carry"),
    ],
)
def test_a_bad_token_stops_the_start_in_words_that_do_not_show_it(
    monkeypatch: pytest.MonkeyPatch, name: str, token: str, words: str
) -> None:
    monkeypatch.setenv("TEST_TOKEN", token)
    with pytest.raises(ManifestError) as caught:
        Box(server={name: {"$env": "TEST_TOKEN"}})
    assert words in str(caught.value)
    assert f"server.{name}" in str(caught.value)
    assert not token or token not in str(caught.value)


def test_a_token_of_just_enough_characters_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", "~" * SHORTEST)
    with Box(server={"admin_token": {"$env": "TEST_TOKEN"}}) as box:
        assert box.get("/v1/plugins", {**PROXIED, **bearer("~" * SHORTEST)}).status_code == 200


def test_a_token_may_come_from_a_file_and_may_be_absent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(ADMIN + "\n")
    with Box(server={"admin_token": {"$file": str(tmp_path / "token")}}) as box:
        assert box.get("/v1/plugins", {**PROXIED, **bearer(ADMIN)}).status_code == 200
    with Box(server={"admin_token": {"$env": "NOBODY_SETS_THIS", "default": None}}) as box:
        assert box.get("/v1/plugins", PROXIED).status_code == 200


def test_a_token_in_the_manifest_itself_is_refused_with_its_line_and_without_its_text(tmp_path: Path) -> None:
    manifest = tmp_path / "mine.yaml"
    manifest.write_text(f"tandem: 1\nserver:\n  port: 0\n  admin_token: {ADMIN}\n")
    with pytest.raises(ManifestError) as caught:
        Box(manifest)
    assert f"{manifest}:4: server.admin_token: " in str(caught.value)
    assert "$env" in str(caught.value)
    assert ADMIN not in str(caught.value)


def test_the_tokens_show_nowhere(
    server: Callable[..., Box], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.DEBUG):
        box = server(admin=True, metrics=True)
        headers = {**PROXIED, **bearer(ADMIN)}
        told = [
            box.get(path, headers).text for path in ("/v1/plugins", "/health", "/metrics", "/v1/models", "/nowhere")
        ]
        told.append(box.post(CHAT, {"messages": 1}, headers).text)
        told.append(box.get("/v1/plugins", {**PROXIED, **bearer(METRICS)}).text)
    told.append(caplog.text)
    manifest = tmp_path / "mine.yaml"
    manifest.write_text("tandem: 1\nserver: {admin_token: {$env: TEST_ADMIN}, metrics_token: {$env: TEST_METRICS}}\n")
    checked = CliRunner().invoke(main, ["check", str(manifest)])
    assert (checked.exit_code, "TEST_ADMIN" in checked.output) == (0, True)
    assert not [text for text in [*told, checked.output] if ADMIN in text or METRICS in text]


def test_a_served_process_refuses_a_short_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", "too short")
    manifest = tmp_path / "mine.yaml"
    manifest.write_text("tandem: 1\nmodel: {plugin: scripted}\nserver:\n  admin_token: {$env: TEST_TOKEN}\n")
    with pytest.raises(AssertionError) as caught:
        ServerProcess(str(manifest))
    assert "mine.yaml:4: server.admin_token: has 9 characters" in str(caught.value)
    assert "Traceback" not in str(caught.value)
