"""Constraints on the answer: JSON Schema, regular expressions, choices and Lark grammars, as token masks.

The automata are llguidance's. On top of it stands the union of calls and document: where both are open, the row's own
favourite token, before any mask, picks the branch. A mask is a function of the text so far and the row alone, so drafts
change no token under a constraint either.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import llguidance
import numpy as np
import torch
from torch import Tensor

from tandem.core.plugin import Tokenizer

DEEPEST = 64
"""Levels that a schema may be nested."""
LARGEST = 200_000
"""Characters of JSON that a schema may have."""
BLANKS = r"[ \t\n]{0,24}"
"""White space between the tokens of a JSON document: enough to indent by, bounded, so that no answer is all blanks."""
LEADING = r"[ \t\n]{0,8}"
"""White space before the answer."""


class ConstraintError(Exception):
    """A constraint that can't be compiled. `place` is where in the client's object it is wrong (`properties.a`)."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class Constraint(Protocol):
    """The state of one answer's constraint."""

    def mask(self, row: Tensor) -> Tensor | None:
        """Which tokens may come next, bool `[vocab]`; None = all. `row` is the model's own float32 `[vocab]`."""
        ...

    def accept(self, token: int) -> None:
        """The token became part of the answer."""
        ...

    @property
    def complete(self) -> bool:
        """Nothing but the end may follow."""
        ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """Makes one constraint any number of times."""

    key: str
    """Recipes with the same key make constraints that allow the same answers, token by token."""
    make: Callable[[], Constraint]

    def __call__(self) -> Constraint:
        return self.make()


# ------------------------------------------------------------------------------------------------------ grammars


def json_schema_grammar(schema: Any) -> str:
    """A grammar for the documents that fit a JSON Schema. Raises ConstraintError naming the place."""
    check_schema(schema)
    return f"start: /{LEADING}/ %json {json.dumps(_with_blanks(_without_unknown_formats(schema)))}"


def json_object_grammar() -> str:
    """Any JSON object."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(pattern: str) -> str:
    """The texts that match a whole regular expression (Rust's syntax, without look-around)."""
    return llguidance.LLMatcher.grammar_from_regex(pattern)


def choice_grammar(choices: Seq[str]) -> str:
    """One of these texts exactly."""
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)


def check_schema(schema: Any) -> None:
    """Refuse what would compile into nonsense or take unbounded time: depth, size, and `$ref` circles that never
    reach a value."""
    if not isinstance(schema, Mapping | bool):
        raise ConstraintError("a schema is an object or a boolean")
    stack: list[tuple[Any, str, int]] = [(schema, "", 0)]
    size = 0
    while stack:
        node, place, depth = stack.pop()
        if depth > DEEPEST:
            raise ConstraintError(f"the schema is nested more than {DEEPEST} levels deep", place.split(".")[0])
        size += 1
        if isinstance(node, Mapping):
            stack += [(value, f"{place}.{key}" if place else str(key), depth + 1) for key, value in node.items()]
        elif isinstance(node, list):
            stack += [(value, f"{place}[{i}]", depth + 1) for i, value in enumerate(node)]
        elif isinstance(node, str):
            size += len(node)
        if size > LARGEST:
            raise ConstraintError(f"the schema has more than {LARGEST:,} characters and nodes")
    if isinstance(schema, Mapping):
        _check_circles(schema)


def _check_circles(root: Mapping[str, Any]) -> None:
    """A `$ref` that leads back to itself through nothing but references and unions describes no value."""

    def targets(node: Any) -> list[tuple[str, Any]]:
        if not isinstance(node, Mapping):
            return []
        out = [(node["$ref"], _resolve(root, node["$ref"]))] if isinstance(node.get("$ref"), str) else []
        for word in ("allOf", "anyOf", "oneOf"):
            if isinstance(node.get(word), list):
                out += [target for part in node[word] for target in targets(part)]
        return out

    for reference, _ in _references(root):
        seen: set[str] = set()
        waiting = [reference]
        while waiting:
            current = waiting.pop()
            for following, _ in targets(_resolve(root, current)):
                if following == reference:
                    raise ConstraintError(f"{reference} refers to itself without ever reaching a value", reference)
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)


