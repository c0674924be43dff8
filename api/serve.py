"""Run a manifest as a server: load, listen, serve, drain."""

from __future__ import annotations

import json
import logging
import sys
import threading
from functools import partial

from tandem.api.app import build_app
from tandem.api.command.progress import progress_bar
from tandem.api.listening import CLOSING_S, DrainingServer, bind, serve_until_stopped, shown_host
from tandem.core.engine.engine import Engine
from tandem.core.engine.thread import ModelThread
from tandem.core.kernel import Manifest, assemble

STOPPED, CUT_OFF = 0, 1
"""Exit codes: an orderly stop, and one that a second signal cut short."""
SWITCH_S = 0.001
"""A thread that runs Python gives the interpreter away after so long when another one waits; by itself it would be 5
ms. The engine waits for it twice at each safe point and now and then in a pass, so beside a thread that is busy it
would lose 5 ms a time (measured in `docs/rules/cost.md`)."""


def run(manifest: Manifest) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    The address is taken before the model loads, so a port in use is told at once; nobody can connect before the model
    is there. Raises StartError when the model, a required part or the address can't be had.
    """
    options = manifest.section("server")
    sys.setswitchinterval(SWITCH_S)
    _log_to_stderr()
    sockets = bind(options["host"], options["port"])
    try:
        thread = ModelThread()
        with progress_bar() as progress:
            platform = thread.run(partial(assemble, manifest, progress=progress))
        engine = Engine(platform, thread)
        try:
            app = build_app(platform, engine)
            engine.start()
            port = sockets[0].getsockname()[1]
            url = f"http://{shown_host(options['host'])}:{port}/v1"
            server = DrainingServer(
                app,
                engine,
                drain_timeout_s=options["drain_timeout_s"],
                ready=lambda: print(greeting(url, platform.served_name), flush=True),
            )
            serve_until_stopped(server, sockets)
            app.state.service.close()
        finally:
            if stopped(engine):
                platform.close()
    finally:
        for bound in sockets:
            bound.close()
    return CUT_OFF if server.forced else STOPPED


def stopped(engine: Engine) -> bool:
    """Stop the engine; False when the pass that runs takes too long to wait for. Its thread ends with the process."""
    stopping = threading.Thread(target=engine.stop, name="tandem-stop", daemon=True)
    stopping.start()
    stopping.join(CLOSING_S)
    return not stopping.is_alive()


def greeting(url: str, served_name: str | None) -> str:
    """One line: where the server is, what it serves, how to try it."""
    if served_name is None:
        return f"Tandem listens at {url} without a model; see {url.removesuffix('/v1')}/v1/plugins"
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}]})
    return (
        f"Tandem serves {served_name} at {url}; try: "
        f"curl {url}/chat/completions -H 'Content-Type: application/json' -d '{body}'"
    )


def _log_to_stderr() -> None:
    """One line an event. Leaves a configured root logger as it is."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Each HTTP request has its own line here, and the engine's errors theirs.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
