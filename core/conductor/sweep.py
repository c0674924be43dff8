"""The watch: looks at the sessions from outside, now and then, and tells somebody when a rule says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2

from tandem.core.conductor.sessions import SessionState
from tandem.core.conductor.supervisor import Watch
from tandem.core.plugin import Action, ActionKind, IdleEvent, RequestEvent, SafePoint

log = logging.getLogger("tandem.conductor")

PATIENCE_S = 10.0
"""How long a push may take."""

Push = Callable[[str], str]


class Notifier:
    """Pushes a text to one address. The token is read from its file for each push, and is never shown."""

    def __init__(self, url: str, token_file: str | None = None) -> None:
        self._url = url
        self._token_file = token_file

    def __call__(self, text: str) -> str:
        """POST the text; what became of it in a few words: `sent 200`, or `failed: why`."""
        headers = {"content-type": "text/plain; charset=utf-8"}
        if self._token_file is not None:
            try:
                token = Path(self._token_file).expanduser().read_text().strip()
            except OSError:
                return "failed: no token file"
            headers["authorization"] = f"Bearer {token}"
        try:
            response = httpx2.post(self._url, content=text.encode(), headers=headers, timeout=PATIENCE_S)
        except Exception as error:
            return f"failed: {type(error).__name__}"
        return f"{'sent' if response.is_success else 'failed:'} {response.status_code}"


class Sweep:
    """Asks the rules at WATCH about every session, each `every_s` seconds, on a thread of its own."""

    def __init__(
        self,
        sessions: Callable[[], list[SessionState]],
        begin: Callable[[RequestEvent], Watch],
        now: Callable[[], float],
        push: Push | None,
        every_s: float,
    ) -> None:
        self._sessions = sessions
        self._begin = begin
        self._now = now
        self._push = push
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="session-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)

    def sweep(self) -> None:
        """Look at every session once."""
        for state in self._sessions():
            if state.ended is not None and not self._stop.is_set():
                self._look(state, state.ended)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.sweep()
            except Exception:
                log.exception("the watch failed")

    def _look(self, state: SessionState, ended: float) -> None:
        watch = self._begin(RequestEvent((), 0, 0, state.client or "plain", session=state.key, profile=state.profile))
        if watch.wants(SafePoint.WATCH):
            event = IdleEvent(state.key, max(0.0, self._now() - ended), state.running > 0)
            watch.idle(event, self._told)

    def _told(self, action: Action) -> str:
        """Push what an action says; what became of it."""
        if action.kind is not ActionKind.NOTIFY or not action.text:
            return ""
        return self._push(action.text) if self._push is not None else "failed: no url"
