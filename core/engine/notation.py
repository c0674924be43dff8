"""How the served model writes its reasoning and its calls: the format that fits its template."""

from __future__ import annotations

import traceback
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from tandem.core.engine.constraint import Constraint, Grammars
from tandem.core.engine.request import Calls, Thinking
from tandem.core.kernel import Platform
from tandem.core.plugin import AnswerFormat, Format, Model, Tool

CLOSING_WORDS = "\n\nThat is all the thinking there is room for; now the answer.\n"
"""Written in front of the closing tag when a thinking budget is spent."""


@dataclass(frozen=True, slots=True)
class Notation:
    """One model's way of writing. Without a format everything that it writes is text."""

    name: str
    format: AnswerFormat | None
    tags: tuple[str, str] | None
    """The reasoning tags; None for a model whose template knows none."""
    closing: tuple[int, ...]
    """The tokens that close the reasoning when its budget is spent."""
    grammars: Grammars

    def opens(self, prompt: str) -> bool:
        """Whether a rendered prompt ends inside the reasoning."""
        return self.tags is not None and prompt.rstrip().endswith(self.tags[0])

    def thinking(self, prompt: str, budget: int | None, *, may_open: bool = True) -> Thinking | None:
        """How the answer to this prompt reasons. `may_open` False: only if the prompt has opened the block."""
        if self.tags is None:
            return None
        opened = self.opens(prompt)
        if not opened and not may_open:
            return None
        return Thinking(self.tags, opened, budget, self.closing)

    def calls(self, tools: Seq[Tool], *, wanted: bool, limit: int | None) -> Calls | None:
        """How calls are read out of the answer; None for a format without any."""
        form = self.format
        if form is None or form.opener is None:
            return None
        return Calls(lambda: form.parser(tools), wanted, limit, form.opener)

    def call_constraint(self, tools: Seq[Tool], parallel: bool) -> str | None:
        """The grammar of calls of these tools; None when the format has none."""
        return self.format.grammar(tools, parallel) if self.format is not None else None

    def either(self, calls: str, document: str) -> Constraint:
        """Calls or document, as the model begins."""
        assert self.format is not None
        assert self.format.opener is not None
        return self.grammars.calls_or_document(calls, document, self.format.opener)


def notation_of(platform: Platform, model: Model, wanted: str = "auto") -> Notation:
    """The first format of the manifest that fits the model's template, or the one named `wanted`.

    Raises ValueError when `wanted` names a format that is not active.
    """
    template = model.template or ""
    parts = {active.name: active.part for active in platform.active("formats")}
    built = dict(platform.build("formats"))
    if wanted != "auto" and wanted not in built:
        raise ValueError(f"the format `{wanted}` is not active; active are: {', '.join(sorted(built)) or 'none'}")
    names = [wanted] if wanted != "auto" else [name for name in built if _fits(platform, name, parts[name], template)]
    form: AnswerFormat | None = built[names[0]] if names else None
    tags = form.thinking if form is not None else None
    if tags is not None and tags[0] not in template:
        tags = None
    closing = tuple(model.tokenizer.encode(f"{CLOSING_WORDS}{tags[1]}\n\n")) if tags else ()
    return Notation(names[0] if names else "none", form, tags, closing, Grammars(model.tokenizer))


def _fits(platform: Platform, name: str, part: Format, template: str) -> bool:
    try:
        return bool(part.fits(template))
    except Exception as error:
        platform.fail("formats", name, traceback.format_exception_only(error)[-1].strip())
        return False
