"""From tokens to what the client reads: a chain of small filters, each pure and testable alone."""

from tandem.core.answer.calls import CallFilter
from tandem.core.answer.chain import Answer
from tandem.core.answer.detokenizer import Detokenizer
from tandem.core.answer.mask import SecretMask
from tandem.core.answer.reasoning import ReasoningSplit
from tandem.core.answer.stop import StopStrings
from tandem.core.answer.stray import StrayClose

__all__ = ["Answer", "CallFilter", "Detokenizer", "ReasoningSplit", "SecretMask", "StopStrings", "StrayClose"]
