"""One request on its way through the engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import replace
from enum import Enum

from torch import Tensor

from tandem.core.answer import Answer
from tandem.core.conductor import Watch
from tandem.core.engine.caches import CacheStack
from tandem.core.engine.drafting import MAX_NODES
from tandem.core.engine.drafts import Drafts
from tandem.core.engine.request import (
    Event,
    Failed,
    Finished,
    Generate,
    PrefillProgress,
    Stats,
    TokenLogprob,
)
from tandem.core.engine.sampling import Sampler
from tandem.core.engine.standing import Splice, Standing
from tandem.core.engine.steering import Steering
from tandem.core.engine.waits import Running
from tandem.core.plugin import (
    Block,
    DraftStart,
    DraftTree,
    ImageRows,
    Model,
    Moment,
    SafePoint,
    Sequence,
    TreeChooser,
    cut,
)


class Phase(Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


def prompt_keys(request: Generate) -> Seq[int]:
    """The prompt as cache tiers know it: token ids, and for the rows of a picture a negative number made of its id."""
    if not request.images:
        return request.prompt
    keys = list(request.prompt)
    for placed in request.images:
        rows = placed.picture.rows
        keys[placed.start : placed.start + rows] = [-1 - int(placed.picture.id[:15], 16)] * rows
    return keys


class Generation:
    """The state of one running request. `Round` moves it: `next_block`, a forward pass, `take`.

    Between two rounds the sequence has committed the prompt and the text so far, and `row` holds the logits of its
    last token. A round draws the next token (the root) from `row`, drafts below it, verifies, and commits the
    root with the drafted tokens that the model would have drawn itself.
    """

    def __init__(
        self,
        request: Generate,
        model: Model,
        *,
        prefill_chunk: int = 512,
        max_len: int | None = None,
        caches: CacheStack | None = None,
        drafts: Drafts | None = None,
        chooser: TreeChooser | None = None,
        watch: Watch | None = None,
        own_draft: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.request = request
        self.model = model
        hidden_prompt = sum(len(places) for places in request.hidden_prompt)
        self.stats = Stats(prompt_tokens=len(request.prompt), hidden_prompt_tokens=hidden_prompt)
        self.phase = Phase.PREFILL
        self.output: list[int] = []
        self.events: list[Event] = []
        """What happened since the events were last collected."""
        self.row: Tensor | None = None
        self.tree: DraftTree | None = None
        self.teaches = True
        """The tree is as the chooser gave it, and the chooser may learn from what becomes of it."""
        self.sampler = Sampler(request.sampling, request.prompt, model.tokenizer.vocab_size)
        self._eos = model.tokenizer.eos_ids
        thinking = request.thinking
        self.answer = Answer(
            model.tokenizer,
            request.stop,
            thinking,
            request.calls,
            hold=watch.holds if watch is not None and watch.wants(SafePoint.SP3) else None,
            masks=request.masks,
        )
        self.steering = Steering(self.answer, thinking, request.constraint() if request.constraint else None)
        self.chunk = prefill_chunk
        """Prompt tokens that one pass reads, at most; chunks end on this grid."""
        self._caches = caches if caches is not None and request.cache else None
        self._keys = prompt_keys(request)
        self._drafts = drafts if drafts is not None else Drafts()
        self._own = model.drafter() if own_draft else None
        self._chooser = chooser
        self._standing = Standing(self, watch) if watch is not None else None
        self.splices: deque[Splice] = deque()
        """What is written next."""
        self.hidden: list[range] = []
        """Places of the output that the client does not see."""
        self._hidden_tokens = 0
        self._clock = clock
        self._began = clock()
        self._prefilled = self._began
        self._max_len = min(max_len or model.caps.max_len, model.caps.max_len)
        self.sequence: Sequence = self._open_sequence()
        self.done = self.sequence.length
        """Prompt tokens committed so far."""
        self._drafts.open(DraftStart(self.sequence, request.keep_text, request.hidden_prompt))
        if request.sentence is not None:
            self.give_up(*request.sentence)
        elif self.done == len(request.prompt):
            self._begin_decoding()

    def _open_sequence(self) -> Sequence:
        shared = self.request.shared
        if shared is not None and shared.state is not None:
            sequence = self._new_sequence()
            snapshot, self.row = shared.state
            sequence.restore(snapshot)
            return sequence
        if self._caches is None:
            return self._new_sequence()
        sequence, source, rows = self._caches.resume(self._keys, self._new_sequence, self.model.caps.resume_rows)
        hidden = sum(len(range(places.start, min(places.stop, rows))) for places in self.request.hidden_prompt)
        self.stats = replace(self.stats, cached_tokens=rows, cache_source=source, hidden_cached_tokens=hidden)
        return sequence

    def _new_sequence(self) -> Sequence:
        """An empty sequence, of the full length: a cache tier may keep it for a request that goes on."""
        return self.model.new_sequence(self._max_len)

    # ------------------------------------------------------------------------------------------------ the round

    @property
    def reading(self) -> bool:
        """Its prompt is not read yet."""
        return self.phase is Phase.PREFILL

    def next_block(self, others: int = 0, nodes: int = MAX_NODES, chunk: int | None = None) -> Block | None:
        """The rows to run next, or None when the generation ended.

        `others` rows share the pass. At most `nodes` drafted nodes are among them, or `chunk` tokens of the prompt.
        """
        if self.phase is Phase.PREFILL:
            return self._prefill_block(chunk or self.chunk)
        if self.phase is Phase.DECODE:
            return self._decode_block(others, nodes)
        return None

    def take(self, block: Block, rows: Tensor) -> None:
        """The wanted logits of the block that `next_block` gave: walk them and commit."""
        if self.phase is Phase.PREFILL:
            self._take_prefill(rows, len(block.tokens))
        elif self.phase is Phase.DECODE:
            self._take_decode(rows, len(block.tokens))

    def _prefill_block(self, chunk: int) -> Block:
        prompt = self.request.prompt
        # Chunks end on one grid, wherever the prompt was resumed; shorter ones on one of their own between its lines.
        end = min(len(prompt), *(self.done - self.done % rows + rows for rows in (chunk, self.chunk)))
        last = end == len(prompt)
        return Block(
            self.sequence,
            prompt[self.done : end],
            logits=(end - self.done - 1,) if last else (),
            images=tuple(self._image_rows(self.done, end)),
        )

    def _image_rows(self, start: int, end: int) -> Iterator[ImageRows]:
        """The pictures, or parts of them, between two places of the prompt."""
        for placed in self.request.images:
            first, last = max(start, placed.start), min(end, placed.start + placed.picture.rows)
            if first < last:
                yield ImageRows(placed.picture, first - start, first - placed.start, last - first)

    def _take_prefill(self, rows: Tensor, count: int) -> None:
        prompt = self.request.prompt
        self.sequence.commit(range(count))
        self.done += count
        self.events.append(PrefillProgress(self.done, len(prompt)))
        whole = self.done == len(prompt)
        if self._caches and (whole or self.done % self.chunk == 0):
            self._caches.offer(Moment.GRID, self._keys[: self.done], self.sequence)
            if whole:
                self._caches.offer(Moment.PROMPT_END, self._keys, self.sequence)
        if whole:
            self.row = rows[0]
            if self.request.shared is not None:
                self.request.shared.state = self.sequence.snapshot(), self.row
            self._begin_decoding()

    def _begin_decoding(self) -> None:
        self.phase = Phase.DECODE
        self._prefilled = self._clock()
        self.stats = replace(self.stats, prefill_ms=(self._prefilled - self._began) * 1e3)
        self._tell_drafters(self.request.prompt)

    def _decode_block(self, others: int, nodes: int) -> Block | None:
        assert self.row is not None
        if not self.splices and (forced := self.steering.forced()):
            hidden = self._standing is not None and self._standing.closes_hidden(len(forced))
            self.splices.append(Splice(forced, hidden))
        if self.splices:
            return self._splice_block()
        if self.steering.complete:
            self._finish("stop", "constraint")
            return None
        root = self.sampler.draw(self.row, self.steering.mask(self.row))
        if root in self._eos:
            self._finish("stop", "eos")
            return None
        logprob = self.sampler.logprob(self.row, root)
        self.tree = self._draft(root, others, nodes)
        self._accept(root, logprob)
        if self.tree is None or self._ended_by_text():
            # Nothing to verify with it: the token goes out before the pass that reads it.
            return None if self._after_block(1) else Block(self.sequence, (root,), logits=(0,))
        tree = self.tree
        return Block(
            self.sequence,
            [root, *tree.tokens],
            [-1, *(parent + 1 for parent in tree.parents)],
            range(len(tree) + 1),
        )

    def _splice_block(self) -> Block | None:
        """Tokens that are not drawn but written: they are text at once, and one pass reads them."""
        self.tree = None
        splice = self.splices[0]
        count = min(len(splice.tokens), self.chunk, self.room)
        if not splice.hidden:
            count = min(count, self.request.max_tokens - self.written)
        tokens = splice.tokens[:count]
        if count == len(splice.tokens):
            self.splices.popleft()
        else:
            splice.tokens = splice.tokens[count:]
        if splice.hidden:
            self._accept_hidden(tokens)
        else:
            for token in tokens:
                self._accept(token)
            if self._after_block(count):
                return None
        return Block(self.sequence, tokens, logits=(count - 1,))

    def _take_decode(self, rows: Tensor, count: int) -> None:
        self.stats = replace(self.stats, rounds=self.stats.rounds + 1)
        if self.tree is None:
            self.sequence.commit(range(count))
            self.row = rows[0]
            return
        tree, accepted = self.tree, self._walk(self.tree, rows)
        self.sequence.commit((0, *(node + 1 for node in accepted)))
        self.row = rows[accepted[-1] + 1 if accepted else 0]
        self.stats = replace(
            self.stats,
            draft_tokens=self.stats.draft_tokens + len(tree),
            draft_accepted=self.stats.draft_accepted + len(accepted),
        )
        if self._chooser is not None and self.teaches:
            self._chooser.learn(tree, accepted)
        self._after_block(1 + len(accepted))

    def _walk(self, tree: DraftTree, rows: Tensor) -> list[int]:
        """Go down the verified tree along the tokens that the model draws itself; returns the accepted nodes.

        Row 0 belongs to the root, row i + 1 to node i. Each draw sees the text up to its row, so penalties, bias,
        masks and log-probabilities are those of plain decoding.
        """
        favourites = rows.argmax(dim=-1).tolist() if self.sampler.plain and not self.steering.constrained else None
        child = {(parent, token): i for i, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        accepted: list[int] = []
        node = -1
        while not self._ended_by_text() and self.steering.before_forced() > 0:
            row = rows[node + 1]
            token = favourites[node + 1] if favourites else self.sampler.draw(row, self.steering.mask(row))
            following = child.get((node, token))
            if following is None or token in self._eos:
                break
            self._accept(token, self.sampler.logprob(row, token))
            accepted.append(following)
            node = following
        return accepted

    # ----------------------------------------------------------------------------------------------- its parts

    def _tell_drafters(self, tokens: Seq[int]) -> None:
        """These tokens are part of the text now."""
        if self._own is not None:
            self._own.extend(tokens)
        self._drafts.extend(tokens)

    def _draft(self, root: int, others: int, nodes: int) -> DraftTree | None:
        left = min(self.request.max_tokens - self.written, self.room, self.steering.before_forced())
        limit = min(MAX_NODES, left - 1)
        if limit <= 0:
            return None
        self.teaches = True
        if self._own is not None and (own := self._own.propose(root, limit)):
            self.teaches = False
            return own  # certain, so it is taken whole
        if self._chooser is None or not self._drafts or nodes <= 0 or not self.output:
            return None  # the first token is waited for: it goes out at once, not with what a pass finds behind it
        context = self.sequence.length
        trees = self._drafts.propose(root, limit, self._chooser, context)
        tree = self._chooser.choose(trees, context, others) if trees else None
        if tree is None or len(tree) <= nodes:
            return tree
        self.teaches = False  # what was cut off might have been right
        return cut(tree, nodes)

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """A pass of these rows alone, with `context` rows committed before it, took this long."""
        if self._chooser is not None:
            self._chooser.observe(rows, context, seconds)

    @property
    def room(self) -> int:
        """Rows that the sequence can still take."""
        return self._max_len - self.sequence.length

    def _accept(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """The token is part of the text now."""
        self.output.append(token)
        self.sampler.push(token)
        self.steering.accept(token)
        self.events.extend(self.answer.feed(token, logprob))

    def _accept_hidden(self, tokens: Seq[int]) -> None:
        """These tokens are in the model's context and in nobody's view."""
        self.hidden.append(range(len(self.output), len(self.output) + len(tokens)))
        self._hidden_tokens += len(tokens)
        self.output.extend(tokens)
        for token in tokens:
            self.sampler.push(token)
        if self._own is not None:
            self._own.extend(tokens)
        self._drafts.extend(tokens, hidden=True)

    @property
    def written(self) -> int:
        """Tokens of the answer, hidden ones not counted."""
        return len(self.output) - self._hidden_tokens

    def _ended_by_text(self) -> bool:
        return self.answer.stopped is not None or self.written >= self.request.max_tokens

    def _after_block(self, count: int) -> bool:
        """Everything that follows an accepted block of `count` tokens; True when the generation is over."""
        self._tell_drafters(self.output[-count:])
        if self.answer.stopped is not None:
            self._finish("stop", "stop_string")
        elif self.written >= self.request.max_tokens or self.room < 1:
            self._finish("length", "max_tokens")
        elif self._standing is not None:
            self._standing.between_blocks(count)
        return self.phase is Phase.DONE

    # --------------------------------------------------------------------------------------------------- ending

    def _finish(self, reason: str, detail: str) -> None:
        self.events.extend(self.answer.end(cut=reason == "length"))
        if self._standing is not None and self._standing.at_end(reason, detail):
            return  # it goes on, or was ended there
        if reason == "stop" and self.answer.calls:
            reason = "tool_calls"
        self._close(Finished(reason, self.final_stats(), detail, self.answer.stopped))

    def give_up(self, task: str, text: str) -> None:
        """End the answer with a sentence; what is held or half written goes nowhere."""
        self.events.extend(self.answer.end(cut=True))
        self.start_over()
        if text:
            self.events.append(self.answer.add(text))
        self._close(Finished("stop", self.final_stats(), f"rule:{task}"))

    def start_over(self) -> None:
        """What waits at the gate goes nowhere: from now on the client's view and counts are without it."""
        if count := self.answer.waiting_tokens:
            self.hidden.append(range(len(self.output) - count, len(self.output)))
            self._hidden_tokens += count
        self.answer.again()

    def end_thinking(self) -> None:
        """Close the reasoning, if it is open, at the next block. Safe from any thread."""
        self.steering.end_thinking = True

    @property
    def repeatable(self) -> bool:
        """Its tokens follow from its request alone: no rule acted, and nobody closed the reasoning."""
        acted = bool(self.hidden) or (self._standing is not None and self._standing.acted)
        return not acted and not self.steering.end_thinking

    def end(self, reason: str) -> None:
        """Stop from outside: `abandoned` or `timeout`."""
        if self.phase is not Phase.DONE:
            self.events.extend(self.answer.end(cut=True))
            self._close(Finished(reason, self.final_stats(), reason))

    def fail(self, message: str) -> None:
        """The engine can't go on with this request."""
        if self.phase is not Phase.DONE:
            self._close(Failed(message, self.final_stats()), keep=False)

    @property
    def settled(self) -> bool:
        """Its last token waits for no drafts, and every safe point has seen it."""
        return self.phase is Phase.DECODE and self.tree is None

    @property
    def kind(self) -> str:
        """Requests of one kind write answers of like lengths."""
        thinking = self.request.thinking
        return "thinking" if thinking is not None and thinking.opened else "plain"

    def live(self) -> Running:
        """Where it is now. Safe from any thread."""
        now = self._clock()
        decoding = self.phase is Phase.DECODE
        read, reading = self.done - self.stats.cached_tokens, (self._prefilled if decoding else now) - self._began
        written, writing = self.written, now - self._prefilled if decoding else 0.0
        return Running(
            held_s=now - self._began,
            kind=self.kind,
            prefill_left=0 if decoding else len(self.request.prompt) - self.done,
            written=written,
            max_tokens=self.request.max_tokens,
            prefill_per_s=read / reading if read > 0 and reading > 0 else None,
            decode_per_s=written / writing if written > 1 and writing > 0 else None,
        )

    def final_stats(self) -> Stats:
        now = self._clock()
        decode = (now - self._prefilled) * 1e3 if self.phase is Phase.DECODE else 0.0
        prefill = self.stats.prefill_ms if self.phase is Phase.DECODE else (now - self._began) * 1e3
        return replace(
            self.stats,
            completion_tokens=self.written,
            hidden_tokens=self._hidden_tokens,
            acts=self._standing.acts if self._standing is not None else 0,
            reasoning_tokens=self.answer.reasoning_tokens,
            decode_ms=decode,
            prefill_ms=prefill,
        )

    def _close(self, last: Finished | Failed, keep: bool = True) -> None:
        adopted = keep and self._caches is not None and self._give_to_caches(self._caches)
        self.events.append(last)
        self.phase = Phase.DONE
        self._drafts.close()
        if self._own is not None:
            self._own.close()
        if not adopted:
            self.sequence.close()
        self.row = None

    def _give_to_caches(self, caches: CacheStack) -> bool:
        """Offer the sequence as it is now; True when a tier keeps it. What was read of a prompt is worth keeping too: a
        client that went away may ask again."""
        text = [*self._keys, *self.output][: self.sequence.length]
        if not text or len(text) < self.sequence.length:
            return False
        if self.phase is Phase.DECODE:
            caches.offer(Moment.GENERATION_END, text, self.sequence)
        return caches.adopt(text, self.sequence)

    def collect(self) -> list[Event]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events
