"""What the routes share: the platform, the engine, and everything that is made once for them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from tandem.api.clients import Clients
from tandem.api.errors import ApiError, draining
from tandem.api.ids import Ids
from tandem.api.images import ImageDoor, Limits
from tandem.api.listener import Listener
from tandem.api.messages import content_text
from tandem.api.metrics import Metrics
from tandem.api.presenting import Presenter
from tandem.api.prompts import PlainPrompt
from tandem.api.record import Record
from tandem.api.regenerate import Regenerations
from tandem.api.replay import Recorder, Replays
from tandem.api.request import (
    ChatRequest,
    CompletionRequest,
    Defaults,
    GenerationRequest,
    read_chat,
    read_completion,
)
from tandem.core.engine.engine import Engine
from tandem.core.engine.hidden import HiddenTurns
from tandem.core.engine.ledger import Ledger, LedgerError
from tandem.core.engine.notation import Notation, notation_of
from tandem.core.engine.notes import Notes, moved
from tandem.core.engine.prompt import Prompt, PromptError
from tandem.core.engine.replay import ReplayStore
from tandem.core.engine.request import Calls, PlacedPicture, Refused
from tandem.core.engine.splice import Pieces, Splicer
from tandem.core.engine.turnfile import TurnFile, author
from tandem.core.kernel import Platform, StartError
from tandem.core.plugin import ClientMatch, Model, state_dir

log = logging.getLogger("tandem.api")
T = TypeVar("T")

MIB = 1 << 20
INLINE_CHARACTERS = 4_000
"""A longer prompt is rendered and encoded on a thread of its own, so that streams go on meanwhile."""


def tandem_version() -> str:
    try:
        return version("tandem-llm")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the template writes it."""

    text: str
    """Its end at least: all of it, or what stands behind the last turn that the model wrote itself."""
    ids: list[int]
    continued: bool
    """It ends inside the assistant's last message, which the answer goes on with."""
    images: tuple[PlacedPicture, ...] = ()
    """Where the ids show which picture."""
    context: bytes = b""
    """A digest of the messages."""
    replayed: int = 0
    """Turns that stand in the ids as the model wrote them."""
    hidden: tuple[range, ...] = ()
    """Places of the ids that the client did not send."""
    head: int | None = None
    """How many of the ids reach through the first user message; see `Generate.head`."""


