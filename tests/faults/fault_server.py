"""A real model, small but trained, behind every store that there is; and the answers that it gives without any."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fault_child
import httpx2

from tandem.testing.box import Box
from tandem.testing.server import ServerProcess

CHECKPOINT = Path(__file__).parents[2] / "benchmarks" / "tiny_hybrid" / "checkpoint"
MODEL = {"plugin": "qwen3_5", "checkpoint": str(CHECKPOINT), "dtype": "float32"}
MANIFEST = f"""\
tandem: 1
model: {{plugin: qwen3_5, checkpoint: {CHECKPOINT}, dtype: float32}}
drafters: {{lookup: {{}}, suffix: {{max_tokens: 65536}}}}
choosers: {{staircut: {{measure_s: 0.05}}}}
caches: {{disk: {{admit_after: 1, min_tokens: 16, leave_free_gib: 0}}}}
clients: [plain]
server: {{ledger: auto, torch_threads: 1, drafter_check: false}}
"""
SUBJECTS = ("size", "name", "data", "index")
TURNS = 3

Answers = Mapping[tuple[str, int], str]


def body(subject: str, turn: int, answers: Answers) -> dict[str, Any]:
    """The request of a turn: the conversation up to it, with the right answers."""
    messages: list[dict[str, str]] = []
    for earlier in range(turn + 1):
        messages.append({"role": "user", "content": f"def read(self, {subject}={earlier}):\n    return self.{subject}"})
        if earlier < turn:
            messages.append({"role": "assistant", "content": answers[subject, earlier]})
    return {"messages": messages, "max_tokens": 16}


def right_answers() -> Answers:
    """What the model says with no cache, no draft and nobody beside."""
    answers: dict[tuple[str, int], str] = {}
    with Box(model=MODEL, server={"torch_threads": 1}) as box:
        for subject in SUBJECTS:
            for turn in range(TURNS):
                answer = box.post("/v1/chat/completions", body(subject, turn, answers)).json()
                answers[subject, turn] = answer["choices"][0]["message"]["content"]
    return answers


class StoredServer(ServerProcess):
    """A server with every store, in the state directory of the environment; with `kill_at` one that does not last."""

    def __init__(self, folder: Path, kill_at: int = 0, manifest: str = MANIFEST) -> None:
        path = folder / "faults.yaml"
        path.write_text(manifest, "utf-8")
        if kill_at:
            self.command = (sys.executable, fault_child.__file__, str(kill_at))
        super().__init__(str(path))

    def ask(self, answers: Answers, subjects: Iterable[str] = SUBJECTS) -> int:
        """Ask every turn of these conversations; how many prompt tokens came from the disk.

        Raises AssertionError for a wrong answer, httpx2.HTTPError when the server dies meanwhile.
        """
        from_disk = 0
        with httpx2.Client(base_url=self.url, timeout=30, trust_env=False) as client:
            for subject in subjects:
                for turn in range(TURNS):
                    answer = client.post("/v1/chat/completions", json=body(subject, turn, answers)).json()
                    text = answer["choices"][0]["message"]["content"]
                    assert text == answers[subject, turn], f"turn {turn} about {subject}: {text!r}"
                    from_disk += answer["timings"]["cache_n"]
        return from_disk

    def health(self) -> dict[str, Any]:
        told: dict[str, Any] = httpx2.get(f"{self.url}/health", timeout=20, trust_env=False).json()
        return told

    def log(self) -> str:
        """What the server has written to stderr so far."""
        return os.pread(self._errors.fileno(), 1 << 24, 0).decode()

    def stop(self) -> str:
        """Go down in order; the log. Raises AssertionError when it doesn't."""
        self.signal()
        code, log = self.wait()
        assert code == 0, log
        assert "Traceback" not in log, log
        return log
