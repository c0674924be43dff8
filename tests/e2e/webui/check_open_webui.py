"""Open WebUI in a headless Chromium against the server. `make e2e-webui` runs this file by its name."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tandem.testing.server import until

from ..clients import INSTALLED, ended, kill, started
from ..conftest import Served
from ..telling import SLOW, call, plan, script
from ..wire import Wire

pytestmark = pytest.mark.e2e

HOME = INSTALLED / "webui"
SHOTS = INSTALLED / "webui-shots"
DRIVER = Path(__file__).parent / "drive.mjs"
START_S = 120.0

QUIET = {
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "ENABLE_VERSION_UPDATE_CHECK": "false",
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "true",
    "ENABLE_OLLAMA_API": "false",
    "RAG_EMBEDDING_ENGINE": "openai",  # otherwise it loads an embedding model of its own
}
SIDE = [json.dumps({"title": "A told title", "tags": ["told"], "follow_ups": ["And then?"]})]
"""Answers all of its side requests at once: it asks each for another key of a JSON object."""

STEPS: list[dict[str, Any]] = [
    {"name": "0-open", "do": "new"},
    {"name": "1-first", "do": "say", "text": script("The first **answer**.", aside=SIDE), "until": "The first answer."},
    {
        "name": "2-second",
        "do": "say",
        "text": script("I think.\n", "</think>\n\n", "The second answer.", aside=SIDE),
        "until": "\nThe second answer.",
    },
    {"name": "3-regenerate", "do": "regenerate", "until": "2/2"},
    {
        "name": "4-tools",
        "do": "say",
        "text": plan(["I look. ", call("calculate_timestamp", days_ago=1)], "The tool has answered.", aside=SIDE),
        "until": "\nThe tool has answered.",
    },
    {
        "name": "5-running",
        "do": "say",
        "text": script(*SLOW, end=False, aside=SIDE),
        "until": "word word word",
        "running": True,
    },
    {"name": "6-stop", "do": "stop"},
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def webui(wire: Wire, tmp_path: Path) -> Iterator[str]:
    """Open WebUI, ready for one person who needs no password. Yields its URL."""
    port = free_port()
    environment = {
        **QUIET,
        "HOME": str(tmp_path),
        "DATA_DIR": str(tmp_path / "data"),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "none",
        "OPENAI_API_BASE_URL": f"{wire.url}/v1",
        "OPENAI_API_KEY": "none",
        "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
    }
    url = f"http://127.0.0.1:{port}"
    command = [str(HOME / "bin/open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment},
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        until(lambda: process.poll() is not None or answers(url), START_S)
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        settle(url)
        yield url
    finally:
        kill(process)
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=2, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


def settle(url: str) -> None:
    """No editor that makes Markdown of what is typed, and no news."""
    with httpx2.Client(base_url=f"{url}/api/v1", timeout=30, trust_env=False) as client:
        token = client.post("/auths/signin", json={"email": "", "password": ""}).json()["token"]
        wishes = {"ui": {"richTextInput": False, "showChangelog": False}}
        client.post(
            "/users/user/settings/update", json=wishes, headers={"Authorization": f"Bearer {token}"}
        ).raise_for_status()


def test_a_person_chats_regenerates_uses_a_tool_and_stops(webui: str, wire: Wire, server: Served) -> None:
    shutil.rmtree(SHOTS, ignore_errors=True)
    SHOTS.mkdir(parents=True)
    node, chromium = shutil.which("node"), shutil.which("chromium")
    assert node is not None
    assert chromium is not None
    driver = started([node, DRIVER, webui, SHOTS, chromium, HOME], SHOTS, {"HOME": str(SHOTS)}, said=json.dumps(STEPS))
    done = ended(driver, 300)
    assert done.code == 0, done.errors
    page = json.loads(done.out)
    server.idle(5)

    assert "The first answer." in page["1-first"]
    assert "And then?" in page["1-first"]
    assert "Thought for less than a second" in page["2-second"]
    assert "\nI think." not in page["2-second"]
    assert "2/2" in page["3-regenerate"]
    assert "View Result from calculate_timestamp" in page["4-tools"]
    before, after = (page[name].count("word ") for name in ("5-running", "6-stop"))
    assert before <= after <= before + 20

    assert {exchange.status for exchange in wire.chats} == {200}
    assert {exchange.answered["x-tandem-client"] for exchange in wire.chats} == {"open_webui"}
    assert len({turn.headers["x-openwebui-chat-id"] for turn in wire.turns}) == 1
    assert [turn.finish_reasons for turn in wire.turns] == [["stop"]] * 3 + [["tool_calls"], ["stop"], []]
    # regenerating sends the same body again, and the server notices
    assert wire.turns[1].body == wire.turns[2].body
    assert server.get("/health").json()["sampling"]["regenerate"]["sampled"] == 1
    ((name, arguments),) = wire.turns[4].replayed_calls
    assert (name, json.loads(arguments)) == ("calculate_timestamp", {"days_ago": 1})
