"""The contracts of the decision side (preview): classifier stages, decision models and narrators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tandem.core.plugin.host import Host
from tandem.core.plugin.part import Options, Part


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn to classify."""

    messages: tuple[Mapping[str, Any], ...]
    classes: tuple[str, ...]
    """The class names to choose among."""


@dataclass(frozen=True, kw_only=True)
class Stage(Part):
    """A classifier stage: `build(options, host)` returns `classify(turn)`.

    `classify` answers with the whole distribution, class name -> probability (they add up to 1), or None when the
    stage has nothing to say about the turn.
    """

    build: Callable[[Options, Host], Callable[[Turn], Mapping[str, float] | None]]


@dataclass(frozen=True, slots=True)
class Question:
    """One question to a decision model."""

    kind: str
    """`choice` (one of several labels), `score` (an ordered scale) or `noul` (true or false)."""
    instructions: str
    criteria: Mapping[str, str] = field(default_factory=dict)
    """Label -> its description, in the order the model reads them."""


class DecisionModel(Protocol):
    """A loaded decision model."""

    def decide(self, state: Any, questions: Mapping[str, Question]) -> Mapping[str, Mapping[str, float]]:
        """For each question id the probability of each label; `state` is text or JSON."""
        ...


@dataclass(frozen=True, kw_only=True)
class Decider(Part):
    """A decision model: `build(options)` returns the loaded `DecisionModel`."""

    build: Callable[[Options], DecisionModel]


@dataclass(frozen=True, kw_only=True)
class Narrator(Part):
    """A writer of state lines: `build(options, host)` returns `line(kind, facts)`.

    `line` gives the sentence that tells the reader about a state (`queue`, `prefill`, ...), or None for silence.
    """

    build: Callable[[Options, Host], Callable[[str, Mapping[str, Any]], str | None]]
