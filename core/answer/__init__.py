"""From tokens to what the client reads: a chain of small filters, each pure and testable alone."""

from tandem.core.answer.chain import Answer
from tandem.core.answer.detokenizer import Detokenizer
from tandem.core.answer.reasoning import ReasoningSplit
from tandem.core.answer.stop import StopStrings

__all__ = ["Answer", "Detokenizer", "ReasoningSplit", "StopStrings"]