class Service:
    """One served platform. Lives on the event loop."""

    def __init__(self, platform: Platform, engine: Engine) -> None:
        self.platform = platform
        self.engine = engine
        self.options: Mapping[str, Any] = platform.manifest.section("server")
        self.defaults = Defaults(
            temperature=self.options["temperature"],
            top_p=self.options["top_p"],
            top_k=self.options["top_k"],
            max_tokens=self.options["default_max_tokens"],
        )
        self.version = tandem_version()
        self.started = int(time.time())
        self.served_name = platform.served_name
        self.facts: Mapping[str, Any] = _plain(platform.model.facts) if platform.model else {}
        self.fingerprint = _fingerprint(self.version, platform.model, self.facts)
        self.metrics = Metrics(engine, {"version": self.version, "model": self.served_name or ""})
        self.clients = Clients(platform.build("clients"), partial(self.metrics.plugin_fault, "clients"))
        self.ids = Ids()
        self._prompt = Prompt(platform.model) if platform.model else None
        self.hidden_turns = HiddenTurns(self._prompt) if self._prompt else None
        self._notes = Notes(self._prompt) if self._prompt else None
        self.conductor = engine.conductor
        self.ledger = _ledger(self.options)
        self.running: dict[str, Listener] = {}
        """The streamed answers that run now, by their ids."""
        self.regenerations = Regenerations(self.options)
        vision = platform.model.vision if platform.model else None
        self._images = ImageDoor(vision.processor if vision else None, Limits.of(self.options))
        self.reads = ("text", "image") if vision else ("text",)
        """What the model takes in a message."""
        self._notation = _notation(platform, self.options["format"])
        self._replays = self._replays_of(platform.model)

    def new_id(self, prefix: str) -> str:
        """A name for an answer, unique in this world."""
        return self.ids.new(f"{prefix}-")

    def model(self) -> Model:
        """The served model. Raises Refused without one."""
        if self.platform.model is None:
            raise Refused("no_model", "no model is loaded: the manifest has no model section", 60)
        return self.platform.model

    @property
    def notation(self) -> Notation:
        """How the served model writes. Raises Refused without a model."""
        self.model()
        assert self._notation is not None
        return self._notation

    @property
    def recommended_sampling(self) -> Mapping[str, float]:
        """How the checkpoint's makers would draw; without their word, as a regenerated answer is drawn."""
        told = self.facts.get("recommended_sampling")
        if isinstance(told, Mapping):
            return told
        return {name: self.options[f"regenerate_{name}"] for name in ("temperature", "top_p", "top_k")}

    @property
    def answer_reserve(self) -> int | None:
        """Tokens that a thinking budget leaves for the answer; None = the automatic rule."""
        reserve: int | str = self.options["answer_reserve"]
        return None if isinstance(reserve, str) else reserve

    def presenter(self, ask: GenerationRequest, client: ClientMatch) -> Presenter:
        """What turns this request's answer into the parts of a message."""
        shown = self.reasoning_format(ask, client) if isinstance(ask, ChatRequest) else "tags"
        return Presenter(shown, self.ids, client.finish_words)

    def reasoning_format(self, ask: ChatRequest, client: ClientMatch) -> str:
        """How this request's reasoning is sent: as it says, as a JSON answer needs it, or by server and client."""
        if ask.reasoning_format is not None:
            return ask.reasoning_format
        if ask.document is not None and ask.document.is_json:
            return "reasoning_content"
        server: str = self.options["reasoning_format"]
        return (client.reasoning_format or "reasoning_content") if server == "auto" else server

    def check_open(self) -> None:
        """Raises Refused while the server is going down, before any work is done for a request."""
        if self.engine.draining:
            raise draining()

    async def read_chat(self, body: Mapping[str, Any]) -> ChatRequest:
        """A chat request as it is understood. Raises FieldError for the first wrong field, images included."""
        model = self.model()
        taken = await self._images.take(body.get("messages"))
        if taken.messages is not None:
            body = {**body, "messages": taken.messages}
        ask = read_chat(body, model.tokenizer.vocab_size, self.defaults)
        if not taken.pictures and not taken.left_out:
            return ask
        self.metrics.images(len(taken.pictures), taken.left_out)
        if taken.left_out:
            shown = len(taken.pictures)
            log.info("images: left out the oldest %d of %d", taken.left_out, taken.left_out + shown)
        return replace(ask, pictures=taken.pictures, left_out=taken.left_out)

    async def read_completion(self, body: Mapping[str, Any]) -> CompletionRequest:
        """Raises FieldError for the first wrong field."""
        return read_completion(body, self.model().tokenizer.vocab_size, self.defaults)

    def ledger_state(self) -> dict[str, Any]:
        """Rows that were written and lost since the start, and why the last ones were; empty without a ledger."""
        return {**self.ledger.stats(), "error": self.ledger.error} if self.ledger is not None else {}

    def close(self) -> None:
        """The server is down."""
        self._images.close()
        if self._replays is not None:
            self._replays.store.close()
        if self.ledger is not None:
            self.ledger.close()

    async def chat_prompt(
        self, ask: ChatRequest, note: str = "", *, thinks: bool = True, raw: bool = False
    ) -> Rendered:
        """The conversation as text and token ids, with the notes that it was given, and a new one at its end.

        Without `thinks` a reasoning block that the template opens is closed at once. With `raw` nothing stands in it
        that the client did not send or the model did not write for it. Raises ApiError when the template refuses it.
        """
        size = sum(len(content_text(message)) for message in ask.messages)
        return await self._off_loop(partial(self._fitted, ask, note, thinks, raw), size, "messages")

    def _fitted(self, ask: ChatRequest, note: str, thinks: bool, raw: bool) -> Rendered:
        """A prompt that is too long only for what the client did not send is rendered without it: first without the
        new note, then with the client's own words alone."""
        rendered = self._render(ask, note, thinks, raw)
        if note and rendered.hidden and len(rendered.ids) >= self.engine.max_len:
            assert self._notes is not None
            self._notes.forget(rendered.context)
            rendered = self._render(ask, "", thinks, raw)
        if (rendered.hidden or rendered.replayed) and len(rendered.ids) >= self.engine.max_len:
            rendered = self._render(ask, "", thinks, raw=True, replay=False)
        return rendered

    def _render(self, ask: ChatRequest, note: str, thinks: bool, raw: bool, replay: bool = True) -> Rendered:
        """Without `replay` no turn is written as the model wrote it."""
        prompt, replays, notes = self._prompt, self._replays, self._notes
        assert prompt is not None
        assert replays is not None
        assert notes is not None
        last = ask.messages[-1]
        continued = last["role"] == "assistant" and not last.get("tool_calls")
        found = replays.find(ask.messages)
        turns = {place: turn for place, turn in found.turns.items() if replay and not (raw and turn.hidden)}
        switches = {"add_generation_prompt": not continued, **ask.template_kwargs}
        if note and not continued:
            notes.keep(found.context, note)
        noted = {} if raw else notes.find(found.contexts)
        messages = notes.marked(ask.messages, noted) if noted else ask.messages
        pieces: Pieces = []
        replayed = 0
        if turns:
            pieces, replayed = replays.splicer.render(messages, turns, ask.template_tools, **switches)
        text = pieces.pop() if pieces else prompt.render(messages, ask.template_tools, **switches)
        assert isinstance(text, str)
        if continued:
            text = _unfinished(text, prompt.as_text(_last_words(last["content"])))
        tags = self.notation.tags
        if not thinks and tags is not None and self.notation.opens(text):
            text = f"{text.rstrip()}\n\n{tags[1]}\n\n"
        ids, hidden = notes.laid_out(notes.filled([*pieces, text], noted))
        ids, images = prompt.placed(ids, ask.pictures)
        head = prompt.head(ask.messages, ask.template_tools, **switches)
        if head is not None:
            head += sum(len(places) for places in hidden if places.start < head)
            head = prompt.reach(head, images)
        hidden = moved(hidden, images)
        return Rendered(text, ids, continued, images, found.context, replayed, hidden, head)

    def recorder(self, ask: ChatRequest, rendered: Rendered, calls: Calls | None) -> Recorder | None:
        """What keeps the answers to this prompt; None when they are not to be kept, or could not be put back."""
        replays = self._replays
        assert replays is not None
        if rendered.continued or not (ask.cache and ask.keep_text and replays.store.budget):
            return None
        opening = replays.splicer.opening(rendered.text)
        return None if opening is None else Recorder(replays, rendered.context, opening, calls)

    def _replays_of(self, model: Model | None) -> Replays | None:
        if model is None or self._prompt is None or self._notation is None:
            return None
        tags = self._notation.tags
        # A picture's placeholder that the model wrote would be taken for a picture.
        unkept = frozenset({model.vision.token}) if model.vision is not None else frozenset[int]()
        memory = round(self.options["replay_mib"] * MIB)
        store = ReplayStore(memory, _turn_file(self.options, model, tags) if memory else None)
        return Replays(store, Splicer(self._prompt, tags), tags, model.tokenizer, unkept)

    def replay_stats(self) -> dict[str, int]:
        """What is kept of earlier turns; empty without a model."""
        return dict(self._replays.store.stats()) if self._replays is not None else {}

    def forget_turns(self) -> None:
        """Earlier turns are read as they are sent from now on, without the notes that rules gave them."""
        if self._replays is not None:
            self._replays.store.clear()
        if self._notes is not None:
            self._notes.clear()

    async def plain_prompt(self, prompt: PlainPrompt) -> list[int]:
        """The token ids of a completion's prompt. Raises ApiError when it holds none."""
        assert self._prompt is not None
        if not isinstance(prompt, str):
            return list(prompt)
        return await self._off_loop(partial(self._prompt.text, prompt), len(prompt), "prompt")

    async def _off_loop(self, work: Callable[[], T], size: int, param: str) -> T:
        try:
            return work() if size <= INLINE_CHARACTERS else await asyncio.to_thread(work)
        except PromptError as error:
            raise ApiError(400, str(error), param=param) from None

    def fitting(self, prompt_tokens: int, max_tokens: int, param: str) -> int:
        """`max_tokens`, or what of it fits behind the prompt. Raises ApiError when not one token does."""
        limit = self.engine.max_len
        if prompt_tokens >= limit:
            raise ApiError(
                400,
                f"the prompt has {prompt_tokens} tokens, and prompt and answer together may have {limit}",
                param=param,
                code="context_length_exceeded",
            )
        return min(max_tokens, limit - prompt_tokens)

    def refused(self, route: str, code: str, client: ClientMatch) -> None:
        """Count a request that the engine did not take."""
        self.metrics.refused(code)
        self.ended(Record("-", route, client.kind, client.session, False, reason="refused", detail=code))

    def ended(self, record: Record) -> None:
        """A request is over: one log line, and the counters."""
        if record.watch is not None:
            record.watch.ended(record.call_ids)
            tokens = sum(choice.completion_tokens for choice in record.stats)
            record.watch.outcome("" if record.id == "-" else record.id, record.reason, tokens)
        record.write()
        self.metrics.ended(record)
        if self.ledger is not None:
            self.ledger.add(record.row())
        if record.on_end is not None:
            record.on_end(record)


