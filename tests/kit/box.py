"""A running host in a box: a whole Tandem on a free local port, inside the test's own process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from tandem.api.app import build_app
from tandem.api.host import ServedHost
from tandem.core.engine.engine import Engine
from tandem.core.engine.options import SECTIONS
from tandem.core.engine.thread import ModelThread
from tandem.core.kernel import assemble, load_manifest
from tandem.core.kernel.layers import PART_SECTIONS
from tandem.core.kernel.yaml12 import parse
from tandem.testing import loose, sse
from tandem.testing.answer import Answer
from tandem.testing.server import serving

PATIENCE_S = 30.0
"""How long one request may keep silent before the test fails, in seconds."""

Said = str | Iterable[Mapping[str, Any]]


class Box:
    """A running host. Without a `model` section it serves the `scripted` model, which writes what a test tells it to.

    `manifest` is a mapping, a YAML text of several lines, a file or the name of a shipped manifest; a section given by
    keyword takes the place of the manifest's. `plugins` are modules (or objects) that are put among the installed
    ones, so that a plugin under test need not be installed. A part that the manifest enables and that fails at the
    start is an AssertionError with its reason, unless `failures_expected`.
    """

    def __init__(
        self,
        manifest: Mapping[str, Any] | str | Path | None = None,
        *,
        plugins: Iterable[Any] = (),
        failures_expected: bool = False,
        **sections: Any,
    ) -> None:
        checked = load_manifest(_whole(manifest, sections), sections=SECTIONS, registry=loose.registry(plugins))
        self._life = ExitStack()
        try:
            thread = ModelThread()
            self._life.callback(thread.close)
            self.platform = thread.run(partial(assemble, checked))
            self._life.callback(self.platform.close)
            self.engine = Engine(self.platform, thread)
            self.app = build_app(self.platform, self.engine)
            self._life.callback(self.app.state.service.close)
            self.engine.start()
            self.url = self._life.enter_context(serving(self.app))
            """Where the host answers, for any client: `{url}/v1` is an OpenAI base URL."""
            # Closed in the opposite order: the engine ends what runs, so that the server has nothing to wait for.
            self._life.callback(self.engine.stop)
            self._client = httpx2.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)
            self._life.callback(self._client.close)
            if not failures_expected:
                self._refuse_failures()
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------------- asking it

    def chat(
        self,
        said: Said = "Hello.",
        *,
        script: Iterable[Any] | None = None,
        end: bool = True,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        """One chat request, answered whole. `fields` are the request's own.

        With a `script` the scripted model writes exactly that, one entry a block: text, bytes, or
        `{"sleep_ms": 50}`; `end=False` leaves the end token out, so that `max_tokens` ends the answer.
        """
        response = self.post("/v1/chat/completions", _body(said, script, end, fields), headers)
        return Answer(response.status_code, response.headers, body=_json(response))

    def stream(
        self,
        said: Said = "Hello.",
        *,
        script: Iterable[Any] | None = None,
        end: bool = True,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        """The same request, streamed; the answer holds every chunk as it arrived, the usage among them."""
        fields = {"stream_options": {"include_usage": True}, **fields, "stream": True}
        with self.streaming("/v1/chat/completions", _body(said, script, end, fields), headers) as (response, data):
            if response.status_code != 200:
                response.read()
                return Answer(response.status_code, response.headers, body=_json(response))
            texts = list(data)
        chunks = tuple(json.loads(text) for text in texts if text != "[DONE]")
        return Answer(response.status_code, response.headers, chunks=chunks, done=texts[-1:] == ["[DONE]"])

    @contextmanager
    def streaming(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> Iterator[tuple[httpx2.Response, Iterator[str]]]:
        """An open stream: the response, and its events' data one by one. Leaving the block hangs up."""
        with self._client.stream("POST", path, json=body, headers=headers) as response:
            yield response, (item.data for item in sse.read(response.iter_bytes()) if isinstance(item, sse.Event))

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        return self._client.get(path, headers=headers)

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """POST `body` as JSON."""
        return self._client.post(path, json=body, headers=headers)

    def put(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """PUT `body` as JSON."""
        return self._client.put(path, json=body, headers=headers)

    # ------------------------------------------------------------------------------------------- looking inside it

    def plugins(self) -> list[dict[str, Any]]:
        """Every installed plugin with its state, as `GET /v1/plugins` lists them."""
        return self.platform.records()

    def plugin(self, kind: str, name: str) -> dict[str, Any]:
        """One of them; `kind` is the section's word (`rules`). Raises KeyError when it isn't installed."""
        for record in self.plugins():
            if (record["kind"], record["name"]) == (kind, name):
                return record
        raise KeyError(f"{kind}.{name} is not installed")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The journal: what rules decided, oldest first."""
        return self.engine.journal.entries()

    def build(self, kind: str, name: str) -> Any:
        """The working object of a part that the manifest enables, made as the host makes it.

        Raises AssertionError with the reason when the part can't be built.
        """
        arguments: tuple[Any, ...] = ()
        if kind in ("drafters", "caches"):
            arguments = (self.platform.model,)
        elif kind in ("stages", "narrators", "routes"):
            arguments = (ServedHost(self.app.state.service),)
        built = dict(self.platform.build(kind, *arguments))
        if name not in built:
            raise AssertionError(f"{kind}.{name} is not active: {self.plugin(kind, name)}")
        return built[name]

    # -------------------------------------------------------------------------------------------------- its life

    def close(self) -> None:
        """Hang up, stop the engine and the server, free the model. Safe to call twice."""
        self._life.close()

    def __enter__(self) -> Box:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_failures(self) -> None:
        enabled = {(kind, name) for kind in PART_SECTIONS for name in self.platform.manifest.enabled(kind)}
        broken = [r for r in self.plugins() if r["state"] == "failed" and (r["kind"], r["name"]) in enabled]
        if broken:
            reasons = "\n".join(f"  {r['kind']}.{r['name']}: {r['reason']}" for r in broken)
            raise AssertionError(f"the manifest enables what does not work:\n{reasons}")


def _whole(manifest: Mapping[str, Any] | str | Path | None, sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """The manifest as one mapping. One that extends nothing has a model: the scripted one, unless it names another."""
    if isinstance(manifest, str) and "\n" in manifest:
        given = parse(manifest, "manifest", Path()).value
    elif isinstance(manifest, str | Path):
        given = {"extends": str(manifest)}
    else:
        given = dict(manifest or {})
    whole = {"tandem": 1, **given, **sections}
    # A box leaves nothing behind on the disk of whoever runs the test.
    whole["server"] = {"replay_disk_mib": 0, **(whole.get("server") or {})}
    return whole if "extends" in whole else {"model": {"plugin": "scripted"}, **whole}


def _body(said: Said, script: Iterable[Any] | None, end: bool, fields: Mapping[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else [dict(message) for message in said]
    if script is not None:
        told = [{"hex": entry.hex()} if isinstance(entry, bytes) else entry for entry in script]
        last = messages[-1] if messages and messages[-1].get("role") == "user" else {}
        scripted = json.dumps({"said": last.get("content"), "script": told, "end": end}, ensure_ascii=False)
        messages = [*(messages[:-1] if last else messages), {**last, "role": "user", "content": scripted}]
    return {"model": "scripted", "messages": messages, **fields}


def _json(response: httpx2.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {"error": {"message": response.text}}
    return body if isinstance(body, dict) else {"value": body}
