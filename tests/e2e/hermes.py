"""Runs the Hermes agent with a home of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from .clients import Outcome, ended, installed, started

BINARY = "hermes/bin/hermes"


class Hermes:
    """The Hermes agent with a home and a working folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self._binary = installed(BINARY, "the Hermes agent")
        self._url = url
        self.home = folder / "home"
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        self.home.mkdir()
        self.configure(context_length=200_000)

    def configure(self, **model: Any) -> None:
        """Write `config.yaml`; `model` are further keys of its section `model`."""
        section = {"provider": "custom", "base_url": f"{self._url}/v1", "api_key": "none", "default": "TandemLLM"}
        (self.home / "config.yaml").write_text(json.dumps({"model": {**section, **model}}))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        home = str(self.home)
        return started([self._binary, *arguments], self.project, {"HOME": home, "HERMES_HOME": home}, said="")

    def run(self, *arguments: str) -> Outcome:
        return ended(self.start(*arguments))

    def ask(self, said: str, *arguments: str) -> Outcome:
        """One question; only the answer is written to `out`."""
        return self.run("-z", said, *arguments)
