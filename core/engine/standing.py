"""What is done at a generation's safe points: the rules are asked, and what they want happens to the answer."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tandem.core.answer.gate import HeldCall
from tandem.core.conductor import Act, Watch
from tandem.core.engine.safe_points import LiveBlock, call_events, call_reader, finish_event
from tandem.core.plugin import Action, ActionKind, AskError, Block, FinishEvent, SafePoint

if TYPE_CHECKING:
    from tandem.core.engine.generation import Generation


@dataclass(slots=True)
class Splice:
    """Tokens that are written into the text without being drawn."""

    tokens: Seq[int]
    hidden: bool
    """The client does not see them."""


class Standing:
    """One generation's safe points. What is to be written next becomes a splice of the generation."""

    def __init__(self, generation: Generation, watch: Watch) -> None:
        self._generation = generation
        self._watch = watch
        self._hidden = generation.request.hidden
        if generation.request.calls is not None:
            watch.read_calls = call_reader(generation.request.calls)

    @property
    def acts(self) -> int:
        """What was done so far."""
        return self._watch.acts

    @property
    def acted(self) -> bool:
        """Something was done that changed the answer."""
        return self._watch.acted

    # --------------------------------------------------------------------------------------------- the safe points

    def between_blocks(self, count: int) -> None:
        """SP1: the rules look at the block of `count` tokens that was just accepted."""
        if not self._watch.wants(SafePoint.SP1):
            return
        generation = self._generation
        event = LiveBlock(generation.answer, generation.output, count, generation.written, generation.events)
        act = self._watch.at(SafePoint.SP1, event)
        if act is None:
            return
        if act.action.kind is ActionKind.GIVE_UP:
            self._give_up(act, SafePoint.SP1, event)
        elif self._may_write(act, SafePoint.SP1, event, self._closing(act.action.text)):
            generation.events.extend(generation.answer.close_reasoning())

    def at_end(self, reason: str, detail: str) -> bool:
        """SP2, then SP3 for calls that are held. True when the generation goes on, or was ended with a sentence."""
        if self._watch.wants(SafePoint.SP2):
            event = finish_event(self._generation.answer, self._generation.written, reason, detail)
            act = self._watch.at(SafePoint.SP2, event, self._ask)
            if act is not None and act.action.kind is ActionKind.GIVE_UP:
                self._give_up(act, SafePoint.SP2, event)
                return True
            if act is not None and self._go_on(act, event):
                return True
        return self._check_calls(detail)

    def closes_hidden(self, count: int) -> bool:
        """The reasoning's budget is spent, and `count` tokens are about to close it. True when they are to be hidden:
        the client's view of the reasoning is closed then."""
        generation, thinking = self._generation, self._generation.request.thinking
        if thinking is None or not thinking.hide_closing:
            return False
        spent = generation.answer.reasoning_tokens
        generation.events.extend(generation.answer.close_reasoning())
        action = Action.close_reasoning("", f"budget({spent})")
        self._watch.note(thinking.hide_closing, action, count, position=generation.written, reasoning_tokens=spent)
        return True

    # --------------------------------------------------------------------------------------------- what they want

    def _remind(self, text: str) -> bool:
        """Drop the calls and put `text` to the model as their result; False when there is no way or no room."""
        tokens = self._hidden.result(text) if self._hidden is not None else None
        if tokens is None or not self._has_room(len(tokens)):
            return False
        self._generation.start_over()
        self._generation.splices.append(Splice(tokens, hidden=True))
        return True

    def _give_up(self, act: Act, point: SafePoint, event: LiveBlock | FinishEvent) -> None:
        self._watch.done(act, point, event)
        self._generation.give_up(act.post.task.name, act.action.text)

    def _go_on(self, act: Act, event: FinishEvent) -> bool:
        """The end token is dropped, and the model reads something hidden instead. False when that can't be."""
        generation = self._generation
        if not event.ended:
            self._watch.undone(act, SafePoint.SP2, "ended", event)
            return False
        then = str(act.action.detail.get("then", ""))
        tokens: Seq[int] | None = None
        if event.inside:
            tokens = self._closing(act.action.text)
        elif then:
            tokens = ()
        elif self._hidden is not None and not generation.steering.constrained:  # a grammar has ended with the answer
            tokens = self._hidden.user(act.action.text)
        behind = generation.model.tokenizer.encode(then) if then else ()
        if not self._may_write(act, SafePoint.SP2, event, tokens, behind):
            return False
        generation.start_over()
        generation.events.extend(generation.answer.close_reasoning())
        return True

    def _check_calls(self, detail: str) -> bool:
        """SP3: every held call is looked at before any goes out. True when they do not."""
        generation = self._generation
        items = generation.answer.at_gate
        if not items:
            return False
        final = detail != "eos" or generation.steering.constrained
        problem = {"stop_string": "cut_by_stop", "max_tokens": "cut_by_limit"}.get(detail, "unreadable")
        events = call_events(items, self._watch.request.tools, final=final, problem=problem)
        if not generation.answer.holds:  # they have gone out, and can only be looked at
            self._watch.look(events)
            return False
        verdict = self._watch.calls(events, self._remind)
        if verdict.again:
            return True
        if verdict.give_up is not None:
            generation.give_up(verdict.by, verdict.give_up)
            return True
        repairs = {
            item.index: verdict.repairs[place]
            for place, item in enumerate(items)
            if place in verdict.repairs and isinstance(item, HeldCall)
        }
        generation.events.extend(generation.answer.release(repairs))
        return False

    # -------------------------------------------------------------------------------------------------- its parts

    def _may_write(
        self,
        act: Act,
        point: SafePoint,
        event: LiveBlock | FinishEvent,
        tokens: Seq[int] | None,
        then: Seq[int] = (),
    ) -> bool:
        """Write hidden tokens next, and `then` for the client to read; False when there is no way or no room."""
        if tokens is None or not self._has_room(len(tokens), len(then)):
            self._watch.undone(act, point, "no way" if tokens is None else "no room", event)
            return False
        self._watch.done(act, point, event, tokens=len(tokens))
        if tokens:
            self._generation.splices.append(Splice(tokens, hidden=True))
        if then:
            self._generation.splices.append(Splice(then, hidden=False))
        return True

    def _has_room(self, hidden: int, shown: int = 0) -> bool:
        """Whether so many tokens fit, and another one behind them."""
        generation = self._generation
        return hidden + shown + 1 < generation.room and generation.written + shown < generation.request.max_tokens

    def _closing(self, text: str) -> Seq[int] | None:
        """The tokens of a last thought; the closing tag is added where it is missing."""
        thinking = self._generation.request.thinking
        if thinking is None or not self._generation.answer.reasoning:
            return None
        closer = thinking.tags[1]
        whole = text if closer in text else f"{text.rstrip()}\n{closer}"
        return self._generation.model.tokenizer.encode(f"{whole.rstrip()}\n\n")

    def _ask(self, question: str, options: Seq[str]) -> list[float]:
        """Put a question to the model where the sequence stands. The rows of its pass are never committed, so the
        sequence is afterwards what it was. Raises AskError."""
        generation = self._generation
        tokens = self._hidden.user(question) if self._hidden is not None else None
        if tokens is None:
            raise AskError("the chat template has no place for a question")
        if len(tokens) + 1 > generation.room:
            raise AskError("there is no room for a question")
        first = [generation.model.tokenizer.encode(option)[0] for option in options]
        if len(set(first)) != len(first):
            raise AskError("two options begin with the same token")
        with torch.inference_mode():
            [rows] = generation.model.forward([Block(generation.sequence, tokens, logits=(len(tokens) - 1,))])
            generation.sequence.commit(())
            odds: list[float] = rows[0].float()[torch.tensor(first)].softmax(dim=0).tolist()
        return odds
