"""Runs the coding agent opencode, shut off from the machine's own settings and from its makers' servers."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .clients import Outcome, ended, installed, started

BINARY = "node_modules/opencode-linux-x64/bin/opencode"
QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}


@dataclass(frozen=True)
class Run:
    """One `opencode run`: how it ended, and its events."""

    outcome: Outcome
    events: list[dict[str, Any]]

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self._parts("text"))

    @property
    def reasoning(self) -> str:
        return "".join(part["text"] for part in self._parts("reasoning"))

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """The tools that ran: name, and the arguments as opencode read them."""
        return [(part["tool"], part["state"]["input"]) for part in self._parts("tool_use")]

    @property
    def results(self) -> list[str]:
        return [part["state"].get("output") or part["state"].get("error") for part in self._parts("tool_use")]

    @property
    def finishes(self) -> list[str]:
        """Why each step ended, in opencode's words."""
        return [part["reason"] for part in self._parts("step_finish")]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event["error"] for event in self.events if event["type"] == "error"]

    def _parts(self, kind: str) -> list[dict[str, Any]]:
        return [event["part"] for event in self.events if event["type"] == kind]


class Opencode:
    """opencode with a home and a project folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self._binary = installed(BINARY, "opencode")
        self._url = url
        self._home = folder / "home"
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        self._home.mkdir()
        self.configure()

    def configure(self, *, model: dict[str, Any] | None = None, **more: Any) -> None:
        """Write `opencode.json`: what the served model is said to be, and further keys."""
        served = {"limit": {"context": 200_000, "output": 8192}, **(model or {})}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{self._url}/v1", "apiKey": "none"},
            "models": {"TandemLLM": served},
        }
        config = {
            "autoupdate": False,
            "share": "disabled",
            "permission": {"edit": "allow", "bash": "allow"},
            "provider": {"tandem": provider},
            "model": "tandem/TandemLLM",
            **more,
        }
        (self._home / "opencode.json").write_text(json.dumps(config))

    def start(self, said: str, *arguments: str) -> subprocess.Popen[str]:
        """`opencode run`. The message goes to its standard input: among the arguments it would be put into quotes."""
        return self._start("run", "--format", "json", *arguments, said=said)

    def run(self, said: str, *arguments: str, title: str | None = "Set here") -> Run:
        """With a `title` it asks the model for none."""
        named = [] if title is None else ["--title", title]
        return self.finished(self.start(said, *named, *arguments))

    def finished(self, process: subprocess.Popen[str]) -> Run:
        """Wait for what `start` gave."""
        outcome = ended(process)
        return Run(outcome, [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")])

    def sessions(self) -> list[dict[str, Any]]:
        return json.loads(ended(self._start("session", "list", "--format", "json")).out)

    def _start(self, *arguments: str, said: str = "") -> subprocess.Popen[str]:
        home = self._home
        folders = {
            "HOME": home,
            "XDG_CONFIG_HOME": home / "config",
            "XDG_DATA_HOME": home / "data",
            "XDG_CACHE_HOME": home / "cache",
            "XDG_STATE_HOME": home / "state",
            "OPENCODE_CONFIG": home / "opencode.json",
        }
        environment = {name: str(path) for name, path in folders.items()} | QUIET
        return started([self._binary, *arguments], self.project, environment, said)