def _ledger(options: Mapping[str, Any]) -> Ledger | None:
    """Raises StartError for a file that can't be one: who asked for a ledger wants no server without it."""
    wanted = options["ledger"]
    if wanted is None:
        return None
    try:
        path = state_dir() / "ledger.sqlite" if wanted == "auto" else Path(wanted).expanduser()
        return Ledger(path, options["ledger_days"])
    except (LedgerError, OSError) as error:
        raise StartError(f"server.ledger: {error}") from None


def _turn_file(options: Mapping[str, Any], model: Model, tags: tuple[str, str] | None) -> TurnFile | None:
    """Where turns are kept over a restart; None when they are not to be, or there is no place for them."""
    budget = round(options["replay_disk_mib"] * MIB)
    if not budget:
        return None
    try:
        folder = state_dir("replay")
    except OSError as error:
        log.warning("earlier turns will be unknown after a restart: %s", error)
        return None
    return TurnFile(folder, author(model, tags), budget, options["replay_days"])


def _notation(platform: Platform, wanted: str) -> Notation | None:
    if platform.model is None:
        return None
    try:
        return notation_of(platform, platform.model, wanted)
    except ValueError as error:
        raise StartError(f"server.format: {error}") from None


def _last_words(content: str | Seq[Mapping[str, Any]]) -> str:
    """The text that a message ends with; empty behind a picture."""
    return content if isinstance(content, str) else content[-1].get("text", "")


def _unfinished(text: str, content: str) -> str:
    """A rendered conversation cut behind its last message's own words, so that the answer goes on with them."""
    words = content.rstrip()
    at = text.rfind(words) if words else -1
    return text[: at + len(words)] if at >= 0 else text


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as JSON values; what is none of them becomes text."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(facts), default=str))
    return plain


def _fingerprint(release: str, model: Model | None, facts: Mapping[str, Any]) -> str:
    """Changes when the same seed could give another text: another release, or other weights."""
    told = json.dumps([release, model.name if model else None, facts], sort_keys=True)
    return f"fp_{hashlib.sha256(told.encode()).hexdigest()[:12]}"
