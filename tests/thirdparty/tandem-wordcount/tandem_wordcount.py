"""A decision model without weights: the label whose description shares the most words with the state."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from tandem.core.plugin import Decider, Options, Question, hookimpl, option

TANDEM_API = ">=0.2,<0.3"


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


class Overlap:
    """Probabilities are a softmax over the number of shared words, `sharpness` nats a word."""

    def __init__(self, sharpness: float) -> None:
        self.sharpness = sharpness

    def decide(self, state: Any, questions: Mapping[str, Question]) -> Mapping[str, Mapping[str, float]]:
        said = words(state if isinstance(state, str) else json.dumps(state, ensure_ascii=False))
        return {name: self.answer(said, question) for name, question in questions.items()}

    def answer(self, said: set[str], question: Question) -> dict[str, float]:
        labels = dict(question.criteria)
        if not labels and question.kind == "noul":
            # Half of the statement's words must be there for it to be as likely as not.
            stated = words(question.instructions)
            shared = {"false": len(stated) / 2, "true": float(len(stated & said))}
        else:
            shared = {label: float(len(words(f"{label} {text}") & said)) for label, text in labels.items()}
        weights = {label: math.exp(self.sharpness * count) for label, count in shared.items()}
        return {label: weight / sum(weights.values()) for label, weight in weights.items()}


def build(options: Options) -> Overlap:
    return Overlap(options["sharpness"])


@hookimpl
def tandem_deciders() -> list[Decider]:
    return [
        Decider(
            name="wordcount",
            doc="Answers with the label whose description shares the most words with the state.",
            options={"sharpness": option("number", "Nats that one shared word weighs.", 1.0, exclusiveMinimum=0)},
            build=build,
        )
    ]