def _references(node: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    stack = [node]
    while stack:
        here = stack.pop()
        if isinstance(here, Mapping):
            if isinstance(here.get("$ref"), str):
                found.append((here["$ref"], here))
            stack += list(here.values())
        elif isinstance(here, list):
            stack += here
    return found


def _resolve(root: Mapping[str, Any], reference: str) -> Any:
    """The part of the schema that a local reference names; raises ConstraintError when there is none."""
    if not reference.startswith("#"):
        raise ConstraintError(f"the reference {reference} is not inside this schema", reference)
    node: Any = root
    for word in reference[1:].strip("/").split("/") if reference.strip("#/") else []:
        word = word.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and word in node:
            node = node[word]
        elif isinstance(node, list) and word.isdigit() and int(word) < len(node):
            node = node[int(word)]
        else:
            raise ConstraintError(f"the reference {reference} leads nowhere", reference)
    return node


KNOWN_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
"""The `format`s that llguidance enforces."""
VALUES = frozenset(("const", "enum", "default", "examples"))
"""Keywords that hold values, not schemas."""


def _without_unknown_formats(schema: Any) -> Any:
    """The schema without the formats that nothing here can enforce (`int32`, `uri-reference`, ...): by the standard a
    format is an annotation, so it does not make a schema unusable."""
    if isinstance(schema, list):
        return [_without_unknown_formats(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value if key in VALUES else _without_unknown_formats(value)
        for key, value in schema.items()
        if not (key == "format" and isinstance(value, str) and value not in KNOWN_FORMATS)
    }


def _with_blanks(schema: Any) -> Any:
    """The schema with bounded white space, in llguidance's own extension key."""
    if not isinstance(schema, Mapping):
        return schema
    return {**schema, "x-guidance": {"whitespace_flexible": True, "whitespace_pattern": BLANKS}}


# ------------------------------------------------------------------------------------------------------- matching


class Grammars:
    """Compiles grammars for one tokenizer. Thread-safe; the last ones are kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._guide: llguidance.LLTokenizer | None = None
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def single(self, grammar: str) -> Constraint:
        """A fresh constraint. Raises ConstraintError with llguidance's words when the grammar is no good."""
        return GrammarConstraint(self._compiled(grammar).deep_copy(), self._tokenizer.vocab_size)

    def calls_or_document(self, calls: str, document: str, opener: str) -> Constraint:
        """Either branch, whichever the model begins. `opener` is how a call begins (`<tool_call>`)."""
        return BranchConstraint(self.single(calls), self.single(document), opener, self._tokenizer.token_bytes)

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(self._llguidance(), grammar, log_level=0)
        if matcher.is_error():
            raise ConstraintError(_first_line(matcher.get_error()))
        return matcher

    def _llguidance(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._guide is None:
                wrapper = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer))
                eos = sorted(self._tokenizer.eos_ids)
                self._guide = llguidance.LLTokenizer(wrapper, n_vocab=self._tokenizer.vocab_size, eos_token=eos)
            return self._guide


class _Vocabulary:
    """A tokenizer as llguidance reads it: bytes of every token, control tokens marked by a byte that is no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = None
        texts = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.tokens = [text or b"\xff[%d]" % token for token, text in enumerate(texts)]
        self.special_token_ids = [token for token, text in enumerate(texts) if not text]
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "the grammar can't be compiled")


class GrammarConstraint:
    """One grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab = vocab_size
        self._bits = np.zeros((vocab_size + 31) // 32, dtype=np.int32)
        self._mask: Tensor | None = None

    def mask(self, row: Tensor) -> Tensor | None:
        if self._mask is None:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._vocab)
            self._mask = torch.from_numpy(bits.view(np.bool_)).to(row.device)
        return self._mask

    def accept(self, token: int) -> None:
        self._mask = None
        self._matcher.consume_token(token)

    @property
    def complete(self) -> bool:
        return self._matcher.is_stopped()


class BranchConstraint:
    """Calls or a document. Leading blanks leave the choice open; the first other favourite token decides.

    Masking the plain union would let the favourite's replacement decide: a model about to write a code fence, which
    neither branch allows, might be pushed into a call.
    """

    def __init__(
        self, calls: Constraint, document: Constraint, opener: str, token_bytes: Callable[[int], bytes]
    ) -> None:
        self._calls, self._document = calls, document
        self._opener = opener.encode()
        self._bytes = token_bytes
        self.branch: str | None = None
        """`calls` or `document` once it is decided."""
        self._taken: Constraint | None = None

    def mask(self, row: Tensor) -> Tensor | None:
        if self._taken is not None:
            return self._taken.mask(row)
        favourite = self._bytes(int(row.argmax())).lstrip()
        calls, document = self._calls.mask(row), self._document.mask(row)
        if not favourite and self._bytes(int(row.argmax())):
            return document if calls is None or document is None else calls | document
        is_call = self._opener.startswith(favourite) if favourite else False
        return calls if is_call or (favourite and favourite.startswith(self._opener)) else document

    def accept(self, token: int) -> None:
        if self._taken is not None:
            self._taken.accept(token)
            return
        written = self._bytes(token).lstrip()
        self._calls.accept(token)
        self._document.accept(token)
        if written:
            is_call = self._opener.startswith(written) or written.startswith(self._opener)
            self.branch = "calls" if is_call else "document"
            self._taken = self._calls if is_call else self._document

    @property
    def complete(self) -> bool:
        return self._taken is not None and self._taken.complete
