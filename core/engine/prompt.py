"""From messages to token ids, through the checkpoint's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Seq
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.core.plugin import Model


class PromptError(Exception):
    """The client's messages can't be rendered; the text is fit for a 400."""


class Prompt:
    """Renders one model's chat template and encodes the result. Thread-safe: it holds no state of a request."""

    def __init__(self, model: Model) -> None:
        self._tokenizer = model.tokenizer
        self._vars = dict(model.template_vars)
        self._template = _compile(model.template) if model.template else None

    def chat(
        self, messages: Seq[Mapping[str, Any]], tools: Seq[Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> list[int]:
        """Ids of the conversation with the assistant's turn opened. `kwargs` are the template's own switches.

        Raises PromptError when there is no template, the template refuses, or nothing is rendered.
        """
        return self.text(self.render(messages, tools, **kwargs))

    def render(
        self, messages: Seq[Mapping[str, Any]], tools: Seq[Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> str:
        """The conversation as the template writes it."""
        if self._template is None:
            raise PromptError("this model has no chat template; use /v1/completions with a plain prompt")
        names = {**self._vars, "add_generation_prompt": True, **kwargs, "messages": list(messages)}
        names["tools"] = list(tools) if tools else None
        try:
            return self._template.render(**names)
        except jinja2.TemplateError as error:
            raise PromptError(f"the chat template refused the messages: {error}") from error
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise PromptError(f"the chat template can't read the messages: {error}") from error

    def text(self, text: str) -> list[int]:
        """Ids of a plain prompt. Raises PromptError when it holds no token."""
        ids = self._tokenizer.encode(text)
        if not ids:
            raise PromptError("the prompt renders to no token")
        return ids


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """Plain JSON; jinja2's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
