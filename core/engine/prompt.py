"""From messages to token ids, through the checkpoint's own chat template."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence as Seq
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.core.engine.request import PlacedPicture
from tandem.core.kernel import StartError
from tandem.core.plugin import Model

if TYPE_CHECKING:
    from tandem.core.plugin.vision import Picture

SEAM = "\ufdd0"
"""Stands inside a placeholder that a client wrote as text, so that it is none. Unicode reserves the character for such
use inside a program: no text holds it."""

HEADS = 64
"""Beginnings of conversations whose length is remembered."""

ONE_PICTURE = ({"role": "user", "content": [{"type": "image"}]},)


class PromptError(Exception):
    """The client's messages can't be rendered; the text is fit for a 400."""


class Prompt:
    """Renders one model's chat template and encodes the result. Thread-safe: it holds no state of a request.

    Raises StartError for a model whose template is no Jinja template.
    """

    def __init__(self, model: Model) -> None:
        self._tokenizer = model.tokenizer
        self._vars = dict(model.template_vars)
        self._template = _compile(model.template) if model.template else None
        self._picture = model.vision.token if model.vision is not None else None
        self._mark = ""
        if self._picture is not None:
            self._mark = self._find_mark(self._picture)
        self._seamed = self._mark[:1] + SEAM + self._mark[1:]
        self._length = lru_cache(HEADS)(lambda rendered: len(self.encode(rendered)))

    def chat(
        self, messages: Seq[Mapping[str, Any]], tools: Seq[Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> list[int]:
        """Ids of the conversation with the assistant's turn opened. `kwargs` are the template's own switches.

        Raises PromptError when there is no template, the template refuses, or nothing is rendered.
        """
        return self.ids(self.render(messages, tools, **kwargs))

    def render(
        self, messages: Seq[Mapping[str, Any]], tools: Seq[Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> str:
        """The conversation as the template writes it. A content part `{"type": "image"}` becomes the model's
        placeholder; the placeholder's text anywhere else is text, `as_text` of it."""
        if self._template is None:
            raise PromptError("this model has no chat template; use /v1/completions with a plain prompt")
        given = {**kwargs, "messages": list(messages), "tools": list(tools) if tools else None}
        names = {**self._vars, "add_generation_prompt": True, **(self._all_text(given) if self._mark else given)}
        try:
            return self._template.render(**names)
        except jinja2.TemplateError as error:
            raise PromptError(f"the chat template refused the messages: {error}") from error
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise PromptError(f"the chat template can't read the messages: {error}") from error

    def head(
        self, messages: Seq[Mapping[str, Any]], tools: Seq[Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> int | None:
        """How many ids of the conversation reach through its first user message, up to one at the seam; each picture
        counts once. None where no answer follows that message, or the template does not show it alone."""
        roles = [message["role"] for message in messages]
        first = roles.index("user") if "user" in roles else len(roles)
        if "assistant" not in roles[first:]:
            return None
        try:
            return self._length(self.render(messages[: first + 1], tools, **{**kwargs, "add_generation_prompt": False}))
        except PromptError:
            return None

    def text(self, text: str) -> list[int]:
        """Ids of a plain prompt. Raises PromptError when it holds no token."""
        return self._some(self._tokenizer.encode(text))

    def ids(self, rendered: str) -> list[int]:
        """Ids of what `render` returned: what a client wrote is never a placeholder. Raises PromptError when it holds
        no token."""
        return self._some(self.encode(rendered))

    def joined(self, pieces: Iterable[str | Seq[int]]) -> list[int]:
        """Ids of a rendered text in which some pieces are ids already; each text is encoded by itself.

        Raises PromptError when there is no token.
        """
        return self._some([token for p in pieces for token in (self.encode(p) if isinstance(p, str) else p)])

    def encode(self, rendered: str) -> list[int]:
        """The same as `ids`, for a piece of what `render` returned, which may be empty."""
        if not self._mark or self._seamed not in rendered:
            return self._tokenizer.encode(rendered)
        # Encoded apart, the two halves spell the placeholder and are none.
        first, *others = rendered.split(self._seamed)
        parts = [first + self._mark[:1], *(self._mark[1:] + part + self._mark[:1] for part in others)]
        parts[-1] = parts[-1].removesuffix(self._mark[:1])
        return [token for part in parts for token in self._tokenizer.encode(part)]

    def as_text(self, words: str) -> str:
        """A client's words as `render` gives them to the template."""
        return words.replace(self._mark, self._seamed) if self._mark else words

    def placed(self, ids: Seq[int], pictures: Seq[Picture]) -> tuple[list[int], tuple[PlacedPicture, ...]]:
        """The ids with each placeholder repeated for the rows of its picture, and where the pictures are.

        Raises PromptError when the template did not write one placeholder for each picture.
        """
        token = self._picture
        places = [place for place, each in enumerate(ids) if each == token] if token is not None else []
        if len(places) != len(pictures):
            raise PromptError(
                f"the chat template writes a placeholder for {len(places)} images, and the request shows "
                f"{len(pictures)}; it must write one for each"
            )
        prompt: list[int] = []
        placed: list[PlacedPicture] = []
        read = 0
        for place, picture in zip(places, pictures, strict=True):
            prompt += ids[read:place]
            placed.append(PlacedPicture(len(prompt), picture))
            prompt += [ids[place]] * picture.rows
            read = place + 1
        prompt += ids[read:]
        return prompt, tuple(placed)

    @staticmethod
    def reach(count: int, images: Seq[PlacedPicture]) -> int:
        """The first `count` ids, with each placeholder among them repeated as in `placed`."""
        for image in images:
            if image.start < count:
                count += image.picture.rows - 1
        return count

    def _all_text(self, value: Any) -> Any:
        """The value with no placeholder in any of its strings; what holds none stays the same object."""
        if isinstance(value, str):
            return self.as_text(value) if self._mark in value else value
        if isinstance(value, Mapping):
            return {self._all_text(key): self._all_text(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._all_text(item) for item in value]
        return value

    def _find_mark(self, token: int) -> str:
        """The placeholder's text: the shortest piece of a rendered picture that encodes to its id. Empty when the
        template shows no picture."""
        try:
            rendered = self.render(ONE_PICTURE)
        except PromptError:
            return ""
        encode = self._tokenizer.encode
        if token not in encode(rendered):
            return ""
        sizes = range(len(rendered) + 1)
        end = bisect_left(sizes, True, key=lambda size: token in encode(rendered[:size]))
        start = bisect_left(sizes, True, hi=end, key=lambda at: token not in encode(rendered[at:end])) - 1
        return rendered[start:end]

    def _some(self, ids: list[int]) -> list[int]:
        if not ids:
            raise PromptError("the prompt renders to no token")
        return ids


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise StartError(f"the model's chat template can't be used: line {error.lineno}: {error.message}") from error


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """Plain JSON; jinja2's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
